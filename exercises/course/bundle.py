"""The offline bundle: all that a room without network needs, in one folder.

    python -m exercises.course.bundle make    write build/course/
 It holds the text, the notebook, the model, the sheets, the corpus if it is at hand, the packages
as wheels, and the licences. Wheels are for this kind of machine and this Python. For another kind:
--platform win_amd64 --python 3.12. Solutions and hidden tests stay outside.
"""

import csv
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from exercises.course import sheets
from exercises.course.tasks import HERE
from tools.records import command_line, write_text

ROOT = HERE.parent
FOLDER = ROOT / "build" / "course"
# The folder has the layout of the project, so that everything finds what it needs.
PARTS = (
    *("the_annotated_transformer.py", "LICENSE", "CITATION.cff", "README.md", "constraints.txt"),
    *("pretrained", "images", "docs"),
)
GUIDE = """# The course, without a network

1. Python {python} is needed. In this folder:

       python -m venv .venv
       .venv/bin/python -m pip install --no-index --find-links wheels -r requirements.txt

   (On Windows `.venv\\Scripts\\python` instead of `.venv/bin/python`.)
2. Open `docs/index.html`, the text, in a browser; `docs/the_annotated_transformer.ipynb` is the
   notebook.
3. The sheets: `.venv/bin/python -m jupyterlab` in this folder, then open `docs/course` there.
4. {corpus}

Licences: `LICENSE` is that of text, drawings and code. `pretrained/README.md` says what holds for
the model and its corpus. `licences/` has those of the packages; `licences/packages.csv` lists them.
"""
CORPUS = (
    "The corpus is in `corpus/`: set MULTI30K_DIR to it. It is meant for research and education."
)
NO_CORPUS = "The corpus is not here: the built-in captions take its place."


def requirements() -> str:
    """What students need: the requirements up to those for tests and style."""
    text = (ROOT / "requirements.txt").read_text("utf-8")
    return text.split("\n# Tests and style")[0] + "\n"


def copy_parts(folder: Path) -> None:
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "course")
            shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=ignored)
        else:
            shutil.copy2(source, folder / name)
    sheets.make(folder / "docs" / "course")
    write_text(folder / "requirements.txt", requirements())
    guide = sheets.OUT / "README.md"
    if guide.is_file():
        shutil.copy2(guide, folder / "docs" / "course")


def copy_corpus(folder: Path) -> bool:
    """Multi30k as it lies on this machine; false if there is none."""
    place = Path(os.environ.get("MULTI30K_DIR") or ROOT / ".data" / "multi30k").expanduser()
    if not any(place.glob("train.*")):
        return False
    shutil.copytree(place, folder / "corpus", dirs_exist_ok=True)
    return True


def pip(*arguments: str | Path) -> None:
    """Run pip; ValueError if it fails, whose own words stand above."""
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    if subprocess.run(command).returncode:
        raise ValueError(f"pip has failed, see above: {' '.join(command[2:])}")


def fetch_wheels(folder: Path, platform: str, python: str) -> None:
    """All packages as wheels. Those that have none are built first: they are pure Python."""
    wheels = folder / "wheels"
    wheels.mkdir(exist_ok=True)
    wanted = ("-r", folder / "requirements.txt", "-c", ROOT / "constraints.txt")
    without_wheel = [line for line in requirements().split() if line.startswith("GPUtil==")]
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, *without_wheel)
    other = ("--platform", platform, "--python-version", python) if platform else ()
    index = os.environ.get("TORCH_INDEX")
    if index:  # torch for machines without an NVIDIA GPU
        torch = next(line for line in requirements().split() if line.startswith("torch=="))
        place = ("--no-deps", "--index-url", index, "-d", wheels)
        try:
            pip("download", "--quiet", "--retries", "1", *place, *other, torch)
        except ValueError as error:
            print(f"{error}\ntaking the usual {torch}, which may bring gigabytes of CUDA")
    only = ("--only-binary", ":all:", "--find-links", wheels, "-d", wheels)
    pip("download", "--quiet", *only, *other, *wanted)


def write_licences(folder: Path) -> None:
    """The licence files of all wheels, and a table of what each says about its licence."""
    rows = []
    for path in sorted((folder / "wheels").glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            about = next(name for name in names if name.endswith(".dist-info/METADATA"))
            said = Parser().parsestr(wheel.read(about).decode("utf-8", "replace"))
            words = ("licen", "copying", "notice")
            inside = about.rpartition("/")[0]
            for name in names:
                last = name.rpartition("/")[2]
                if name.startswith(inside) and last and last.lower().startswith(words):
                    target = folder / "licences" / said["Name"] / last
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))
        kinds = [each for each in said.get_all("Classifier", []) if each.startswith("License ::")]
        licence = said["License-Expression"] or "; ".join(kinds) or (said["License"] or "")[:80]
        rows.append((said["Name"], said["Version"], licence.split("\n")[0]))
    out = folder / "licences" / "packages.csv"
    out.parent.mkdir(exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("package", "version", "licence"), *rows])


def make(folder: Path = FOLDER, platform: str = "", python: str = "", wheels: bool = True) -> None:
    """Write the bundle; ValueError if a platform comes without a version of Python."""
    if platform and not python:
        raise ValueError("name the version of Python, too: --platform win_amd64 --python 3.12")
    folder.mkdir(parents=True, exist_ok=True)
    copy_parts(folder)
    corpus = copy_corpus(folder)
    version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    text = GUIDE.format(python=version, corpus=CORPUS if corpus else NO_CORPUS)
    write_text(folder / "START.md", text)
    if wheels:
        fetch_wheels(folder, platform, python)
        write_licences(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.0f} MiB")


main = command_line(make=make)

if __name__ == "__main__":
    sys.exit(main())
