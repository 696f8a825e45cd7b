"""Try a sheet's tests while writing them; the tests of the course use it, too.

    python -m exercises.course.try_out sheet 1_attention [--task NAME]
 Prints what the master, the blank sheet and every wrong answer get. Everything runs in this
process, one after the other: unlike foreign code, ours needs no isolation.
"""

import contextlib
import io
import random
import sys
import types

import tyro

from exercises.course import sheets, worker
from exercises.course.hand_in import Cell, cells_of_script
from exercises.course.tasks import SHEETS, Task, first_line, tasks_of
from exercises.course.wrong import wrong_answers
from tools.records import command_line


def run(cells: list[Cell], begin: dict | None = None) -> types.ModuleType:
    """Run the code of a sheet as a module, which begins with these names; errors are left out."""
    module = types.ModuleType("handed_in")
    sys.modules["handed_in"] = module
    vars(module).update(begin or {"display": print})
    for number, cell in enumerate(cells):
        if cell.kind == "code":
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                worker.run_cell(module, number, cell.source)
    return module


def points_of(names: dict, task: Task, seed: int = 0) -> tuple[float, str]:
    """What a task gets where these names are defined, the worst of its seeds, and why."""
    draw = random.Random(seed)
    found = []
    for _ in range(task.seeds):
        number = draw.randrange(2**31)
        try:
            result = worker.probe(worker.Solve(names), task.source(), number)
        except NotImplementedError:
            found.append((0, "not answered"))
        except Exception as error:
            found.append((0, first_line(error)))
        else:
            found.append(task.mark(result, number))
    return min(found, key=lambda each: each[0])


def with_answer(master: types.ModuleType, code: str) -> types.ModuleType:
    """The names of a master that has run, with the code of an answer run on top."""
    names = {name: value for name, value in vars(master).items() if not name.startswith("__")}
    return run([Cell("code", code)], names)


def sheet(name: tyro.conf.Positional[str], task: str = "") -> None:
    """Mark the master, the blank sheet and the wrong answers of a sheet, or of one of its tasks."""
    import torch

    import the_annotated_transformer  # noqa: F401  # probes call it `at`

    torch.set_num_threads(1)  # the models are small
    sys.path.append(str(sheets.OUT))  # hunt.py

    tasks = {each.name: each for each in tasks_of(name) if task in ("", each.name)}
    text = sheets.master(name)
    master = run(cells_of_script(text))
    for kind, module in (("master", master), ("blank", run(cells_of_script(sheets.blank(text))))):
        for each in tasks.values():
            points, message = points_of(vars(module), each)
            wanted = each.points if kind == "master" else 0
            print("ok  " if points == wanted else "BAD ", kind, each.name, points, message)
    for answer in wrong_answers(name):
        if answer.task in tasks:
            points, message = points_of(vars(with_answer(master, answer.code)), tasks[answer.task])
            wanted = answer.points
            sign = "ok  " if points == wanted else f"BAD (not {wanted:g}) "
            print(sign, "wrong", answer.task, points, message)


def all_sheets() -> None:
    """The same for all sheets."""
    for name in SHEETS:
        sheet(name)


main = command_line(sheet=sheet, all=all_sheets)

if __name__ == "__main__":
    sys.exit(main())
