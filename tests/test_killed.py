"""A training that is killed, interrupted or out of disk space loses at most the running epoch."""

import dataclasses
import functools
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import assert_same_run, saved, train_one_epoch
from forks import forked, results

import the_annotated_transformer as tutorial

pytestmark = pytest.mark.flaky(reruns=1, only_rerun="Timeout")  # as in test_ranks.py
BEGIN = "words.json train.ids train.lengths val.json config.json".split()
EPOCH = "model.safetensors log.jsonl last.pt".split()


@pytest.fixture
def run(stopped_run, tmp_path) -> Path:
    """A run of two epochs that stopped after the first."""
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def kill(action: Callable, event: str, name: str) -> None:
    """Start the action in a process, and kill it just before it opens or renames a file.

    A file that is about to be renamed is cut in half first, as if it were still being written.
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


def test_killed_before_any_change_of_a_file_a_run_ends_like_one_that_was_not(
    small_config, tmp_path, monkeypatch
):
    """Between two changes nothing on the disk differs, so these are all states of a folder.

    Each epoch counts as better than the one before, so that every epoch writes every file.
    """
    monkeypatch.setattr(tutorial, "quality", lambda entry: entry["epoch"])
    pairs = tutorial.builtin_corpus()["train"]
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": pairs[:20], "val": pairs[20:24]})
    config = dataclasses.replace(small_config, shares=2)
    train = functools.partial(tutorial.train_model, config, corpus=corpus)
    train(tmp_path / "whole")
    run = tmp_path / "run"
    for name in (*BEGIN, *EPOCH):
        for event in ("open", "os.rename"):
            kill(lambda: train(run), event, name)
            assert not (run / "last.pt").exists()
    assert train(run, minutes=1e-9) == "stopped"
    for name in EPOCH:
        for event in ("open", "os.rename"):
            kill(lambda: train(run), event, name)
            assert len(saved(run)["history"]) == 1
    assert train(run) == "finished"
    assert_same_run(run, tmp_path / "whole")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT], ids=lambda stop: stop.name)
def test_stopped_in_the_midst_of_an_epoch_a_run_ends_like_one_that_was_not(run, whole, stop):
    new_optimizer = tutorial.new_optimizer

    def watched(*given):
        optimizer, scheduler = new_optimizer(*given)
        optimizer.register_step_post_hook(lambda *_: os.kill(os.getpid(), stop))
        return optimizer, scheduler

    def resume() -> int:
        tutorial.new_optimizer = watched
        return tutorial.main(["resume", str(run)])

    if stop == signal.SIGINT:
        assert results(resume) == [130]
    else:
        with forked(resume) as [process]:
            process.join(100)
            assert process.exitcode == -signal.SIGKILL, process.text()
    assert len(saved(run)["history"]) == 1
    assert tutorial.train_model(None, run) == "finished"
    assert_same_run(run, whole)


# A full disk ------------------------------------------------------------------------------------


def error_without_room(action: Callable, size: int) -> str:
    """What the action prints before it fails, where no file may have more bytes."""

    def act():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            return action()
        except tutorial.UserError as error:
            sys.exit(f"UserError: {error}")  # a traceback might not fit, either

    with forked(act) as [process]:
        process.join(100)
        assert process.exitcode == 1
        return process.text()


def test_a_full_disk_leaves_the_old_checkpoint(run, whole):
    """A file may be as long as the weights; `last.pt`, with the moments of Adam, is longer."""
    before = (run / "last.pt").read_bytes()
    size = (run / "model.safetensors").stat().st_size + 1000
    said = error_without_room(lambda: tutorial.train_model(None, run), size)
    assert re.search(r"UserError: .*last\.pt was not written \(File too large\): free some", said)
    assert (run / "last.pt").read_bytes() == before
    assert not [*run.glob(".*.part")]
    assert tutorial.train_model(None, run) == "finished"
    assert_same_run(run, whole)


def test_a_full_disk_leaves_no_half_corpus(small_config, tmp_path, stopped_run):
    run = tmp_path / "run"
    said = error_without_room(lambda: tutorial.train_model(small_config, run), 2000)
    assert re.search(r"UserError: .*train\.ids was not written \(File too large\)", said)
    assert not [*run.glob(".*.part")]
    assert not (run / "config.json").exists()
    train_one_epoch(small_config, run)
    assert_same_run(run, stopped_run)
