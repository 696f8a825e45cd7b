"""Several processes: they train like one, notice everything together, and lose nothing."""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, assert_same_run, log_of, options_of, saved, train_one_epoch
from forks import Rank, forked, free_port, results
from torch import nn

import the_annotated_transformer as tutorial


def batch_of(*lengths: int) -> tutorial.Batch:
    """Invented sentences of these lengths; without any a batch that has no target token."""
    rows = [[tutorial.START, *range(4, 4 + n), tutorial.END] for n in lengths]
    nothing = [([tutorial.END], [tutorial.START, tutorial.PAD])]
    return tutorial.collate([(ids[1:], ids) for ids in rows] or nothing)


# One update -------------------------------------------------------------------------------------

UPDATES = [  # the batches of the first rank, and of the second one
    ([batch_of(5, 5)], [batch_of(4, 4)]),
    ([batch_of(1, 2, 1)], [batch_of(6)]),
    ([batch_of(4, 6)], [batch_of()]),
    ([batch_of(2, 3), batch_of(1)], [batch_of(5), batch_of(3, 3, 4)]),
]


def make_updates(at, worker) -> list[tuple]:
    """What `train_step` says of each update, its gradient, and how often gradients travelled."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    torch.manual_seed(3)
    criterion = at.LabelSmoothing(13, at.PAD, 0.1)
    model = at.make_fast(at.tiny_model(dropout=0.0).double())
    steps = []
    loss_model = at.on_all_ranks(at.ModelWithLoss(model, criterion), worker)
    optimizer, scheduler = at.make_optimizer(model, 0.1, 10)
    journeys = []
    gradients = []
    if worker.ranks > 1:
        loss_model.register_comm_hook(
            None, lambda group, bucket: journeys.append(1) or allreduce_hook(group, bucket)
        )
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    )
    for shares in UPDATES:
        batches = shares[worker.rank] if worker.ranks > 1 else [*shares[0], *shares[1]]
        steps.append(tuple(at.train_step(loss_model, batches, optimizer, scheduler)))
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    return steps, gradients, weights, len(journeys)


def on_two_ranks(at, action: Callable) -> list:
    """What `action` of the module and its worker returns on each of two ranks."""

    def joined():
        with at.join_workers() as worker:
            return action(at, worker)

    return results(joined, 2)


def test_two_ranks_train_like_one(at):
    alone = at.Worker(0, 1, torch.device("cpu"), None)
    steps, gradients, weights, _ = make_updates(at, alone)
    ranks = on_two_ranks(at, make_updates)
    assert torch.equal(ranks[0][2], ranks[1][2])
    for their_steps, their_gradients, their_weights, journeys in ranks:
        for ours, theirs in zip(steps, their_steps, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-9)
        torch.testing.assert_close(their_gradients, gradients, rtol=0, atol=1e-9)
        torch.testing.assert_close(their_weights, weights, rtol=0, atol=1e-9)
        assert journeys == len(UPDATES), "once an update, however many batches it has"


def notice(at, worker) -> float:
    """What concerns one rank, or none at all, every rank must hear of."""
    model = at.tiny_model()
    loss_model = at.on_all_ranks(at.ModelWithLoss(model, at.LabelSmoothing(13, at.PAD)), worker)
    optimizer = at.make_optimizer(model, 1.0, 10)
    asked = at.train_step(loss_model, [batch_of(3)], *optimizer, stop=worker.rank == 1)
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    if worker.rank == 1:
        loss_model.register_forward_hook(lambda module, given, loss: loss * torch.inf)
    with pytest.raises(FloatingPointError, match="diverged: loss inf, gradient norm nan"):
        at.train_step(loss_model, [batch_of(3)], *optimizer)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)
    return asked.stops


def test_ranks_notice_faults_together(at):
    assert on_two_ranks(at, notice) == [1, 1]


# Whole runs -------------------------------------------------------------------------------------


def training(config: tutorial.Config, folder: Path | str) -> Callable:
    return lambda: tutorial.train_model(config, folder)


def test_two_ranks_make_the_training_of_one(small_config, tmp_path):
    """The whole way, but for dropout, which every rank draws for itself."""
    plain = dataclasses.replace(small_config, dropout=0.0, attention_dropout=0.0)
    assert tutorial.train_model(plain, tmp_path / "one") == "finished"
    assert results(training(plain, tmp_path / "two"), 2) == ["finished", "finished"]
    for theirs, ours in zip(log_of(tmp_path / "two"), log_of(tmp_path / "one"), strict=True):
        assert theirs["updates"] == ours["updates"]
        for name in ("loss", "nll"):  # Adam makes much of rounding
            assert theirs[name] == pytest.approx(ours[name], rel=1e-2)
    data = tutorial.encode_corpus(tutorial.find_corpus(plain.data), plain)
    model = tutorial.new_model(plain, data.vocabularies)
    model.load_state_dict(saved(tmp_path / "two")["model"])
    alone = tutorial.Worker(0, 1, torch.device("cpu"), None)
    judged = tutorial.validate(model, data, alone)
    result = (theirs["nll"], theirs["bleu"])
    expected = pytest.approx((judged["nll"], judged["BLEU"]))
    assert result == expected


@contextlib.contextmanager
def two_that_never_end(config: tutorial.Config, run: Path) -> Iterator[list[Rank]]:
    """Two ranks in the midst of a training."""
    with forked(training(dataclasses.replace(config, epochs=10**6), run), 2) as ranks:
        while not list(run.glob("*.pt")):
            assert all(rank.is_alive() for rank in ranks), ranks[0].text()
            time.sleep(0.01)
        yield ranks


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_ends_the_run_and_the_same_command_goes_on(
    small_config, tmp_path, victim
):
    run = tmp_path / "run"
    with two_that_never_end(small_config, run) as ranks:
        other = ranks[1 - victim]
        ranks[victim].kill()
        other.join(60)
        assert other.exitcode == 1, other.text()
    before = log_of(run)
    with two_that_never_end(small_config, run):
        while len(log_of(run)) == len(before):
            time.sleep(0.01)
    assert log_of(run)[: len(before)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_rank_stops_all(small_config, tmp_path, number):
    with two_that_never_end(small_config, tmp_path / "run") as ranks:
        os.kill(ranks[1].pid, number)
        for rank in ranks:
            rank.join(60)
            assert rank.exitcode == 0 and torch.load(rank.answer) == "stopped", rank.text()
        assert "epoch 1/" in ranks[0].text()
        assert "epoch" not in ranks[1].text(), "only the first rank speaks"
    result = len(log_of(tmp_path / "run"))
    expected = len(saved(tmp_path / "run")["history"])
    assert result == expected


def test_ranks_that_read_other_texts_are_refused(small_config, small_corpus, tmp_path):
    for rank in range(2):
        shutil.copytree(small_corpus, tmp_path / f"corpus-{rank}")
    path = tmp_path / "corpus-1" / "train.en"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")  # the same words

    def train():
        data = str(tmp_path / f"corpus-{os.environ['RANK']}")
        return tutorial.train_model(dataclasses.replace(small_config, data=data), tmp_path / "run")

    with forked(train, 2) as ranks:
        ranks[1].join(60)
        assert "ValueError: the first rank has read another text" in ranks[1].text()
    assert not list((tmp_path / "run").glob("*.pt"))


def test_another_number_of_ranks_goes_on_with_the_same_batches(small_config, tmp_path):
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    result = results(training(small_config, run), 2)
    assert result == ["finished"] * 2
    assert len(log_of(run)) == 2
    assert "processes: 2 of 1 " in tutorial.read_run(run).machine


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


@pytest.mark.slow
def test_two_machines_go_on_with_a_run_of_two(small_config, tmp_path, monkeypatch, one_cpu):
    """By torchrun, in the processor's own numbers. One writes and reads: no disk is in common."""
    monkeypatch.setattr(tutorial, "gains_from_bf16", one_cpu)
    whole = tmp_path / "whole" / "run"
    run = tmp_path / "machine-0" / "run"
    results(training(small_config, whole), 2)
    results(lambda: train_one_epoch(small_config, run), 2)
    assert len(log_of(run)) == 1
    (tmp_path / "machine-1").mkdir()
    program = str(PROJECT / tutorial.SCRIPT)
    given = [program, "train", "--folder", "run", *options_of(small_config)]
    meeting = f"--nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port {free_port()}"
    agents = []
    for number in range(2):
        agent = ["torch.distributed.run", *meeting.split(), "--node-rank", str(number), "--"]
        command = [sys.executable, "-m", *agent, *given]
        folder = tmp_path / f"machine-{number}"
        agents.append(subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True))
    errors = [agent.communicate(timeout=200)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    assert not list((tmp_path / "machine-1").iterdir())
    assert_same_run(run, whole)
