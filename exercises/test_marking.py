"""Hand-ins of all kinds, as a tutor gets them: each gets what it deserves."""

import csv
import json
import re
from pathlib import Path

import pytest

from exercises.course import grade, sheets
from exercises.course.hand_in import Cell, Limits, mark_cells
from exercises.course.tasks import HERE, tasks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHEET = "1_attention"
MASTER = sheets.master(SHEET)
BLANK = sheets.blank(MASTER)
FULL = sum(task.points for task in tasks_of(SHEET))
WITHOUT = FULL - 4  # where the windowed attention is missing
SECRET = HERE / "tests" / f"{SHEET}.py"


def with_answers(text: str, **answers: str) -> str:
    """A sheet with other code in the cells of some tasks."""
    parts = re.split(r"(?m)^(?=# %%)", text)
    for place, part in enumerate(parts):
        task = re.match(r'# %% task="(\w+)"\n', part)
        if task and task[1] in answers:
            parts[place] = task[0] + answers[task[1]] + "\n\n"
    return "".join(parts)


def window(code: str) -> str:
    """A right sheet, but for the windowed attention."""
    return with_answers(MASTER, windowed_attention=code)


def with_magics() -> str:
    notebook = sheets.notebook(MASTER)
    notebook.cells[1].source = "%pip install torch\n!ls\n" + notebook.cells[1].source
    return json.dumps(notebook)


UNCHANGED = """
def windowed_attention(query, key, value, width):
    return attention(query, key, value)[0]
"""
READS = f"""
exec(open({str(SECRET)!r}).read())
"""
FORGES = """
import json, os
torch.allclose = torch.equal = lambda *given, **named: True
torch.randn = torch.zeros
for number in range(60):
    line = json.dumps({"end": number, "result": [[[1.0]], 0], "done": True})
    for file in range(20):
        try:
            os.write(file, line.encode() + b"\\n")
        except OSError:
            pass
"""
HOG = """
def windowed_attention(query, key, value, width):
    held = []
    while True:
        held.append(torch.empty(2**28))
"""
STARTS = """
import os, socket, subprocess
for harm in (
    lambda: subprocess.run(["id"]),
    lambda: os.system("id"),
    lambda: os.fork(),
    lambda: os.kill(os.getppid(), 9),
    lambda: socket.create_connection(("127.0.0.1", 9)),
):
    try:
        harm()
    except PermissionError:
        pass
"""
HELPED = """
def windowed_attention(query, key, value, width):
    return helper(query, key, value)
"""
HELPER = "\n\ndef helper(query, key, value):\n    return query\n"


def with_helper_in_check() -> str:
    check = '# %% check="windowed_attention"\n'
    return window(HELPED).replace(check, check + HELPER)


HAND_INS = {  # the text of the file, its points, and what the remarks must name
    "magics.ipynb": (with_magics(), FULL, ""),
    "blank.py": (BLANK, 0, "not answered"),
    "syntax.py": (window("def windowed_attention(query, key)\n"), WITHOUT, "SyntaxError"),
    "alias.py": (window("windowed_attention = attention"), WITHOUT, "TypeError"),
    "unchanged.py": (window(UNCHANGED), WITHOUT, "not the attention"),
    "reads.py": (window(READS), WITHOUT, "refused: open"),
    "forges.py": (window(FORGES), None, ""),
    "loops.py": (window("while True:\n    pass"), WITHOUT, "longer than"),
    "hog.py": (window(HOG), WITHOUT, "memory"),
    "leaves.py": (window("import os\nos._exit(0)"), WITHOUT, "killed the process"),
    "helper.py": (with_helper_in_check(), WITHOUT, "helper stands in a check cell"),
    "starts.py": (window(STARTS), WITHOUT, "refused: os.fork"),
}


def student_of(name: str) -> str:
    return name.replace(".", "")


def test_each_hand_in_gets_what_it_deserves(tmp_path):
    for name, (text, _, _) in HAND_INS.items():
        path = tmp_path / student_of(name) / f"{SHEET}{Path(name).suffix}"
        path.parent.mkdir()
        path.write_text(text, "utf-8", newline="")
    grade.mark_folder(tmp_path, seed=7, seconds=6)
    out = tmp_path / "marks" / f"{SHEET}.csv"
    print(out.read_text("utf-8"))
    with out.open(encoding="utf-8-sig", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(HAND_INS)
    for name, (_, points, remark) in HAND_INS.items():
        row = rows[student_of(name)]
        if points is None:  # it may spoil its other answers, too
            assert float(row["windowed_attention (4)"]) == 0
            assert float(row["sum (20)"]) <= WITHOUT
        else:
            assert float(row["sum (20)"]) == points, row
        assert remark in row["remarks"], row


def test_the_reason_why_a_cell_gave_no_answer_stands_with_its_task():
    cells = [
        Cell("code", "predicted = 'TTFTTF'\nwhile True:\n    pass", "predictions"),
        Cell("code", "def score_variance(m)\n", "score_variance"),
        Cell("code", "raise NotImplementedError", "matrices"),
        Cell("code", "1 / 0"),
    ]
    names = [cell.task for cell in cells]
    tasks = [task for task in tasks_of(SHEET) if task.name in names]
    mark = mark_cells(cells, tasks, limits=Limits(step=3))
    assert "longer than 3 seconds" in mark.messages["predictions"]
    assert "SyntaxError" in mark.messages["score_variance"]
    assert mark.messages["matrices"] == "not answered"
    assert len(mark.errors) == 1
    assert "ZeroDivisionError" in mark.errors[0]


def test_no_message_says_where_the_project_lies():
    cells = [
        Cell("code", f"open({str(SECRET)!r})", "predictions"),
        Cell("code", f"open({str(SECRET)!r})"),
    ]
    mark = mark_cells(cells, [task for task in tasks_of(SHEET) if task.name == "predictions"])
    said = [*mark.messages.values(), *mark.errors, *mark.refused]
    assert len(said) == 3
    for text in said:
        assert "tests/1_attention.py" in text
        assert str(HERE) not in text


def test_files_are_refused_below_python_too():
    code = f"torch.from_file({str(SECRET)!r}, size=10, dtype=torch.uint8)"
    tasks = [task for task in tasks_of(SHEET) if task.name == "predictions"]
    mark = mark_cells([Cell("code", "import torch"), Cell("code", code, "predictions")], tasks)
    if not mark.shielded:
        pytest.skip("this kernel has no Landlock")
    assert "RuntimeError" in mark.messages["predictions"]
