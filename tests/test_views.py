"""`make views`: tables and charts of the results, from made-up records and from those on file."""

import itertools
import re

import pytest

from tools import records
from tools.results import plan
from tools.views import __main__ as views
from tools.views import common, copying, inside, numbers, recipe, speed

MADE = {"date": "2027-01-01", "machine": "a toy", "commit": "0123456789"}
MADE |= {"torch": "2.13.0", "device": "cpu", "format": "fp32"}


# What is on file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", views.GENERATED)
def test_tables_are_what_the_records_give(file):
    text = (records.PROJECT / file).read_text("utf-8")
    assert views.filled(file, text) == (text, []), "`make views` writes them"


@pytest.mark.parametrize("make", views.CHARTS)
def test_charts_are_what_the_records_give(make):
    view = records.read(f"views/{views.name_of(make)}")
    assert view == make().specification(), "`make views` writes it"


def test_the_text_shows_each_chart_once_and_no_other():
    text = (records.PROJECT / views.SCRIPT).read_text("utf-8")
    shown = re.findall(r'(?m)^published\("([^"]+)"\)', text)
    assert sorted(shown) == sorted(map(views.name_of, views.CHARTS)) == written_charts()


def written_charts() -> list[str]:
    return sorted(path.stem for path in (records.RESULTS / "views").iterdir())


@pytest.mark.parametrize(("file", "phrase"), numbers.SENTENCES)
def test_numbers_in_sentences_are_those_of_the_records(file, phrase):
    assert numbers.fault_of(file, phrase) == ""


def test_a_wrong_number_in_a_sentence_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(numbers, "PROJECT", tmp_path)
    monkeypatch.setattr(numbers, "SENTENCES", {("a.py", "It takes {} hours."): lambda: "five"})
    for text, fault in (
        ("# So. It takes\n# five hours.", "^$"),
        ("# So. It takes\n# six hours.", "says six, and the records five"),
        ("# So.", "stands 0 times in a.py: if it is gone, delete its entry"),
        ("It takes five hours. It takes six hours.", "stands 2 times"),
    ):
        (tmp_path / "a.py").write_text(text)
        assert re.search(fault, numbers.fault_of("a.py", "It takes {} hours."))


# Made-up records ----------------------------------------------------------------------------------


def copies(**counts) -> dict:
    """A run of the copy task that has copied all but what is told."""
    kinds = dict.fromkeys(copying.KINDS, 0) | counts
    return {"seed": 1, "losses": "2.0 0.5", **kinds, "copied": 200 - sum(kinds.values())}


def rounds(unit: str, *values: float) -> list[dict]:
    return [{unit: value, "share of peak": 0.5} for value in values]


def made_up() -> dict[str, dict]:
    """A record of each kind, by name."""
    found = {}
    log = [{"updates": 600, "perplexity": 4.0, "bleu": 40.0, "minutes": 6.0}]
    for name, config in plan.RUNS.items():
        about = {"settings": vars(config), "parameters": 1_000_000, "validation_bleu": 40.0}
        found[f"runs/{name}"] = {"summary": MADE | about | {"updates": 600}, "log": log}
    rows = (*plan.ROWS, plan.OTHER, plan.SHIPPED)
    score = MADE | {"bleu": 40.0, "signature": "tok:13a", "beam": 4, "alpha": 1.0, "averaged": 6}
    places = [(row, split) for row in rows for split in plan.TESTS]
    scores = [
        {"row": row.name, "split": split, "run": r} for row, split in places for r in row.runs
    ]
    found["scores"] = {"scores": [score | place for place in scores]}
    timed = {"seconds": 0.5, "format": "fp32", "made": MADE}
    found["pace"] = {row.runs[0]: timed for row in plan.ROWS}
    gain = {"gain": 1.0, "interval": [-0.51, 1.5], "passes": True}
    steps = [gain | {"row": r.name, "split": s} for r in plan.ROWS[1:] for s in plan.TESTS]
    found["steps"] = {"draws": 9, "steps": steps}
    of_format = {"MB": 4.0} | {split: {"bleu": 40.0} for split in ("val", *plan.TESTS)}
    formats = {"fp32": of_format, "int8": of_format}
    found["pretrained"] = {"run": "recipe-1", "formats": formats, "training": MADE, "made": MADE}
    swept = {"run": "recipe-1", "beam": 4, "averaged": 6, "made": MADE}
    found["beam"] = swept | {"sweep": [{"beam": 1, "alpha": 0.0, "bleu": 40.0}]}
    found["averaging"] = swept | {"sweep": [{"averaged": 0, "bleu": 40.0, "perplexity": 4.0}]}
    counts = {"equal": 5, "beam above": 3, "greedy above": 1}
    found["lost"] = {"counts": {"2": counts}, "made": MADE}
    training = {"task": "train", "rounds": rounds("tokens per second", 100, 90, 300)}
    kinds = itertools.product(("ours", "torch"), speed.SIZES, ("fp32", "bf16"))
    cases = [training | {"code": code, "size": size, "dtype": dtype} for code, size, dtype in kinds]
    decoding = {"task": "decode", "beam": 1, "rounds": rounds("sentences per second", 9)}
    cases += [decoding | {"code": code, "ranks": 1} for code in ("ours", "ctranslate2")]
    found["gpu"] = {"rounds": 3, "made": MADE, "cases": cases}
    cases = [case | {"ranks": ranks} for case in cases for ranks in (1, 2)]
    found["benchmark"] = {"rounds": 3, "made": MADE, "cases": cases, "words": 11}
    layer = {"layer": "a layer", "length": 8, "milliseconds": [1.0, 2.0, 3.0]}
    found["length-cost"] = {"width": 16, "rows": [layer], "made": MADE}
    kinds = ("plain", "assembled")
    runs = [{"model": kind, "parameters": 11, "updates": 3, "nll": [2.0, 1.0]} for kind in kinds]
    measured = {"training": [1, 2], "writing": [3, 4], "bytes": 5}
    measured = {"speed": dict.fromkeys(kinds, measured), "made": MADE, "timed": MADE}
    found["assembled"] = measured | {"runs": runs}
    head = {"attention": "cross-attention", "layer": 1, "by": "zero", "changes": [0.1, 0.2]}
    found["heads"] = {"rows": [head], "perplexity": [4.0, 5.0], "made": MADE}
    shares = {"nothing": 0.0, "verb": 0.8, "particle": 0.2, "everything": 1.0}
    pair = {"shares": shares, "layers": {"verb": [0, 1], "particle": [1, 0]}}
    pairs = [pair | {"kind": kind} for kind in inside.CHANGES for _ in range(2)]
    found["particles"] = {"pairs": pairs, "tried": 5, "made": MADE}
    faults = [copying.SOUND, *copying.PARTS.values(), "nothing, one head of width 512"]
    found["planted"] = {
        "copying": {fault: [copies()] * 3 for fault in faults},
        "demonstration": {copying.SOUND: [20.0, 21.0], "a fault": [10.0, 11.0]},
        "shipped": {copying.SOUND: [40.0]},
        "checks": {"a fault": "check_it_works"},
        "made": {kind: [MADE] for kind in ("copying", "demonstration", "shipped")},
    }
    warmed = itertools.product((True, False), repeat=2)
    runs = [{"norm first": n, "warm-up": w, "peak": 0.1, "loss": 1.0} for n, w in warmed]
    found["warmups"] = {"runs": runs, "made": MADE}
    by_length = {kind: [100, 0] for kind in copying.KINDS}
    found["lengths"] = {"runs": [{"positions": "none", "seed": 1} | by_length], "made": MADE}
    return found


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A project of its own, with made-up records and texts with empty marks."""
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(views, "first_picture", lambda: "<svg/>")
    for name, content in made_up().items():
        records.write(name, content)
    for file, marks in views.GENERATED.items():
        start = "# " if file == views.SCRIPT else ""
        lines = [f"{start}<!-- {mark} -->\n{start}<!-- end of {mark} -->\n" for mark in marks]
        records.write_text(tmp_path / file, "before\n" + "between\n".join(lines) + "after")
    return tmp_path


def texts(folder) -> dict[str, str]:
    return {file: (folder / file).read_text("utf-8") for file in views.GENERATED}


def test_everything_is_written_from_records_and_only_between_the_marks(results):
    before = texts(results)
    assert views.main() == 0
    after = texts(results)
    for file, marks in views.GENERATED.items():
        emptied = after[file]
        for mark in marks:
            emptied = common.fill(emptied, mark, "", comment=file == views.SCRIPT)
        assert emptied == before[file]
    for make in views.TABLES:
        assert f"<!-- results: {views.name_of(make)} -->\n#\n# **" in after[views.SCRIPT]
    assert written_charts() == sorted(map(views.name_of, views.CHARTS))
    assert views.main() == 0
    assert texts(results) == after


@pytest.mark.parametrize("urls", [{}, {"Run it in Colab": "https://a/b", "The notebook": "c"}])
def test_readme_links_to_what_runs_if_the_project_has_an_address(monkeypatch, urls):
    monkeypatch.setattr(views, "links", lambda: urls)
    written = [f"[{name}]({url})" for name, url in urls.items()]
    assert re.findall(r"\[.*?\)", views.badges()) == written
    assert bool(views.badges()) == bool(urls)


def test_a_missing_record_leaves_what_stands_there_and_is_named(results, capsys):
    assert views.main() == 0
    before = texts(results)
    for gone in ("lost", "warmups", "runs/words-2"):
        (records.RESULTS / f"{gone}.json").unlink()
    found = made_up()
    records.write("heads", found["heads"] | {"perplexity": [7.0, 7.5]})
    del found["planted"]["shipped"]
    records.write("planted", found["planted"])
    assert views.main() == 1, "and the heads are written"
    after = texts(results)
    assert after["README.md"] == before["README.md"]
    assert after[views.SCRIPT] != before[views.SCRIPT]
    errors = capsys.readouterr().err
    for name, lost in {
        "results: lost of the_annotated_transformer.py": "lost",
        "views/warmups": "warmups",
        "results of README.md": "words-2",
        "results: planted-bleu of the_annotated_transformer.py": "'shipped'",
    }.items():
        assert re.search(rf"error: {name} stays as it was: not on record: ({lost})\n", errors)


def test_rows_that_do_not_compare_are_refused(results):
    first = plan.ROWS[0]
    name = f"runs/{first.runs[1]}"
    run = records.read(name)
    for what, value in (("torch", "2.14.0"), ("device", "cuda"), ("format", "bf16")):
        records.write(name, run | {"summary": run["summary"] | {what: value}})
        with pytest.raises(ValueError, match=f"share {what}.*'{first.runs[1]}': '{value}'"):
            recipe.summaries(first)
    records.write(name, run)
    assert len(recipe.summaries(first)) == len(first.runs)
    scores = records.read("scores")["scores"]
    records.write("scores", {"scores": [scores[0] | {"torch": "2.14.0"}, *scores[1:]]})
    with pytest.raises(ValueError, match="share torch"):
        recipe.scores(first, scores[0]["split"])
    records.write("scores", {"scores": scores[1:]})
    with pytest.raises(ValueError, match=f"not scored on .*: {first.runs[0]}$"):
        recipe.scores(first, scores[0]["split"])
    pace = records.read("pace")
    pace[first.runs[0]] |= {"made": MADE | {"machine": "another"}}
    records.write("pace", pace)
    with pytest.raises(ValueError, match="minutes compare on one kind of processor"):
        recipe.timed(*plan.ROWS)


# How numbers are told -----------------------------------------------------------------------------


def test_marks_must_stand_once():
    for text in ("", "<!-- a -->\n", "<!-- a -->\n<!-- end of a -->\n" * 2):
        with pytest.raises(ValueError, match="must have <!-- a --> and its end once"):
            common.fill(text, "a", "new\n")


def test_a_range_is_shown_where_values_differ():
    assert common.with_range([1.0, 3.0, 2.0], 1) == "2.0 (1.0–3.0)"
    assert common.with_range([1.01, 1.02], 1) == "1.0"
    assert common.with_range([-2.0, -1.0], 0, middle=-1.0) == "−1 (−2–−1)"


def test_speed_is_a_ratio_of_medians():
    ours, theirs = (
        {"task": "train", "rounds": rounds("tokens per second", *values)}
        for values in ((100, 300, 200), (100, 100, 50))
    )
    assert speed.times(ours, theirs) == 2


@pytest.mark.parametrize(
    ("bleu", "sound", "symptom"),
    [
        ([39.0], [42.9], "BLEU is lower"),
        ([43.5], [42.9], "BLEU is higher"),
        ([43.2], [42.9], "no symptom"),
        ([22.0, 25.0, 21.0], [23.0, 24.0, 25.0], "no symptom"),
    ],
)
def test_a_symptom_in_bleu_is_half_a_point_beyond_all_that_is_sound(bleu, sound, symptom):
    assert copying.symptom_of_bleu(bleu, sound) == symptom


@pytest.mark.parametrize(
    ("losses", "copied", "symptom"),
    [
        ((0.02, 0.5, 0.6), (190, 10, 20), "no symptom"),
        ((0.5, 0.4, 0.6), (30, 10, 20), "learns slower, copies fewer (wrong token)"),
        ((0.02, 0.01, 0.03), (0, 0, 0), "the loss is fine, copies none (wrong token)"),
        ((2.4, 2.3, 2.4), (0, 0, 0), "the loss stays high"),
        ((0.0, 0.0, 0.0), (0, 0, 0), "learns faster, copies none (wrong token)"),
    ],
)
def test_a_symptom_in_copies_is_named_where_all_seeds_lie_beyond_all_sound_ones(
    losses, copied, symptom
):
    def runs(losses, copied):
        both = zip(losses, copied, strict=True)
        return [copies(**{"wrong token": 200 - n}) | {"losses": f"2.0 {x}"} for x, n in both]

    sound = runs((0.01, 0.03, 0.02), (199, 180, 190))
    assert copying.symptom_of_copies(runs(losses, copied), sound) == symptom
