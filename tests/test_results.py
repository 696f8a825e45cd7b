"""Published numbers: README and results files must say the same."""

import json
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
RESULTS = PROJECT / "docs" / "results"
FILES = sorted(RESULTS.glob("*.json"))
RECORDS = sorted(RESULTS.glob("runs/*.json"))


def kept(name: str) -> dict:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_every_results_file_has_a_maker():
    """tools/results.py, tools/bench.py and tools/views.py write them all."""
    known = "averaging beam benchmark benchmark-xeon pretrained recipe speedrun trials".split()
    assert {path.stem for path in FILES} <= {*known, "unknown-as-one"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_results_file_tells_its_circumstances(path):
    made = kept(path.name)["made"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"]) and made["machine"] and made["versions"]
    assert re.fullmatch(r"[0-9a-f]{40}", made["commit"])


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_of_a_run_agrees_with_itself_and_with_the_plan(path):
    import results

    record = results.record_of(path.stem)  # refuses other settings than those of the plan
    summary, best = record["summary"], max(record["log"], key=lambda entry: entry["bleu"])
    assert best["bleu"] == pytest.approx(summary["validation_bleu"], abs=0.01)
    assert summary["best"] == f"epoch-{best['epoch']:03}"
    assert len(record["log"]) == summary["epochs"]
    assert record["log"][-1]["updates"] == summary["updates"]
    assert re.fullmatch(r"[0-9a-f]{40}", summary["commit"])


def test_every_scoring_is_that_of_translations_in_the_repository():
    """The log of the test splits: once for each row and run, and the first seed can be read."""
    import results

    log = [json.loads(line) for line in (RESULTS / "scorings.jsonl").open(encoding="utf-8")]
    keys = [(entry["row"], entry["run"], entry["split"]) for entry in log]
    assert len(set(keys)) == len(keys)
    rows = {row.name: row for row in (*results.ROWS, results.OTHER, results.SHIPPED)}
    for entry in log:
        row = rows[entry["row"]]
        assert entry["run"] in row.runs and entry["decoding"] == row.use()["decoding"]
        signature = entry["signatures"]["bleu"]
        assert "case:mixed" in signature and "tok:13a" in signature
        path = results.translations_path(rows[entry["row"]], entry["run"], entry["split"])
        assert results.short_hash(path.read_bytes()) == entry["hypotheses"]


def test_the_table_in_the_readme_is_that_of_the_results_file():
    import results

    readme, rows = (PROJECT / "README.md").read_text(encoding="utf-8"), kept("recipe.json")["rows"]
    table = results.readme_table(kept("recipe.json"))
    assert readme == results.readme_with(readme, table), "`python tools/results.py table` writes it"
    for row in rows:
        bleu = [f"{scores['bleu']['mean']:.1f}" for scores in row["splits"].values()]
        [line] = [line for line in table.split("\n") if line.startswith(f"| {row['step']} |")]
        assert all(number in line for number in bleu)
    assert rows[0]["splits"]["test_2016_flickr"]["signatures"]["bleu"] in readme


def test_the_model_s_card_is_that_of_the_results_file():
    import results

    card = (PROJECT / "pretrained" / "README.md").read_text(encoding="utf-8")
    assert card == results.model_card(kept("pretrained.json"))
    sums = json.loads((PROJECT / "pretrained" / "config.json").read_text())["sha256"]
    assert kept("pretrained.json")["sha256"] == sums


def test_the_model_in_the_repository_is_small():
    size = sum(path.stat().st_size for path in (PROJECT / "pretrained").iterdir())
    assert size < 10_000_000


def test_the_example_in_the_readme_runs(capsys):
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", readme, re.S)[1], {})
    assert "A dog" in capsys.readouterr().out
