"""Several processes train like one, and none of them waits for one that has failed."""

import dataclasses
import functools
import re
import subprocess
import sys

import forks
import pytest
import torch
from conftest import PROJECT, log_of, options_of, saved

import the_annotated_transformer as tutorial

NOISE = "linears.1.bias"  # of keys: their gradients are rounding errors, of which Adam makes steps


def test_two_and_three_ranks_train_like_one(small_config, tmp_path):
    """The same weights, the same scores, and the losses of all ranks in the log and on screen."""
    config = dataclasses.replace(
        small_config, dropout=0.0, attention_dropout=0.0, clip=1.0, log_every=1,
        batch_tokens=24, max_len=32,
    )  # fmt: skip
    pairs = tutorial.builtin_corpus()["train"]
    splits = {"train": pairs[:8], "val": pairs[8:12]}  # so few that a rank may have no sentence
    corpus = tutorial.Corpus("toy", ("de", "en"), splits)
    losses = {}
    for ranks in (1, 2, 3):
        train = functools.partial(
            forks.train_in_float64, config, tmp_path / f"of-{ranks}", corpus=corpus
        )
        said, *others = forks.printed(train, ranks)
        assert not any(others), "only the first rank prints"
        losses[ranks] = re.findall(r"update \d+: loss (\S+),", said)
    one = saved(tmp_path / "of-1")
    assert len(losses[1]) == one["history"][1]["updates"]
    for ranks in (2, 3):
        assert losses[ranks] == losses[1]
        several = saved(tmp_path / f"of-{ranks}")
        for name, weights in one["model"].items():
            if NOISE not in name:
                torch.testing.assert_close(several["model"][name], weights, rtol=0, atol=1e-9)
        logs = log_of(tmp_path / "of-1"), log_of(tmp_path / f"of-{ranks}")
        for ours, theirs in zip(*logs, strict=True):
            assert theirs == pytest.approx(ours, abs=1e-8)


def test_ranks_draw_dropout_of_their_own(small_config, tmp_path):
    config = dataclasses.replace(small_config, epochs=1)
    texts = forks.printed(functools.partial(forks.train_and_draw, config, tmp_path / "run"), 2)
    first, second = (re.search(r"tensor\(.*\)", text)[0] for text in texts)
    assert first != second


def test_ranks_agree_on_a_part_with_a_buffer_and_with_a_weight_that_is_not_used(
    small_config, tmp_path
):
    config = dataclasses.replace(small_config, average=0)
    train = functools.partial(forks.train_with_a_running_norm, config, tmp_path / "run")
    told = [re.findall("validates .*", text) for text in forks.printed(train, 2)]
    assert told[0] == told[1]
    assert len({*told[0]}) == 2, "the size has changed from epoch to epoch"


def test_more_processes_than_gpus_are_refused(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(tutorial, "choose_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(tutorial.UserError, match="2 processes"):
        tutorial.train_model(small_config, tmp_path / "run")


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_ends_the_other_and_any_number_goes_on(small_config, tmp_path, victim):
    run = tmp_path / "run"
    with forks.endless_training(small_config, run, ranks=2) as ranks:
        ranks[victim].kill()
        assert ranks[1 - victim].end() == 1
    before = saved(run)["history"]
    with forks.endless_training(small_config, run, ranks=1 + victim):
        after = saved(run)["history"]
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_an_error_of_the_first_rank_ends_it(small_config, tmp_path):
    """The others wait for what it prepares, until torchrun ends them."""
    config = dataclasses.replace(small_config, data="none")
    with forks.forked(functools.partial(forks.train, config, tmp_path / "run"), 2) as ranks:
        assert ranks[0].end() == 1
        assert "none is not a folder" in ranks[0].text()


@pytest.mark.slow
def test_torchrun_trains_like_one_process(small_config, tmp_path):
    config = dataclasses.replace(small_config, dropout=0.0, attention_dropout=0.0)
    tutorial.train_model(config, tmp_path / "one")
    command = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]
    command += [str(PROJECT / tutorial.SCRIPT), "train", "--folder", "two words"]
    done = subprocess.run(
        [*command, *options_of(config)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two words"), strict=True):
        for name in ours.keys() & {"loss", "nll"}:  # Adam enlarges rounding errors
            assert theirs[name] == pytest.approx(ours[name], rel=1e-2)
