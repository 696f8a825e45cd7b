"""Training: one process or several, interrupted or not, must come to the same weights."""

import dataclasses
import functools
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import ddp_worker
import GPUtil
import pytest
import torch
from conftest import PROJECT, assert_same_training, saved, scores
from ddp_worker import SYMBOLS, flat
from test_loses_nothing import TORCHRUN, command_for, log_of, run_to_the_end, started, wait_for
from torch import nn

import the_annotated_transformer as tutorial

pytestmark = pytest.mark.usefixtures("on_the_cpu")


# Several processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    """What two processes found; torchrun chooses a free port."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [*TORCHRUN, "2", "--", ddp_worker.__file__, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("case", ddp_worker.CASES)
def test_two_processes_train_like_one(two_ranks, case):
    alone, ranks = ddp_worker.train(case, 0, 1), [found[case] for found in two_ranks]
    assert (alone["parameters"] - flat(ddp_worker.start())).abs().max() > 0.01
    assert torch.equal(ranks[0]["parameters"], ranks[1]["parameters"])
    for found in ranks:
        for name in ("parameters", "gradients"):
            torch.testing.assert_close(found[name], alone[name], rtol=0, atol=1e-9)
        assert found["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-9)
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-12)
        assert found["tokens"] == alone["tokens"]


def test_ranks_notice_faults_and_stop_together(two_ranks):
    for ranks in two_ranks:
        faults, exchanges = ranks["faults"], ranks["exchanges"]
        assert faults["no tokens"].startswith("ValueError: an update without a single target token")
        assert faults["infinite on one rank"].startswith("FloatingPointError: diverged: loss inf")
        assert faults["stop"] == 1 and ranks["reading"] == "rank 0 cannot read"
        assert exchanges[0] >= 1 and len(set(exchanges)) == 1, "gradients travel once an update"


# One update -------------------------------------------------------------------------------------


def trainer() -> tuple:
    """Model, the same with its loss, optimizer and schedule."""
    model = ddp_worker.start()
    return model, ddp_worker.wrapped(model, 1), *tutorial.make_optimizer(model, 1.0, 10)


def batches(count: int) -> list:
    return [ddp_worker.batch(n, [2 + n % 5]) for n in range(count)]


def test_an_update_without_target_tokens():
    model, *parts = trainer()
    before = flat(model)
    with pytest.raises(ValueError, match="without a single target token"):
        tutorial.train_step(parts[0], [ddp_worker.batch(0, [])] * 2, *parts[1:])
    assert torch.equal(flat(model), before)
    tutorial.train_step(parts[0], [ddp_worker.batch(0, []), *batches(1)], *parts[1:])
    assert not torch.equal(flat(model), before), "one micro-batch without tokens is normal"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_before_the_update(value):
    model, loss_model, *parts = trainer()
    tutorial.train_step(loss_model, batches(2), *parts)
    before, moments = flat(model), parts[0].state_dict()["state"][0]["exp_avg"].clone()
    loss_model.register_forward_hook(lambda module, given, loss: loss * value)
    with pytest.raises(FloatingPointError, match=f"diverged: loss {value}, gradient norm nan"):
        tutorial.train_step(loss_model, batches(2), *parts)
    assert torch.equal(flat(model), before)
    assert torch.equal(parts[0].state_dict()["state"][0]["exp_avg"], moments)


def test_an_update_is_the_plain_one():
    """`train_step` with its fast loss, beside `run_epoch` with the plain one."""
    model, loss_model, *parts = trainer()
    plain = ddp_worker.start()
    compute = tutorial.SimpleLossCompute(
        plain.generator, tutorial.LabelSmoothing(SYMBOLS, tutorial.PAD, 0.1)
    )
    losses = [tutorial.train_step(loss_model, group, *parts) for group in (batches(3), batches(2))]
    optimizer = tutorial.make_optimizer(plain, 1.0, 10)
    for group, step in zip((batches(3), batches(2)), losses, strict=True):
        loss, state = tutorial.run_epoch(group, plain, compute, *optimizer, accum_iter=3)
        assert step["loss"] == pytest.approx(loss, rel=1e-6)
        assert step["tokens"] == state.tokens
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if "linears.1.bias" not in name:  # its gradient is rounding noise
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters()), "nothing leaks"


def test_the_last_partial_accumulation_is_used():
    model = ddp_worker.start()
    compute = tutorial.SimpleLossCompute(
        model.generator, tutorial.LabelSmoothing(SYMBOLS, tutorial.PAD)
    )
    optimizer, scheduler = tutorial.make_optimizer(model, 1.0, 10)
    rates = [optimizer.param_groups[0]["lr"]]
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    _, state = tutorial.run_epoch(batches(5), model, compute, optimizer, scheduler, accum_iter=2)
    assert state == tutorial.TrainState(3, 5, sum(batch.ntokens for batch in batches(5)))
    assert rates == [tutorial.rate(step, 16, 1.0, 10) for step in (1, 1, 2, 3)]
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in model.parameters()
    )


def test_evaluation_is_the_sum_by_hand():
    model = ddp_worker.start().train()
    batch = ddp_worker.batch(0, [1, 4, 2])
    scores = tutorial.evaluate_loss(model, [batch])
    nll = tokens = 0.0
    with torch.no_grad():
        rows = torch.cat([batch.tgt[:, :1], batch.tgt_y], 1).tolist()
        for row in rows:  # one by one, without padding, word for word
            ids = [number for number in row if number != tutorial.PAD]
            src, tgt = torch.tensor([ids[1:]]), torch.tensor([ids[:-1]])
            everything = torch.ones(1, 1, src.size(1), dtype=torch.bool)
            states = model(src, tgt, everything, tutorial.subsequent_mask(tgt.size(1)))
            log_probs = model.generator(states)[0]
            for position, wanted in enumerate(ids[1:]):
                nll, tokens = nll - log_probs[position, wanted].item(), tokens + 1
    assert scores["nll"] == pytest.approx(nll / tokens, rel=1e-12)
    assert scores["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-12)
    assert model.training and all(p.grad is None for p in model.parameters())


def test_linear_rate():
    rates = [tutorial.linear_rate(step, 64, 2.0, 10, 50) for step in range(1, 51)]
    assert rates[:10] == pytest.approx([tutorial.rate(step, 64, 2.0, 10) for step in range(1, 11)])
    assert rates.index(max(rates)) == 9 and rates[-1] == 0
    falls = [a - b for a, b in itertools.pairwise(rates[9:])]
    assert falls == pytest.approx([max(rates) / 40] * 40)
    assert tutorial.linear_rate(1, 64, 2.0, 1, 1) == 0 == tutorial.linear_rate(99, 64, 2.0, 10, 50)


# Faster forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
def test_fast_forms_keep_names_gradients_and_records(norm_first):
    plain = tutorial.tiny_model(norm_first=norm_first)
    fast = tutorial.make_fast(tutorial.copy.deepcopy(plain))
    batch = tutorial.Batch(torch.randint(4, 11, (2, 5)), torch.randint(4, 11, (2, 4)))
    given = batch.src, batch.tgt, batch.src_mask, batch.tgt_mask
    assert list(plain.state_dict()) == list(fast.state_dict())
    assert not {type(module) for module in fast.modules()} & set(tutorial.FASTER)
    for model in (plain, fast):
        model(*given).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    attentions = [m for m in fast.modules() if isinstance(m, tutorial.MultiHeadedAttention)]
    for module in attentions:
        module.record = []
    torch.testing.assert_close(fast(*given), plain(*given))
    assert all(len(module.record) == 1 for module in attentions)


@pytest.mark.parametrize(
    "smoothing, dtype, near", [(0.0, None, 1e-5), (0.3, None, 1e-5), (0.1, torch.bfloat16, 0.03)]
)
def test_the_loss_in_several_chunks_is_the_plain_one(smoothing, dtype, near):
    V, tokens = 9000, 1000  # 256 tokens to a chunk
    criterion, proj = tutorial.LabelSmoothing(V, tutorial.PAD, smoothing), nn.Linear(16, V)
    states, target = torch.randn(tokens, 16, requires_grad=True), torch.randint(3, V, (tokens,))
    leaves = states, proj.weight, proj.bias
    plain = criterion(proj(states).log_softmax(-1), target)
    expected = torch.autograd.grad(plain / tokens, leaves)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
        chunked = tutorial.ChunkedLoss.apply(*leaves, target, criterion, dtype or torch.float32)
    assert chunked.dtype == torch.float32 and chunked.item() == pytest.approx(
        plain.item(), rel=near
    )
    for ours, theirs in zip(torch.autograd.grad(chunked / tokens, leaves), expected, strict=True):
        assert (ours - theirs).norm() < near * theirs.norm()


# Decoding ---------------------------------------------------------------------------------------


class Parrot(nn.Module):
    """A model that writes a fixed text for each sentence, whatever it reads; END after it."""

    def __init__(self, texts: list[list[int]]):
        super().__init__()
        self.texts, self.modes = texts, set()

    def encode(self, src, src_mask):
        return torch.arange(len(src)).view(-1, 1, 1)  # the memory is the number of the sentence

    def decode(self, memory, src_mask, tgt, tgt_mask):
        self.modes.add((self.training, torch.is_grad_enabled()))
        states = torch.zeros(*tgt.shape, 9)
        for row, number in enumerate(memory.flatten().tolist()):
            text, place = self.texts[number], tgt.size(1) - 1
            states[row, -1, text[place] if place < len(text) else tutorial.END] = 1
        return states

    generator = staticmethod(lambda states: states)


def decode(parrot: Parrot, max_len: int, **options) -> list[list[int]]:
    src = torch.ones(len(parrot.texts), 3, dtype=torch.long)
    mask = torch.ones(len(parrot.texts), 1, 3, dtype=torch.bool)
    return tutorial.greedy_decode(parrot, src, mask, max_len, tutorial.START, **options).tolist()


def test_decoding_stops_at_the_end_symbol_and_at_the_limit():
    start, end, pad = tutorial.START, tutorial.END, tutorial.PAD
    assert decode(Parrot([[5, 6, 7], [], [8]]), 50) == [
        [start, 5, 6, 7, end], [start, end, pad, pad, pad], [start, 8, end, pad, pad],
    ]  # fmt: skip
    assert decode(Parrot([[5, 6, 7], [8]]), 3) == [[start, 5, 6], [start, 8, end]]
    assert decode(Parrot([[5]]), 1) == [[start]]
    assert decode(Parrot([[5, 6, 7]]), 9, end_symbol=6) == [[start, 5, 6]]
    assert decode(Parrot([[5]]), 6, end_symbol=None) == [[start, 5, *[end] * 4]]


@pytest.mark.parametrize("training", [True, False])
def test_decoding_is_without_dropout_and_gradient_and_restores_the_mode(training):
    parrot = Parrot([[5, 6]]).train(training)
    decode(parrot, 9)
    assert parrot.training is training and torch.is_grad_enabled()
    assert parrot.modes == {(False, False)}
    parrot.texts = None
    with pytest.raises(TypeError):
        decode(parrot, 9)
    assert parrot.training is training, "restored after an error too"


# Batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count, budget", [(1, 100), (500, 120), (501, 257), (50, 20)])
def test_every_sentence_once_a_pass_within_the_budget(count, budget):
    rng = random.Random(0)
    lengths = [(n := rng.randint(1, 30), max(1, n + rng.randint(-5, 5))) for _ in range(count)]
    seen = []
    for order in (None, random.Random(1), random.Random(2), random.Random(1)):
        dealt = tutorial.token_batches(lengths, budget, order)
        assert sorted(n for batch in dealt for n in batch) == list(range(count))
        for batch in dealt:
            longer = [max(lengths[n]) for n in batch]
            assert len(batch) * max(longer) <= budget or len(batch) == 1
            assert longer == sorted(longer), "so that shares dealt like cards are alike"
        seen.append(dealt)
    assert seen[1] == seen[3] and (count == 1 or seen[1] != seen[2])
    assert len({len(dealt) for dealt in seen}) == 1, "each pass has as many updates"


# Runs -------------------------------------------------------------------------------------------


def stop_after(monkeypatch, updates: int, action) -> None:
    """Call an action after so many updates."""
    step, made = tutorial.train_step, []

    def counted(*given):
        made.append(step(*given))
        if len(made) == updates:
            action()
        return made[-1]

    monkeypatch.setattr(tutorial, "train_step", counted)


def test_a_run_stopped_after_any_update_ends_like_one_that_was_not(
    small_config, uninterrupted, tmp_path, monkeypatch
):
    epoch = uninterrupted["history"][0]["updates"]
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for updates in range(1, 2 * epoch):
        run, number = tmp_path / str(updates), (signal.SIGINT, signal.SIGTERM)[updates % 2]
        with monkeypatch.context() as patch:
            stop_after(patch, updates, functools.partial(os.kill, os.getpid(), number))
            assert tutorial.train_model(small_config, run) == "stopped"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
        whole_epochs = updates // epoch
        assert (run / "last.pt").exists() == (whole_epochs > 0)
        if whole_epochs:
            assert len(saved(run)["history"]) == len(log_of(run)) == whole_epochs
            assert tutorial.read_summary(run)["status"] == "stopped"
        assert tutorial.train_model(small_config, run) == "finished"
        assert_same_training(saved(run), uninterrupted)
        assert scores(log_of(run)) == scores(uninterrupted["history"])


def test_a_second_ctrl_c_ends_at_once(small_config, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    stop_after(monkeypatch, 2, twice)
    with pytest.raises(KeyboardInterrupt):
        tutorial.train_model(small_config, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_limit_of_time(small_config, uninterrupted, tmp_path, monkeypatch):
    run, epoch, clock = tmp_path / "run", uninterrupted["history"][0]["updates"], [0.0]
    assert tutorial.train_model(small_config, run, minutes=0) == "stopped"
    assert not (run / "last.pt").exists()
    with monkeypatch.context() as patch:
        now = time.monotonic
        patch.setattr(tutorial.time, "monotonic", lambda: now() + clock[0])
        stop_after(patch, epoch + 1, lambda: clock.__setitem__(0, 3601.0))
        assert tutorial.train_model(small_config, run, minutes=60) == "stopped"
    assert len(saved(run)["history"]) == 1
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_training(saved(run), uninterrupted)


def test_a_pass_in_laps_uses_every_sentence_once(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(tutorial, "LAP", 3)
    batched, collate = [], tutorial.collate
    config = dataclasses.replace(small_config, batch_tokens=40, accumulate=1)

    def noted(pairs):
        batched.append([tuple(source) + tuple(target) for source, target in pairs])
        return collate(pairs)

    with monkeypatch.context() as patch:
        patch.setattr(tutorial, "collate", noted)
        patch.setattr(tutorial, "validate", lambda *_: {"nll": 1.0, "perplexity": 1.0, "bleu": 1.0})
        assert tutorial.train_model(config, tmp_path / "run") == "finished"
    history = saved(tmp_path / "run")["history"]
    assert [entry["epoch"] for entry in history] == list(range(1, len(history) + 1))
    made = [entry["updates"] for entry in history]
    laps = [b - a for a, b in itertools.pairwise([0, *made])]
    assert len(laps) % 2 == 0 and len(laps) > 6 and set(laps) <= {2, 3}
    half = made[len(made) // 2 - 1]
    assert made[-1] == 2 * half == len(batched)
    passes = [
        sorted(s for batch in part for s in batch) for part in (batched[:half], batched[half:])
    ]
    assert passes[0] == passes[1] and len(passes[0]) > 60
    assert batched[:half] != batched[half:], "in another order"
    two = [folder for folder in (tmp_path / "run").glob("epoch-*")]
    assert len(two) <= config.keep + 1


def test_training_ends_when_validation_no_longer_improves(small_config, tmp_path, monkeypatch):
    bleu = iter([1.0, 3.0, 2.0, 3.0, 9.0])
    judged = lambda *_: {"nll": 1.0, "perplexity": 2.0, "bleu": next(bleu)}  # noqa: E731
    monkeypatch.setattr(tutorial, "validate", judged)
    config, run = dataclasses.replace(small_config, patience=2, epochs=10), tmp_path / "run"
    assert tutorial.train_model(config, run) == "finished"
    assert len(log_of(run)) == 4
    summary = tutorial.read_summary(run)
    assert (summary["best"], summary["validation_bleu"]) == ("epoch-002", 3.0)
    assert tutorial.train_model(config, run) == "finished" and len(log_of(run)) == 4
    more = dataclasses.replace(config, patience=3)
    assert tutorial.train_model(more, run, until=9.0) == "finished"
    assert len(log_of(run)) == 5, "patience may change; and nine was asked for"


@pytest.mark.parametrize(
    "change",
    [{"factor": 2.0}, {"d_model": 32}, {"languages": "en-de"}, {"norm_first": False}, {"seed": 9}],
    ids=lambda change: next(iter(change)),
)
def test_going_on_with_other_settings(small_config, small_run, tmp_path, change):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    before = (run / "last.pt").read_bytes()
    with pytest.raises(ValueError, match=r"last\.pt was made with --") as caught:
        tutorial.train_model(dataclasses.replace(small_config, epochs=1, **change), run)
    name, told = next(iter(change)), str(caught.value)
    assert f"--{name.replace('_', '-')} {getattr(small_config, name)}, not {change[name]}" in told
    assert "use the same, or another folder" in told
    assert (run / "last.pt").read_bytes() == before


def test_epochs_may_be_added_where_the_schedule_stays_the_same(small_config, tmp_path):
    """With the paper's schedule, and a warm-up that is not shortened; else all would differ."""
    short, runs = dataclasses.replace(small_config, warmup=1), [tmp_path / "a", tmp_path / "b"]
    tutorial.train_model(dataclasses.replace(short, epochs=1), runs[0])
    for run in runs:
        tutorial.train_model(short, run)
    assert_same_training(*map(saved, runs))
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path / "d")
    with pytest.raises(ValueError, match="--warmup 1, not 2"):  # a quarter of all updates
        tutorial.train_model(small_config, tmp_path / "d")
    linear = dataclasses.replace(short, schedule="linear")
    tutorial.train_model(dataclasses.replace(linear, epochs=1), tmp_path / "c")
    with pytest.raises(ValueError, match="--epochs 1, not 2"):
        tutorial.train_model(linear, tmp_path / "c")


def test_going_on_with_another_vocabulary(small_config, small_corpus, tmp_path, fresh_corpora):
    corpus = Path(shutil.copytree(small_corpus, tmp_path / "corpus"))
    config = dataclasses.replace(small_config, data=str(corpus), epochs=1)
    tutorial.train_model(config, tmp_path / "run")
    text = (corpus / "train.en").read_text()
    (corpus / "train.en").write_text(text.replace(" is ", " was "))
    tutorial.find_corpus.cache_clear()
    with pytest.raises(ValueError, match=r"last\.pt has other symbols: has the text changed\?"):
        tutorial.train_model(config, tmp_path / "run")


def test_another_machine_is_no_error(small_config, small_run, tmp_path, monkeypatch):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    config = dataclasses.replace(small_config, epochs=1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    with pytest.warns(UserWarning, match="64 threads.*not bit for bit the same run"):
        assert tutorial.train_model(config, run) == "finished"


def test_another_number_of_processes_is_an_error(small_config, small_run, tmp_path):
    """It would change the batch of an update, and with it the number of updates."""
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    saved_before = (run / "last.pt").read_bytes()
    settings = json.loads((run / "settings.json").read_text())
    given = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{option}" if value else f"--no-{option}")
        else:
            given.append(f"--{option}={value}")
    done = tutorial.torchrun(2, "train", "--folder", str(run), *given)
    tokens = settings["batch_tokens"]
    told = f"--batch-tokens {tokens}, not {2 * tokens} in all processes together"
    assert done.returncode != 0 and told in done.stderr
    assert (run / "last.pt").read_bytes() == saved_before


def test_a_process_without_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(tutorial, "choose_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with (
        pytest.raises(ValueError, match="a GPU of its own: start 1 at most"),
        tutorial.join_workers(),
    ):
        pass


@pytest.mark.parametrize("answer", [float("nan"), "NVIDIA-SMI has failed"])
def test_a_gpu_that_does_not_tell_its_load(monkeypatch, answer):
    def gpus() -> list:
        return [SimpleNamespace(load=answer if isinstance(answer, float) else int(answer))]

    monkeypatch.setattr(GPUtil, "getGPUs", gpus)
    assert tutorial.gpu_loads() == []


def test_a_run_keeps_a_log_and_a_summary(small_config, small_corpus, tmp_path, monkeypatch):
    gpus = [SimpleNamespace(load=0.42), SimpleNamespace(load=0.973)]
    monkeypatch.setattr(GPUtil, "getGPUs", lambda: gpus)
    one = dataclasses.replace(small_config, epochs=1)
    tutorial.train_model(one, tmp_path / "run")
    (entry,) = log_of(tmp_path / "run")
    assert entry["gpu"] == [42, 97] and entry["epoch"] == 1 and entry["updates"] > 2
    assert entry["loss"] > 0 and entry["minutes"] > 0 and entry["tokens_per_second"] > 0
    assert entry["perplexity"] == pytest.approx(math.exp(entry["nll"]))
    summary = tutorial.read_summary(tmp_path / "run")
    assert summary["status"] == "finished" and summary["best"] == "epoch-001"
    assert summary["corpus"] == small_corpus.name and summary["validation_bleu"] >= 0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings == summary["settings"] == dataclasses.asdict(one)


def test_a_tiny_corpus_trains_by_default(small_corpus, tmp_path, capsys):
    """Sixty pairs leave no room for a warm-up of a thousand updates; it is made shorter."""
    corpus = Path(shutil.copytree(small_corpus, tmp_path / "corpus"))
    for name in ("train.de", "train.en"):
        lines = (corpus / name).read_text().splitlines(keepends=True)
        (corpus / name).write_text("".join(lines[:60]))
    config = tutorial.Config(data=str(corpus), N=1, d_model=24, d_ff=48, epochs=4)
    assert tutorial.train_model(config, tmp_path / "run") == "finished"
    losses = [entry["loss"] for entry in log_of(tmp_path / "run")]
    assert losses == sorted(losses, reverse=True)
    header = capsys.readouterr().out.splitlines()[0]
    assert header.startswith("corpus, de → en, 60 pairs, ") and "warm-up 1 updates" in header


# Models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [0, 300])
def test_train_save_load_translate_and_average(small_config, tmp_path, pieces):
    """A run translates; its model comes back from any folder; the mean of two is another."""
    config = dataclasses.replace(
        small_config, pieces=pieces, share_embeddings=pieces > 0, max_len=64, min_freq=2
    )
    tutorial.train_model(config, tmp_path / "run")
    best = tutorial.read_summary(tmp_path / "run")["best"]
    first = tutorial.load_trained_model(tmp_path / "run")
    lines = ["Ein Hund schläft.", "", "Eine Frau hält im Park ein neues Buch."]
    written = tutorial.translate(first, lines)
    assert written[1] == "" and first.languages == ("de", "en") and not first.model.training
    tutorial.save_model(first, tmp_path / "copy")
    tutorial.save_model(first, tmp_path / "copy")  # again over the same
    name = "tokenizer.json" if pieces else "words.json"
    files = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert files == sorted(["config.json", "model.safetensors", name])
    for folder in (str(tmp_path / "copy"), tmp_path / "run" / best):
        again = tutorial.load_trained_model(folder)
        assert again.vocabularies[1].words == first.vocabularies[1].words
        assert again.model.arguments == first.model.arguments
        assert tutorial.translate(again, lines) == written
        for ours, theirs in zip(again.model.parameters(), first.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    folders = sorted((tmp_path / "run").glob("epoch-*"))
    mean = tutorial.load_trained_model(folders[0])
    tutorial.average(mean.model, (tutorial.load_trained_model(one).model for one in folders))
    parts = [flat(tutorial.load_trained_model(folder).model) for folder in folders]
    torch.testing.assert_close(flat(mean.model), torch.stack(parts).mean(0))
    tutorial.save_model(mean, tmp_path / "average")
    again = tutorial.load_trained_model(tmp_path / "average")
    assert torch.equal(flat(again.model), flat(mean.model)) and len(folders) == 2


@pytest.mark.parametrize("name", ["base", "big"])
def test_presets_of_the_paper(name):
    """One list of 37,000 symbols; eight ranks share a batch of 25,000; and the norm comes after."""
    config = tutorial.PRESETS[name]
    assert 8 * config.batch_tokens == 25_000 and not config.norm_first
    assert config.share_embeddings and config.pieces == 37_000


# The command line -------------------------------------------------------------------------------


def test_train_from_the_command_line(small_corpus, tmp_path, capsys):
    """Whole: a header, a line for each epoch, and at the end what to do with the model."""
    run = tmp_path / "my run"
    sizes = "--preset smoke --N 1 --d-model 16 --d-ff 32 --h 2 --epochs 2 --min-freq 1".split()
    arguments = ["train", *sizes, "--data", str(small_corpus), "--folder", str(run)]
    command = [sys.executable, "the_annotated_transformer.py", *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{small_corpus.name}, de → en, 120 pairs, ")
    assert "M parameters; warm-up" in lines[0] and "processes: 1 of " in lines[0]
    for number, line in enumerate(lines[1:3], 1):
        assert line.startswith(f"epoch {number}/2: loss ") and "tokens/s" in line
    best = tutorial.read_summary(run)
    assert lines[3] == f"finished: BLEU {best['validation_bleu']} in {best['best']} of {run}"
    assert "translate --model" in lines[4] and str(run) in lines[4] and len(lines) == 5
    assert done.stderr == "" and "\r" not in done.stdout
    assert tutorial.main(arguments) == 0, "again: it is finished"
    assert capsys.readouterr().out.splitlines()[1:] == lines[3:]


def interrupted(ranks: int, corpus: Path, folder: Path, number: signal.Signals) -> tuple:
    """Status and texts of a training that gets a signal, as a terminal would send it."""
    command = [*command_for(ranks), str(corpus), str(folder), "1000"]
    with started(command, start_new_session=True) as process:
        wait_for(lambda: (folder / "log.jsonl").exists() and len(log_of(folder)) > 2, process)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=90)
    assert not list(folder.rglob("*.part")), "nothing is half-written"
    assert log_of(folder) == saved(folder)["history"]
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_a_signal_stops_a_training_in_order(small_corpus, tmp_path, number):
    status, out, err = interrupted(1, small_corpus, tmp_path / "run", number)
    assert (status, err) == (0, "")
    assert out.endswith("stopped: the same command makes the unfinished epoch again, and goes on\n")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_a_signal_stops_all_ranks(small_corpus, tmp_path, number):
    run = tmp_path / "run"
    _, out, err = interrupted(2, small_corpus, run, number)  # torchrun has words of its own
    assert out.count("stopped: the same command makes") == 1, "only the first rank speaks"
    assert not [line for line in err.splitlines() if line.startswith("error")]
    epochs = len(log_of(run)) + 2
    run_to_the_end(2, small_corpus, run, epochs)
    assert len(log_of(run)) == epochs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_make_the_training_of_one_with_batches_twice_as_large(small_corpus, tmp_path):
    """The whole way, but for dropout, which every rank draws for itself."""
    runs = tmp_path / "two", tmp_path / "one"
    for run, budget, start in zip(
        runs, (64, 128), ([*TORCHRUN, "2", "--"], [sys.executable]), strict=True
    ):
        sizes = "--preset smoke --d-model 16 --d-ff 32 --h 2 --min-freq 1 --dropout 0 --epochs 3"
        arguments = [*sizes.split(), "--batch-tokens", str(budget), "--data", str(small_corpus)]
        command = [*start, str(PROJECT / "the_annotated_transformer.py"), "train", *arguments]
        done = subprocess.run(
            [*command, "--folder", str(run)], cwd=PROJECT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("processes: ") == 1
    for two, one in zip(*map(log_of, runs), strict=True):
        assert two["updates"] == one["updates"]
        for name in ("loss", "nll"):  # Adam makes much of rounding
            assert two[name] == pytest.approx(one[name], rel=1e-2)
    config = tutorial.Config(**json.loads((runs[0] / "settings.json").read_text()))
    training = tutorial.Training(config, tutorial.Worker(0, 1, torch.device("cpu"), None))
    training.model.load_state_dict(saved(runs[0])["model"])
    judged = tutorial.validate(training, tutorial.greedy_search)
    assert two["nll"] == pytest.approx(judged["nll"], rel=1e-5)
    assert two["bleu"] == pytest.approx(judged["bleu"], rel=0.1)  # the limit of length may differ


# The story --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_breaks_breaks():
    """What the text says of the copy task without one of its parts."""
    parts = "nothing", "mask over the future", "positions"
    rows = [tutorial.copy_without(part, 400) for part in parts]
    (whole, future, positions), copied = [float(row[1]) for row in rows], [row[2] for row in rows]
    assert copied[0] > 100 and max(copied[1:]) < 20
    assert future < whole + 0.1 and positions > 5 * whole


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_only_the_norm_after_the_sum_needs_a_warm_up(monkeypatch):
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    (_, *first), (_, *after) = tutorial.what_a_warm_up_is_worth().data.itertuples(index=False)
    assert after[1] > 2 and max(*first, after[0]) < 0.5
