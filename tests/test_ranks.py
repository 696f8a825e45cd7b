"""Several processes train like one, and none of them waits for one that has failed."""

import contextlib
import dataclasses
import functools
import io
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest
import torch
from conftest import PROJECT, log_of, options_of, saved, train_one_epoch
from forks import Rank, forked, results

import the_annotated_transformer as tutorial

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


@pytest.mark.parametrize(
    "batch_tokens, accum_iter, clip",
    [(64, 1, None), (64, 2, 1.0), (20, 4, None)],
    ids=["one batch to an update", "two", "one sentence to a batch"],
)
def test_two_and_three_ranks_train_like_one(
    small_config, tmp_path, in_float64, batch_tokens, accum_iter, clip
):
    """The same weights, the same scores, and the losses of all ranks in the log and on screen."""
    config = dataclasses.replace(
        small_config, dropout=0.0, attention_dropout=0.0, clip=clip, log_every=1,
        batch_tokens=batch_tokens, accum_iter=accum_iter, max_len=32,
    )  # fmt: skip
    pairs = tutorial.builtin_corpus()["train"]
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": pairs[:14], "val": pairs[14:19]})
    runs = {ranks: tmp_path / f"of-{ranks}" / "run" for ranks in (1, 2, 3)}
    losses = {}
    for ranks, run in runs.items():
        said, *others = results(training(config, run, corpus=corpus), ranks)
        assert not any(others), "only the first rank speaks"
        losses[ranks] = re.findall(r"update \d+: loss (\S+),", said)
    settings, _ = tutorial.read_settings(runs[1])
    sizes = map(len, tutorial.batches_of_epoch(settings, tutorial.IdPairs(runs[1]), 1))
    assert min(sizes) < 3, "a share is empty"
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
    """However many batches it has."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    journeys = []
    parallel = torch.nn.parallel.DistributedDataParallel

    def counted(model, **options):
        net = parallel(model, **options)
        net.register_comm_hook(
            None, lambda group, bucket: journeys.append(1) or allreduce_hook(group, bucket)
        )
        return net

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", counted)
    config = dataclasses.replace(small_config, accum_iter=4, epochs=1)

    def train() -> tuple[int, int]:
        tutorial.train_model(config, tmp_path / "run")
        return len(journeys), saved(tmp_path / "run")["history"][0]["updates"]

    for made, updates in results(train, 2):
        assert made == updates


def test_ranks_draw_dropout_of_their_own(small_config, tmp_path, monkeypatch):
    """Before anything of their shares can make a difference."""
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


def test_another_number_of_ranks_goes_on(small_config, tmp_path):
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    said, _ = results(training(small_config, run), 2)
    assert "processes: 2 of " in said
    assert [entry["averaged"] for entry in log_of(run)] == [0, 0, 2]


def test_only_the_first_rank_encodes(small_config, tmp_path, monkeypatch):
    calls = []
    write_ids = tutorial.write_ids

    def slowly(*given):
        calls.append(1)
        time.sleep(0.5)
        write_ids(*given)

    monkeypatch.setattr(tutorial, "write_ids", slowly)

    def train() -> int:
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path / "run")
        return len(calls)

    assert results(train, 3) == [1, 0, 0]


# Faults -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def two_that_never_end(config: tutorial.Config, run: Path) -> Iterator[list[Rank]]:
    """Two ranks in the midst of a training."""
    endless = dataclasses.replace(config, epochs=10**6)
    with forked(functools.partial(tutorial.train_model, endless, run), 2) as ranks:
        while not (run / "last.pt").exists():
            assert all(rank.is_alive() for rank in ranks), ranks[0].text()
            time.sleep(0.01)
        yield ranks


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_ends_the_other_and_the_run_goes_on(small_config, tmp_path, victim):
    run = tmp_path / "run"
    with two_that_never_end(small_config, run) as ranks:
        other = ranks[1 - victim]
        ranks[victim].kill()
        other.join(60)
        assert other.exitcode == 1, other.text()
    before = saved(run)["history"]
    with two_that_never_end(small_config, run) as ranks:
        while len(log_of(run)) == len(before):
            assert all(rank.is_alive() for rank in ranks), ranks[0].text()
            time.sleep(0.01)
    assert saved(run)["history"][: len(before)] == before


def torchrun(*arguments: object, folder: Path, seconds: float = 200) -> tuple[int, str, str]:
    """The command line on two ranks, as readers start it: exit status, output, errors."""
    program = str(PROJECT / tutorial.SCRIPT)
    options = "-m torch.distributed.run --standalone --nproc-per-node 2"
    command = [sys.executable, *options.split(), program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_torchrun_trains_like_one_process(small_config, tmp_path):
    config = dataclasses.replace(small_config, dropout=0.0, attention_dropout=0.0, precision="fp32")
    tutorial.train_model(config, tmp_path / "one")
    train = ["train", "--folder", "two words", *options_of(config)]
    status, said, errors = torchrun(*train, folder=tmp_path)
    assert status == 0, errors
    assert "processes: 2 of " in said
    command = re.search("(?m)^to translate with it: (.*)$", said)[1]
    assert shlex.split(command)[-1] == "two words"
    for ours, theirs in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two words"), strict=True):
        for name in ours.keys() & {"loss", "nll"}:  # Adam makes much of rounding
            assert theirs[name] == pytest.approx(ours[name], rel=1e-2)


ILL = """\
import os
import the_annotated_transformer as at

at.ATTENTION["mine"] = at.MultiHeadedAttention
if os.environ["RANK"] == "1":
    def fail(*given):
        raise RuntimeError("rank 1 is ill")
    at.Run.validate = fail
"""


@pytest.mark.slow
def test_torchrun_ends_all_when_one_rank_raises(small_config, tmp_path):
    (tmp_path / "ill.py").write_text(ILL)
    train = ["train", "--folder", "run", "--parts", "ill.py", *options_of(small_config)]
    status, _, errors = torchrun(*train, folder=tmp_path)
    assert status != 0
    assert "Traceback" in errors and "RuntimeError: rank 1 is ill" in errors


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["held", "no data"])
def test_torchrun_ends_all_for_what_the_first_rank_refuses(small_config, tmp_path, fault):
    run = tmp_path / "run"
    run.mkdir()
    lock = contextlib.nullcontext()
    told = "error: .*none is no folder"
    config = small_config
    if fault == "held":
        lock = filelock.FileLock(run / ".lock")
        (run / ".holder").write_text("process 7 on a machine")
        told = "error: run is in use by process 7 on a machine"
    else:
        config = dataclasses.replace(config, data="none")
    with lock:
        status, said, errors = torchrun(
            "train", "--folder", "run", *options_of(config), folder=tmp_path
        )
    assert status != 0
    assert said == ""
    assert re.search(told, errors)


# Number formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("able", "expected"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ({"cpu_name": "AMD EPYC", "avx2": True}, False),
        ({}, False),
    ],
)
def test_bf16_is_chosen_where_products_are_faster(one_cpu, monkeypatch, able, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert one_cpu(torch.device("cpu")) == expected
