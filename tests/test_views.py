"""`make views`: tables and charts of the results, from copies of the records on file."""

import re
import shutil
from statistics import median

import pytest

from tools import records
from tools.results import plan
from tools.views import __main__ as views
from tools.views import ablation, common, copying, inside, recipe

FILES = (views.SCRIPT, "README.md", "pretrained/README.md")


def read(file: str) -> str:
    return (records.PROJECT / file).read_text("utf-8")


def written() -> dict[str, str]:
    """All that `make views` writes but the drawings, by path."""
    charts = [f"results/views/{views.name_of(make)}.json" for make in views.CHARTS]
    return {file: read(file) for file in (*FILES, *charts)}


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the texts and of the records."""
    for file in FILES:
        records.write_text(tmp_path / file, read(file))
    shutil.copytree(records.RESULTS, tmp_path / "results")
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(views, "first_picture", lambda: "<svg/>")
    monkeypatch.setattr(views, "next_token_picture", lambda: "<svg/>")
    return tmp_path


def change(name: str, **changes) -> None:
    records.write(name, records.read(name) | changes)


def test_texts_and_charts_are_what_the_records_give(copy):
    before = written()
    for file in FILES:
        emptied = re.sub(
            r"(?s)(<!-- ([^>]+) -->\n).*?((# )?<!-- end of \2 -->)", r"\1\3", read(file)
        )
        assert emptied != before[file]
        records.write_text(copy / file, emptied)
    shutil.rmtree(copy / "results" / "views")
    views.main()
    changed = [file for file, text in written().items() if text != before[file]]
    assert not changed, "`make views` writes them"


def test_the_text_shows_each_chart_once_and_no_other():
    shown = re.findall(r'(?m)^published\("([^"]+)"\)', read(views.SCRIPT))
    files = [path.stem for path in (records.RESULTS / "views").iterdir()]
    assert sorted(shown) == sorted(map(views.name_of, views.CHARTS)) == sorted(files)


def test_numbers_in_sentences_are_those_of_the_records():
    parameters = common.record("runs/recipe-1")["summary"]["parameters"]
    assert f"| parameters | {parameters:,} |" in read("pretrained/README.md")
    text = read(views.SCRIPT).replace("\n# ", " ")
    for name, norm_first in (("pre-norm", True), ("post-norm", False)):
        found = re.search(rf"\| {name} \| (.*?) \| (.*?) \|", text).groups()
        assert found == tuple(highest_rate(norm_first, warm_up) for warm_up in (False, True))
    found = re.findall(r"after that layer, and it still brings (\d+)% of the rest", text)
    assert found == [after_first_layer()]


def after_first_layer() -> str:
    """Median share in percent of the German verb behind the first layer, with *zu* and *an*."""
    pairs = common.record("particles")["pairs"]
    pairs = [pair for pair in pairs if inside.particles_of(pair) == ("zu", "an")]
    shares = [
        pair["verb by layer"][1]["others"] / pair["swapped"]["everything"]["others"]
        for pair in pairs
    ]
    return f"{100 * median(shares):.0f}"


def highest_rate(norm_first: bool, warm_up: bool) -> str:
    """The highest rate in Figure 17 below the first one that a seed fails with."""
    runs = [run for run in common.record("warmups")["runs"] if run["norm first"] == norm_first]
    runs = [run for run in runs if run["warm-up"] == warm_up]
    failing = min(run["peak"] for run in runs if run["loss"] >= 0.5)
    working = [run["peak"] for run in runs if run["peak"] < failing]
    return f"{max(working):.3f}" if working else "none of seven"


@pytest.mark.parametrize("urls", [{}, {"Run it in Colab": "https://a/b", "The notebook": "c"}])
def test_readme_links_to_what_runs_if_the_project_has_an_address(monkeypatch, urls):
    monkeypatch.setattr(views, "links", lambda: urls)
    assert views.badges() == " · ".join(f"[{name}]({url})" for name, url in urls.items())


def test_without_a_record_nothing_is_written(copy):
    before = written()
    change("heads", perplexity=[7.0, 7.5])
    (records.RESULTS / "averaging.json").unlink()
    with pytest.raises(ValueError, match="not on record: averaging"):
        views.main()
    assert written() == before


def test_rows_that_do_not_compare_are_refused(copy):
    row = plan.ROWS[-1]
    name = f"runs/{row.runs[1]}"
    change(name, summary=records.read(name)["summary"] | {"torch": "2.14.0"})
    with pytest.raises(ValueError, match=f"share torch.*'{row.runs[1]}': '2.14.0'"):
        common.runs_that_compare(row.runs)
    scores = records.read("scores")["scores"]
    [score] = [
        s
        for s in scores
        if (s["row"], s["split"], s["run"]) == (row.name, "test_2016_flickr", row.runs[0])
    ]
    score["torch"] = "2.14.0"
    change("scores", scores=scores)
    with pytest.raises(ValueError, match="share torch"):
        recipe.scores(row, "test_2016_flickr")


def test_table_3_shows_each_variation_once_and_refuses_what_does_not_compare(copy):
    shown = [name for group in ablation.GROUPS for name in group.here.values()]
    assert sorted(["base", *shown]) == sorted(plan.VARIATIONS)
    found = {"post-norm": 24.9, "16": 25.8, "4": 26.24}
    shown = ablation.differences("1", found, 25.8).replace("\N{NO-BREAK SPACE}", " ")
    assert shown == "1 → post-norm: −0.9, 16: 0, 4: +0.4"
    assert ablation.differences("1", {}, 25.8) == ""
    run = records.read("runs/post-norm-seed-1")
    change("runs/post-norm-seed-1", summary=run["summary"] | {"device": "cuda"})
    with pytest.raises(ValueError, match="share device"):
        ablation.table_3()


def test_marks_must_stand_once():
    for text in ("", "<!-- a -->\n", "<!-- a -->\n<!-- end of a -->\n" * 2):
        with pytest.raises(ValueError, match="must have <!-- a --> and its end once"):
            common.fill(text, "a", "new\n")


def test_a_range_is_shown_where_values_differ():
    assert common.with_range([1.0, 3.0, 2.0], 1) == "2.0 (1.0–3.0)"
    assert common.with_range([1.01, 1.02], 1) == "1.0"
    assert common.with_range([-2.0, -1.0], 0, max) == "−1 (−2–−1)"


@pytest.mark.parametrize(
    ("bleu", "symptom"),
    [
        ([22.0, 21.0, 22.5], "BLEU is lower"),
        ([22.7, 22.8, 22.9], "BLEU is lower"),
        ([22.0, 25.0, 21.0], "no symptom"),
        ([28.0, 29.0, 30.0], "no symptom"),
    ],
)
def test_a_symptom_in_bleu_is_half_a_point_below_all_that_is_sound(bleu, symptom):
    assert copying.symptom_of_bleu(bleu, sound=[23.0, 24.0, 25.0]) == symptom


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
        """Runs of the copy task whose other sequences have a wrong token."""
        return [
            {"losses": f"2.0 {loss}", "copied": n, "ended early": 0, "ran over": 0}
            | {"wrong token": 200 - n}
            for loss, n in zip(losses, copied, strict=True)
        ]

    sound = runs((0.01, 0.03, 0.02), (199, 180, 190))
    assert copying.symptom_of_copies(runs(losses, copied), sound) == symptom
