"""One hand-in: read its cells, run them in a process of its own, judge what comes back.

Every hand-in (.py or .ipynb) runs in an empty folder; see worker.py for what it may do. Judges and
solutions stay in this process.
"""

import ast
import builtins
import contextlib
import functools
import importlib.util
import json
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from exercises.course.tasks import HERE, SHEETS, Task, first_line

ROOT = HERE.parent
WORKER = Path(__file__).with_name("worker.py")
SCRIPT = ROOT / "the_annotated_transformer.py"
HUNT = ROOT / "docs" / "course" / "hunt.py"
LARGEST_REPLY = 50 * 2**20
UNANSWERED = "not answered"  # as the worker and the tests say it
STARTING = 300  # seconds until the process has loaded PyTorch, at most


@dataclass(frozen=True)
class Limits:
    """What a hand-in may use: seconds of computing a step (a cell, or a probe), bytes.

    `total` is the time on the clock for everything.
    """

    step: float = 60
    total: float = 1800
    memory: int = 2 * 2**30


@dataclass
class Mark:
    """The points of a hand-in by task, and what a tutor should know."""

    points: dict[str, float] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)  # of its cells
    refused: list[str] = field(default_factory=list)  # what it tried and may not do
    shielded: bool = False  # the kernel, too, refused other files


# Reading a hand-in --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A cell of a sheet. A check is the code below a task, which does not run while marking."""

    kind: str  # "code", "check" or "markdown"
    source: str
    task: str = ""  # whose answer stands here


def without_magics(source: str) -> str:
    """A cell without the lines that only a notebook understands; none in a cell of plain Python."""
    with contextlib.suppress(SyntaxError):
        compile(source, "cell", "exec")
        return source
    return re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)


def cells_of_notebook(text: str) -> list[Cell]:
    cells = []
    for cell in json.loads(text)["cells"]:
        source, about = "".join(cell["source"]), cell.get("metadata", {})
        if cell["cell_type"] == "markdown":
            cells.append(Cell("markdown", source))
        elif cell["cell_type"] == "code":
            kind = "check" if "check" in about else "code"
            cells.append(Cell(kind, without_magics(source), str(about.get("task", ""))))
    return cells


def cells_of_script(text: str) -> list[Cell]:
    cells = []
    for part in re.split(r"(?m)^(?=# %%)", text):
        heading, _, source = part.partition("\n")
        task = re.search(r'task="(\w+)"', heading)
        if not heading.startswith("# %%"):
            cells.append(Cell("code", part))
        elif heading.startswith("# %% [markdown]"):
            cells.append(Cell("markdown", re.sub("(?m)^# ?", "", source).strip("\n")))
        else:
            kind = "check" if re.match("# %% +check=", heading) else "code"
            cells.append(Cell(kind, source, task[1] if task else ""))
    return cells


def read_hand_in(path: Path) -> list[Cell]:
    """The cells of a hand-in; ValueError if it is none."""
    try:
        text = path.read_text("utf-8-sig")
        return cells_of_notebook(text) if path.suffix == ".ipynb" else cells_of_script(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot be read: {first_line(error)}") from error


def sheet_of(path: Path) -> str:
    """Which sheet a file is: by its name, or by its first cell; "" if it is none."""
    for sheet in SHEETS:
        if sheet in path.stem:
            return sheet
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if found := re.search(r"<!-- sheet: (\w+) -->", path.read_text("utf-8")):
            return found[1] if found[1] in SHEETS else ""
    return ""


def names_in(cells: list[Cell]) -> tuple[set[str], set[str]]:
    """The names that cells define anywhere, and those that they use."""
    defined, used = set(), set()
    for cell in cells:
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    defined.add(node.name)
                elif isinstance(node, ast.alias):
                    defined.add((node.asname or node.name).split(".")[0])
                elif isinstance(node, ast.arg):
                    defined.add(node.arg)
                elif isinstance(node, ast.Name):
                    (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
    return defined, used


def only_in_checks(cells: list[Cell]) -> list[str]:
    """The names that the code of a hand-in uses and only its check cells define."""
    defined, used = names_in([cell for cell in cells if cell.kind == "code"])
    in_checks, _ = names_in([cell for cell in cells if cell.kind == "check"])
    return sorted((in_checks & used) - defined - vars(builtins).keys())


# The student's process ----------------------------------------------------------------------------


def readable_places() -> list[str]:
    """What a hand-in may read: Python, the script, the model; ValueError if exercises/ is in it."""
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {f"{prefix}/lib" for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    places |= {f"{sys.prefix}/pyvenv.cfg", str(WORKER), str(SCRIPT), str(ROOT / "pretrained")}
    places |= {importlib.util.cache_from_source(str(SCRIPT)), str(HUNT)}
    real = {os.path.realpath(place) for place in places}
    for place in real:
        if HERE.is_relative_to(place):
            raise ValueError(
                f"exercises/ lies in {place}, which hand-ins can read: move the project"
            )
    return sorted(places | real)


def seconds_computed(process: subprocess.Popen) -> float:
    """Processor time that a process has used."""
    try:
        used = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return used.user + used.system


def messages(process: subprocess.Popen, limits: Limits, end: float) -> Iterator[dict]:
    """What the process says, until it ends, or a step takes too long.

    Computing counts, so that a busy machine is no disadvantage; a process that sleeps is waited for
    five times as long.
    """
    waiting = b""
    received = 0
    used = 0.0
    silent_until = time.monotonic() + STARTING
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            heard = selector.select(0.5)
            allowed = limits.step if used else STARTING
            computed = seconds_computed(process) - used
            now = time.monotonic()
            if now > end or (not heard and (computed > allowed or now > silent_until)):
                yield {"late": True}
                return
            if not heard:
                continue
            block = os.read(process.stdout.fileno(), 2**20)
            received += len(block)
            if not block or received > LARGEST_REPLY:
                return
            *lines, waiting = (waiting + block).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        yield message
            used = seconds_computed(process)
            silent_until = time.monotonic() + 5 * limits.step


@contextlib.contextmanager
def worker(job: dict) -> Iterator[subprocess.Popen]:
    """A process with a job, in an empty folder; afterwards both are gone."""
    with tempfile.TemporaryDirectory(prefix="hand-in-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", str(WORKER)],
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "COURSE_DEBUG" not in os.environ else None,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.close()
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


@dataclass
class Replies:
    """What a hand-in's processes said: by the number of the step."""

    ends: dict[int, dict] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    shielded: bool = False  # by the kernel


def run_steps(job: dict, limits: Limits, alike: Callable[[int], list[int]]) -> Replies:
    """Run a hand-in. A step that takes too long or kills the process is left out in the next try.

    `alike` names the steps that are then left out with it: the other seeds of the task.
    """
    replies = Replies()
    first_probe = len(job["cells"])
    end = time.monotonic() + limits.total
    skip: set[int] = set()
    while True:
        begun = None
        ready = False
        done = False
        late = False
        known = {number for number in replies.ends if number >= first_probe}
        with worker(job | {"skip": sorted(skip | known)}) as process:
            for message in messages(process, limits, end):
                ready = ready or "ready" in message
                replies.shielded = replies.shielded or message.get("landlock") is True
                done = done or "done" in message
                late = late or "late" in message
                if isinstance(message.get("begin"), int):
                    begun = message["begin"]
                elif isinstance(message.get("end"), int):
                    replies.ends[message["end"]] = message
                    begun = None
                elif "refused" in message and len(replies.refused) < 20:
                    replies.refused.append(str(message["refused"])[:200])
        if done:
            return replies
        if not ready:
            raise RuntimeError("the process for hand-ins does not start: COURSE_DEBUG=1 says why")
        if begun is None or begun in skip or time.monotonic() >= end:
            return replies
        reason = f"ran longer than {limits.step:g} seconds" if late else "it killed the process"
        for number in alike(begun):
            replies.ends[number] = {"end": number, "error": reason}
            skip.add(number)


@functools.cache
def our_places() -> list[str]:
    """Folders of this machine, the longest first: no student need know where they lie."""
    places = {str(ROOT), sys.prefix, sys.base_prefix, tempfile.gettempdir(), str(Path.home())}
    places |= {os.path.realpath(place) for place in places}
    return sorted(places - {os.sep}, key=len, reverse=True)


def without_places(text: str) -> str:
    """A message without the folders of this machine."""
    for place in our_places():
        text = text.replace(place + os.sep, "…/")
    return text


# Judging ------------------------------------------------------------------------------------------


def mark_cells(
    cells: list[Cell], tasks: list[Task], seed: int = 0, limits: Limits | None = None
) -> Mark:
    """Run the code of a hand-in, probe every task, judge what the probes returned."""
    limits = limits or Limits()
    code = [cell for cell in cells if cell.kind == "code"]
    draw = random.Random(f"{seed}")
    plan = [(task, draw.randrange(2**31)) for task in tasks for _ in range(task.seeds)]
    job = {
        "cells": [cell.source for cell in code],
        "probes": [(task.source(), number) for task, number in plan],
        "readable": readable_places(),
        "modules": {"the_annotated_transformer": str(SCRIPT)},
        "memory": limits.memory,
    }
    if HUNT.is_file():
        job["modules"]["hunt"] = str(HUNT)

    def alike(step: int) -> list[int]:
        if step < len(code):
            return [step]
        tested = plan[step - len(code)][0]
        return [number for number, (task, _) in enumerate(plan, len(code)) if task is tested]

    replies = run_steps(job, limits, alike)
    refused = dict.fromkeys(map(without_places, replies.refused))
    mark = Mark(refused=list(refused), shielded=replies.shielded)
    for number, (task, number_of_seed) in enumerate(plan, len(code)):
        reply = replies.ends.get(number, {"error": "did not run"})
        if "error" in reply:
            points, message = 0, without_places(str(reply["error"]))[:200]
        else:
            points, message = task.mark(reply.get("result"), number_of_seed)
        if points < mark.points.get(task.name, points + 1):  # the worst of all seeds counts
            mark.points[task.name] = points
            mark.messages[task.name] = message
    for number, cell in enumerate(code):
        error = without_places(str(replies.ends.get(number, {}).get("error", "")))[:200]
        if not error or error == UNANSWERED:
            continue
        if mark.messages.get(cell.task) == UNANSWERED:  # nothing came of the cell: this is why
            mark.messages[cell.task] = f"its cell: {error}"
        else:
            place = f"cell of {cell.task}" if cell.task else f"cell {number + 1}"
            mark.errors.append(f"{place}: {error}")
    for name in only_in_checks(cells):
        mark.errors.append(f"{name} stands in a check cell only, which does not run while marking")
    return mark


def mark_file(path: Path, tasks: list[Task], seed: int = 0, limits: Limits | None = None) -> Mark:
    """Mark one hand-in; one that cannot be read has no points and an error."""
    try:
        cells = read_hand_in(path)
    except ValueError as error:
        none = {task.name: 0 for task in tasks}
        return Mark(
            none, dict.fromkeys(none, UNANSWERED), [without_places(str(error))], shielded=True
        )
    return mark_cells(cells, tasks, seed, limits)
