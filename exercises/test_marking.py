"""More than twenty hand-ins, as a tutor gets them: each gets what it deserves, whatever it tries."""

import csv
import json
import re
from pathlib import Path

import pytest

from exercises.course import grade, sheets
from exercises.course.tasks import HERE, tasks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHEET = "1_attention"
MASTER = sheets.master(SHEET)
BLANK = sheets.blank(MASTER)
FULL = sum(task.points for task in tasks_of(SHEET))
SECRET = HERE / "tests" / f"{SHEET}.py"
VALUES = "def windowed_attention(query, key, value, width):\n"


def with_answers(text: str, **answers: str) -> str:
    """A sheet with other code in the cells of some tasks."""
    parts = re.split(r"(?m)^(?=# %%)", text)
    for place, part in enumerate(parts):
        task = re.match(r'# %% task="(\w+)"\n', part)
        if task and task[1] in answers:
            parts[place] = task[0] + answers[task[1]] + "\n\n"
    return "".join(parts)


def window(code: str) -> str:
    """A right sheet, but for the windowed attention (four points)."""
    return with_answers(MASTER, windowed_attention=code)


def answered(**only: None) -> str:
    """A blank sheet in which some tasks are answered as in the master."""
    cells = dict(grade.cells_of_script(MASTER))
    return with_answers(BLANK, **{name: cells[name] for name in only})


def in_notebook(text: str) -> str:
    return json.dumps(sheets.notebook(text))


def with_magics() -> str:
    notebook = sheets.notebook(MASTER)
    notebook.cells[1].source = "%pip install torch\n!ls\n" + notebook.cells[1].source
    return json.dumps(notebook)


WITHOUT = FULL - 4  # the windowed attention is missing
HAND_INS = {  # the text of the file, its points, what the remarks must name
    "right.py": (MASTER, FULL, ""),
    "right.ipynb": (in_notebook(MASTER), FULL, ""),
    "windows.py": ("\ufeff" + MASTER.replace("\n", "\r\n"), FULL, ""),
    "magics.ipynb": (with_magics(), FULL, ""),
    "blank.py": (BLANK, 0, "not answered"),
    "blank.ipynb": (in_notebook(BLANK), 0, "not answered"),
    "empty.py": ("", 0, "not answered"),
    "broken.ipynb": (in_notebook(MASTER)[:-200], 0, "cannot be read"),
    "half.py": (answered(predictions=None, score_variance=None), 4, "not answered"),
    "syntax.py": (window("def windowed_attention(query, key, value, width)\n"), WITHOUT, "SyntaxError"),
    "numbers.py": (window("windowed_attention = 7"), WITHOUT, "TypeError"),
    "alias.py": (window("windowed_attention = attention"), WITHOUT, ""),
    "unchanged.py": (
        window(VALUES + "    return attention(query, key, value)[0]"),
        WITHOUT,
        "not the attention",
    ),
    "hard-coded.py": (window(VALUES + "    return query"), WITHOUT, "not the attention"),
    "reads.py": (
        window(f"exec(open({str(SECRET)!r}).read())\n{VALUES}    return query"),
        WITHOUT,
        "refused: open",
    ),
    "imports.py": (
        window(
            f"sys.path.insert(0, {str(HERE.parent)!r})\n"
            f"from exercises.course.tasks import tasks_of\n{VALUES}    return query"
        ),
        WITHOUT,
        "No module named 'exercises'",
    ),
    "forges.py": (
        window(
            "import json, os\n"
            "torch.allclose = lambda *given, **named: True\n"
            "for number in range(60):\n"
            "    line = json.dumps({'end': number, 'result': [[[1.0]], 0], 'ready': True, 'done': True})\n"
            "    for file in range(20):\n"
            "        try:\n"
            "            os.write(file, line.encode() + b'\\n')\n"
            "        except OSError:\n"
            "            pass\n"
        ),
        None,
        "",
    ),
    "loops.py": (window("while True:\n    pass"), WITHOUT, "longer than"),
    "loops-when-called.py": (
        window(VALUES + "    while True:\n        try:\n            pass\n        except BaseException:\n            pass"),
        WITHOUT,
        "longer than",
    ),
    "hog.py": (
        window(VALUES + "    held = []\n    while True:\n        held.append(torch.empty(2**28))"),
        WITHOUT,
        "memory",
    ),
    "leaves.py": (window("import os\nos._exit(0)"), WITHOUT, "killed the process"),
    "starts.py": (
        window(
            "import os, socket, subprocess\n"
            "for harm in (\n"
            "    lambda: subprocess.run(['id']),\n"
            "    lambda: os.system('id'),\n"
            "    lambda: os.fork(),\n"
            "    lambda: os.kill(os.getppid(), 9),\n"
            "    lambda: socket.create_connection(('127.0.0.1', 9)),\n"
            "):\n"
            "    try:\n"
            "        harm()\n"
            "    except PermissionError:\n"
            "        pass\n"
        ),
        WITHOUT,
        "refused: os.fork",
    ),
    "floods.py": (window(VALUES + "    return torch.zeros(20_000, 1_000)"), WITHOUT, ""),
    "crashes.py": (window("import ctypes\nctypes.string_at(0)"), WITHOUT, "refused: ctypes"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> dict[str, dict]:
    """The rows of the CSV, by hand-in."""
    folder = tmp_path_factory.mktemp("hand-ins")
    for name, (text, _, _) in HAND_INS.items():
        path = folder / Path(name).stem / f"{SHEET}{Path(name).suffix}"
        path = path.with_name(f"{path.stem}-{Path(name).suffix[1:]}{path.suffix}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8", newline="")
    grade.mark_folder(folder, seed=7, seconds=6)
    out = folder / "marks" / f"{SHEET}.csv"
    print(out.read_text("utf-8"))
    with out.open(encoding="utf-8", newline="") as file:
        rows = {row["hand-in"]: row for row in csv.DictReader(file)}
    return {
        name: rows[f"{Path(name).stem}/{SHEET}-{Path(name).suffix[1:]}{Path(name).suffix}"]
        for name in HAND_INS
    }


@pytest.mark.parametrize("name", HAND_INS)
def test_each_hand_in_gets_what_it_deserves(table, name):
    _, points, remark = HAND_INS[name]
    row = table[name]
    if points is None:  # it spoils its own other answers, too: it must not gain
        assert float(row["windowed_attention (4)"]) == 0
        assert float(row["sum"]) <= WITHOUT
    else:
        assert float(row["sum"]) == points, row
    assert remark in row["remarks"], row


def test_files_are_refused_below_python_too():
    code = f"torch.from_file({str(SECRET)!r}, size=10, dtype=torch.uint8)"
    tasks = [task for task in tasks_of(SHEET) if task.name == "predictions"]
    mark = grade.mark_cells([("", "import torch"), ("predictions", code)], tasks)
    if not mark.shielded:
        pytest.skip("this kernel has no Landlock")
    assert any("RuntimeError" in remark for remark in mark.remarks), mark.remarks


def test_a_folder_without_sheets_is_refused(tmp_path):
    (tmp_path / "essay.py").write_text("print(1)")
    with pytest.raises(ValueError, match="holds no sheet"):
        grade.mark_folder(tmp_path)
