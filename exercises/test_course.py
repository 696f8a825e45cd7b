"""Sheets, their hidden tests, the hunt, the export and the bundle."""

import re
import sys

import pytest
import torch

from exercises.course import bundle, export, faults, hunt, sheets
from exercises.course.hand_in import Cell, cells_of_script
from exercises.course.tasks import HERE, SHEETS, load, tasks_of
from exercises.course.try_out import points_of, run, with_answer
from exercises.course.worker import plain
from exercises.course.wrong import wrong_answers

torch.set_num_threads(1)  # the models are small
slow = pytest.mark.slow
WRONG = [
    pytest.param(sheet, answer, id=f"{answer.task}-{number}")
    for sheet in SHEETS
    for number, answer in enumerate(wrong_answers(sheet))
]
ran = {}


@pytest.fixture
def masters(monkeypatch):
    """A function that gives the names of a master that has run, once for each sheet."""
    monkeypatch.chdir(HERE.parent)
    monkeypatch.setattr(sys, "path", [*sys.path, str(sheets.OUT)])

    def master(sheet: str):
        if sheet not in ran:
            ran[sheet] = run(cells_of_script(sheets.master(sheet)))
        return ran[sheet]

    return master


# Sheets -------------------------------------------------------------------------------------------


def test_hand_outs_are_those_of_the_masters():
    for name, text in sheets.handouts().items():
        assert (sheets.OUT / name).read_text("utf-8") == text, f"{name}: make sheets writes it anew"


@pytest.mark.parametrize("sheet", SHEETS)
def test_points_of_headings_are_those_of_the_tests(sheet):
    headings = sheets.headings_of(sheets.master(sheet))
    tasks = tasks_of(sheet)
    assert [heading.name for heading in headings] == [task.name for task in tasks]
    assert [heading.number for heading in headings] == list(range(1, len(tasks) + 1))
    for heading, task in zip(headings, tasks, strict=True):
        assert heading.points == task.points + task.tutor, task.name
    assert sum(heading.points for heading in headings) == 20


@pytest.mark.parametrize("sheet", SHEETS)
def test_a_blank_sheet_holds_no_solution(sheet):
    cells = sheets.cells_of(sheets.master(sheet))
    blank = sheets.blank(sheets.master(sheet))
    solutions = [match[2] for cell in cells for match in sheets.SOLUTION.finditer(cell.source)]
    assert solutions
    for solution in solutions:
        assert solution not in blank


def code_of(text: str) -> list[str]:
    """The code cells of a percent script, those with checks, too."""
    return [cell.source for cell in sheets.cells_of(text) if cell.cell_type == "code"]


@pytest.mark.parametrize("sheet", SHEETS)
def test_a_blank_sheet_runs_to_its_end(sheet, masters, capsys):
    space = {}
    for source in code_of(sheets.blank(sheets.master(sheet))):
        exec(source, space)
    assert capsys.readouterr().out.count("not answered yet") == len(tasks_of(sheet))


def test_a_check_raises_where_an_answer_is_wrong(masters):
    master = sheets.master("1_attention")
    right = "return (a + m**2) * (b + c**2) - (m * c) ** 2"
    [check] = re.findall(r'(?ms)^# %% check="score_variance"\n(.*?)^# %%', master)
    space = vars(run(cells_of_script(master.replace(right, "return 2.0"))))
    with pytest.raises(AssertionError, match="variance one"):
        exec(check, space)


def test_a_solution_at_the_top_gives_way_to_names_without_values():
    solution = (
        "def helper():\n    return 1\n\n\nfirst = helper()\nsecond: int = 2\nthird, fourth = 3, 4\n"
    )
    text = f'# %% task="x"\n### BEGIN SOLUTION\n{solution}### END SOLUTION\n'
    blank = sheets.blank(text)
    names = vars(run([Cell("code", blank)]))
    assert [names[name] for name in ("first", "second", "third", "fourth")] == [None] * 4
    assert "helper" not in blank


def test_marks_without_a_pair_are_refused():
    with pytest.raises(ValueError, match="pairs"):
        sheets.blank('# %% task="x"\n### BEGIN SOLUTION\nx = 1\n')


@slow
@pytest.mark.parametrize("sheet", SHEETS)
def test_the_master_gets_full_marks(sheet, masters):
    names = vars(masters(sheet))
    for task in tasks_of(sheet):
        for seed in (1, 2):
            points, message = points_of(names, task, seed)
            assert points == task.points, f"{task.name}: {message}"


@slow
@pytest.mark.parametrize("sheet", SHEETS)
def test_a_blank_sheet_gets_nothing(sheet, masters):
    names = vars(run(cells_of_script(sheets.blank(sheets.master(sheet)))))
    assert {task.name: points_of(names, task)[0] for task in tasks_of(sheet)} == {
        task.name: 0 for task in tasks_of(sheet)
    }


@slow
@pytest.mark.long
@pytest.mark.parametrize("sheet, answer", WRONG)
def test_a_wrong_answer_gets_what_it_deserves(sheet, answer, masters):
    [task] = [task for task in tasks_of(sheet) if task.name == answer.task]
    points, message = points_of(vars(with_answer(masters(sheet), answer.code)), task)
    assert points == answer.points, f"{answer.why} ({message})"
    assert points < task.points


@pytest.mark.parametrize("sheet", SHEETS)
def test_each_task_has_two_wrong_answers(sheet):
    tasks = [answer.task for answer in wrong_answers(sheet)]
    for task in tasks_of(sheet):
        assert tasks.count(task.name) >= 2, task.name
    assert set(tasks) == {task.name for task in tasks_of(sheet)}


def test_a_probe_is_sent_without_its_judge():
    for sheet in SHEETS:
        for task in tasks_of(sheet):
            assert "def judge" not in task.source()
            assert "def probe" in task.source()


def test_right_versions_of_attention_stand_a_closed_key_with_a_high_score():
    def check_of_attention(function):
        query = torch.tensor([[1.0, 0.0]])
        key = torch.tensor([[0.0, 1.0], [1.0, 0.0], [500.0, 0.0]])
        mask = torch.tensor([[True, True, False]])
        _, weights = function(query, key, torch.randn(3, 2), mask)
        assert torch.allclose(weights[0], torch.tensor([0.330, 0.670, 0.0]), atol=1e-3)

    [task] = [task for task in tasks_of("1_attention") if task.name == "check_of_attention"]
    points, message = points_of({"check_of_attention": check_of_attention}, task)
    assert points > 0, message


def test_a_wrong_prediction_costs_nothing():
    tasks = {task.name: task for sheet in SHEETS[:2] for task in tasks_of(sheet)}
    guess = {"predicted": "FFTFFT", "observed": "TTFTTF"}
    assert points_of(guess, tasks["predictions"])[0] == tasks["predictions"].points
    guess = {"predicted_order": ["feed-forward", "attention", "both"]}
    task = tasks["without_residuals_prediction"]
    assert points_of(guess, task)[0] == task.points


def test_a_view_of_a_shared_head_is_no_copy(masters):
    master = sheets.master("5_language_model")
    grouped = "        heads, _ = attention(q, k, v)\n"
    assert master.count(grouped) == 1
    expanded = """
        copies = (-1, -1, q.size(2), -1, -1)
        k, v = (each.unsqueeze(2).expand(copies) for each in (k, v))
        heads, _ = attention(q.unsqueeze(3), k, v)
        heads = heads.squeeze(3)
"""
    [task] = [task for task in tasks_of("5_language_model") if task.name == "rotated_cache"]
    names = vars(run(cells_of_script(master.replace(grouped, expanded))))
    assert points_of(names, task)[0] == task.points
    copied = expanded.replace(".expand(copies)", ".expand(copies).contiguous()")
    names = vars(run(cells_of_script(master.replace(grouped, copied))))
    assert points_of(names, task)[0] == task.points - 1


# The hunt -----------------------------------------------------------------------------------------


def test_cases_have_all_faults():
    found = {faults.fault_of(case) for case in range(1000)}
    assert found == set(faults.FAULTS)
    assert len(found) >= 12
    assert set(faults.PARTS) == hunt.CANDIDATES.keys() == hunt.CONTRACTS.keys()


def test_the_hand_out_of_the_hunt_names_no_fault():
    text = sheets.packed_hunt()
    source = (HERE / "course" / "faults.py").read_text("utf-8")
    for line in source.splitlines():
        if line.startswith("        return "):
            assert line.strip() not in text
    assert "class Faulty" not in text


def given_by(part: str, function) -> list:
    """What a part of the hunt returns for random arguments."""
    sheet = load(HERE / "tests" / "4_decoding.py")
    return plain(sheet.what_a_part_gives(part, function, 1))


def test_the_hand_out_of_the_hunt_has_the_same_cases():
    handed_out = load(sheets.OUT / "hunt.py")
    for case in range(20):
        ours, packed = faults.parts_of(case), handed_out.parts_of(case)
        for part in ours:
            assert given_by(part, packed[part]) == given_by(part, ours[part]), part


def test_comparing_a_case_with_the_sound_model_does_not_tell_the_fault():
    sound, faulty = hunt.hunt(None).parts, hunt.hunt(1234).parts
    for part in sound:
        assert sound[part] != faulty[part]
        assert sound[part].__code__ == faulty[part].__code__
        assert repr(sound[part]).split(" at ")[0] == repr(faulty[part]).split(" at ")[0]


@pytest.mark.parametrize("part", faults.FAULTS)
def test_a_repaired_part_is_told_from_a_faulty_one(part):
    [task] = [task for task in tasks_of("4_decoding") if task.name == "bug_hunt"]
    case = next(case for case in range(1000) if faults.fault_of(case) == part)
    answer = {"case_number": case, "diagnosis": part}
    right, faulty = vars(faults.Right)[part], vars(faults.Faulty)[part]
    assert points_of(answer | {"repaired": right}, task)[0] == 4
    assert points_of(answer | {"repaired": faulty}, task)[0] == 2
    assert points_of(answer | {"repaired": right, "diagnosis": "scores"}, task)[0] == 0


@slow
@pytest.mark.long
def test_a_sound_model_copies_and_its_faults_show():
    """Two faults that the loss alone does not give away."""

    def symptoms(part: str | None) -> dict:
        parts = faults.parts_of(None)
        if part:
            parts[part] = vars(faults.Faulty)[part]
        return hunt.Case(1, parts).symptoms()

    copied = "copied without a mistake"
    padding = "the same with padding behind the source"
    hard = "of these, tokens right less than nine times of ten"
    sound = symptoms(None)
    assert int(sound[copied].split()[0]) > 160
    assert sound[padding] == sound["the same when asked twice"] == "100%"
    assert sound[hard] == "[]"
    assert symptoms("source_mask")[padding] != "100%"
    assert symptoms("embed")[hard] != "[]"


# Export and bundle --------------------------------------------------------------------------------


@pytest.mark.parametrize("sheet", SHEETS)
def test_the_export_gives_nbgrader_every_point(sheet):
    cells = export.source_notebook(sheet).cells
    marks = [cell.metadata["nbgrader"] for cell in cells if "nbgrader" in cell.metadata]
    assert sum(mark.get("points", 0) for mark in marks) == 20
    names = [mark["grade_id"] for mark in marks]
    assert len(set(names)) == len(names)
    for cell in cells:
        assert cell.source.count("BEGIN HIDDEN") == cell.source.count("END HIDDEN")
        assert cell.source.count("BEGIN SOLUTION") == cell.source.count("END SOLUTION")


def test_an_assignment_of_nbgrader_has_what_its_sheet_needs(tmp_path):
    export.make(tmp_path / "course")
    for sheet in SHEETS:
        folder = tmp_path / "course" / "source" / sheet
        names = {path.name for path in folder.iterdir()}
        assert {f"{sheet}.ipynb", "the_annotated_transformer.py"} <= names
        text = sheets.master(sheet)
        assert ("hunt.py" in names) == ("from hunt import" in text)
        assert (folder / "pretrained" / "config.json").is_file() == ('"pretrained"' in text)


def test_a_bundle_holds_what_students_need_and_no_solution(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "train.de.gz").write_bytes(b"")
    monkeypatch.setenv("MULTI30K_DIR", str(corpus))
    out = tmp_path / "bundle"
    bundle.make(out, wheels=False)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    needed = {
        *(
            "the_annotated_transformer.py",
            "docs/index.html",
            "docs/the_annotated_transformer.ipynb",
        ),
        *("pretrained/model.safetensors", "docs/course/1_attention.ipynb", "docs/course/hunt.py"),
        *("corpus/train.de.gz", "LICENSE", "requirements.txt", "START.md"),
    }
    assert needed <= files
    assert not any("exercises" in name for name in files)
    for path in out.rglob("*.py"):
        assert "BEGIN SOLUTION" not in path.read_text("utf-8")
