"""A folder of hand-ins: what is collected, kept, typed by tutors, and returned to students."""

import csv
import unicodedata
from pathlib import Path

import nbformat
import pytest

from exercises.course import grade, reports, sheets
from exercises.course.hand_in import Mark, only_in_checks, read_hand_in, sheet_of
from exercises.course.tables import harmless
from exercises.course.tasks import SHEETS, tasks_of

SHEET = "1_attention"
TASK = "half_of_the_keys"
REPORT = "I drew a thousand queries."


def hand_in(folder: Path, student: str, report: str = REPORT, sheet: str = SHEET) -> Path:
    """Hand in a blank sheet with a report."""
    path = folder / student / f"{sheet}.ipynb"
    path.parent.mkdir(exist_ok=True)
    notebook = sheets.notebook(sheets.blank(sheets.master(sheet)))
    for cell in notebook.cells:
        if sheets.REPORT.search(cell.source):
            cell.source += f" {report}" if report else ""
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two hand-ins. Instead of running, each task of a hand-in gets one point."""

    def mark_file(path, tasks, *_):
        ran.append(path.parent.name)
        names = [task.name for task in tasks]
        return Mark(dict.fromkeys(names, 1), dict.fromkeys(names, "nearly"), ["cell 2: an error"])

    ran.clear()
    monkeypatch.setattr(grade, "mark_file", mark_file)
    hand_in(tmp_path, "ADA")
    hand_in(tmp_path, "BEN")
    return tmp_path


ran: list[str] = []  # whose hand-ins were run


def rows_of(folder: Path, table: str = SHEET) -> dict[str, dict[str, str]]:
    text = (folder / "marks" / f"{table}.csv").read_text("utf-8-sig")
    return {row["student"]: row for row in csv.DictReader(text.splitlines())}


def report_file(folder: Path, tutor: str = "") -> Path:
    return reports.file_of(folder / "marks" / "reports", SHEET, TASK, tutor)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def feedback_for(folder: Path, student: str) -> str:
    return (folder / "marks" / "feedback" / f"{student}.md").read_text("utf-8")


# Hand-ins -----------------------------------------------------------------------------------------


def test_the_sheet_of_a_file_is_known_by_name_or_text(tmp_path):
    assert sheet_of(tmp_path / "miller-1_attention.py") == "1_attention"
    renamed = tmp_path / "mine.py"
    renamed.write_text(sheets.master("1_attention"), "utf-8")
    assert sheet_of(renamed) == "1_attention"
    renamed.write_text("print(1)")
    assert sheet_of(renamed) == ""


def test_the_folder_names_the_student(tmp_path):
    decomposed = unicodedata.normalize("NFD", "Zoë May")
    for name in (decomposed, "Zoë May_4711_assignsubmission_file_"):
        path = tmp_path / name / "week 1" / "1_attention.py"
        assert grade.student_of(path, tmp_path) == "Zoë May"


def test_a_folder_without_sheets_is_refused(tmp_path):
    (tmp_path / "essay.py").write_text("print(1)")
    with pytest.raises(ValueError, match="holds no sheet"):
        grade.mark_folder(tmp_path)


def test_a_student_with_two_files_is_skipped_and_loses_nothing(folder, capsys):
    hand_in(folder, "ADA", "Two\n\n> lines\n> and a quotation.")
    grade.mark_folder(folder)
    change(report_file(folder), "## ADA\npoints:", "## ADA\npoints: 1.5\nOne seed only.\n")
    second = folder / "ADA" / f"{SHEET}-new.py"
    second.write_text("")
    hand_in(folder, "CEM")
    for _ in range(2):
        grade.mark_folder(folder)
        said = capsys.readouterr().out
        assert f"NOT MARKED: ADA has 2 files for {SHEET}" in said
        assert str(second) in said
        assert rows_of(folder).keys() == {"BEN", "CEM"}
    second.unlink()
    grade.mark_folder(folder)
    assert ran == ["ADA", "BEN", "CEM"]
    assert rows_of(folder)["ADA"]["sum (20)"] == "8.5"
    assert "1.5 of 2. One seed only." in feedback_for(folder, "ADA")


def test_a_file_in_no_students_folder_is_left_out(folder, capsys):
    (folder / "1_attention.py").write_text("")
    grade.mark_folder(folder)
    assert rows_of(folder).keys() == {"ADA", "BEN"}
    assert "no student's folder" in capsys.readouterr().out


@pytest.mark.parametrize("name", [f"{SHEET}.zip", f"{SHEET}.ipynb.txt", "all.tar.gz", "X.PY"])
def test_files_of_other_kinds_are_left_out_and_named(folder, capsys, name):
    for other in (name, "curve.png"):
        (folder / "BEN" / other).write_bytes(b"PK\x03\x04\xff")
    grade.mark_folder(folder)
    assert rows_of(folder).keys() == {"ADA", "BEN"}
    left_out = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert len(left_out) == 1
    assert left_out[0].endswith(str(folder / "BEN" / name))


@pytest.mark.parametrize("sheet", SHEETS)
def test_only_names_that_are_lost_are_named(sheet, tmp_path):
    path = tmp_path / "sheet.py"
    for text in (sheets.master(sheet), sheets.blank(sheets.master(sheet))):
        path.write_text(text, "utf-8")
        assert only_in_checks(read_hand_in(path)) == []
    path.write_text(
        '# %% task="x"\ndef x():\n    return helper(len(LIST))\n'
        '# %% check="x"\nLIST = [1]\ndef helper(n):\n    return n\nlen = 1\nunused = 2\n'
    )
    assert only_in_checks(read_hand_in(path)) == ["LIST", "helper"]


# What is kept -------------------------------------------------------------------------------------


def test_only_new_and_changed_hand_ins_run_again(folder):
    grade.mark_folder(folder)
    assert sorted(ran) == ["ADA", "BEN"]
    ran.clear()
    grade.mark_folder(folder)
    assert ran == []
    hand_in(folder, "BEN", "Another report.")
    hand_in(folder, "CEM")
    grade.mark_folder(folder)
    assert sorted(ran) == ["BEN", "CEM"]
    assert rows_of(folder)["ADA"]["sum (20)"] == "7"


def test_the_seed_stays_until_another_is_given(folder, monkeypatch):
    seeds = []

    def mark_file(path, tasks, seed, limits):
        seeds.append((seed, limits.step))
        return Mark({task.name: 0 for task in tasks}, {task.name: "" for task in tasks})

    monkeypatch.setattr(grade, "mark_file", mark_file)
    grade.mark_folder(folder, seed=5, seconds=7)
    hand_in(folder, "CEM")
    grade.mark_folder(folder)
    assert seeds == [(5, 7)] * 3
    grade.mark_folder(folder, seed=6)
    assert seeds[3:] == [(6, 7)] * 3


def test_an_interrupted_marking_keeps_what_it_has(folder, monkeypatch):
    marked = grade.mark_file

    def stops_at_ben(path, *given):
        if path.parent.name == "BEN":
            raise KeyboardInterrupt
        return marked(path, *given)

    monkeypatch.setattr(grade, "mark_file", stops_at_ben)
    with pytest.raises(KeyboardInterrupt):
        grade.mark_folder(folder, workers=1)
    monkeypatch.setattr(grade, "mark_file", marked)
    grade.mark_folder(folder)
    assert ran == ["ADA", "BEN"]


def test_damaged_results_are_refused(folder):
    grade.mark_folder(folder)
    (folder / "marks" / "results.json").write_text("{")
    with pytest.raises(ValueError, match="damaged: delete it"):
        grade.mark_folder(folder)


# Reports ------------------------------------------------------------------------------------------


def test_points_typed_into_the_reports_count_and_stay(folder):
    grade.mark_folder(folder)
    assert feedback_for(folder, "ADA").count("not read yet") == 1
    ada = "## ADA\npoints:"
    change(report_file(folder), ada, f"{ada} 1,5\nGood,\nbut one seed only.\n")
    hand_in(folder, "CEM")
    for _ in range(2):
        grade.mark_folder(folder)
        rows = rows_of(folder)
        column = f"{TASK}, report (2)"
        assert [rows[name][column] for name in ("ADA", "BEN", "CEM")] == ["1.5", "", ""]
        assert [rows[name]["sum (20)"] for name in ("ADA", "BEN")] == ["8.5", "7"]
        assert rows_of(folder, "totals")["ADA"]["sum (20)"] == "8.5"
        assert "1.5 of 2. Good, but one seed only." in feedback_for(folder, "ADA")
        assert "but one seed" not in feedback_for(folder, "BEN")
        assert report_file(folder).read_text("utf-8").count(REPORT) == 3


def test_a_report_that_changed_after_it_was_read_is_to_be_read_again(folder, capsys):
    grade.mark_folder(folder)
    change(report_file(folder), "## ADA\npoints:", "## ADA\npoints: 1.5\nOne seed only.\n")
    grade.mark_folder(folder)
    assert "read again" not in capsys.readouterr().out
    hand_in(folder, "ADA", "I drew\n\nten thousand queries.")
    hand_in(folder, "BEN", "Nobody has read this one yet.")
    for _ in range(2):  # until the tutor deletes the line
        grade.mark_folder(folder)
        said = capsys.readouterr().out
        assert f"to read again, since they have changed: ADA in {report_file(folder)}" in said
        assert rows_of(folder)["ADA"]["sum (20)"] == "8.5"
        assert "1.5 of 2 for an earlier version. One seed only." in feedback_for(folder, "ADA")
    path = report_file(folder)
    lines = path.read_text("utf-8").splitlines(keepends=True)
    heading = lines.index("## ADA\n")
    assert lines[heading + 2].startswith(reports.CHANGED)
    path.write_text("".join(lines[: heading + 2] + lines[heading + 3 :]), "utf-8")
    grade.mark_folder(folder)
    assert "read again" not in capsys.readouterr().out
    assert "1.5 of 2. One seed only." in feedback_for(folder, "ADA")


@pytest.mark.parametrize(
    "typed, message",
    [
        ("## BEN\npoints: 2.5", "from 0 to 2, not '2.5'"),
        ("## BEN\npoints: -1", "from 0 to 2"),
        ("## BEN\npoints: nan", "from 0 to 2"),
        ("## BEN\npoints: two", "not 'two'"),
        ("## BEN\n", "one line with 'points:'"),
        ("## BEN\npoints: 1\npoints: 2", "one line with 'points:'"),
        ("## BENN\npoints: 1", "BENN has no such report"),
        ("## ADA\npoints: 1", "ADA stands here twice"),
    ],
)
def test_points_that_make_no_sense_are_refused_and_nothing_is_lost(folder, typed, message):
    grade.mark_folder(folder)
    path = report_file(folder)
    change(path, "## BEN\npoints:", typed)
    before = path.read_text("utf-8")
    line = before[: before.index(typed)].count("\n") + 1
    with pytest.raises(ValueError, match=message) as error:
        grade.mark_folder(folder)
    assert f"{path}, line {line}" in str(error.value)
    assert path.read_text("utf-8") == before


def test_reports_in_another_encoding_are_refused(folder):
    grade.mark_folder(folder)
    report_file(folder).write_bytes("## ADA\npoints: 1\nMädchen".encode("utf-16"))
    with pytest.raises(ValueError, match="save it"):
        grade.mark_folder(folder)


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028"])
def test_nobody_types_points_in_a_report(folder, end):
    hand_in(
        folder, "ADA", end.join(["Mine:", "", "## ADA", "points: 2", "", "## BEN", "points: 0"])
    )
    for _ in range(2):
        grade.mark_folder(folder)
    assert rows_of(folder)["ADA"]["sum (20)"] == rows_of(folder)["BEN"]["sum (20)"] == "7"


def test_what_is_typed_while_hand_ins_run_is_not_lost(folder, monkeypatch):
    grade.mark_folder(folder)
    marked = grade.mark_file

    def types_meanwhile(*given):
        change(report_file(folder), "## ADA\npoints:", "## ADA\npoints: 2")
        return marked(*given)

    monkeypatch.setattr(grade, "mark_file", types_meanwhile)
    hand_in(folder, "CEM")
    grade.mark_folder(folder)
    assert rows_of(folder)["ADA"]["sum (20)"] == "9"


def test_students_without_a_report_are_told(folder):
    hand_in(folder, "BEN", "")
    grade.mark_folder(folder)
    assert "## BEN" not in report_file(folder).read_text("utf-8")
    assert "report: none is in its place" in feedback_for(folder, "BEN")


@pytest.mark.parametrize(
    "place", ['# %% task="without_residuals"', "# %% [markdown]\n# <!-- report: without_residuals"]
)
def test_a_report_is_found_wherever_it_stands_below_its_task(tmp_path, place):
    text = sheets.blank(sheets.master("2_model"))
    path = tmp_path / "2_model.py"
    path.write_text(text.replace(place, f"# %% [markdown]\n# Two\n#\n# lines.\n\n{place}"), "utf-8")
    cells = read_hand_in(path)
    assert reports.report_of(cells, "2_model", "without_residuals") == "Two\n\nlines."
    assert reports.report_of(cells, "2_model", "packed") == ""


def test_a_report_is_found_without_the_heading_of_its_task(tmp_path):
    path = hand_in(tmp_path, "ADA")
    cells = [cell for cell in read_hand_in(path) if f"task: {TASK}" not in cell.source]
    assert reports.report_of(cells, SHEET, TASK).endswith(REPORT)


def test_two_tutors_share_the_reports(folder):
    grade.mark_folder(folder)
    change(report_file(folder), "## ADA\npoints:", "## ADA\npoints: 1")
    roster = folder / "students.csv"
    roster.write_text("student,tutor\nADA,Mia\nBEN,Leo\n")
    grade.mark_folder(folder)
    assert not report_file(folder).exists()
    assert "## BEN" not in report_file(folder, "Mia").read_text("utf-8")
    change(report_file(folder, "Leo"), "## BEN\npoints:", "## BEN\npoints: 2")
    grade.mark_folder(folder)
    assert [rows_of(folder)[name]["sum (20)"] for name in ("ADA", "BEN")] == ["8", "9"]


@pytest.mark.parametrize("sheet", SHEETS)
def test_the_guide_says_what_a_report_should_have(sheet):
    numbers = {heading.name: heading.number for heading in sheets.headings_of(sheets.master(sheet))}
    for task in tasks_of(sheet):
        assert bool(reports.wanted_in(sheet, numbers[task.name])) == bool(task.tutor), task.name


# Tables and feedback ------------------------------------------------------------------------------


def test_a_spreadsheet_takes_nothing_for_a_formula():
    assert harmless("=1+1") == "'=1+1"
    assert harmless("two\nlines") == "two lines"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_totals_have_all_sheets_and_all_students(folder, capsys, delimiter):
    hand_in(folder, "ADA", sheet="2_model")
    lines = [("number", "student"), ("0815", "ADA"), ("0816", "DAN"), ("", "")]
    text = "\n".join(delimiter.join(line) for line in lines)
    (folder / "students.csv").write_text(text, "utf-8-sig")
    grade.mark_folder(folder)
    rows = rows_of(folder, "totals")
    assert list(rows) == ["ADA", "BEN", "DAN"]
    assert list(rows["ADA"].values()) == ["0815", "ADA", "7", "8", "15"]
    assert list(rows["BEN"].values()) == ["", "BEN", "7", "", "7"]
    assert list(rows["DAN"].values()) == ["0816", "DAN", "", "", "0"]
    said = capsys.readouterr().out
    assert "not in students.csv: BEN" in said
    assert "1 of 2 have not handed in 1_attention:\n    DAN\n" in said
    assert "1 of 2 have not handed in 2_model:\n    DAN\n" in said


def test_a_tutor_decides_against_a_test(folder):
    path = folder / "decisions.csv"
    heading = "student,sheet,task,points,reason\n"
    path.write_text(f'{heading}ADA,{SHEET},matrices,"1,5",a slip\n')
    grade.mark_folder(folder)
    assert rows_of(folder)["ADA"]["matrices (2)"] == "1.5"
    assert [rows_of(folder)[name]["sum (20)"] for name in ("ADA", "BEN")] == ["7.5", "7"]
    assert "decided by a tutor: a slip" in feedback_for(folder, "ADA")
    assert "a slip" not in feedback_for(folder, "BEN")
    path.write_text(heading)
    hand_in(folder, "CEM")
    grade.mark_folder(folder)
    assert rows_of(folder)["ADA"]["sum (20)"] == "7"
    assert ran == ["ADA", "BEN", "CEM"]


@pytest.mark.parametrize(
    "line, message",
    [
        (f"DAN,{SHEET},matrices,1,x", "line 2: DAN has not handed in '1_attention'"),
        ("ADA,2_model,matrices,1,x", "ADA has not handed in '2_model'"),
        (f"ADA,{SHEET},matrix,1,x", "no task 'matrix', but predictions"),
        (f"ADA,{SHEET},matrices,3,x", "from 0 to 2, not '3'"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused_before_anything_runs(folder, line, message):
    (folder / "decisions.csv").write_text(f"student,sheet,task,points,reason\n{line}\n")
    with pytest.raises(ValueError, match=message):
        grade.mark_folder(folder)
    assert not ran


@pytest.mark.parametrize(
    "text, message",
    [
        ("name\nADA\n", "no table with a column 'student'"),
        ("student,number\nADA\n", "line 2: not as many cells"),
        ("student,number\nADA,1,2\n", "line 2: not as many cells"),
        ("student\nADA\nADA\n", "ADA stands there twice"),
        ('student\n"ADA\nBEN\n', "no table"),
        ("", "no table"),
    ],
)
def test_a_broken_list_of_students_is_refused_before_anything_runs(folder, text, message):
    (folder / "students.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        grade.mark_folder(folder)
    assert not ran


def test_a_list_of_students_in_another_encoding_is_refused(folder):
    (folder / "students.csv").write_bytes("student\nZoë\n".encode("utf-16"))
    with pytest.raises(ValueError, match="not in UTF-8"):
        grade.mark_folder(folder)


def test_feedback_has_points_messages_and_errors_but_no_refusals(folder, monkeypatch, capsys):
    def mark_file(path, tasks, *_):
        names = [task.name for task in tasks]
        points, messages = dict.fromkeys(names, 1), dict.fromkeys(names, f"for {path.parent.name}")
        return Mark(points, messages, ["cell 2: an error"], ["open /secret"])

    monkeypatch.setattr(grade, "mark_file", mark_file)
    grade.mark_folder(folder)
    text = feedback_for(folder, "ADA")
    assert text.count("for ADA") == len(tasks_of(SHEET))
    for heading in sheets.headings_of(sheets.master(SHEET)):
        assert heading.title in text
    assert "7 of 20" in text
    assert "cell 2: an error" in text
    assert "BEN" not in text
    assert "/secret" not in text
    assert "refused: open /secret" in rows_of(folder)["ADA"]["remarks"]
    assert "refused: open /secret" in capsys.readouterr().out
