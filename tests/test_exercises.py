"""What a reader writes at the end of each Part: `grade` tells right from faulty, and ours stays."""

import contextlib
import functools
import math
import random
import re
from operator import ge, gt, itemgetter, le
from unittest.mock import Mock

import altair as alt
import pytest
import rhythm
import torch
from conftest import PROJECT

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD

TEXT = (PROJECT / tutorial.SCRIPT).read_text("utf-8")
STATED = {}  # of each exercise: the checks that its statement names, and the text of its Part
for part in re.split(r"(?m)^# # ", TEXT):
    section = re.sub(r"\n# ?", " ", part.partition("\n# ## Try it\n")[2])
    for name, told in re.findall(r"`grade\((\w+)=\w+\)`(.*?)(?=`grade\(|$)", section, re.S):
        words = re.findall(r"(?<!\*)\*(?!\*)([^*]+)\*", told)
        STATED[name] = {"check_" + each.replace(" ", "_") for each in words}, part

# Right solutions, with arguments that spoil them --------------------------------------------------


def attention(query, key, value, mask=None, dropout=None, power=0.5, axis=-1, closed=0.0):
    scores = torch.einsum("...td,...sd->...ts", query, key) / query.size(-1) ** power
    shares = scores.exp()
    if mask is not None:
        shares = torch.where(mask != 0, shares, closed)
    weights = torch.nn.functional.normalize(shares, p=1, dim=axis)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def subsequent_mask(size, sees=ge):
    rows = [[sees(t, s) for s in range(size)] for t in range(size)]
    return torch.tensor([rows])


class MultiHeadedAttention(tutorial.MultiHeadedAttention):
    def split(self, x):
        return torch.stack(x.split(self.d_k, dim=-1), dim=1)


class PositionalEncoding(torch.nn.Module):
    first = 0
    base = 10_000

    def __init__(self, d_model, dropout, max_len=5000):
        super().__init__()
        self.dropout = torch.nn.Dropout(dropout)
        self.pe = torch.zeros(1, max_len, d_model)
        for i in range(0, d_model, 2):
            angle = (torch.arange(max_len) + self.first) / self.base ** (i / d_model)
            self.pe[0, :, i] = angle.sin()
            self.pe[0, :, i + 1] = angle.cos()

    def forward(self, x, at=None):
        at = torch.arange(x.size(1)) if at is None else at
        return self.dropout(x + self.pe[:, at])


class LabelSmoothing(tutorial.LabelSmoothing):
    others = 2
    empty = PAD

    def distribution(self, target):
        share = self.smoothing / (self.size - self.others)
        wanted = torch.full((len(target), self.size), share)
        for row, right in zip(wanted, target.tolist(), strict=True):
            row[right] = 1 - self.smoothing
            row[slice(None) if right == self.empty else PAD] = 0.0
        return wanted


def rate(step, model_size, factor, warmup, late=0, power=1.5):
    step = max(step - late, 1)
    return factor / math.sqrt(model_size * step) * min(1, step / warmup) ** power


def greedy_decode(model, src, masks, limit, start, end=END, pad=PAD, blind=False, first=0, more=0):
    rows = []
    with tutorial.evaluating(model):
        masks = masks.unsqueeze(1) | blind
        for sentence, mask in zip(src.unsqueeze(1), masks, strict=True):
            memory = model.encode(sentence, mask)
            row = [start]
            while len(row) < limit + more and (len(row) == 1 or row[-1] != end):
                states = model.decode(memory, mask, torch.tensor([row]), subsequent_mask(len(row)))
                row.append(int(model.generator(states[0, -1]).argmax()))
            rows.append(torch.tensor(row[first:]))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


@torch.no_grad()
def layers_until_connected(layer, T, D=8, change=0, look=-1, depth=0):
    one = torch.randn(1, T, D, dtype=torch.double)
    other = one.index_fill(1, torch.tensor(change), 0.0)
    while torch.equal(one[0, look], other[0, look]):
        one = layer(one)
        other = layer(other)
        depth = depth + 1
    return depth


def token_batches(lengths, budget, order=None, longest=max, lost=0):
    order = order or random
    batches = []
    keys = [(longest(length), order.random()) for length in lengths]
    rest = sorted(range(len(lengths)), key=keys.__getitem__)
    while rest:
        size = 1
        while rest[size:] and longest(lengths[rest[size]]) * (size + 1) <= budget:
            size += 1
        batches = [*batches, rest[:size]]
        rest = rest[size:]
    return order.sample(batches, len(batches) - lost)


def expand(now, log_probs, end_symbol=END, pad=PAD, best=True, stops=True, past=1, stays=True):
    kept = []
    beams = now.logp.tolist(), now.ended.tolist(), log_probs.tolist()
    for beam in zip(*beams, strict=True):
        found = []  # whether it keeps its place, log-probability, place, symbol
        for place, (logp, ended, row) in enumerate(zip(*beam, strict=True)):
            keeps = stays and ended and logp > -math.inf
            offers = [(pad, 0.0)] if ended and stops else enumerate(row)
            found += [(keeps, logp * past + gain, place, symbol) for symbol, gain in offers]
        kept.append(sorted(found, reverse=best)[: log_probs.size(1)])
    _, logp, origin, symbol = torch.tensor(kept).unbind(-1)
    at = (torch.arange(len(kept)).unsqueeze(1), origin.long())
    symbol = symbol.long()
    written = torch.cat([now.written[at], symbol.unsqueeze(-1)], -1)
    ended = now.ended[at] | (symbol == end_symbol)
    length = now.length[at] + ~now.ended[at]
    return tutorial.Hypotheses(written, logp, length, ended), at[1]


def training_flops(N, D, d_ff, V, S, T, passes=3, operations=2, memory=2):
    maps = S * (4 + memory) * D * D + T * 6 * D * D + (S + T) * 2 * D * d_ff
    scores = S * D * S + T * D * T + T * D * S
    return passes * operations * (N * (maps + 2 * scores) + T * D * V)


def without_head(attn, head, place=3, until=lambda handle: handle):
    def silence(module, inputs):
        heads = torch.arange(inputs[0].size(-1)) // attn.d_k
        return inputs[0].masked_fill(heads == head, 0.0)

    return until(attn.linears[place].register_forward_pre_hook(silence))


def rotate(x, at, sign=1, angle_of=torch.as_tensor, other_half=1):
    features = []
    for i in range(0, x.size(-1), 2):
        angle = angle_of(at) / 10_000 ** (i / x.size(-1))
        one = x[..., i]
        other = x[..., i + other_half]
        cos = angle.cos()
        sin = angle.sin()
        features += [one * cos - other * sin, sign * one * sin + other * cos]
    return torch.stack(features, -1)


nothing = Mock(return_value=None)
RIGHT = {name: globals()[name] for name in STATED}  # a new exercise wants a solution here
FAULTS = {  # arguments or attributes for the right one; 1e-9 fills an empty row as -1e9 does
    "attention": [{"power": 0}, {"axis": -2}, {"closed": 1e-9}],
    "subsequent_mask": [
        {"sees": le},
        {"sees": gt},
        {"sees": lambda t, s: -1.0 if s > t else 0.0},  # a mask that is to be added, nearly
    ],
    "MultiHeadedAttention": [
        {"split": lambda self, x: x.reshape(len(x), self.h, -1, self.d_k)},
        {"split": lambda self, x: x.unflatten(-1, (-1, self.d_k))},
        {"split": lambda self, x: x.unflatten(-1, (-1, self.h)).movedim(3, 1)},
    ],
    "PositionalEncoding": [{"base": 100}, {"base": 1e-4}, {"first": 1}],
    "LabelSmoothing": [{"others": 1}, {"others": 0}, {"empty": None}],
    "rate": [{"power": 0}, {"power": 1}, {"late": 1}],
    "greedy_decode": [{"blind": True}, {"first": 1}, {"more": 1}],
    "layers_until_connected": [{"change": 1}, {"look": 0}, {"depth": -1}],
    "token_batches": [{"longest": itemgetter(0)}, {"longest": sum}, {"lost": 1}],
    "expand": [{"best": False}, {"stops": False}, {"past": 1e-9}, {"stays": False}],
    "training_flops": [{"passes": 1}, {"operations": 1}, {"memory": 0}],
    "without_head": [{"place": 0}, {"place": 2}, {"until": contextlib.nullcontext}],
    "rotate": [
        {"sign": -1},
        {"angle_of": torch.zeros_like},
        {"angle_of": torch.square},
        {"other_half": 0},  # the classic one: x1 cos - x1 sin
        {"angle_of": lambda at: torch.full_like(at, 1.0)},  # blind to where it stands
    ],
}


def verdicts(capsys, grade=tutorial.grade, **yours) -> dict[str, str]:
    """What `grade` prints: of each check the kind of error and the reason, "" where it holds."""
    capsys.readouterr()
    grade(**yours)
    found = re.findall(r"(?m)^(?:✓ ([^:\n]+)|✗ ([^:\n]+): (\w+: .*))$", capsys.readouterr().out)
    return {"check_" + (a or b).replace(" ", "_"): reason for a, b, reason in found}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_solution_passes_every_check_and_those_that_the_text_names(name, capsys):
    checks, part = STATED[name]
    found = verdicts(capsys, **{name: RIGHT[name]})
    assert not any(found.values())
    assert checks
    assert checks <= found.keys()
    assert all(f"\ndef {check}():" in part for check in checks)


WRONG = [(name, change) for name, changes in FAULTS.items() for change in changes]


@pytest.mark.parametrize("name, change", [*WRONG, *((name, {}) for name in FAULTS)])
def test_a_faulty_one_or_an_empty_one_fails_there(name, change, capsys):
    right = RIGHT[name]
    wrong = functools.partial(right, **change) if change else nothing
    if isinstance(right, type):
        empty = {part: nothing for part, thing in vars(right).items() if callable(thing)}
        wrong = type("Mine", (right,), change or empty)
    found = verdicts(capsys, **{name: wrong})
    assert found.keys() == STATED[name][0]
    assert any(found.values())


@pytest.mark.parametrize("closed", [-1e9, -math.inf])
def test_a_textbook_attention_is_right_and_told_about_closed_rows(closed, capsys):
    def textbook(query, key, value, mask=None, dropout=None):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        weights = scores if mask is None else scores.masked_fill(mask == 0, closed)
        weights = weights.softmax(-1)
        return (weights if dropout is None else dropout(weights)) @ value, weights

    found = verdicts(capsys, attention=textbook)
    wrong = [check for check, reason in found.items() if reason]
    assert wrong == ["check_an_empty_row_gives_zero_output_and_gradient"]


@pytest.mark.parametrize("name", ["MultiHeadedAttention", "LabelSmoothing", "PositionalEncoding"])
def test_a_subclass_that_overrides_nothing_is_refused(name):
    ours = getattr(tutorial, name)

    class Mine(ours):
        """Nothing is written yet."""

        size = 3

    with pytest.raises(ValueError, match=f"Mine overrides nothing of {name}"):
        tutorial.grade(**{name: Mine})
    mine = type("Mine", (ours,), {"forward": ours.forward})
    result = tutorial.grade(**{name: mine})
    assert result == tutorial.EXERCISES[name]


@pytest.mark.parametrize("error", [None, AssertionError, OSError, KeyboardInterrupt])
def test_ours_is_back_whatever_happens(error, capsys):
    before = dict(vars(tutorial))
    turn = Mock(wraps=rotate, side_effect=error and error("no\ndisk"))
    with contextlib.suppress(KeyboardInterrupt):
        found = verdicts(capsys, rate=rate, rotate=turn)
        said = found["check_rotary_scores_depend_on_the_distance_only"]
        assert said == (f"{error.__name__}: no" if error else "")
        assert error is not KeyboardInterrupt
    assert vars(tutorial).keys() == before.keys()
    assert all(vars(tutorial)[name] is thing for name, thing in before.items())


@pytest.mark.parametrize("name", ["rotatoe", "learn_subwords"])
def test_what_is_ours_or_no_exercise_is_refused(name, capsys):
    with pytest.raises(ValueError, match=f"{name} is no exercise so far, as these are: attention"):
        tutorial.grade(**{"rotate": rotate, name: nothing})
    with pytest.raises(ValueError, match="this is our own rotate: define yours"):
        tutorial.grade(expand=expand, rotate=tutorial.rotate)
    assert capsys.readouterr().out == ""


def test_what_grade_runs_trains_nothing_draws_nothing_and_needs_no_corpus(monkeypatch):
    for name in ("alt", "pd", "new_copy_model", "load_trained_model", "find_corpus", "subprocess"):
        monkeypatch.setattr(tutorial, name, None)
    passed = tutorial.grade(**RIGHT)
    expected = [check for name in RIGHT for check in tutorial.EXERCISES[name]]
    assert passed == expected
    assert tutorial.EXERCISES.keys() == RIGHT.keys()


def test_in_a_notebook_a_reader_may_take_our_names(capsys):
    names = {"__name__": "__main__", "get_ipython": None, "display": Mock()}
    with alt.renderers.enable("default"), alt.data_transformers.enable("default"):
        for cell in rhythm.cells(TEXT.partition("\n# # Part 2. ")[0]):
            exec("" if cell.prose else cell.source, names)
    assert names["IN_NOTEBOOK"]
    assert names["display"].called
    assert "✗ no word hears a later one" in capsys.readouterr().out, "the faulty mask of the text"
    grade = names["grade"]
    ours = names["subsequent_mask"]
    with pytest.raises(ValueError, match="rotate is no exercise so far"):
        grade(rotate=rotate)
    for wrong, body in enumerate(("ones(1, size, size).tril()", "ones(1, size, size)")):
        exec(f"def subsequent_mask(size):\n    return torch.{body}", names)
        with contextlib.suppress(AssertionError):  # a cell of ours is run again
            again = names["check_no_word_hears_a_later_one"].__wrapped__
            names["example"](again)
        [said] = verdicts(capsys, grade, subsequent_mask=names["subsequent_mask"]).values()
        assert bool(said) == wrong
        assert names["subsequent_mask"] is ours
        with pytest.raises(ValueError, match="this is our own subsequent_mask"):
            exec("grade(subsequent_mask=subsequent_mask)", names)


def test_in_a_program_of_ones_own(capsys):
    program = "from the_annotated_transformer import *\ndef rotate(x, at):\n    return x.flip(-1)\n"
    exec(program + "grade(rotate=rotate)\nassert rotate(torch.arange(2), 0)[0] == 1", {})
    assert re.match(r"✗ rotary .*: AssertionError: Tensor-likes", capsys.readouterr().out)
