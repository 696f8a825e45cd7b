"""Hidden tests: how they are written, and how they are loaded.

exercises/tests/SHEET.py has a class for each task of the sheet:

    @task("windowed_attention", points=4)
    class WindowedAttention:
        def inputs(seed):  # random inputs of random sizes: a tuple
            return torch.randn(3, 8), 1 + seed % 3

        def probe(solve, x, window):  # calls what the student wrote, returns plain data or tensors
            return solve.windowed_attention(x, window)

        def judge(result, x, window):  # the points, and a message where some are missing
            return (4, "") if close(result, right(x, window)) else (0, "the window is not kept")

`inputs` and `probe` run in the student's process, so they hold no solution. They are sent there as
source. They may use `torch`, `nn`, `F`, `math`, `random`, the script as `at`, and functions of the
same file that are marked with `@shared`. `judge` runs in the marker's process, on the same inputs,
and may use everything. Its `result` holds lists where `probe` returned tensors or tuples. An error
in `inputs` or `probe` gives no points; an error in `judge` (of a result in a wrong form) neither. A
task runs with `seeds` seeds, and the worst counts.

A task whose report a tutor marks says `tutor=2`: these points come on top of `points`.
"""

import importlib.util
import inspect
import math
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent.parent
SHEETS = sorted(path.stem for path in (HERE / "sheets").glob("*.py"))


JUDGING = threading.Lock()  # hand-ins are marked in threads, which share PyTorch's generator


def no_inputs(seed):
    return ()


@dataclass
class Task:
    """What the marker knows about a task."""

    name: str
    points: float
    inputs: Callable
    probe: Callable
    judge: Callable
    seeds: int = 3
    tutor: float = 0
    shared: list = field(default_factory=list)

    def source(self) -> str:
        """What is sent to the student's process: `inputs`, `probe` and what they share."""
        functions = (*self.shared, self.inputs, self.probe)
        sources = [textwrap.dedent(inspect.getsource(function)) for function in functions]
        return "\n".join(sources).replace("@shared\n", "") + f"\ninputs = {self.inputs.__name__}\n"

    def mark(self, result: object, seed: int) -> tuple[float, str]:
        """Points for what the probe returned, and a message."""
        if result is None:
            return 0, "not answered"
        try:
            with JUDGING:
                torch.manual_seed(seed)
                points, message = self.judge(result, *self.inputs(seed))
        except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as error:
            return 0, f"the result has an unexpected form ({first_line(error)})"
        return min(max(points, 0), self.points), message


REGISTER: list[Task] = []
SHARED: list[Callable] = []


def task(name: str, points: float, seeds: int = 3, tutor: float = 0) -> Callable:
    """Register a class with `probe`, `judge` and perhaps `inputs` as the test of a task."""

    def register(tested: type) -> type:
        inputs = vars(tested).get("inputs", no_inputs)
        functions = vars(tested)["probe"], vars(tested)["judge"]
        REGISTER.append(Task(name, points, inputs, *functions, seeds, tutor))
        return tested

    return register


def shared(function: Callable) -> Callable:
    """Send this function to the student's process, too."""
    SHARED.append(function)
    return function


def load(path: Path):
    """Run a file of exercises/ as a module; its name may start with a digit."""
    name = f"course_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tasks_of(sheet: str) -> list[Task]:
    """The hidden tests of a sheet, in its order."""
    REGISTER.clear()
    SHARED.clear()
    load(HERE / "tests" / f"{sheet}.py")
    for each in REGISTER:
        each.shared = list(SHARED)
    return list(REGISTER)


def first_line(error: BaseException) -> str:
    """An error in one short line."""
    text = f"{type(error).__name__}: {error}".strip().split("\n")[0]
    return text[:160]


# For judges ---------------------------------------------------------------------------------------


def flat(data: object) -> Iterator[float]:
    """The numbers of nested lists."""
    if isinstance(data, list | tuple):
        for each in data:
            yield from flat(each)
    else:
        yield data


def close(result: object, right: object, tolerance: float = 1e-4) -> bool:
    """Whether a result has the shape of what is right, and its numbers to a tolerance."""
    right = torch.as_tensor(right, dtype=torch.double)
    if any(not isinstance(number, int | float) for number in flat(result)):
        return False
    try:
        result = torch.tensor(result, dtype=torch.double)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        return False
    if result.shape != right.shape:
        return False
    return torch.allclose(result, right, atol=tolerance, rtol=tolerance, equal_nan=True)


def is_number(result: object) -> bool:
    """Whether a result is one finite number."""
    number = isinstance(result, int | float) and not isinstance(result, bool)
    return number and math.isfinite(result)
