"""Mark a folder of handed-in sheets.

    python -m exercises.course.grade mark FOLDER    write FOLDER/marks/SHEET.csv
 Every hand-in (.py or .ipynb) runs in a process of its own, in an empty folder; see worker.py for
what it may do. Judges and solutions stay in this process.
"""

import contextlib
import csv
import importlib.util
import json
import math
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import tyro

from exercises.course.tasks import HERE, SHEETS, Task, first_line, tasks_of
from tools.records import command_line

ROOT = HERE.parent
WORKER = Path(__file__).with_name("worker.py")
SCRIPT = ROOT / "the_annotated_transformer.py"
HUNT = ROOT / "docs" / "course" / "hunt.py"
CSV_FOLDER = "marks"
BY_TUTOR = ", by tutor"
LARGEST_REPLY = 50 * 2**20
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
    remarks: list[str] = field(default_factory=list)
    shielded: bool = False  # the kernel, too, refused other files

    def total(self) -> float:
        return sum(self.points.values())


# Reading a hand-in --------------------------------------------------------------------------------


def without_magics(source: str) -> str:
    """A cell without the lines that only a notebook understands; none in a cell of plain Python."""
    with contextlib.suppress(SyntaxError):
        compile(source, "cell", "exec")
        return source
    return re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)


def cells_of_notebook(text: str) -> list[tuple[str, str]]:
    cells = []
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code" and "check" not in cell.get("metadata", {}):
            source = "".join(cell["source"])
            task = cell.get("metadata", {}).get("task", "")
            cells.append((str(task), without_magics(source)))
    return cells


def cells_of_script(text: str) -> list[tuple[str, str]]:
    cells = []
    for part in re.split(r"(?m)^(?=# %%)", text):
        heading, _, source = part.partition("\n")
        if re.match(r"# %% +(\[markdown\]|check=)", heading):
            continue
        task = re.search(r'task="(\w+)"', heading)
        cells.append((task[1] if task else "", part if not heading.startswith("# %%") else source))
    return cells


def read_hand_in(path: Path) -> list[tuple[str, str]]:
    """The code cells of a hand-in, each with the name of its task or ""; ValueError if it is none.

    Cells with visible checks are left out: the hidden tests judge.
    """
    try:
        text = path.read_text("utf-8-sig")
        cells = cells_of_notebook(text) if path.suffix == ".ipynb" else cells_of_script(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot be read: {first_line(error)}") from error
    return cells


def sheet_of(path: Path) -> str:
    """Which sheet a file is: by its name, or by the name of its folder; "" if it is none."""
    for name in (path.stem, path.parent.name):
        for sheet in SHEETS:
            number, *_ = sheet.partition("_")
            if sheet in name or re.fullmatch(rf"(sheet|blatt)?[ _-]?{number}", name, re.I):
                return sheet
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if found := re.search(r"<!-- sheet: (\w+) -->", path.read_text("utf-8")):
            return found[1] if found[1] in SHEETS else ""
    return ""


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
        reason = f"longer than {limits.step:g} seconds" if late else "it killed the process"
        for number in alike(begun):
            replies.ends[number] = {"end": number, "error": reason}
            skip.add(number)


# Marking ------------------------------------------------------------------------------------------


def mark_cells(
    cells: list[tuple[str, str]], tasks: list[Task], seed: int = 0, limits: Limits | None = None
) -> Mark:
    """Run the cells of a hand-in, probe every task, judge what the probes returned."""
    limits = limits or Limits()
    draw = random.Random(f"{seed}")
    plan = [(task, draw.randrange(2**31)) for task in tasks for _ in range(task.seeds)]
    job = {
        "cells": [source for _, source in cells],
        "probes": [(task.source(), number) for task, number in plan],
        "readable": readable_places(),
        "modules": {"the_annotated_transformer": str(SCRIPT)},
        "memory": limits.memory,
    }
    if HUNT.is_file():
        job["modules"]["hunt"] = str(HUNT)

    def alike(step: int) -> list[int]:
        if step < len(cells):
            return [step]
        tested = plan[step - len(cells)][0]
        return [number for number, (task, _) in enumerate(plan, len(cells)) if task is tested]

    replies = run_steps(job, limits, alike)
    mark = Mark(shielded=replies.shielded)
    for number, (task, number_of_seed) in enumerate(plan, len(cells)):
        reply = replies.ends.get(number, {"error": "did not run"})
        if "error" in reply:
            points, message = 0, str(reply["error"])[:200]
        else:
            points, message = task.mark(reply.get("result"), number_of_seed)
        if points < mark.points.get(task.name, points + 1):  # the worst of all seeds counts
            mark.points[task.name] = points
            mark.messages[task.name] = message
    for number, (task, _) in enumerate(cells):
        error = replies.ends.get(number, {}).get("error", "")
        if error and error != "not answered":
            mark.remarks.append(f"{f'cell of {task}' if task else f'cell {number + 1}'}: {error}")
    mark.remarks += [f"refused: {note}" for note in dict.fromkeys(replies.refused)]
    return mark


def mark_file(path: Path, tasks: list[Task], seed: int = 0, limits: Limits | None = None) -> Mark:
    """Mark one hand-in; one that cannot be read has no points and a remark."""
    try:
        cells = read_hand_in(path)
    except ValueError as error:
        none = {task.name: 0 for task in tasks}
        return Mark(none, dict.fromkeys(none, "not answered"), [str(error)], shielded=True)
    return mark_cells(cells, tasks, seed, limits)


def harmless(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    text = re.sub(r"[\x00-\x1f]+", " ", text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def row_of(name: str, mark: Mark, tasks: list[Task], typed: dict[str, str]) -> list:
    """A row of the table; `typed` has what a tutor typed before, by task."""
    row = [harmless(name)]
    total = mark.total()
    for task in tasks:
        row.append(f"{mark.points[task.name]:g}")
        if task.tutor:
            by_tutor = typed.get(task.name, "")
            row.append(harmless(by_tutor))
            total += number_in(by_tutor)
    said = [
        f"{task.name}: {mark.messages[task.name]}" for task in tasks if mark.messages[task.name]
    ]
    return [*row, f"{total:g}", harmless("; ".join([*said, *mark.remarks]))]


def columns_of(tasks: list[Task]) -> list[str]:
    columns = ["hand-in"]
    for task in tasks:
        columns.append(f"{task.name} ({task.points:g})")
        if task.tutor:
            columns.append(f"{task.name}{BY_TUTOR} ({task.tutor:g})")
    return [*columns, "sum", "remarks"]


def number_in(text: str) -> float:
    """The number that a tutor typed, with a point or a comma; 0 where it is none."""
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def typed_by_tutor(path: Path) -> dict[str, dict[str, str]]:
    """What a tutor typed into an earlier table: by hand-in and by task; ValueError if unreadable.

    A spreadsheet may have saved it with semicolons or tabs.
    """
    if not path.exists():
        return {}
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        lines = []
    for delimiter in ",;\t":
        table = csv.DictReader(lines, delimiter=delimiter)
        if "hand-in" in (table.fieldnames or []):
            return {row["hand-in"]: tutor_columns(row) for row in table}
    raise ValueError(
        f"{path} is no table with a column 'hand-in' in UTF-8. Marking would lose what a tutor "
        "typed there: save it as CSV in UTF-8, or move it away"
    )


def tutor_columns(row: dict) -> dict[str, str]:
    """What stands in the columns for a tutor: by task, without empty ones."""
    return {
        column.partition(BY_TUTOR)[0]: text.strip()
        for column, text in row.items()
        if BY_TUTOR in (column or "") and text and text.strip()
    }


def hand_ins_of(folder: Path) -> dict[str, list[Path]]:
    """The hand-ins in a folder and below, by sheet; "" has the files of no sheet."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in (".py", ".ipynb") and path.is_file() and not hidden:
            found.setdefault(sheet_of(path), []).append(path)
    return found


def table_of(folder: Path, sheet: str) -> Path:
    return folder / CSV_FOLDER / f"{sheet}.csv"


def write_table(path: Path, rows: list[list]) -> None:
    """Write a CSV in one piece: whoever interrupts the marking keeps the table from before."""
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="", dir=path.parent, suffix=".part", delete=False
    ) as file:
        csv.writer(file).writerows(rows)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def mark_folder(
    folder: tyro.conf.Positional[Path],
    seed: int | None = None,
    workers: int = 0,
    seconds: float = 60,
    gigabytes: float = 2,
) -> None:
    """Write FOLDER/marks/SHEET.csv: a row a hand-in, a column a task, the sum, remarks.

    The same seed gives all hand-ins, and another marking, the same random inputs. What a tutor
    typed into an earlier table stays, and counts in the sum.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: make grade FOLDER=… names one with hand-ins")
    seed = random.randrange(10**6) if seed is None else seed
    limits = Limits(seconds, max(30 * seconds, 600), int(gigabytes * 2**30))
    found = hand_ins_of(folder)
    shielded = True
    for path in found.pop("", []):
        print(f"left out, since neither name nor text says which sheet it is: {path}")
    if not found:
        raise ValueError(f"{folder} holds no sheet: hand-ins are named like NAME/{SHEETS[0]}.py")
    typed = {sheet: typed_by_tutor(table_of(folder, sheet)) for sheet in found}
    for sheet, paths in found.items():
        tasks = tasks_of(sheet)
        out = table_of(folder, sheet)
        rows = []
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            marks = pool.map(lambda path, t=tasks: mark_file(path, t, seed, limits), paths)
            for path, mark in zip(paths, marks, strict=True):
                name = path.relative_to(folder).as_posix()
                by_tutor = typed[sheet].pop(harmless(name), {})
                rows.append(row_of(name, mark, tasks, by_tutor))
                shielded = shielded and mark.shielded
                print(f"{sheet}  {mark.total():5g}  {name}", flush=True)
        write_table(out, [columns_of(tasks), *rows])
        print(f"{out} (seed {seed})")
        for name, by_tutor in typed[sheet].items():
            if by_tutor:
                print(f"{name} is gone, and with it what a tutor typed: {by_tutor}")
    if not shielded:
        print("Some hand-ins were shielded by Python alone, not by the kernel: see worker.py.")


main = command_line(mark=mark_folder)

if __name__ == "__main__":
    sys.exit(main())
