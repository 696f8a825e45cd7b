"""Hand-outs: nbgrader releases the masters, and its release is published in docs/course.

    python -m exercises.course.sheets make
    python -m exercises.course.sheets make --course FOLDER

A master in exercises/sheets is a percent script with nbgrader's metadata. The second command also
leaves a folder for nbgrader with all that a course needs: exercises/README.md says how.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import jupytext
import nbformat

from tools.records import command_line, write_text

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent
SHEETS = sorted(path.stem for path in (HERE / "sheets").glob("*.py"))
SCRIPT = ROOT / "the_annotated_transformer.py"


def notebook(text: str) -> nbformat.NotebookNode:
    """A percent script as a notebook, the same for the same text."""
    made = jupytext.reads(text, "py:percent")
    for number, cell in enumerate(made.cells, 1):
        cell["id"] = f"cell-{number:03d}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return made


IMPORT = "from exercises.course.culprits import END, PAD, START, play\n"
UNPACK = '''START, END, PAD = 0, 1, 2


def unpack(packed: str):
    """`play` knows the faulty part of each case: reading this file must not spoil the hunt."""
    names = {{}}
    exec(zlib.decompress(base64.b85decode(packed.replace("\\n", ""))), names)
    return names["play"]


play = unpack("""
{packed}
""")
'''


def packed_hunt() -> str:
    """hunt.py as students get it: in one file, and without the faults in plain text."""
    folder = Path(__file__).parent
    data = base64.b85encode(zlib.compress((folder / "culprits.py").read_bytes(), 9)).decode()
    unpack = UNPACK.format(packed="\n".join(re.findall(".{1,96}", data)))
    text = (folder / "hunt.py").read_text("utf-8")
    return text.replace(IMPORT, unpack).replace(
        "import math\n", "import base64\nimport math\nimport zlib\n", 1
    )


def prepare(course: Path) -> None:
    """Write nbgrader's source folder: masters as notebooks, and the files that they need."""
    shutil.copy(HERE / "nbgrader_config.py", course / "nbgrader_config.py")
    for sheet in SHEETS:
        text = (HERE / "sheets" / f"{sheet}.py").read_text("utf-8")
        folder = course / "source" / sheet
        write_text(folder / f"{sheet}.ipynb", nbformat.writes(notebook(text)) + "\n")
        shutil.copy(SCRIPT, folder)
        if "from hunt import" in text:
            write_text(folder / "hunt.py", packed_hunt())
            shutil.copytree(ROOT / "pretrained", folder / "pretrained", dirs_exist_ok=True)


def nbgrader(course: Path, *arguments: str) -> None:
    """Run a command of nbgrader in its folder; RuntimeError with what it says where it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for alembic
    command = [sys.executable, "-m", "nbgrader", *arguments]
    env = os.environ | {"PATH": path}
    ran = subprocess.run(command, cwd=course, env=env, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"nbgrader {' '.join(arguments)}: {ran.stderr}")


def make(course: Path | None = None, out: Path = ROOT / "docs" / "course") -> None:
    """Write the hand-outs, and nbgrader's folder, which must be new or empty, where it is named."""
    if course is None:
        with tempfile.TemporaryDirectory() as folder:
            return make(Path(folder), out)
    course.mkdir(parents=True, exist_ok=True)
    if any(course.iterdir()):
        raise ValueError(
            f"{course} is not empty: name a new folder, since marks may lie in this one"
        )
    prepare(course)
    write_text(out / "hunt.py", packed_hunt())
    for sheet in SHEETS:
        nbgrader(course, "generate_assignment", sheet, "--force")
        made = nbformat.read(course / "release" / sheet / f"{sheet}.ipynb", as_version=4)
        write_text(out / f"{sheet}.ipynb", nbformat.writes(made) + "\n")
        made.metadata = {"jupytext": {"notebook_metadata_filter": "-all"}}  # no header
        write_text(out / f"{sheet}.py", jupytext.writes(made, "py:percent"))
        print(out / f"{sheet}.ipynb")


main = command_line(make=make)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or None))
