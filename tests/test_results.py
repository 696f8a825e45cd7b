"""`make results` and `make views`: plan, records, finished tables, and the numbers in README."""

import argparse
import dataclasses
import functools
import json
import re
import shutil

import pytest
import records
import torch
import views
from conftest import PROJECT, write_pairs

MADE = {"date": "2027-01-01", "machine": "a toy", "commit": "0123456789"}
RECORDS = sorted(records.RESULTS.glob("runs/*.json"))


@pytest.fixture(scope="module")
def tool():
    import results

    return results


@pytest.fixture
def toy(at, tool, tmp_path, monkeypatch, fresh_corpora):
    """The tool with a plan of two rows of toy runs, and folders of its own; nothing has run yet."""
    pairs = at.builtin_corpus()["train"]
    parts = [pairs[start : start + 12] for start in (120, 132, 144)]
    splits = dict(zip(("train", "val", *tool.TESTS), (pairs[:120], *parts), strict=True))
    corpus = str(write_pairs(tmp_path / "text", ("de", "en"), **splits))
    words = at.Config(
        data=corpus, N=1, d_model=16, d_ff=32, h=2, max_len=64, min_freq=1, keep=2, vocab_size=0,
        share_embeddings=False, epochs=2, batch_tokens=128, warmup=10,
    )  # fmt: skip
    subwords = dataclasses.replace(words, vocab_size=150, share_embeddings=True)
    runs = {f"words-{seed}": dataclasses.replace(words, seed=seed) for seed in (1, 2)}
    runs |= {"subwords-1": subwords, "back": dataclasses.replace(subwords, languages="en-de")}
    first = tool.Row("words", "words", ("words-1", "words-2"))
    second = tool.Row("subwords", "subwords", ("subwords-1",), beam=4, averaged=2)
    changes = {
        "RUNS": runs,
        "ROWS": (first, second),
        "OTHER": dataclasses.replace(second, name="back", runs=("back",)),
        "SHIPPED": dataclasses.replace(second, name="int8"),
        "CORPUS": corpus,
        "AVERAGED": 2,
        "PRETRAINED": tmp_path / "pretrained",
        "made": lambda **roots: MADE | {"code": dict.fromkeys(roots, "ab12")},
    }
    for name, value in changes.items():
        monkeypatch.setattr(tool, name, value)
    monkeypatch.setattr(views, "ROWS", tool.ROWS)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return tool


def train_here(monkeypatch, tool, code=0) -> list[list[str]]:
    """Let the processes of a training be this one; the commands that were given."""
    commands = []

    def run(command, env):
        assert env["OMP_NUM_THREADS"] == "1"
        commands.append(command)
        assert tool.main(command[-2:]) == 0
        return argparse.Namespace(returncode=code)

    monkeypatch.setattr(tool.subprocess, "run", run)
    return commands


def failure(tool, capsys, *arguments) -> str:
    """What a command says when it ends with an error."""
    assert tool.main(list(arguments)) == 1
    return capsys.readouterr().err


# The plan ---------------------------------------------------------------------------------------


def changed(before, now) -> set[str]:
    return {name for name, value in vars(now).items() if vars(before)[name] != value}


def test_each_row_changes_what_it_names_and_nothing_else(tool):
    def step(before, row) -> set[str]:
        settings = (tool.RUNS[each.runs[0]] for each in (before, row))
        return changed(*settings) | changed(before, row) - {"name", "step", "runs"}

    pairs = zip(tool.ROWS, tool.ROWS[1:], strict=False)
    result = {row.name: step(before, row) for before, row in pairs}
    expected = {
        "subwords": {"vocab_size"},
        "one-matrix": {"share_embeddings"},
        "beam": {"beam"},
        "averaging": {"averaged"},
        "recipe": {"alpha"},
    }
    assert result == expected
    assert step(tool.ROWS[-1], tool.OTHER) == {"languages"}
    for row in tool.ROWS:
        first, *others = (tool.RUNS[run] for run in row.runs)
        assert first.seed == 1
        assert first.data == "multi30k"
        assert first.keep >= row.averaged
        assert all(changed(first, other) == {"seed"} for other in others)
    trials = [config for name, config in tool.RUNS.items() if name.startswith("trial-")]
    assert len(set(trials)) == len(trials), "each trial changes something else"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_of_a_run_agrees_with_itself_and_with_the_plan(tool, path):
    record = json.loads(path.read_bytes())
    summary = record["summary"]
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", summary["commit"])
    assert summary["machine"]
    planned = dataclasses.asdict(tool.RUNS[path.stem])
    made = {name: value for name, value in summary["settings"].items() if name in planned}
    made["keep"] = planned["keep"]  # it changes no weight
    assert planned | made == planned, "older code had fewer settings"
    if len(record["log"]) > 1:
        best = max(record["log"], key=lambda entry: entry["bleu"])
        expected = pytest.approx(summary["validation_bleu"], abs=0.01)
        assert best["bleu"] == expected
        assert summary["best"] == f"epoch-{best['epoch']:03}"
        assert len(record["log"]) == summary["epochs"]
        result = record["log"][-1]["updates"]
        assert result == summary["updates"]


# A small plan, from text to tables --------------------------------------------------------------


def test_a_plan_is_trained_validated_scored_and_shown(at, toy, monkeypatch):
    commands = train_here(monkeypatch, toy)
    monkeypatch.setattr(toy, "BEAMS", (1, 2))
    monkeypatch.setattr(toy, "ALPHAS", (0.0, 1.0))
    every = ("train", "validate", "score", "pretrained")
    result = [toy.main([command]) for command in every]
    expected = [0, 0, 0, 0]
    assert result == expected
    assert [command[-1] for command in commands] == list(toy.RUNS)
    assert all("--nproc-per-node=2" in command for command in commands)

    summary = records.read("runs/words-2")["summary"]
    expected = (MADE | {"ranks": 2, "epochs": 2, "status": "finished"}).items()
    assert summary.items() >= expected
    assert summary["code"] == {"training": "ab12"}
    beam = records.read("beam")
    averaging = records.read("averaging")
    result = [(row["beam"], row["alpha"]) for row in beam["sweep"]]
    expected = [(1, 0.0), (2, 0.0), (2, 1.0)]
    assert result == expected
    result = [row["averaged"] for row in averaging["sweep"]]
    assert result == [0, 1, 2]

    content = records.read("scores")
    scored = [(entry["run"], entry["split"]) for entry in content["scores"]]
    expected = [(run, split) for run in toy.RUNS for split in toy.TESTS]
    assert scored[:8] == expected
    row = toy.ROWS[1]
    [entry] = [e for e in content["scores"][:8] if e["run"] == "subwords-1"][1:]
    result = (entry["beam"], entry["alpha"], entry["averaged"])
    assert result == (4, 0.6, 2)
    assert entry["code"] == {"training": "ab12", "scoring": "ab12"}
    written = toy.translations_path(row, "subwords-1", entry["split"]).read_text().split("\n")[:-1]
    sources, references = zip(*at.find_corpus(toy.CORPUS).splits[entry["split"]], strict=True)
    expected = round(at.corpus_bleu(written, references)[0], 2)
    assert entry["bleu"] == expected
    epochs = sorted(toy.folder_of("subwords-1").glob("epoch-*"))
    states = [at.load_trained_model(epoch).model.state_dict() for epoch in epochs]
    mean = toy.translator_of("subwords-1", 2)
    for name, value in mean.model.state_dict().items():
        torch.testing.assert_close(value, (states[0][name] + states[1][name]) / 2)
    decode = functools.partial(at.beam_search, beam=4, alpha=0.6)
    assert written == at.translate(mean, sources, decode)

    shipped = records.read("pretrained")
    assert at.load_trained_model(toy.PRETRAINED).name.endswith(", int8")
    result = shipped["formats"]["int8"]["MB"]
    expected = shipped["formats"]["fp32"]["MB"]
    assert result < expected
    assert "beam 4, α = 0.6, mean of the last 2 epochs" in views.int8()["caption"]
    assert views.training()["code"] == "training ab12"
    for view in (views.short_table, views.steps, views.int8, views.beam, views.averaging):
        assert view()["code"] == "scoring ab12, training ab12"
        assert "a toy, 2027-01-01; measured with commit" in view()["caption"]

    shutil.rmtree(toy.folder_of("words-1").parent)  # nothing is trained, tuned or scored again
    monkeypatch.setattr(at, "translate", None)
    result = [toy.main([command]) for command in every]
    expected = [0, 0, 0, 0]
    assert result == expected
    assert len(commands) == 4
    assert len(records.read("scores")["scores"]) == 10


def test_what_was_cut_short_or_is_missing_is_an_error(at, toy, capsys, monkeypatch):
    train_here(monkeypatch, toy, code=1)
    assert "the same command goes on" in failure(toy, capsys, "train", "words-1")
    assert not records.read("runs/words-1")
    assert "no finished run in" in failure(toy, capsys, "validate")
    message = failure(toy, capsys, "train", "bert")
    assert "no run begins with 'bert': choose among words-1" in message


def test_other_code_of_training_has_other_folders(toy, monkeypatch):
    before = toy.folder_of("words-1")
    monkeypatch.setattr(toy, "SCORING", ("attention",))
    assert toy.folder_of("words-1") == before
    monkeypatch.setattr(toy, "TRAINING", ("attention",))
    expected = before.parent.with_name(toy.code("attention")) / "words-1"
    assert toy.folder_of("words-1") == expected
    assert toy.folder_of("words-1") != before


def test_a_busy_machine_is_refused(monkeypatch):
    looks = iter([90, 90, 2, 90])
    monkeypatch.setattr(records.psutil, "cpu_percent", lambda interval: next(looks))
    records.wait_for_quiet()
    with pytest.raises(ValueError, match=r"^others use 90 % of the cores"):
        records.wait_for_quiet(patience=0)


# What is published ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", views.VIEWS)
def test_a_published_view_is_what_the_records_give(name):
    view = records.read(f"views/{name}")
    assert view == views.VIEWS[name](), "`make views` writes it"
    assert "{" not in view["caption"]
    assert "\n" not in view["caption"]
    assert ("measured with the first edition's code, commit" in view["caption"]) == (
        view["code"] is None
    )
    if "rows" in view:
        headings = view["columns"]
        headings = headings if isinstance(headings[0], list) else [headings]
        result = {len(line) for line in [*headings, *view["rows"]]}
        expected = {len(headings[0])}
        assert result == expected
        assert all(isinstance(cell, str) for row in view["rows"] for cell in row)


def test_the_text_shows_the_views_that_are_made_and_no_other():
    text = (records.PROJECT / "the_annotated_transformer.py").read_text("utf-8")
    shown = re.findall(r'(?m)^published\("([^"]+)"\)', text)
    assert sorted(shown) == sorted(views.VIEWS), "each once, under the name that the tool writes"


def test_every_results_file_has_a_maker():
    known = (
        "assembled averaging beam benchmark benchmark-xeon faults heads length-cost lengths lost"
        " particles planted pretrained scores translator warmups"
    )
    result = sorted(path.stem for path in records.RESULTS.glob("*.json"))
    assert result == known.split()
    shown = {path.stem for path in (records.RESULTS / "views").iterdir()}
    assert shown == set(views.VIEWS)


def test_every_score_is_that_of_translations_in_the_repository(at, tool, multi30k, monkeypatch):
    """Each row and run once; and sacreBLEU says the same of what lies there."""
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    entries = records.read("scores")["scores"]
    keys = [(entry["row"], entry["run"], entry["split"]) for entry in entries]
    assert len(set(keys)) == len(keys)
    rows = {row.name: row for row in (*tool.ROWS, tool.OTHER, tool.SHIPPED)}
    for entry in entries:
        row = rows[entry["row"]]
        assert entry["run"] in row.runs
        assert entry["beam"] == row.beam
        result = (entry["alpha"], entry["averaged"])
        expected = (row.alpha, row.averaged)
        assert result == expected
        path = tool.translations_path(row, entry["run"], entry["split"])
        languages = tuple(tool.RUNS[entry["run"]].languages.split("-"))
        references = [pair[1] for pair in at.find_multi30k(languages).splits[entry["split"]]]
        written = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        bleu, signature = at.corpus_bleu(written, references)
        assert round(bleu, 2) == entry["bleu"]
        assert signature == entry["signature"]


def test_the_penalty_of_the_last_row_is_the_best_on_the_validation_split(tool):
    sweep = [cell for cell in records.read("beam")["sweep"] if cell["beam"] == tool.BEAM]
    result = max(sweep, key=lambda cell: cell["bleu"])["alpha"]
    assert result == tool.CHOSEN_ALPHA


def test_speed_is_a_ratio_of_medians():
    rows = {row[0]: row[1:] for row in records.read("views/speed")["rows"]}
    ours, torchs = (
        views.median(views.speeds(case))
        for name in ("train-ours-small-fp32-1x2", "train-torch-small-fp32-1x2")
        for case in views.matching(records.read("benchmark"), name=name)
    )
    assert rows["training, small, nn.Transformer"][0].startswith(f"{ours / torchs:.2f}\u00a0")


def test_readme_and_model_card_are_those_of_the_records(tool):
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert readme == views.readme(readme), "`make views` writes it"
    result = records.read("scores")["scores"][0]["signature"]
    assert result in readme
    with pytest.raises(ValueError, match="no <!-- results -->"):
        views.readme(readme.replace("<!-- results -->", ""))
    card = (PROJECT / "pretrained" / "README.md").read_text(encoding="utf-8")
    assert card == views.card(card)
    assert "| int8 | 4.2 |" in card
