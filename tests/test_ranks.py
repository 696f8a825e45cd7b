"""Several processes train like one, and none of them waits for one that has failed."""

import contextlib
import dataclasses
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, log_of, options_of, saved
from forks import endless_training, forked, results

import the_annotated_transformer as tutorial

# A forked rank may hang, rarely and never in runs of this file alone: such a test is run once more.
pytestmark = pytest.mark.flaky(reruns=1, only_rerun="Timeout")
NOISE = "linears.1.bias"  # of keys: their gradients are rounding errors, of which Adam makes steps


def training(config: tutorial.Config, folder: Path, **given: object) -> Callable:
    """An action for ranks: train, and return what was printed."""

    def train() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            tutorial.train_model(config, folder, **given)
        return said.getvalue()

    return train


# Whole runs -------------------------------------------------------------------------------------


@pytest.fixture
def in_float64(monkeypatch) -> None:
    """Models in double precision, so that the order of a sum makes no difference to see."""
    new_model = tutorial.new_model
    monkeypatch.setattr(tutorial, "new_model", lambda *given: new_model(*given).double())


def test_two_and_three_ranks_train_like_one(small_config, tmp_path, in_float64):
    """The same weights, the same scores, and the losses of all ranks in the log and on screen."""
    config = dataclasses.replace(
        small_config, dropout=0.0, attention_dropout=0.0, clip=1.0, log_every=1,
        batch_tokens=24, max_len=32,
    )  # fmt: skip
    pairs = tutorial.builtin_corpus()["train"]
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": pairs[:8], "val": pairs[8:12]})
    runs = {ranks: tmp_path / f"of-{ranks}" / "run" for ranks in (1, 2, 3)}
    losses = {}
    for ranks, run in runs.items():
        said, *others = results(training(config, run, corpus=corpus), ranks)
        assert not any(others), "only the first rank prints"
        losses[ranks] = re.findall(r"update \d+: loss (\S+),", said)
    settings, _ = tutorial.read_settings(runs[1])
    sizes = map(len, tutorial.batches_of_epoch(settings, tutorial.IdPairs(runs[1]), 1))
    assert min(sizes) < 2, "a share is empty"
    one = saved(runs[1])
    assert len(losses[1]) == one["history"][1]["updates"]
    for ranks in (2, 3):
        assert losses[ranks] == losses[1]
        several = saved(runs[ranks])
        assert several["scheduler"] == one["scheduler"]
        for name, weights in one["model"].items():
            if NOISE not in name:
                torch.testing.assert_close(several["model"][name], weights, rtol=0, atol=1e-9)
        for ours, theirs in zip(log_of(runs[1]), log_of(runs[ranks]), strict=True):
            assert theirs == pytest.approx(ours, abs=1e-8)


def test_gradients_travel_once_an_update(small_config, tmp_path, monkeypatch):
    """However many batches it has; and only the first rank encodes the text."""
    journeys = []
    encoded = []
    write_ids = tutorial.write_ids

    class Counted(tutorial.OncePerUpdate):
        def forward(self, *given):
            states = super().forward(*given)
            journeys.append(self.require_backward_grad_sync)
            return states

    monkeypatch.setattr(tutorial, "OncePerUpdate", Counted)
    monkeypatch.setattr(tutorial, "write_ids", lambda *x: encoded.append(1) or write_ids(*x))
    config = dataclasses.replace(small_config, accum_iter=4, epochs=1)

    def train() -> tuple[int, int]:
        tutorial.train_model(config, tmp_path / "run")
        return sum(journeys), len(encoded)

    found = results(train, 2)
    updates = saved(tmp_path / "run")["history"][0]["updates"]
    assert found == [(updates, 1), (updates, 0)]


def test_ranks_draw_dropout_of_their_own(small_config, tmp_path, monkeypatch):
    """Looked at before their shares can make a difference."""
    drawn = []
    new_optimizer = tutorial.new_optimizer

    def draw(module, given) -> None:
        if module.training:
            drawn.append(torch.rand(9))

    def watched(model, *given):
        model.src_embed.register_forward_pre_hook(draw)
        return new_optimizer(model, *given)

    monkeypatch.setattr(tutorial, "new_optimizer", watched)

    def train() -> torch.Tensor:
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path / "run")
        return drawn[0]

    first, second = results(train, 2)
    assert not torch.equal(first, second)


def test_more_processes_than_gpus_are_refused(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(tutorial, "choose_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(tutorial.UserError, match="2 processes need as many GPUs"):
        tutorial.train_model(small_config, tmp_path / "run")


# Faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_ends_the_other_and_any_number_goes_on(small_config, tmp_path, victim):
    run = tmp_path / "run"
    with endless_training(small_config, run, ranks=2) as ranks:
        other = ranks[1 - victim]
        ranks[victim].kill()
        other.join(60)
        assert other.exitcode == 1, other.text()
    before = saved(run)["history"]
    with endless_training(small_config, run, ranks=1 + victim):
        after = saved(run)["history"]
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_an_error_of_the_first_rank_ends_all(small_config, tmp_path):
    config = dataclasses.replace(small_config, data="none")
    with forked(training(config, tmp_path / "run"), 2) as ranks:
        for rank in ranks:
            rank.join(60)
            assert rank.exitcode == 1
        assert "UserError" in ranks[0].text()


# As readers start them --------------------------------------------------------------------------


@pytest.mark.slow
def test_torchrun_trains_like_one_process(small_config, tmp_path):
    config = dataclasses.replace(small_config, dropout=0.0, attention_dropout=0.0, precision="fp32")
    tutorial.train_model(config, tmp_path / "one")
    command = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]
    command += [str(PROJECT / tutorial.SCRIPT), "train", "--folder", "two words"]
    command += options_of(config)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("(greedy), in two words")
    for ours, theirs in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two words"), strict=True):
        for name in ours.keys() & {"loss", "nll"}:  # Adam enlarges rounding errors
            assert theirs[name] == pytest.approx(ours[name], rel=1e-2)
