"""Published numbers: README and results files must say the same."""

import json
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
FILES = sorted((PROJECT / "docs" / "results").glob("*.json"))
RUNS = [path for path in FILES if '"scored"' in path.read_text(encoding="utf-8")]  # by `evaluate`


def test_every_results_file_has_a_maker():
    """`make evaluate` writes one for a run, docs/results.py writes the others."""
    others = "averaging beam pretrained recipe speedrun trials".split()
    assert {path.stem for path in FILES} - {path.stem for path in RUNS} <= set(others)


@pytest.mark.parametrize("path", sorted(set(FILES) - set(RUNS)), ids=lambda path: path.name)
def test_a_file_of_the_tool_tells_its_circumstances(path):
    made = json.loads(path.read_text(encoding="utf-8"))["made"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"]) and made["machine"] and made["versions"]
    assert re.fullmatch(r"[0-9a-f]{40}", made["commit"])


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_a_results_file_tells_its_circumstances(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["corpus"] == "Multi30k"
    for part in (result["scored"], result["training"]):
        assert (
            re.fullmatch(r"\d{4}-\d\d-\d\d", part["date"]) and part["machine"] and part["versions"]
        )
        assert re.fullmatch(r"[0-9a-f]{40}", part["commit"])
    assert isinstance(result["training"]["settings"]["seed"], int)
    for score in result["scores"].values():
        assert "case:mixed" in score["signature"] and "tok:13a" in score["signature"]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_best_epoch_of_the_log_is_the_one_reported(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    best = max(entry["bleu"] for entry in result["validation"])
    assert best == pytest.approx(result["training"]["validation_bleu"], abs=0.01)


def test_the_table_in_the_readme_is_that_of_the_results_file():
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    name, rows = re.search(r"<!-- results: (\S+) -->\n(.*?)<!-- end", readme, re.S).groups()
    result = json.loads((PROJECT / name).read_text(encoding="utf-8"))
    numbers = [cell.strip() for cell in rows.strip().split("\n")[-1].strip("|").split("|")]
    training, scores = result["training"], result["scores"]
    settings = training["settings"]
    assert f"{settings['N']} + {settings['N']} layers of {settings['d_model']}" in numbers[0]
    assert numbers[1] == f"{training['parameters'] / 1e6:.1f} M"
    assert numbers[2] == f"{scores['test_2016_flickr']['BLEU']:.1f}"
    assert numbers[3] == f"{scores['test_2017_flickr']['BLEU']:.1f}"
    assert numbers[4].startswith(f"{training['minutes']:.0f} minutes")
    assert scores["test_2016_flickr"]["signature"] in readme


def test_the_example_in_the_readme_runs():
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", readme, re.S)[1], names)
    assert names["states"].shape == (2, 5, 64) and names["log_probs"].shape == (2, 5, 1200)
