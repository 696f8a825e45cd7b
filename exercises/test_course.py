"""The course: what nbgrader releases and gives points for, the hunt, numbers of the exam."""

import importlib.util
import math
import re
import tomllib

import nbformat
import pytest
import torch

from exercises.course import hunt, numbers, sheets
from exercises.course.culprits import Faulty, Right

nbgrader = pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed"
)
FAULTS = [name for name in vars(Faulty) if not name.startswith("_")]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course folder of nbgrader with all sheets released, and the hand-outs beside it."""
    folder = tmp_path_factory.mktemp("course")
    sheets.make(folder / "nbgrader", folder / "handouts")
    return folder


def read(path):
    return nbformat.read(path, as_version=4)


def marks_of(cell) -> dict:
    return cell.metadata.get("nbgrader", {})


def name_of(cell) -> str:
    """The name of the task that a cell belongs to."""
    return re.sub(r"(-\d)?-(test|report)$", "", marks_of(cell)["grade_id"])


@pytest.mark.slow
@nbgrader
def test_hand_outs_are_what_nbgrader_releases(course):
    for path in (course / "handouts").iterdir():
        published = sheets.ROOT / "docs" / "course" / path.name
        assert published.read_text("utf-8") == path.read_text("utf-8"), "make sheets"


def test_a_folder_that_holds_something_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "gradebook.db").touch()
    assert sheets.main(["make", "--course", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["gradebook.db"]


@pytest.mark.parametrize("sheet", sheets.SHEETS)
def test_points_are_those_of_the_headings(sheet):
    text = (sheets.HERE / "sheets" / f"{sheet}.py").read_text("utf-8")
    given = [marks_of(cell).get("points", 0) for cell in sheets.notebook(text).cells]
    headings = re.findall(r"(?m)^# ## Task .* (\d+) points?\)$", text)
    assert sum(given) == sum(map(int, headings)) == 20


def submit(course, student: str, sheet: str, notebook) -> None:
    folder = course / "submitted" / student / sheet
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{sheet}.ipynb")


@pytest.mark.slow
@pytest.mark.timeout(900)
@nbgrader
@pytest.mark.parametrize(
    "sheet",
    [
        pytest.param(sheet, marks=[] if sheet[0] == "3" else pytest.mark.long)
        for sheet in sheets.SHEETS
    ],
)
def test_masters_blanks_and_wrong_answers_get_what_they_deserve(sheet, course):
    from nbgrader.api import Gradebook

    course = course / "nbgrader"
    wrong = tomllib.loads((sheets.HERE / "wrong.toml").read_text("utf-8"))[sheet]
    master = read(course / "source" / sheet / f"{sheet}.ipynb")
    submit(course, "master", sheet, master)
    submit(course, "blank", sheet, read(course / "release" / sheet / f"{sheet}.ipynb"))
    for cell in master.cells:
        if marks_of(cell).get("grade_id") in wrong:
            cell.source = wrong[name_of(cell)]["code"].strip()
    submit(course, "wrong", sheet, master)
    sheets.nbgrader(course, "autograde", sheet)
    found = {}
    with Gradebook(f"sqlite:///{course}/gradebook.db", "annotated_transformer") as book:
        for student in ("master", "blank", "wrong"):
            notebook = book.find_submission_notebook(sheet, sheet, student)
            for grade in notebook.grades:
                if grade.name.endswith("-test"):
                    task = re.sub(r"(-\d)?-test$", "", grade.name)
                    points = found.setdefault(task, {"master": 0, "blank": 0, "wrong": 0, "max": 0})
                    points[student] += grade.auto_score
                    points["max"] += grade.max_score / 3
    assert {task: points["wrong"] for task, points in found.items()} == {
        task: answer["points"] for task, answer in wrong.items()
    }
    for task, points in found.items():
        assert points["blank"] == 0, task
        assert points["wrong"] < points["master"] == pytest.approx(points["max"]), task


# The hunt -----------------------------------------------------------------------------------------


def handed_out(folder):
    """The students' hunt.py as a module."""
    path = folder / "hunt.py"
    path.write_text(sheets.packed_hunt(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("handed_out", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_number_decides_the_fault_and_all_faults_occur(monkeypatch):
    for name in FAULTS:
        monkeypatch.setattr(Faulty, name, lambda: "faulty")
        monkeypatch.setattr(Right, name, lambda: "right")
    cases = [[name for name in FAULTS if hunt.play(n, name) == "faulty"] for n in range(300)]
    assert all(len(faults) == 1 for faults in cases)
    assert {fault for [fault] in cases} == set(FAULTS)
    assert all(hunt.play(None, name) == "right" for name in FAULTS)


def test_the_hand_out_has_the_same_cases_and_names_no_fault(tmp_path):
    students = handed_out(tmp_path)
    text = (tmp_path / "hunt.py").read_text("utf-8")
    assert "class Faulty" not in text
    src = torch.tensor([[4, 9, 7, 2], [5, 6, 8, 11]])
    for case in range(60):
        for part in ("frame", "first", "source_mask"):
            assert students.play(case, part, src).equal(hunt.play(case, part, src))


def test_a_case_shows_no_more_than_its_number(tmp_path):
    students = handed_out(tmp_path)
    one, other = students.hunt(1), students.hunt(2)
    assert vars(one) == vars(other) | {"number": 1}
    assert not students.play.__defaults__ and not students.play.__closure__


@pytest.mark.slow
def test_faults_show_and_a_repaired_part_mends_them():
    copied = "copied without a mistake"
    hard = "of these, tokens right less than nine times of ten"
    case = next(n for n in range(300) if is_faulty(n, "embed"))
    assert hunt.hunt(case).symptoms()[hard] != "[]"
    mended = hunt.Case(case, embed=lambda table, ids: table[ids] * math.sqrt(table.size(1)))
    assert int(mended.symptoms()[copied].split()[0]) > 160


def is_faulty(case: int, part: str) -> bool:
    """Whether an embedding table loses its last rows in a case."""
    table, ids = torch.randn(12, 4), torch.arange(12)
    return not hunt.play(case, part, table, ids).equal(hunt.play(None, part, table, ids))


# Numbers ------------------------------------------------------------------------------------------


def test_numbers_of_the_exam_are_those_of_their_expressions():
    text = (sheets.HERE / "EXAM.md").read_text("utf-8")
    assert numbers.filled(text) == text
    assert text.count("<!-- =") == len(numbers.NUMBER.findall(text))
