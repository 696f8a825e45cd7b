"""Export for nbgrader: a course folder with the sheets as its assignments.

    python -m exercises.course.export make FOLDER
 Then, in FOLDER, `nbgrader generate_assignment 1_attention` and the rest as usual; see
exercises/README.md. nbgrader runs hidden tests in the student's kernel: it does not protect from
students who read files.
"""

import shutil
import sys
from pathlib import Path

import nbformat
import tyro

from exercises.course import sheets
from exercises.course.tasks import HERE, SHEETS, Task, tasks_of
from tools.records import command_line, write_text

HIDDEN = """# Hidden tests of {name} run here: {points:g} points.
### BEGIN HIDDEN TESTS
import sys

sys.path.insert(0, {root!r})
from exercises.course.export import points_in_kernel

points_in_kernel({sheet!r}, {name!r}, globals())
### END HIDDEN TESTS
"""
CONFIG = """import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads slow each other down on a busy machine
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "annotated_transformer"
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("write it here")'}
c.Execute.timeout = 300
c.Execute.startup_timeout = 300
c.Execute.iopub_timeout = 60  # with the usual 4 seconds a busy machine gives no score
"""
SCRIPT = "the_annotated_transformer.py"
NEEDS = {"4_decoding": ("docs/course/hunt.py", "pretrained")}  # beside the script


def points_in_kernel(sheet: str, name: str, names: dict) -> float:
    """What a task gets in a notebook that runs here: names are its globals."""
    from exercises.course.try_out import points_of

    [task] = [task for task in tasks_of(sheet) if task.name == name]
    points, message = points_of(names, task)
    print(message)
    return float(points)


def metadata(name: str, kind: str, points: float = 0) -> dict:
    """nbgrader's metadata of a cell: a solution, a test with points, a report, or locked text."""
    return {
        "schema_version": 3,
        "grade_id": f"{name}-{kind}",
        "solution": kind in ("solution", "report"),
        "grade": kind in ("test", "report"),
        "locked": kind in ("test", "locked"),
        "task": False,
        **({"points": points} if kind in ("test", "report") else {}),
    }


def test_cell(sheet: str, task: Task) -> nbformat.NotebookNode:
    root = str(HERE.parent)
    source = HIDDEN.format(sheet=sheet, name=task.name, points=task.points, root=root)
    cell = nbformat.v4.new_code_cell(source, id=f"test-{task.name}".replace("_", "-")[:64])
    cell.metadata["nbgrader"] = metadata(task.name, "test", task.points)
    return cell


def source_notebook(sheet: str) -> nbformat.NotebookNode:
    """The master of a sheet with nbgrader's marks; a hidden test follows each task."""
    tasks = {task.name: task for task in tasks_of(sheet)}
    notebook = sheets.notebook(sheets.master(sheet))
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        report = sheets.REPORT.search(cell.source) if cell.cell_type == "markdown" else None
        if report:
            tutor = tasks[report[1]].tutor
            cell.metadata["nbgrader"] = metadata(report[1], "report", tutor)
        elif name := cell.metadata.get("task"):
            cell.metadata["nbgrader"] = metadata(name, "solution")
            cells.append(test_cell(sheet, tasks[name]))
    notebook.cells = cells
    return notebook


def copy(source: Path, folder: Path) -> None:
    """Copy a file or a folder into a folder."""
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def make(folder: tyro.conf.Positional[Path]) -> None:
    """Write the course folder; ValueError if it holds other things already."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "nbgrader_config.py").is_file():
        raise ValueError(f"{folder} is not empty: name a new folder, or one that this has made")
    write_text(folder / "nbgrader_config.py", CONFIG)
    for sheet in SHEETS:
        text = nbformat.writes(source_notebook(sheet)) + "\n"
        write_text(folder / "source" / sheet / f"{sheet}.ipynb", text)
        for name in (SCRIPT, *NEEDS.get(sheet, ())):
            copy(HERE.parent / name, folder / "source" / sheet)
    print(f"{folder}: {len(SHEETS)} assignments; there: nbgrader generate_assignment {SHEETS[0]}")


main = command_line(make=make)

if __name__ == "__main__":
    sys.exit(main())
