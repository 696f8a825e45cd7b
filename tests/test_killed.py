"""A training that is killed, interrupted or out of disk space loses at most the running epoch."""

import dataclasses
import functools
import os
import shutil
import signal
from pathlib import Path

import forks
import pytest
from conftest import assert_same_run, saved, train_one_epoch

import the_annotated_transformer as tutorial


@pytest.fixture
def run(stopped_run, tmp_path) -> Path:
    """A run of two epochs that stopped after the first."""
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def end_of(action, *given, **more) -> tuple[int, str]:
    """The exit status of a process, or minus the signal that ended it, and what it printed."""
    with forks.forked(functools.partial(action, *given, **more)) as [process]:
        return process.end(), process.text()


def test_killed_at_any_change_of_a_file_a_run_ends_like_one_that_was_not(
    small_config, tmp_path, monkeypatch
):
    """Between two changes nothing on the disk differs, so these are all states of a folder."""
    pairs = tutorial.builtin_corpus()["train"]
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": pairs[:20], "val": pairs[20:24]})
    config = dataclasses.replace(small_config, shares=2, average=2, vocab_size=60, max_len=64)
    train = functools.partial(tutorial.train_model, config, corpus=corpus)
    rename = os.replace
    whole = tmp_path / "whole"
    runs = []

    def keep_and_rename(part: Path, path: Path) -> None:
        runs.append(shutil.copytree(whole, tmp_path / f"run-{len(runs)}"))
        if part.name.endswith(".part"):
            os.truncate(runs[-1] / part.relative_to(whole), part.stat().st_size // 2)
        rename(part, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", keep_and_rename)
        train(whole)
    assert len(runs) > 10
    for run in runs:
        assert train(run) == "finished"
        assert_same_run(run, whole)
        assert not (run / ".new").exists()


@pytest.mark.parametrize("stop, status", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_stopped_in_the_midst_of_an_epoch_a_run_ends_like_one_that_was_not(
    run, whole, stop, status
):
    ended, said = end_of(forks.resume_until_an_update, stop, run)
    assert ended == status, said
    assert len(saved(run)["history"]) == 1
    assert tutorial.train_model(None, run) == "finished"
    assert_same_run(run, whole)


def test_a_full_disk_leaves_the_old_checkpoint(run, whole):
    """A file may be as long as the weights; `last.pt`, with the moments of Adam, is longer."""
    before = (run / "last.pt").read_bytes()
    size = (run / "model.safetensors").stat().st_size + 1000
    status, said = end_of(forks.train_without_room, size, None, run)
    assert status == 1
    assert f"UserError: {run / 'last.pt'} was not written" in said
    assert (run / "last.pt").read_bytes() == before
    assert not [*run.glob(".*.part")]
    assert tutorial.train_model(None, run) == "finished"
    assert_same_run(run, whole)


def test_a_full_disk_leaves_no_half_corpus(small_config, tmp_path, stopped_run):
    run = tmp_path / "run"
    status, said = end_of(forks.train_without_room, 2000, small_config, run)
    assert status == 1
    assert f"UserError: {run / '.new' / 'train.ids'} was not written" in said
    assert not [*run.glob(".*.part")]
    assert not (run / "config.json").exists()
    train_one_epoch(small_config, run)
    assert_same_run(run, stopped_run)
