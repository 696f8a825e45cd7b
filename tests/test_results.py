"""Runs are trained and scored once, a row can be added, and a gain is told from luck."""

import dataclasses
import functools
import re
import shutil
import statistics
import subprocess
from unittest.mock import Mock

import pytest
import torch
from conftest import saved
from safetensors.torch import load_file

from tools import records
from tools.results import __main__ as results
from tools.results import bootstrap, learning, plan, score, train
from tools.views import common, recipe, write


@pytest.fixture
def toy(small_config, tmp_path, monkeypatch):
    """A plan of two rows of toy runs, a README, and folders of its own; nothing has run yet."""
    words = dataclasses.replace(small_config, max_len=64, epochs=3, average=2, precision="fp32")
    subwords = dataclasses.replace(words, vocab_size=150, share_embeddings=True)
    first = plan.Row("words", "words", ("words-1",))
    second = plan.Row("subwords", "subwords", ("subwords-1",), beam=4, averaged=2)
    changes = {
        "RUNS": {"words-1": words, "subwords-1": subwords},
        "ROWS": (first, second),
        "RECIPE": second,
        "OUTSIDE": dataclasses.replace(first, name="outside"),
        "FULL": ("subwords-1",),
        "SHIPPED": dataclasses.replace(second, name="int8"),
        "CORPUS": small_config.data,
        "TESTS": {"test": "test 2016"},
        "AVERAGED": 2,
        "BEAMS": (1, 2),
        "ALPHAS": (0.0, 1.0),
    }
    for name, value in changes.items():
        monkeypatch.setattr(plan, name, value)
    for module in ("experiments", "faults", "bench", "learning", "one_sequence"):
        monkeypatch.setattr(results, module, Mock())
    marks = "".join(f"<!-- {mark}results: summary -->\n" for mark in ("", "end of "))
    (tmp_path / "README.md").write_text(marks)
    monkeypatch.setattr(write, "FILLED", {"README.md": (recipe.summary,)})
    monkeypatch.setattr(write, "CHARTS", ())
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    monkeypatch.setattr(records, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path


def files() -> dict[str, bytes]:
    """The records, by their paths."""
    return {str(path): path.read_bytes() for path in records.RESULTS.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_everything_is_made_once(at, toy, monkeypatch):
    assert results.main([]) == 0
    assert [entry["epoch"] for entry in records.read("runs/words-1")["log"]] == [1, 2, 3]
    sweep = [(row["beam"], row["alpha"]) for row in records.read("beam")["sweep"]]
    assert sweep == [(1, 0.0), (2, 0.0), (2, 1.0)]
    assert [row["averaged"] for row in records.read("averaging")["sweep"]] == [0, 1, 2]
    entries = records.read("scores")["scores"]
    rows = sorted(entry["row"] for entry in entries)
    assert rows == ["int8", "outside", "subwords", "words"]
    formats = records.read("pretrained")["formats"]
    assert formats["int8"]["MB"] < formats["fp32"]["MB"]
    assert at.load_trained_model(records.PRETRAINED).name == records.made_with_shipped()["model"]
    made = files()
    shutil.rmtree(at.runs_folder())
    for name in ("train_model", "score"):
        monkeypatch.setattr(at, name, None)
    monkeypatch.setattr(score, "step_between", None)
    assert results.main([]) == 0
    assert files() == made


def test_a_row_is_added_by_its_name(toy, monkeypatch):
    """The plan gets a run and a row; the command trains, scores and writes only these."""
    assert results.main(["words", "subwords"]) == 0
    made = files()
    monkeypatch.setitem(plan.RUNS, "new-1", dataclasses.replace(plan.RUNS["words-1"], seed=2))
    row = dataclasses.replace(plan.ROWS[0], name="new", step="another seed", runs=("new-1",))
    monkeypatch.setattr(plan, "ROWS", (*plan.ROWS, row))
    assert results.main(["new"]) == 0
    [entry] = [each for each in records.read("scores")["scores"] if each["row"] == "new"]
    line = (toy / "README.md").read_text().splitlines()[-3]
    assert line.startswith(f"| another seed | {entry['bleu']:.1f} | ")
    steps = [(step["before"], step["row"]) for step in records.read("steps")["steps"]]
    assert steps == [("words", "subwords"), ("subwords", "new")]
    changed = {path.rpartition("/")[2] for path, data in files().items() if made.get(path) != data}
    assert changed == {"new-1.json", "scores.json", "steps.json", "new.new-1.test.txt"}


def test_a_run_that_would_not_compare_is_not_trained(toy, monkeypatch, capsys):
    train.train("words-1")
    other = dataclasses.replace(plan.RUNS["words-1"], precision="bf16")
    monkeypatch.setitem(plan.RUNS, "subwords-1", other)
    assert results.main(["subwords"]) == 1
    assert (
        "share format, and here are {'words-1': 'fp32', 'now': 'bf16'}" in capsys.readouterr().err
    )
    assert not train.folder_of("subwords-1").exists()


def test_a_name_that_is_not_planned_is_refused(toy, capsys):
    assert results.main(["bert"]) == 1
    known = "these are: words, subwords, outside, words-1, subwords-1"
    assert f"bert is not planned in tools/results/plan.py; {known}" in capsys.readouterr().err


def test_a_row_whose_runs_are_not_here_is_refused(toy, capsys):
    train.train("words-1")
    shutil.rmtree(train.folder_of("words-1"))
    assert results.main(["words"]) == 1
    assert (
        "the repository has no weights of runs: remove results/runs/words-1"
        in capsys.readouterr().err
    )


def test_a_run_that_is_trained_anew_loses_what_its_old_weights_made(toy, monkeypatch):
    assert results.main(["words", "subwords"]) == 0
    for name in ("beam", "averaging", "pretrained", "heads"):
        records.write(name, {"of": "subwords-1"})
    shipped = {"shipped": {"nothing": [40.0]}, "made": {"shipped": [{}], "copying": []}}
    records.write("planted", shipped | {"copying": {}})
    made = files()
    (records.RESULTS / "runs" / "subwords-1.json").unlink()
    monkeypatch.setattr(train, "train", Mock(side_effect=KeyboardInterrupt))
    assert results.main(["subwords-1"]) == 1
    assert {each["run"] for each in records.read("scores")["scores"]} == {"words-1"}
    assert records.read("planted") == {"made": {"copying": []}, "copying": {}}
    gone = {path.rpartition("/")[2] for path in made.keys() - files().keys()}
    records_gone = {f"{x}.json" for x in ("steps", "beam", "averaging", "pretrained", "heads")}
    assert gone == {"subwords-1.json", "subwords.subwords-1.test.txt", *records_gone}


def test_two_commands_at_once_are_refused(toy, capsys):
    with results.alone():
        assert results.main(["words"]) == 1
    assert capsys.readouterr().err == "error: another `make results` is running\n"
    assert not files().keys() - {str(records.RESULTS / ".lock")}


def test_runs_of_one_table_are_those_that_must_compare():
    trials = {run for runs in plan.TRIALS for run in runs}
    assert plan.beside("search-dropout-25") == trials
    assert plan.beside("recipe-1") >= {*plan.OUTSIDE.runs, plan.PAPER, "words-seed-2", *trials}
    norms = {run for run in plan.RUNS if "-norm-" in run}
    assert plan.beside("post-norm-0.75") == norms | {"search-base"}


def test_a_commit_is_dirty_if_more_than_results_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    assert records.commit() == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for file in ("results/a.json", "code.py"):
        records.write_text(tmp_path / file, "1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], check=True)
    records.write_text(tmp_path / "results/a.json", "2")
    assert re.fullmatch("[0-9a-f]{40}", clean := records.commit())
    records.write_text(tmp_path / "code.py", "2")
    assert records.commit() == f"{clean}-dirty"
    made = {"machine": "a toy", "date": "today", "commit": records.commit()}
    assert f"commit {clean[:7]}-dirty*" in common.made_by(made)


def test_a_watched_run_learns_the_same_and_its_notes_go_on_record(
    at, toy, monkeypatch, small_config
):
    monkeypatch.setattr(learning, "SENTENCES", at.builtin_corpus()["train"][0][:1])
    monkeypatch.setattr(learning, "MOMENTS", (0, 2))
    monkeypatch.setattr(learning, "EPOCHS", (1, 2, 3))
    name = "subwords-1"
    monkeypatch.setattr(plan, "WATCHED", name)
    train.train(name)
    at.train_model(plan.RUNS[name], train.folder_of("plain"))
    one, other = (saved(train.folder_of(each)) for each in (name, "plain"))
    for key, weight in one["model"].items():
        assert torch.equal(weight, other["model"][key])
    found = records.read("learning")
    updates = records.read(f"runs/{name}")["summary"]["updates"]
    each = updates // 3  # epochs
    assert [moment["updates"] for moment in found["moments"]] == [0, 2, each, 2 * each, updates]
    for moment in found["moments"]:
        [sentence] = moment["sentences"]
        assert len(sentence["attention"]) == len(sentence["written"])
        for row in sentence["attention"]:
            assert len(row) == len(sentence["read"])
            assert sum(row) == pytest.approx(1, abs=0.1)


def test_a_copy_task_is_watched_whole_and_with_a_part_left_out(toy, monkeypatch):
    parts = ("nothing", "no causal mask in training", "no positions")
    monkeypatch.setattr(learning, "SWITCHED", parts)
    monkeypatch.setattr(learning, "UPDATES", 100)
    monkeypatch.setattr(learning, "APART", 50)
    monkeypatch.setattr(learning, "COPIED", 3)
    learning.switches()
    whole, unmasked, unordered = records.read("switches")["runs"]
    for run in (whole, unmasked, unordered):
        assert run["read"] == whole["read"], "all copy the same"
        assert [moment["updates"] for moment in run["moments"]] == [0, 50, 100]
        for moment in run["moments"]:
            rows = [[int(weight) for weight in row.split()] for row in moment["attention"]]
            assert len(rows) == len(moment["written"])
            for row in rows:
                assert len(row) == len(run["read"])
                assert sum(row) == pytest.approx(100, abs=len(row) / 2)
    assert unmasked["moments"][0] == whole["moments"][0], "what is left out of the training only"
    assert unmasked["moments"][1]["loss"] != whole["moments"][1]["loss"]
    assert unordered["moments"][0]["attention"] != whole["moments"][0]["attention"]


@pytest.fixture
def trained(at, toy):
    """The last two epochs of a run of three, and their weights."""
    train.train("subwords-1")
    folder = train.folder_of("subwords-1")
    epochs, _ = train.finished_run("subwords-1")
    return [(each, load_file(folder / f"epoch-{each['epoch']}.safetensors")) for each in epochs[1:]]


def test_a_score_is_that_of_the_translations_on_file(at, trained):
    score.test(plan.ROWS[1])
    mean = score.translator_of("subwords-1", 2)
    (_, one), (_, other) = trained
    for name, value in mean.model.named_parameters():
        torch.testing.assert_close(value, (one[name] + other[name]) / 2)
    decode = functools.partial(at.beam_search, beam=4, alpha=0.6)
    for entry in records.read("scores")["scores"]:
        path = score.translations_path(plan.ROWS[1], "subwords-1", entry["split"])
        written = path.read_text().split("\n")[:-1]
        sources, references = zip(*at.find_corpus(plan.CORPUS).pairs(entry["split"]), strict=True)
        assert written == at.translate(mean, sources, decode)
        assert entry["bleu"] == round(at.corpus_bleu(written, references)[0], 2)
        assert (entry["beam"], entry["alpha"], entry["averaged"]) == (4, 0.6, 2)


def test_without_an_average_the_best_kept_epoch_translates(at, trained):
    _, best = max(trained, key=lambda each: at.quality(each[0]))
    for name, value in score.translator_of("subwords-1", 0).model.named_parameters():
        assert torch.equal(value, best[name])
    with pytest.raises(ValueError, match="subwords-1 has kept 2 epochs, not 3"):
        score.translator_of("subwords-1", 3)


def test_a_training_cut_short_goes_on(at, toy, monkeypatch, capsys):
    train_epoch = at.train_epoch
    trained = []

    def interrupted(run, epoch):
        trained.append(epoch)
        if trained == [1, 2, 3]:
            raise KeyboardInterrupt
        return train_epoch(run, epoch)

    monkeypatch.setattr(at, "train_epoch", interrupted)
    assert results.main(["words-1"]) == 1
    assert capsys.readouterr().err == "error: interrupted\n"
    assert not records.read("runs/words-1")
    with pytest.raises(ValueError, match="no finished run in"):
        score.test(plan.ROWS[0])
    train.train("words-1")
    assert trained == [1, 2, 3, 3]
    assert records.read("runs/words-1")


def test_a_gpu_run_without_a_gpu_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert results.main(["recipe-2"]) == 1
    assert capsys.readouterr().err.startswith("error: no NVIDIA GPU")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "record.json"
    records.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        records.write_text(path, "new" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_busy_machine_is_refused(monkeypatch):
    looks = iter([90, 90, 2, 90])
    monkeypatch.setattr(records.psutil, "cpu_percent", lambda interval: next(looks))
    records.wait_for_quiet()
    with pytest.raises(ValueError, match=r"^others use 90 % of the cores"):
        records.wait_for_quiet(patience=0)


REFERENCES = [
    "A dog runs through the wide green park .",
    "Two men sit on a bench and laugh.",
    "A woman in a red dress reads a book.",
    "Children play football in the street.",
]
POOR = [
    "A dog runs through the <unk> park.",
    "Two men are on a bench and laugh.",
    "A woman in a dress reads.",
    "Children play in the street.",
]


@pytest.mark.parametrize("same_runs", [True, False])
def test_gains_are_those_of_sampled_sentences_and_runs(at, monkeypatch, same_runs):
    """sacreBLEU scores each sampled corpus of each sampled run anew."""
    monkeypatch.setattr(bootstrap, "DRAWS", 20)
    before = [POOR, POOR[:2] + REFERENCES[2:]]
    after = [[REFERENCES[0], *POOR[1:]], REFERENCES]
    counts = [
        [bootstrap.counts_of(written, REFERENCES) for written in runs] for runs in (before, after)
    ]
    found = bootstrap.gains(*counts, same_runs=same_runs)
    generator = torch.Generator().manual_seed(1)
    sentences, runs, others = (
        torch.randint(most, (20, most), generator=generator).tolist() for most in (4, 2, 2)
    )
    if same_runs:
        others = runs

    def mean_bleu(written: list[list[str]], sample: list[int]) -> float:
        references = [REFERENCES[n] for n in sample]
        texts = [[each[n] for n in sample] for each in written]
        return statistics.mean(at.corpus_bleu(text, references)[0] for text in texts)

    for gain, sample, old, new in zip(found.tolist(), sentences, runs, others, strict=True):
        expected = mean_bleu([after[n] for n in new], sample)
        expected -= mean_bleu([before[n] for n in old], sample)
        assert gain == pytest.approx(expected, abs=1e-6)


def test_an_empty_translation_has_no_bleu():
    assert bootstrap.bleu(bootstrap.counts_of([""], ["A dog ."])[0]) == 0


def test_a_step_has_the_gain_of_the_scores_and_an_interval_around_it(toy, monkeypatch):
    first = plan.Row("first", "", ("run-1", "run-2"))
    second = dataclasses.replace(first, name="second", runs=("run-3", "run-4"))
    written = {"run-1": POOR, "run-2": POOR, "run-3": REFERENCES, "run-4": REFERENCES}
    monkeypatch.setattr(plan, "ROWS", (first, second))
    monkeypatch.setattr(
        score, "counts_of", lambda row, run, split: bootstrap.counts_of(written[run], REFERENCES)
    )
    bleu = {"first": [40.0, 41.0], "second": [42.0, 43.5]}
    monkeypatch.setattr(score, "scores", lambda row, split: bleu[row.name])
    score.steps()
    [step] = records.read("steps")["steps"]
    low, high = step["interval"]
    assert step["gain"] == 2.25
    assert 0 < low < high
