"""Whatever happens to a training, what it had written stays, and it goes on from there."""

import dataclasses
import functools
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
from conftest import assert_same_run, contents, log_of, saved, train_one_epoch
from forks import forked, results

import the_annotated_transformer as tutorial
from the_annotated_transformer import UserError

BEGIN = "words.json train.ids train.lengths val.json config.json".split()
EPOCH = "model.safetensors log.jsonl last.pt".split()

# Kills ------------------------------------------------------------------------------------------


def kill(action: Callable, event: str, name: str) -> None:
    """Start the action in a process, which dies just before what it would do to a file.

    A file that is about to get its name is cut in half first, as if it were still being written.
    """

    def watch(what: str, arguments: tuple) -> None:
        if what == event and Path(str(arguments[0])).name == f".{name}.part":
            if event == "os.rename":
                os.truncate(arguments[0], os.path.getsize(arguments[0]) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def watched_action():
        sys.addaudithook(watch)
        return action()

    with forked(watched_action) as [process]:
        process.join(100)
        assert process.exitcode == -signal.SIGKILL, process.text()


def test_killed_at_any_file_a_run_ends_like_one_that_was_not(small_config, tmp_path, monkeypatch):
    """Killed again and again, before each thing that a training does to its folder.

    Between two of them nothing on the disk changes: so these are all states from which a run may
    have to go on. Each epoch counts as better than the one before, so that each is written.
    """
    monkeypatch.setattr(tutorial, "quality", lambda entry: entry["epoch"])
    config = dataclasses.replace(small_config, epochs=4)
    tutorial.train_model(config, tmp_path / "whole" / "run")
    run = tmp_path / "killed" / "run"
    train = functools.partial(tutorial.train_model, config, run)
    for name in (*BEGIN, *EPOCH):
        for event in ("open", "os.rename"):
            kill(train, event, name)
            assert not (run / "last.pt").exists()
    train_one_epoch(config, run)
    for name in EPOCH:
        for event in ("open", "os.rename"):
            kill(train, event, name)
            assert len(saved(run)["history"]) == 1
    assert results(train) == ["finished"]
    assert_same_run(run, tmp_path / "whole" / "run")


def test_killed_at_any_moment_a_run_ends_like_one_that_was_not(small_config, whole, tmp_path):
    """While it encodes, in the midst of an update, while it writes: wherever it was."""
    run = tmp_path / "run"
    moments = random.Random(1)
    for _ in range(8):
        with forked(lambda: tutorial.train_model(small_config, run)) as [process]:
            process.join(moments.uniform(0.0, 0.4))
    assert results(lambda: tutorial.train_model(small_config, run)) == ["finished"]
    assert_same_run(run, whole)


def test_killed_in_the_midst_of_an_epoch(small_config, whole, tmp_path):
    """After some of its updates."""
    run = tmp_path / "run"
    new_optimizer = tutorial.new_optimizer
    steps = []

    def die_at_the_sixth(*given) -> None:
        steps.append(1)
        if len(steps) == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(*given):
        optimizer, scheduler = new_optimizer(*given)
        optimizer.register_step_post_hook(die_at_the_sixth)
        return optimizer, scheduler

    def dies() -> None:
        tutorial.new_optimizer = watched
        tutorial.train_model(small_config, run)

    with forked(dies) as [process]:
        process.join(100)
        assert process.exitcode == -signal.SIGKILL, process.text()
    assert [entry["epoch"] for entry in log_of(run)] == [1]
    assert tutorial.train_model(None, run) == "finished"
    assert log_of(run) == log_of(whole)
    assert contents(run)["model.safetensors"] == contents(whole)["model.safetensors"]


def test_vocabularies_of_an_attempt_that_failed_do_not_stay(small_config, tmp_path):
    """It wrote its words; the next one in the same folder takes subwords."""
    with pytest.raises(UserError, match="'mine' is not among plain"):
        tutorial.train_model(dataclasses.replace(small_config, attention="mine"), tmp_path / "run")
    config = dataclasses.replace(small_config, vocab_size=100, max_len=64, epochs=1)
    tutorial.train_model(config, tmp_path / "run")
    translator = tutorial.load_trained_model(tmp_path / "run")
    assert isinstance(translator.vocabularies[0], tutorial.Subwords)


# Going on ---------------------------------------------------------------------------------------


def test_resume_needs_nothing_but_the_run(small_config, small_corpus, whole, tmp_path):
    """Neither its settings nor its text."""
    text = Path(shutil.copytree(small_corpus, tmp_path / "text"))
    config = dataclasses.replace(small_config, data=str(text))
    run = tmp_path / "run"
    train_one_epoch(config, run)
    shutil.rmtree(text)
    assert tutorial.train_model(None, run) == "finished"
    assert log_of(run) == log_of(whole)
    assert contents(run)["model.safetensors"] == contents(whole)["model.safetensors"]


def test_nothing_is_resumed_where_no_run_is(small_run, tmp_path):
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        tutorial.train_model(None, tmp_path / "none")
    tutorial.save_model(tutorial.load_trained_model(small_run), tmp_path / "model")
    before = contents(tmp_path / "model")
    with pytest.raises(UserError, match="is a finished model, not a run"):
        tutorial.train_model(None, tmp_path / "model")
    assert contents(tmp_path / "model") == before


def test_minutes_stop_after_the_epoch(small_config, whole, tmp_path):
    run = tmp_path / "run"
    for done in (1, 2):
        status = tutorial.train_model(small_config, run, minutes=1e-9)
        assert sum(entry["averaged"] == 0 for entry in log_of(run)) == done
    assert status == "finished"
    assert_same_run(run, whole)
    assert tutorial.train_model(small_config, run, minutes=1e-9) == "finished"
    assert_same_run(run, whole)


def test_more_epochs_by_train_or_by_resume(small_config, tmp_path):
    """To which the run keeps when it is stopped once more, and resumed without their number."""
    config = dataclasses.replace(small_config, epochs=1)
    runs = tmp_path / "trained" / "run", tmp_path / "resumed" / "run"
    for run in runs:
        assert tutorial.train_model(config, run) == "finished"
    further = dataclasses.replace(config, epochs=3)
    assert tutorial.train_model(further, runs[0]) == "finished"
    assert tutorial.train_model(None, runs[1], minutes=1e-9, epochs=3) == "stopped"
    assert tutorial.train_model(None, runs[1]) == "finished"
    assert_same_run(*runs)
    assert [entry["epoch"] for entry in log_of(runs[0]) if entry["averaged"] == 0] == [1, 2, 3]
    assert log_of(runs[0])[-1]["averaged"] == 3


def test_fewer_epochs_than_are_done_are_refused(small_config, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = contents(run)
    with pytest.raises(UserError, match="--epochs 1: 2 are done"):
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), run)
    with pytest.raises(UserError, match="--epochs"):
        tutorial.train_model(None, run, epochs=0)
    assert contents(run) == before


# What is kept -----------------------------------------------------------------------------------


def scored(monkeypatch, *scores: float) -> None:
    """Validation that says these scores, one after the other."""
    bleu = iter(scores)
    monkeypatch.setattr(
        tutorial.Run,
        "validate",
        lambda run, model: {"bleu": next(bleu), "nll": 1.0, "perplexity": 2.0},
    )


def weights_of(run: Path) -> dict:
    model = tutorial.load_trained_model(run).model
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("mean, better", [(5.0, True), (4.0, False), (3.0, False)])
def test_the_mean_of_the_last_epochs_is_kept_where_it_is_better(
    small_config, tmp_path, monkeypatch, mean, better
):
    run = tmp_path / "run"
    scored(monkeypatch, 9.0, 4.0, 2.0, mean)
    config = dataclasses.replace(small_config, epochs=3, average=2)
    monkeypatch.setattr(
        tutorial, "quality", lambda entry: (entry["epoch"] > 1, entry["bleu"])
    )  # the first epoch is out of the question
    tutorial.train_model(config, run)
    [before_last, last] = saved(run)["recent"]
    expected = {name: (before_last[name] + last[name]) / 2 for name in last}
    if not better:
        expected = before_last
    found = weights_of(run)
    for name, value in expected.items():
        assert (found[name] - value).abs().max() < 1e-6, name
    assert [entry["averaged"] for entry in log_of(run)] == [0, 0, 0, 2]


def test_the_first_of_the_best_epochs_is_kept(small_config, tmp_path, monkeypatch):
    run = tmp_path / "run"
    scored(monkeypatch, 5.0, 9.0, 9.0, 3.0)
    tutorial.train_model(dataclasses.replace(small_config, epochs=4, average=0), run)
    assert len(log_of(run)) == 4, "no mean was asked for"
    history = saved(run)["history"]
    assert max(history, key=tutorial.quality)["epoch"] == 2
    scored(monkeypatch, 5.0, 9.0)
    config = dataclasses.replace(small_config, epochs=4, average=0)
    assert tutorial.train_model(config, tmp_path / "two", minutes=1e-9) == "stopped"
    assert tutorial.train_model(config, tmp_path / "two", minutes=1e-9) == "stopped"
    assert contents(run)["model.safetensors"] == contents(tmp_path / "two")["model.safetensors"]


def test_below_one_bleu_the_likelihood_decides(small_config, tmp_path, monkeypatch):
    scores = iter([(0.4, 2.0), (0.9, 3.0), (0.1, 1.5)])

    def judge(run, model) -> dict:
        bleu, nll = next(scores)
        return {"bleu": bleu, "nll": nll, "perplexity": 2.0}

    monkeypatch.setattr(tutorial.Run, "validate", judge)
    run = tmp_path / "run"
    tutorial.train_model(dataclasses.replace(small_config, epochs=3, average=0), run)
    for name, value in weights_of(run).items():
        assert (saved(run)["model"][name] == value).all(), "the last epoch"


def test_the_log_is_for_pandas(whole):
    import pandas as pd

    frame = pd.read_json(whole / "log.jsonl", lines=True)
    assert frame["epoch"].tolist() == [1, 2, 2]
    expected = [entry["bleu"] for entry in saved(whole)["history"]]
    assert frame["bleu"].tolist() == pytest.approx(expected)


def test_a_folder_with_a_log_that_is_longer_than_the_run(small_config, whole, tmp_path):
    """Killed between the log and `last.pt`: the log is cut to what the run goes on from."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    log = run / "log.jsonl"
    log.write_text(log.read_text() + json.dumps({"epoch": 2, "averaged": 0, "loss": 9.9}) + "\n{")
    tutorial.train_model(small_config, run)
    assert_same_run(run, whole)


# Damage -----------------------------------------------------------------------------------------


class Malice:
    """A pickle that, where it is followed, makes a folder."""

    def __init__(self, place: Path):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.mark.parametrize("fault", ["cut", "empty", "a pickle", "a list", "other sizes"])
def test_a_checkpoint_that_cannot_be_used_is_refused(small_config, whole, tmp_path, fault):
    """Nothing is touched, nothing executed."""
    import torch

    run = Path(shutil.copytree(whole, tmp_path / "run"))
    last = run / "last.pt"
    malice = Malice(tmp_path / "made by a pickle")
    if fault == "cut":
        last.write_bytes(last.read_bytes()[:-200])
    elif fault == "empty":
        last.write_bytes(b"")
    elif fault == "a pickle":
        last.write_bytes(pickle.dumps(malice))
    elif fault == "a list":
        torch.save([1, 2], last)
    else:
        state = saved(run)
        state["model"]["generator.proj.weight"] = torch.zeros(3, 3)
        torch.save(state, last)
    before = contents(run)
    with pytest.raises(UserError, match=r"last\.pt"):
        tutorial.train_model(small_config, run)
    assert contents(run) == before
    assert not Path(malice.place).exists()


@pytest.mark.parametrize("name", ["train.ids", "train.lengths"])
@pytest.mark.parametrize("fault", ["missing", "cut", "longer"])
def test_ids_that_are_damaged_are_refused(small_config, tmp_path, name, fault):
    """Training on what is left would teach nonsense."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    path = run / name
    good = path.read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes(good[:-80] if fault == "cut" else good + good[-80:])
    before = contents(run)
    with pytest.raises(UserError, match=r"train\.(ids|lengths)"):
        tutorial.train_model(small_config, run)
    assert contents(run) == before


def without_room(action: Callable, size: int) -> Callable:
    """The action where no file may have more bytes."""

    def act():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return action()

    return act


def told_without_room(action: Callable, size: int) -> str:
    """What the action says before it fails."""
    with forked(without_room(action, size)) as [process]:
        process.join(100)
        assert process.exitcode == 1
        return process.text()


def test_a_full_disk_leaves_the_old_checkpoint(small_config, whole, tmp_path):
    """Here a file may be as long as the weights, and not as `last.pt` with what Adam needs."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    before = (run / "last.pt").read_bytes()
    size = (run / "model.safetensors").stat().st_size + 1000
    said = told_without_room(lambda: tutorial.train_model(small_config, run), size)
    assert re.search(r"UserError: .*last\.pt was not written \(File too large\): free some", said)
    assert (run / "last.pt").read_bytes() == before
    assert not list(run.rglob("*.part"))
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


def test_a_full_disk_leaves_no_half_corpus(small_config, whole, tmp_path):
    run = tmp_path / "run"
    said = told_without_room(lambda: tutorial.train_model(small_config, run), 2000)
    assert re.search(r"UserError: .*train\.ids was not written \(File too large\)", said)
    assert not list(run.glob(".*.part"))
    assert not (run / "config.json").exists()
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


# Files of others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [".profile", "Documents/letter.txt", ".config/app/settings.json"],
        ["settings.json", "keybindings.json"],
        ["config.json", "pytorch_model.bin"],
        ["last.pt", "log.jsonl", "thesis.tex"],
    ],
    ids=["a home", "an editor's settings", "a model of another library", "names like ours"],
)
def test_a_folder_that_is_no_run_is_refused_and_not_touched(
    small_config, small_run, tmp_path, names
):
    """By a training, and by `save_model`."""
    home = tmp_path / "home"
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text('{"editor.fontSize": 14}')
    before = sorted(home.rglob("*")), contents(home)
    (tmp_path / "link").symlink_to(home)
    for folder in (home, tmp_path / "link"):
        with pytest.raises(UserError, match=r"name (an empty|another) folder"):
            tutorial.train_model(small_config, folder)
        with pytest.raises(UserError, match=r"name (an empty|another) folder"):
            tutorial.save_model(tutorial.load_trained_model(small_run), folder)
        assert (sorted(home.rglob("*")), contents(home)) == before


def test_a_place_where_no_folder_can_be(small_config, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run", "/proc/run"):  # root too may not write the last
        with pytest.raises(UserError, match=re.escape(str(tmp_path / place))):
            tutorial.train_model(small_config, tmp_path / place)
    assert contents(tmp_path) == {"file": b"mine"}


def test_other_files_in_a_run_stay(small_config, tmp_path):
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    mine = "notes.txt plots/loss.png .photo.jpg.part".split()
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    (run / ".last.pt.part").write_text("half a checkpoint")
    tutorial.train_model(small_config, run)
    assert all((run / name).read_text() == "mine" for name in mine)
    assert not (run / ".last.pt.part").exists()


def test_no_model_is_written_over_a_run(small_config, small_run, tmp_path):
    """Even before its first epoch is whole."""
    run = tmp_path / "run"
    kill(lambda: tutorial.train_model(small_config, run), "open", "last.pt")
    for folder in (Path(shutil.copytree(small_run, tmp_path / "finished")), run):
        before = contents(folder)
        with pytest.raises(UserError, match="is a run: name another folder"):
            tutorial.save_model(tutorial.load_trained_model(small_run), folder)
        assert contents(folder) == before


def test_one_training_at_a_time(small_config, tmp_path):
    """The second is told who holds the folder, and changes nothing."""
    run = tmp_path / "run"
    endless = dataclasses.replace(small_config, epochs=10**6)
    with forked(lambda: tutorial.train_model(endless, run)) as [process]:
        while not (run / "last.pt").exists():
            assert process.is_alive(), process.text()
        with pytest.raises(UserError, match=f"^{run} is in use by process {process.pid} on "):
            tutorial.train_model(endless, run)
        assert process.is_alive()
    filelock.FileLock(run / ".lock").acquire(timeout=0)  # free again after its death
