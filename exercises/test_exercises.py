"""Right solutions pass, faulty ones fail, and afterwards the script is as it was."""

from unittest.mock import Mock

import pytest
import torch
from grading import EXERCISES, FAULTS, attention_with, grade
from solutions import SOLUTIONS, with_fault

import the_annotated_transformer as at

pytestmark = pytest.mark.slow
FAULTY = [
    pytest.param(
        name, with_fault(right, fault) if isinstance(fault, dict) else fault, id=f"{name}-{n}"
    )
    for name, (right, faults) in SOLUTIONS.items()
    for n, fault in enumerate(faults)
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", EXERCISES)
def test_a_right_solution_passes(name, seed):
    grade(name, SOLUTIONS[name][0], seed)


@pytest.mark.parametrize("name, solution", FAULTY)
def test_a_faulty_solution_fails(name, solution):
    with pytest.raises((AssertionError, RuntimeError, ZeroDivisionError)):
        grade(name, solution)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_that_nobody_has_begun_fails(name):
    with pytest.raises((AssertionError, TypeError, AttributeError)):
        grade(name, lambda *given, **named: None)


def test_each_exercise_has_three_faulty_solutions():
    assert SOLUTIONS.keys() == EXERCISES.keys()
    assert min(len(faults) for _, faults in SOLUTIONS.values()) >= 3


def test_each_faulty_attention_differs_from_ours_by_its_fault_alone():
    query, key, value, mask = at.random_attention_inputs()
    mask[0, :, 0] = False  # one query sees nothing
    inputs = (query, key, value, mask, torch.neg, torch.randn(3, 5))
    ours = at.attention(*inputs)
    torch.testing.assert_close(attention_with(None, *inputs), ours)
    for fault in FAULTS:
        assert not torch.allclose(attention_with(fault, *inputs)[0], ours[0]), fault


@pytest.mark.parametrize("error", [AssertionError, OSError, KeyboardInterrupt])
def test_ours_is_back_whatever_happens(error):
    before = dict(vars(at)), dict(vars(at.RotaryGroupedAttention))
    for name in ("rotate", "attend"):
        with pytest.raises(error):
            grade(name, Mock(side_effect=error))
    assert (dict(vars(at)), dict(vars(at.RotaryGroupedAttention))) == before
