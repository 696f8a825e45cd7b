"""Tables and charts of the results, from copies of the records on file."""

import json
import re
import shutil
from statistics import mean

import pytest

from tools import records
from tools.results import plan, train
from tools.views import common, copying, recipe, speed, write


def read(file: str) -> str:
    return (records.PROJECT / file).read_text("utf-8")


def written() -> dict[str, str]:
    """All texts and charts, by path."""
    charts = [f"results/views/{write.name_of(make)}.json" for make in write.CHARTS]
    return {file: read(file) for file in (*write.FILLED, *charts)}


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the texts and of the records; drawings are those of test_images.py."""
    texts = {file: made for file, made in write.FILLED.items() if not file.endswith(".svg")}
    monkeypatch.setattr(write, "FILLED", texts)
    for file in texts:
        records.write_text(tmp_path / file, read(file))
    shutil.copytree(records.RESULTS, tmp_path / "results")
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    return tmp_path


def change(name: str, **changes) -> None:
    """Change a record, or the summary of a run."""
    old = records.read(name)
    if "summary" in old:
        changes = {"summary": old["summary"] | changes}
    records.write(name, old | changes)


# Numbers ------------------------------------------------------------------------------------------


def test_texts_and_charts_are_what_the_records_give(copy):
    before = written()
    for file in write.FILLED:
        marks = r"(?s)(<!-- (results: [^>]+) -->\n).*?((# )?<!-- end of \2 -->)"
        records.write_text(copy / file, re.sub(marks, r"\1\3", read(file)))
    shutil.rmtree(copy / "results" / "views")
    write.write()
    changed = [file for file, text in written().items() if text != before[file]]
    assert not changed, "`make results` writes them"


def cells(markdown: str) -> list[list[str]]:
    """The rows of a table in Markdown, without its head."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_scores_are_the_means_of_their_runs():
    entries = json.loads((records.RESULTS / "scores.json").read_bytes())["scores"]
    for row, shown in zip(plan.ROWS, cells(recipe.summary()), strict=True):
        for split, cell in zip(plan.TESTS, shown[1:], strict=False):
            bleu = [e["bleu"] for e in entries if (e["row"], e["split"]) == (row.name, split)]
            low, high = f"{min(bleu):.1f}", f"{max(bleu):.1f}"
            assert re.findall(r"[\d.]+", cell) == [f"{sum(bleu) / 3:.1f}", low, high]


@pytest.mark.slow
def test_scores_are_those_of_the_translations_on_file(at, multi30k, monkeypatch):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    for entry in records.read("scores")["scores"]:
        references = [pair[1] for pair in at.read_multi30k().pairs(entry["split"])]
        path = f"translations/{entry['row']}.{entry['run']}.{entry['split']}.txt"
        translations = (records.RESULTS / path).read_text("utf-8").split("\n")[:-1]
        found, _ = at.corpus_bleu(translations, references)
        assert entry["bleu"] == round(found, 2), path


def test_counts_and_losses_of_a_fault_are_those_of_its_seeds():
    runs = records.read("planted")["copying"]["the loss is a sum"]
    [row] = [row for row in cells(copying.planted()) if row[0] == "the loss is a sum"]
    losses = [list(map(float, run["losses"].split())) for run in runs]
    assert row[1].startswith(f"{mean(each[-1] for each in losses):.3f} (")
    assert row[2].startswith(f"{sum(run['copied'] for run in runs) / 3:.0f} (")


def test_a_part_is_measured_on_copies_and_with_and_without_it_on_another_task():
    runs = records.read("planted")["copying"]
    [row] = [row for row in cells(copying.parts()) if row[0] == "layer norms"]
    names = ("no norms", "nothing, twelve layers", "no norms, twelve layers")
    for cell, name in zip((row[1], *row[3:]), names, strict=True):
        assert cell.split()[0] == f"{mean(run['copied'] for run in runs[name]):.0f}"


def test_averaging_compares_the_last_epochs_with_the_means_of_the_same_runs(copy):
    before = cells(recipe.averaging())
    for n, name in enumerate(plan.FULL):
        run = records.read(f"runs/{name}")
        run["log"][-1]["bleu"] = 10.0 + n
        records.write(f"runs/{name}", run)
    last, means = cells(recipe.averaging())
    assert last[1] == "11.0 (10.0–12.0)"
    assert means == before[1]


def test_days_are_operations_by_what_the_cores_do_in_a_day():
    rate = float(re.search(r"at (\d+) GFLOP/s", speed.cost())[1]) * 1e9
    for _, _, operations, _, days in cells(speed.cost()):
        assert float(days) == pytest.approx(float(operations) / rate / 86_400, rel=0.03)


def test_a_rate_works_if_no_seed_fails_up_to_it(copy):
    def runs(losses, **about):
        rates = enumerate(losses, 1)
        return [{"peak": n / 100, "loss": loss} | about for n, loss in rates]

    made = []
    for norm_first in (True, False):
        for warm in (True, False):
            about = {"norm first": norm_first, "warm-up": warm}
            made += runs([0.1, 0.1, 0.1, 2.0], **about)
            made += runs([0.1, 2.0, 0.1, 2.0] if norm_first else [2.0, 0.1, 0.1, 0.1], **about)
    change("warmups", runs=made)
    assert cells(copying.highest_rates()) == [
        ["pre-norm", "0.010", "0.010"],
        ["post-norm", "–", "–"],
    ]


def test_the_shipped_model_is_the_best_seed_on_validation_and_its_card_says_what_it_is():
    means = {run: records.read(f"runs/{run}")["summary"]["mean"]["bleu"] for run in plan.FULL}
    assert plan.SHIPPED.runs == (max(means, key=means.get),)
    parameters = records.read(f"runs/{plan.SHIPPED.runs[0]}")["summary"]["parameters"]
    assert f"| parameters | {parameters:,} |" in read("pretrained/README.md")


def test_runs_on_record_are_those_of_the_plan(copy):
    on_record = [path.stem for path in (records.RESULTS / "runs").iterdir()]
    for name in on_record:
        train.check_plan(name)
    settings = records.read("runs/recipe-2")["summary"]["settings"]
    change("runs/recipe-2", settings=settings | {"dropout": 0.7})
    with pytest.raises(ValueError, match=r"recipe-2 was trained with dropout 0\.7: .*remove"):
        train.check_plan("recipe-2")


# What is missing, or does not compare -------------------------------------------------------------


def test_without_a_record_nothing_is_written(copy):
    before = written()
    change("heads", rows=[])
    (records.RESULTS / "averaging.json").unlink()
    with pytest.raises(ValueError, match="not on record: averaging"):
        write.write()
    assert written() == before


def test_a_row_without_a_score_is_named(copy):
    scores = records.read("scores")["scores"]
    change("scores", scores=[entry for entry in scores if entry["row"] != "beam"])
    with pytest.raises(ValueError, match=r"row beam: recipe-1 has no score .*ARGS=beam"):
        recipe.steps()


@pytest.mark.parametrize(
    ("make", "run", "what"),
    [
        (recipe.summary, "recipe-2", "torch"),
        (recipe.steps, "recipe-2", "device"),
        (recipe.choices, "search-base", "format"),
    ],
)
def test_runs_of_one_table_must_compare(copy, make, run, what):
    change(f"runs/{run}", **{what: "another"})
    with pytest.raises(ValueError, match=f"share {what}.*'{run}': 'another'"):
        make()


def test_a_wheel_of_another_build_compares(copy):
    before = recipe.summary(), recipe.choices()
    for name in plan.RUNS:
        change(f"runs/{name}", torch="2.13.0" if name.endswith("1") else "2.13.0+cu130")
    assert (recipe.summary(), recipe.choices()) == before


def test_scores_of_one_row_must_compare(copy):
    entries = records.read("scores")["scores"]
    change("scores", scores=[entry | {"torch": f"2.{n}"} for n, entry in enumerate(entries)])
    with pytest.raises(ValueError, match="share torch"):
        recipe.steps()


def test_what_is_measured_of_another_model_than_that_of_pretrained_is_refused(copy):
    planted = records.read("planted")["made"]
    change("heads", made=records.read("heads")["made"] | {"model": "another"})
    change("planted", made=planted | {"shipped": [*planted["shipped"], {"model": "another"}]})
    for make in (recipe.heads, copying.planted_bleu):
        with pytest.raises(ValueError, match="another was measured: remove"):
            make()


def test_marks_must_stand_once():
    for text in ("", "<!-- a -->\n", "<!-- a -->\n<!-- end of a -->\n" * 2):
        with pytest.raises(ValueError, match="must have <!-- a --> and its end once"):
            common.fill(text, "a", "new\n")


def test_a_range_is_shown_where_values_differ():
    assert common.with_range([1.0, 3.0, 2.0], 1) == "2.0 (1.0–3.0)"
    assert common.with_range([1.01, 1.02], 1) == "1.0"
    assert common.with_range([-2.0, -1.0], 0, max) == "−1 (−2–−1)"


def test_readme_links_to_what_runs_if_the_project_has_an_address(monkeypatch):
    monkeypatch.setattr(write, "links", dict)
    assert write.address() == ""
    urls = {"Run it in Colab": "https://a/b", "The notebook": "c", "The script": "d"}
    monkeypatch.setattr(write, "links", lambda: urls)
    assert write.address() == "[Run it in Colab](https://a/b) · [The notebook](c)"
