"""Hand-outs: sheets without their solutions, as scripts and notebooks, made from the masters.

    python -m exercises.course.sheets make    write docs/course/
 A master is a percent script. The solution of a task stands between ### BEGIN SOLUTION and ### END
SOLUTION. In a function, the hand-out raises NotImplementedError there. At the top level, each name
that the solution sets becomes None. A task's heading reads `## Task 3. Title (kind, level, 20
minutes, 4 points)` below the comment `<!-- task: name -->`; its points are those of the test and of
the tutor together.
"""

import ast
import base64
import re
import sys
import textwrap
import zlib
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat

from exercises.course.tasks import HERE, SHEETS
from tools.records import command_line, write_text

OUT = HERE.parent / "docs" / "course"
PERCENT = "py:percent"
SOLUTION = re.compile(r"(?m)^( *)### BEGIN SOLUTION\n(.*?)^ *### END SOLUTION\n?", re.S)
TASK = re.compile(r"<!-- task: (\w+) -->")
REPORT = re.compile(r"<!-- report: (\w+) -->")
HEADING = re.compile(r"(?m)^## Task (\d+)\. (.*) \((.*), (\d+) points?\)$")


@dataclass(frozen=True)
class Heading:
    """What the heading of a task says."""

    name: str
    number: int
    title: str
    kind: str
    points: int


def master(sheet: str) -> str:
    return (HERE / "sheets" / f"{sheet}.py").read_text("utf-8")


def cells_of(text: str) -> list:
    """The cells of a percent script."""
    return jupytext.reads(text, PERCENT).cells


def headings_of(text: str) -> list[Heading]:
    """The tasks of a sheet; ValueError where a task has no heading in the usual form."""
    found = []
    for cell in cells_of(text):
        if cell.cell_type == "markdown" and (task := TASK.search(cell.source)):
            heading = HEADING.search(cell.source)
            if heading is None:
                raise ValueError(
                    f"task {task[1]}: no heading as in '## Task 3. Title (…, 4 points)'"
                )
            number, title, kind, points = heading.groups()
            found.append(Heading(task[1], int(number), title, kind, int(points)))
    return found


def title_of(text: str) -> str:
    """The title of a sheet, such as "Sheet 1. Attention"."""
    return re.search(r"(?m)^# # (.*)", text)[1]


def placeholder(solution: str, indent: str, number: int | None) -> str:
    """What stands in the hand-out instead of a solution."""
    message = "write it here" if number is None else f"Task {number}: write it here"
    if indent:
        return f'{indent}raise NotImplementedError("{message}")\n'
    names = []
    for statement in ast.parse(textwrap.dedent(solution)).body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        for target in filter(None, targets):
            found = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
            names += [f"{name} = None  # {message}\n" for name in found]
    return "".join(names) or f'raise NotImplementedError("{message}")\n'


def blank(text: str) -> str:
    """A sheet without its solutions; ValueError for a mark without its pair."""
    numbers = {heading.name: heading.number for heading in headings_of(text)}
    parts = re.split(r"(?m)^(?=# %%)", text)
    for place, part in enumerate(parts):
        task = re.match(r'# %% task="(\w+)"', part)
        number = numbers.get(task[1]) if task else None
        parts[place] = SOLUTION.sub(lambda m, n=number: placeholder(m[2], m[1], n), part)
    text = "".join(parts)
    if "BEGIN SOLUTION" in text or "END SOLUTION" in text:
        raise ValueError("### BEGIN SOLUTION and ### END SOLUTION must stand in pairs")
    return text


def notebook(text: str) -> nbformat.NotebookNode:
    """A percent script as a notebook, the same for the same text."""
    made = jupytext.reads(text, PERCENT)
    for number, cell in enumerate(made.cells, 1):
        cell["id"] = f"cell-{number:03d}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return nbformat.from_dict(made)


IMPORT = re.compile(r"(?m)^from exercises\.course\.faults import (.*)\n")
UNPACK = '''
# The parts, right and faulty, are packed: reading this file must not spoil the hunt.
PACKED = """
{packed}
"""
hidden = {{}}
exec(zlib.decompress(base64.b85decode(PACKED.replace("\\n", ""))), hidden)
{names} = (hidden[name] for name in {names_as_text})
'''


def packed_hunt() -> str:
    """hunt.py as students get it: in one file, and without the faults in plain text."""
    folder = Path(__file__).parent
    text = (folder / "hunt.py").read_text("utf-8")
    faults = (folder / "faults.py").read_bytes()
    data = base64.b85encode(zlib.compress(faults, 9)).decode()
    packed = "\n".join(re.findall(".{1,96}", data))
    names = IMPORT.search(text)[1]
    unpack = UNPACK.format(packed=packed, names=names, names_as_text=tuple(names.split(", ")))
    text = IMPORT.sub("", text).replace("\nCONTRACTS = {", unpack + "\nCONTRACTS = {", 1)
    return text.replace("import copy\n", "import base64\nimport copy\n").replace(
        "import math\n", "import math\nimport zlib\n"
    )


def handouts() -> dict[str, str]:
    """The files of docs/course/ that are made from masters: their texts by name."""
    files = {"hunt.py": packed_hunt()}
    for sheet in SHEETS:
        text = blank(master(sheet))
        files[f"{sheet}.py"] = text
        files[f"{sheet}.ipynb"] = nbformat.writes(notebook(text)) + "\n"
    return files


def make(out: Path = OUT) -> None:
    """Write the hand-outs."""
    for name, text in handouts().items():
        write_text(out / name, text)
        print(out / name)


main = command_line(make=make)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or None))
