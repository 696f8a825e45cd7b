"""Training: one process or several, interrupted or not, must come to the same weights."""

import dataclasses
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ddp_worker
import pytest
import torch
from conftest import OUTSIDE, PROJECT, assert_same_training, saved
from torch import nn

import the_annotated_transformer as tutorial

SCRIPT = PROJECT / "the_annotated_transformer.py"
TORCHRUN = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2 --".split()]
CPU = tutorial.Worker(0, 1, torch.device("cpu"), None)
pytestmark = pytest.mark.usefixtures("on_the_cpu")


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


# Several processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    """What two processes found; torchrun chooses a free port."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [*TORCHRUN, str(PROJECT / "tests" / "ddp_worker.py"), str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("case", ddp_worker.CASES)
def test_two_processes_train_like_one(two_ranks, case):
    alone, ranks = ddp_worker.train(case, 0, 1), [found[case] for found in two_ranks]
    assert alone["state"]["step"] == ddp_worker.UPDATES
    start = flat(ddp_worker.start(torch.double))
    assert (alone["parameters"] - start).abs().max() > 0.01, "something must have been learnt"
    assert torch.equal(ranks[0]["parameters"], ranks[1]["parameters"])
    for found in ranks:
        torch.testing.assert_close(found["parameters"], alone["parameters"], rtol=0, atol=1e-9)
        torch.testing.assert_close(found["norms"], alone["norms"], rtol=1e-9, atol=0)
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-12)
        assert found["state"] == alone["state"]


@pytest.mark.parametrize("case", ddp_worker.CASES)
def test_gradients_of_one_step_in_single_precision(two_ranks, case):
    alone = ddp_worker.gradients(case, 0, 1)
    assert alone.norm() > 0.1
    for found in two_ranks:
        torch.testing.assert_close(found[f"gradients, {case}"], alone, rtol=1e-5, atol=1e-5)


def test_ranks_evaluate_together(two_ranks):
    alone = ddp_worker.evaluation(0, 1)
    for found in two_ranks:
        assert found["evaluation"] == pytest.approx(alone, rel=1e-12)


def test_ranks_notice_faults_and_stop_together(two_ranks):
    for found in two_ranks:
        faults = found["faults"]
        assert faults["no tokens"].startswith("ValueError: a step without a single target token")
        assert faults["infinite on one rank"].startswith(
            "FloatingPointError: training diverged at step 1"
        )
        assert faults["no tokens, parameters kept"]
        assert faults["infinite on one rank, parameters kept"]
        assert faults["stop"] == [False, True, True]


def test_gradients_travel_once_an_update(two_ranks):
    for found in two_ranks:
        assert found["exchanges"][0] >= 1 and len(set(found["exchanges"])) == 1


def test_a_rank_may_keep_the_others_waiting(two_ranks):
    """No limit fires while one rank is busy: it is hours, and the group was made with it."""
    assert two_ranks[1]["waited"] > 2.5
    assert two_ranks[1]["limit"] == tutorial.LONGEST_WAIT.total_seconds() >= 3600


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_meet_though_the_store_remembers_the_dead(late):
    """Whoever comes last: nobody takes a key of an earlier start for one of this start."""
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def join(rank: int, delay: float = 0.0):
        time.sleep(delay)
        client = torch.distributed.TCPStore("127.0.0.1", server.port, wait_for_workers=False)
        return tutorial.agree_on_store(client, rank, 3)

    with ThreadPoolExecutor(3) as pool:
        for start in range(3):
            delays = [0.3 * (start > 0 and rank == late) for rank in range(3)]
            stores = list(pool.map(join, range(3), delays))
            assert not any(store.check(["address"]) for store in stores), "a key of the dead"
            stores[start].set("address", str(start))
            assert [store.get("address").decode() for store in stores] == [str(start)] * 3


# One step ---------------------------------------------------------------------------------------


def trainer(dtype=torch.double) -> tuple:
    """Model, the same with its loss, optimizer and schedule."""
    model = ddp_worker.start(dtype)
    loss_model = ddp_worker.wrapped(model, 1)
    return model, loss_model, *tutorial.make_optimizer(model, 16, 1.0, 10)


def batches(count: int) -> list:
    return [ddp_worker.batch([ddp_worker.sentence(n, 2 + n % 5)]) for n in range(count)]


def test_a_step_without_target_tokens():
    model, *parts = trainer()
    before = flat(model)
    with pytest.raises(ValueError, match="without a single target token"):
        tutorial.run_epoch([ddp_worker.batch([])] * 2, *parts, tutorial.TrainState(), 2)
    assert torch.equal(flat(model), before)
    tutorial.run_epoch([ddp_worker.batch([]), *batches(1)], *parts, tutorial.TrainState(), 2)
    assert not torch.equal(flat(model), before), "one micro-batch without tokens is normal"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_before_the_update(value):
    model, loss_model, *parts = trainer()
    state, seen = tutorial.TrainState(), []

    def spoil(module, given, loss):
        return loss * value if state.step == 2 else loss

    loss_model.register_forward_hook(spoil)
    keep = lambda report: seen.append(flat(model))  # noqa: E731
    with pytest.raises(FloatingPointError, match=r"at step 3: loss (nan|inf)"):
        tutorial.run_epoch(batches(5), loss_model, *parts, state, on_update=keep)
    assert state.step == 2 and torch.equal(flat(model), seen[-1])


def test_the_last_partial_accumulation_is_used():
    model, *parts = trainer()
    state, reports, seen = tutorial.TrainState(), [], []

    def keep(report):
        reports.append(report)
        seen.append(flat(model))

    five = batches(5)
    tutorial.run_epoch(five, *parts, state, 2, keep)
    assert [r["samples"] for r in reports] == [2, 2, 1]
    assert [r["tokens"] for r in reports] == [
        sum(batch.ntokens for batch in group) for group in (five[:2], five[2:4], five[4:])
    ]
    assert state == tutorial.TrainState(3, 0, 3, 5, sum(batch.ntokens for batch in five))
    assert not torch.equal(seen[1], seen[2])
    assert all(parameter.grad is None for parameter in model.parameters()), "nothing leaks"


def test_the_schedule_steps_once_per_update():
    _, *parts = trainer()
    state, rates = tutorial.TrainState(), []
    for _ in range(2):
        tutorial.run_epoch(batches(6), *parts, state, 3, lambda report: rates.append(report["lr"]))
    assert rates == [tutorial.rate(step, 16, 1.0, 10) for step in (1, 2, 3, 4)]


def test_the_first_update_uses_the_first_rate():
    model, loss_model, optimizer, scheduler = trainer()
    assert optimizer.param_groups[0]["lr"] == tutorial.rate(1, 16, 1.0, 10)
    before = flat(model)
    tutorial.run_epoch(batches(1), loss_model, optimizer, scheduler, tutorial.TrainState())
    # The first step of Adam is the rate itself, wherever there is a gradient.
    assert (flat(model) - before).abs().max() == pytest.approx(
        tutorial.rate(1, 16, 1.0, 10), rel=1e-3
    )


def test_an_update_may_end_the_epoch():
    _, *parts = trainer()
    state = tutorial.TrainState()
    tutorial.run_epoch(batches(5), *parts, state, on_update=lambda report: report["step"] == 2)
    assert (state.step, state.position) == (2, 2)


def test_evaluation_is_the_sum_by_hand():
    model = ddp_worker.start(torch.double).train()
    sentences = [ddp_worker.sentence(n, length) for n, length in enumerate((1, 4, 2))]
    scores = tutorial.evaluate_loss(model, [ddp_worker.batch(sentences), ddp_worker.batch([])])
    nll = tokens = 0.0
    with torch.no_grad():
        for ids in sentences:  # one by one, without padding, word for word
            src, tgt = torch.tensor([ids[1:]]), torch.tensor([ids[:-1]])
            everything = torch.ones(1, 1, src.size(1), dtype=torch.bool)
            states = model(src, tgt, everything, tutorial.subsequent_mask(tgt.size(1)))
            log_probs = model.generator(states)[0]
            for position, wanted in enumerate(ids[1:]):
                nll, tokens = nll - log_probs[position, wanted].item(), tokens + 1
    assert scores["nll"] == pytest.approx(nll / tokens, rel=1e-12)
    assert scores["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-12)
    assert model.training and all(p.grad is None for p in model.parameters())
    with pytest.raises(ValueError, match="nothing to evaluate"):
        tutorial.evaluate_loss(model, [ddp_worker.batch([])])


def test_bleu_is_that_of_sacrebleu():
    import sacrebleu

    hypotheses = ["The cat sat on the mat.", "Two dogs run in the snow."]
    references = ["The cat is on the mat.", "Two dogs are running in the snow ."]
    score, signature = tutorial.corpus_bleu(hypotheses, references)
    assert score == sacrebleu.corpus_bleu(hypotheses, [references]).score and 0 < score < 100
    assert "case:mixed" in signature and "tok:13a" in signature and "nrefs:1" in signature
    # By hand: 13a cuts off full stops, so both hypotheses have 7 tokens. n-grams found: 12 of 14,
    # 8 of 12, 4 of 10, 2 of 8. References have 7 and 8 tokens: brevity exp(1 − 15/14).
    matches = [tutorial_count(hypotheses, references, n) for n in (1, 2, 3, 4)]
    mean = math.exp(sum(math.log(found / of) for found, of in matches) / 4)
    assert score == pytest.approx(100 * math.exp(1 - 15 / 14) * mean)
    assert tutorial.corpus_bleu(references, references)[0] == pytest.approx(100)


def tutorial_count(hypotheses: list[str], references: list[str], n: int) -> tuple[int, int]:
    """(n-grams that occur in the reference too, n-grams) over all hypotheses."""
    from collections import Counter

    found = of = 0
    for pair in zip(hypotheses, references, strict=True):
        words = [text.replace(".", " .").split() for text in pair]
        ours, theirs = (Counter(zip(*(w[k:] for k in range(n)), strict=False)) for w in words)
        found, of = found + (ours & theirs).total(), of + ours.total()
    return found, of


# Decoding ---------------------------------------------------------------------------------------


class Parrot(nn.Module):
    """A model that writes a fixed text for each sentence, whatever it reads; END after it."""

    def __init__(self, texts: list[list[int]], loop: bool = False):
        super().__init__()
        self.texts, self.loop, self.steps = texts, loop, []

    def encode(self, src, src_mask):
        self.steps.append(("encode", self.training, torch.is_grad_enabled()))
        return torch.arange(len(src)).view(-1, 1, 1)  # the memory is the number of the sentence

    def decode(self, memory, src_mask, tgt, tgt_mask):
        self.steps.append((len(tgt), self.training, torch.is_grad_enabled()))
        assert len(memory) == len(src_mask) == len(tgt)
        states = torch.zeros(*tgt.shape, 9)
        for row, number in enumerate(memory.flatten().tolist()):
            text, place = self.texts[number], tgt.size(1) - 1
            word = text[place % len(text)] if self.loop or place < len(text) else tutorial.END
            states[row, -1, word] = 1
        return states

    generator = staticmethod(lambda states: states)


def decode(parrot: Parrot, max_len: int, **options) -> list[list[int]]:
    src = torch.ones(len(parrot.texts), 3, dtype=torch.long)
    mask = torch.ones(len(parrot.texts), 1, 3, dtype=torch.bool)
    return tutorial.greedy_decode(parrot, src, mask, max_len, tutorial.START, **options).tolist()


def test_decoding_stops_at_the_end_symbol_of_each_sentence():
    start, end, pad = tutorial.START, tutorial.END, tutorial.PAD
    parrot = Parrot([[5, 6, 7], [], [8]])
    assert decode(parrot, 50) == [
        [start, 5, 6, 7, end], [start, end, pad, pad, pad], [start, 8, end, pad, pad],
    ]  # fmt: skip
    assert [step[0] for step in parrot.steps] == ["encode", 3, 2, 1, 1], (
        "ended sentences cost nothing"
    )


def test_decoding_stops_at_the_limit():
    for limit in (1, 2, 6):
        written = decode(Parrot([[5, 6], [7]], loop=True), limit)
        assert [len(row) for row in written] == [limit, limit]
    assert written == [[0, 5, 6, 5, 6, 5], [0, 7, 7, 7, 7, 7]]


def test_decoding_without_an_end_symbol_goes_on_to_the_limit():
    written = decode(Parrot([[5]]), 6, end_symbol=None)
    assert written == [[tutorial.START, 5, *[tutorial.END] * 4]]
    assert decode(Parrot([[5, 6, 7]]), 9, end_symbol=6) == [[tutorial.START, 5, 6]]


@pytest.mark.parametrize("training", [True, False])
def test_decoding_is_without_dropout_and_gradient_and_restores_the_mode(training):
    parrot = Parrot([[5, 6]]).train(training)
    decode(parrot, 9)
    assert parrot.training is training and torch.is_grad_enabled()
    assert all(step[1:] == (False, False) for step in parrot.steps)
    broken = Parrot([[5]]).train(training)
    broken.decode = None
    with pytest.raises(TypeError):
        decode(broken, 9)
    assert broken.training is training, "restored after an error too"


# Batches ----------------------------------------------------------------------------------------


def random_lengths(count: int, seed: int = 0) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(n := rng.randint(1, 30), max(1, n + rng.randint(-5, 5))) for _ in range(count)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("count, budget", [(1, 100), (2, 100), (500, 120), (501, 257), (50, 20)])
def test_every_sentence_once_per_epoch_over_the_ranks(ranks, count, budget):
    lengths = random_lengths(count)
    for shuffle in (True, False):
        parts = [tutorial.TokenBudget(lengths, budget, r, ranks, 7, shuffle) for r in range(ranks)]
        for epoch in (0, 1, 5):
            for part in parts:
                part.set_epoch(epoch)
            dealt = [list(part) for part in parts]
            assert len({len(share) for share in dealt} | {len(part) for part in parts}) == 1
            every = [n for share in dealt for batch in share for n in batch]
            assert sorted(every) == list(range(count))
            for batch in (batch for share in dealt for batch in share if batch):
                occupied = len(batch) * max(max(lengths[n]) for n in batch)
                assert occupied <= budget or len(batch) == 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_shares_of_an_update_are_alike(ranks):
    lengths = random_lengths(500)
    parts = [tutorial.TokenBudget(lengths, 120, rank, ranks, 7) for rank in range(ranks)]
    for shares in zip(*parts, strict=True):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        ordered = [n for cards in itertools.zip_longest(*shares) for n in cards if n is not None]
        longer = [max(lengths[n]) for n in ordered]
        assert longer == sorted(longer), "dealt like cards from a sorted list"


def test_the_order_belongs_to_seed_and_epoch():
    lengths = random_lengths(500)

    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = tutorial.TokenBudget(lengths, 120, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)
    assert {tuple(sorted(b)) for b in order(1, 0)} != {tuple(sorted(b)) for b in order(1, 1)}
    state = random.getstate()
    order(1, 0)
    assert random.getstate() == state, "the global generator is left alone"
    ordered = tutorial.TokenBudget(lengths, 120, shuffle=False)
    assert list(ordered) == list(tutorial.TokenBudget(lengths, 120, shuffle=False))


def test_skipped_batches_are_those_at_the_beginning():
    sampler = tutorial.TokenBudget(random_lengths(100), 60)
    whole = list(sampler)
    sampler.skip = 3
    assert list(sampler) == whole[3:] and list(sampler) == whole


def test_little_padding():
    encoded = tutorial.encode_corpus("builtin", ("de", "en"), 2, 256)
    for budget in (1024, 2048):
        train, _ = tutorial.create_dataloaders(encoded, budget)
        assert 0 <= tutorial.padding_share(train) < 0.10
    mixed = map(tutorial.collate, tutorial.grouped(encoded.splits["train"], 64))
    assert tutorial.padding_share(mixed) > 0.2, "otherwise sorting would not be needed"
    batch = ddp_worker.batch([ddp_worker.sentence(0, 1), ddp_worker.sentence(1, 3)])
    assert tutorial.padding_share([batch]) == 4 / 16


def test_little_padding_on_multi30k(multi30k, monkeypatch, fresh_corpora):
    monkeypatch.setenv("MULTI30K_DIR", os.environ[OUTSIDE])
    config = tutorial.PRESETS["words"]
    encoded = tutorial.encode_corpus("multi30k", ("de", "en"), config.min_freq, config.max_len)
    train, _ = tutorial.create_dataloaders(encoded, config.batch_tokens)
    assert tutorial.padding_share(train) < 0.10
    assert (
        sum(len(batch) for batch in train.batch_sampler) == len(encoded.splits["train"]) == 29_000
    )


# Runs that are interrupted ----------------------------------------------------------------------


def stop_after(monkeypatch, updates: int, asked: bool = True) -> None:
    """Let a request to stop be due after so many updates; where not `asked`, a limit of time."""
    step, made = tutorial.train_step, []

    def counted(*given):
        made.append(step(*given))
        return made[-1]

    def due(self) -> bool:
        late = len(made) >= updates
        self.asked = asked and late
        return late

    monkeypatch.setattr(tutorial, "train_step", counted)
    monkeypatch.setattr(tutorial.StopRequest, "due", due)


def test_two_epochs_at_once_equal_one_and_one(small_config, uninterrupted, tmp_path):
    one = dataclasses.replace(small_config, epochs=1)
    assert tutorial.train_model(one, tmp_path / "run") == "finished"
    assert saved(tmp_path / "run")["state"]["epoch"] == 1
    assert tutorial.train_model(small_config, tmp_path / "run") == "finished"
    assert_same_training(saved(tmp_path / "run"), uninterrupted)


def updates_per_epoch(uninterrupted: dict) -> int:
    assert uninterrupted["state"]["epoch"] == 2 and uninterrupted["state"]["step"] >= 10
    return uninterrupted["state"]["step"] // 2


@pytest.mark.parametrize("place", ["first", "middle", "last but one", "last", "second epoch"])
def test_a_run_stopped_anywhere_and_resumed_equals_an_uninterrupted_one(
    small_config, uninterrupted, tmp_path, monkeypatch, place
):
    epoch = updates_per_epoch(uninterrupted)
    after = {"first": 1, "middle": epoch // 2, "last but one": epoch - 1, "last": epoch,
             "second epoch": epoch + 2}[place]  # fmt: skip
    with monkeypatch.context() as patch:
        stop_after(patch, after)
        assert tutorial.train_model(small_config, tmp_path / "run") == "stopped"
    state = saved(tmp_path / "run")["state"]
    assert state["step"] == after
    assert (state["epoch"], state["position"]) == divmod(after, epoch)
    assert tutorial.train_model(small_config, tmp_path / "run") == "finished"
    assert_same_training(saved(tmp_path / "run"), uninterrupted)


def test_a_limit_of_time_inside_an_epoch_keeps_what_was_learnt(
    small_config, uninterrupted, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, half := updates_per_epoch(uninterrupted) // 2, asked=False)
        assert tutorial.train_model(small_config, tmp_path / "run") == "stopped"
    assert (tmp_path / "run" / "best.pt").is_file()
    assert saved(tmp_path / "run")["state"]["position"] == half
    assert tutorial.train_model(small_config, tmp_path / "run") == "finished"
    ours = saved(tmp_path / "run")
    assert ours["state"] == uninterrupted["state"]
    for name, weights in ours["model"].items():
        assert torch.equal(weights, uninterrupted["model"][name]), name


def test_stops_inside_an_epoch_do_not_use_up_the_patience(small_config, tmp_path, monkeypatch):
    """Patience counts epochs. A run in many short pieces must not end before its time."""
    config = dataclasses.replace(small_config, patience=1, factor=0.0)
    for _ in range(3):
        with monkeypatch.context() as patch:
            stop_after(patch, 1, asked=False)
            assert tutorial.train_model(config, tmp_path / "run") == "stopped"


def test_with_another_number_of_ranks_the_epoch_begins_anew(
    small_config, uninterrupted, tmp_path, monkeypatch
):
    """Batches fall differently then: whoever went on in the middle would skip sentences."""
    epoch, one = updates_per_epoch(uninterrupted), dataclasses.replace(small_config, epochs=1)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert tutorial.train_model(one, tmp_path / "run") == "stopped"
    content = saved(tmp_path / "run") | {"ranks": 2}
    content["random_states"] *= 2
    tutorial.save_checkpoint(tmp_path / "run" / "last.pt", content)
    assert tutorial.train_model(one, tmp_path / "run") == "finished"
    assert saved(tmp_path / "run")["state"]["step"] == 2 + epoch


def test_no_minutes_at_all(small_config, tmp_path):
    """A limit of zero is a limit: nothing is trained."""
    assert tutorial.train_model(small_config, tmp_path / "run", minutes=0) == "stopped"
    assert saved(tmp_path / "run")["state"]["step"] == 0


def test_training_stops_when_validation_no_longer_improves(small_config, tmp_path, monkeypatch):
    scores = iter([1.0, 3.0, 2.0, 3.0, 9.0])
    monkeypatch.setattr(
        tutorial, "validate", lambda training: {"nll": 1.0, "perplexity": 2.0, "bleu": next(scores)}
    )
    config = dataclasses.replace(small_config, patience=2, epochs=10)
    assert tutorial.train_model(config, tmp_path / "run") == "finished"
    assert saved(tmp_path / "run")["state"]["epoch"] == 4
    assert tutorial.load_checkpoint(tmp_path / "run" / "best.pt")["state"]["epoch"] == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["validation_bleu"] == 3.0


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(
    small_config, tmp_path, monkeypatch, capsys
):
    one = dataclasses.replace(small_config, epochs=1)
    tutorial.train_model(one, tmp_path / "run")
    before = [(tmp_path / "run" / name).read_bytes() for name in ("last.pt", "best.pt")]
    step, count = saved(tmp_path / "run")["state"]["step"], iter(range(100))
    right = tutorial.LabelSmoothing.forward
    monkeypatch.setattr(
        tutorial.LabelSmoothing,
        "forward",
        lambda *given: right(*given) * (math.nan if next(count) == 5 else 1),
    )
    with pytest.raises(FloatingPointError, match=f"diverged at step {step + 3}: loss nan"):
        tutorial.train_model(small_config, tmp_path / "run")  # two micro-batches to an update
    assert [(tmp_path / "run" / name).read_bytes() for name in ("last.pt", "best.pt")] == before
    monkeypatch.setattr(
        tutorial,
        "train_model",
        lambda *_: (_ for _ in ()).throw(FloatingPointError("diverged at step 3")),
    )
    capsys.readouterr()
    assert tutorial.main(["train"]) == 1
    assert capsys.readouterr().err == "error: diverged at step 3\n"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"factor": 2.0}, ["factor: 1.0 there, 2.0 here"]),
        ({"d_model": 32, "seed": 9}, ["d_model: 16 there, 32 here", "seed: 1 there, 9 here"]),
        ({"languages": ("en", "de")}, ["languages"]),
        ({"norm_first": False}, ["norm_first"]),
    ],
    ids=str,
)
def test_going_on_with_other_settings(small_config, small_run, tmp_path, change, words):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    before = (run / "last.pt").read_bytes()
    with pytest.raises(ValueError, match="made with other settings") as caught:
        tutorial.train_model(dataclasses.replace(small_config, **change), run)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "patience" not in str(caught.value) and "use the same, or another folder" in str(
        caught.value
    )
    assert (run / "last.pt").read_bytes() == before


def test_going_on_with_another_vocabulary(
    small_config, small_corpus, small_run, tmp_path, fresh_corpora
):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    original = {path: path.read_bytes() for path in small_corpus.iterdir()}
    try:
        text = (small_corpus / "train.en").read_text()
        (small_corpus / "train.en").write_text(text.replace(" is ", " was "))
        tutorial.find_corpus.cache_clear()
        with pytest.raises(ValueError, match=r"last\.pt was made with another vocabulary"):
            tutorial.train_model(small_config, run)
    finally:
        for path, content in original.items():
            path.write_bytes(content)


def test_a_run_keeps_a_log_and_a_summary(small_config, small_run, small_corpus):
    log = tutorial.read_log(small_run)
    assert [entry["kind"] for entry in log] == ["train", "validation"]
    assert {"loss", "lr", "grad_norm", "tokens", "gpu"} <= set(log[0])
    assert {"perplexity", "bleu", "epoch", "step", "seconds"} <= set(log[1])
    summary = json.loads((small_run / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["settings"]["d_model"] == 16
    assert summary["corpus"] == small_corpus.name and summary["validation_bleu"] >= 0
    config = json.loads((small_run / "config.json").read_text())
    assert config == json.loads(json.dumps(dataclasses.asdict(small_config) | {"epochs": 1}))


# Signals ----------------------------------------------------------------------------------------

SMALL = "--preset smoke --d-model 16 --d-ff 32 --h 2 --max-len 32 --batch-tokens 1024".split()


def interrupt(command: list[str], folder: Path, number: signal.Signals) -> tuple[int, str, str]:
    """Start a training, let it work a little, send the signal as a terminal would, wait."""
    arguments = ["train", *SMALL, "--epochs", "100000", "--patience", "100000"]
    process = subprocess.Popen(
        [*command, str(SCRIPT), *arguments, "--folder", str(folder)],
        cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            log = folder / "log.jsonl"
            if log.is_file() and '"step": 50,' in log.read_text():
                break
            time.sleep(0.1)
        os.killpg(process.pid, number)  # Ctrl-C reaches every process at the terminal
        out, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, out, err


def resume(folder: Path) -> None:
    """Go on with the same command, to the end of the epoch that was interrupted."""
    state = saved(folder)["state"]
    assert state["step"] >= 50
    more = ["--epochs", str(state["epoch"] + 1), "--folder", str(folder)]
    assert tutorial.main(["train", *SMALL, "--patience", "100000", *more]) == 0
    after = saved(folder)["state"]
    assert (after["epoch"], after["position"]) == (state["epoch"] + 1, 0)
    assert after["step"] > state["step"]
    assert tutorial.translate(tutorial.load_trained_model(folder), ["Ein Hund schläft."])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_a_signal_leaves_a_checkpoint_that_resumes(tmp_path, number):
    folder = tmp_path / "run"
    status, out, err = interrupt([sys.executable], folder, number)
    assert status == 0 and "Traceback" not in err, err[-2000:]
    assert "stopped:" in out and "the same command goes on from here" in out
    resume(folder)


@pytest.mark.slow
def test_ctrl_c_under_torchrun_leaves_a_checkpoint_that_resumes(tmp_path):
    folder = tmp_path / "run"
    _, out, err = interrupt(TORCHRUN, folder, signal.SIGINT)  # torchrun itself tells of the signal
    assert "stopped:" in out, err[-2000:]
    assert out.count("stopped:") == 1, "only the first rank speaks"
    assert len(saved(folder)["random_states"]) == 2
    resume(folder)


@pytest.mark.slow
def test_two_ranks_train_and_resume_from_the_command_line(tmp_path, small_corpus):
    """The whole program under torchrun, twice; both ranks score the same and one of them writes."""
    folder, results = tmp_path / "run", []
    for epochs in (1, 2):
        arguments = ["train", *SMALL, "--data", str(small_corpus), "--min-freq", "1"]
        arguments += ["--epochs", str(epochs), "--folder", str(folder)]
        command = [*TORCHRUN, str(SCRIPT), *arguments]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("validation perplexity") == 1
        results.append(saved(folder)["state"])
    assert [state["epoch"] for state in results] == [1, 2]
    assert results[1]["samples"] == 2 * results[0]["samples"]
    kinds = [entry["kind"] for entry in tutorial.read_log(folder)]
    assert kinds.count("validation") == 2


def test_handlers_of_signals_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with tutorial.StopRequest() as stop:
        assert not stop.due()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.due() and stop.asked
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with tutorial.StopRequest(minutes=1e-9) as stop:
        assert stop.due() and not stop.asked


def test_a_signal_while_ranks_agree_is_not_lost(monkeypatch):
    """A rank spends its time waiting for the others, so signals arrive there."""
    total, stop = tutorial.total_over_ranks, tutorial.StopRequest()

    def interrupted(*values):
        answer = total(*values)
        stop.ask()
        return answer

    monkeypatch.setattr(tutorial, "total_over_ranks", interrupted)
    stop.due()
    monkeypatch.setattr(tutorial, "total_over_ranks", total)
    assert stop.due() and stop.asked


def test_a_damaged_summary_is_passed_over(tmp_path, monkeypatch, small_run):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    for name, text in {"a": "{", "b": "{}"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
        with pytest.warns(UserWarning, match="damaged"):
            assert tutorial.finished_run("texts") is None


def test_the_best_finished_run_is_chosen(tmp_path, monkeypatch, small_run):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    assert tutorial.finished_run("texts") is None
    runs = {
        "a": ("finished", 5.0, "texts", ["de", "en"]),
        "b": ("finished", 7.0, "texts", ["de", "en"]),
        "c": ("stopped", 9.0, "texts", ["de", "en"]),
        "d": ("finished", 9.0, "others", ["de", "en"]),
        "e": ("finished", 9.5, "texts", ["en", "de"]),
        "x-demonstration": ("finished", 9.0, "texts", ["de", "en"]),
    }
    for name, (status, bleu, corpus, languages) in runs.items():
        shutil.copytree(small_run, tmp_path / name)
        summary = {"status": status, "validation_bleu": bleu, "corpus": corpus}
        summary["languages"] = languages
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    assert tutorial.finished_run("texts") == tmp_path / "b"
    assert tutorial.finished_run() == tmp_path / "e"
    (tmp_path / "b" / "best.pt").unlink()
    assert tutorial.finished_run("texts") == tmp_path / "a"


def test_every_preset_builds_a_model():
    vocabulary = tutorial.Vocabulary((*tutorial.SPECIALS, "a"))
    for config in tutorial.PRESETS.values():
        with torch.device("meta"):
            assert tutorial.count_parameters(tutorial.model_from(config, (vocabulary,) * 2)) > 0


@pytest.mark.parametrize("name, millions", [("base", 63.1), ("big", 214.3)])
def test_presets_of_the_paper(name, millions):
    """Table 3, with one list of 37,000 symbols; eight ranks share a batch of 25,000."""
    config = tutorial.PRESETS[name]
    words = (*tutorial.SPECIALS, *map(str, range(37_000 - len(tutorial.SPECIALS))))
    with torch.device("meta"):
        model = tutorial.model_from(config, (tutorial.Vocabulary(words),) * 2)
    assert round(tutorial.count_parameters(model) / 1e6, 1) == millions
    assert 8 * config.batch_tokens == 25_000 and not config.norm_first


@pytest.mark.parametrize("source, most, cap", [(10, 256, 60), (1, 256, 51), (250, 256, 256)])
def test_a_translation_may_have_fifty_symbols_more_than_its_source(source, most, cap):
    assert tutorial.length_cap(source, most) == cap


@pytest.mark.slow
def test_what_breaks_breaks():
    """What the text says of the copy task without one of its parts."""
    whole, future, positions, scale = (
        tutorial.copy_without(part, 400)
        for part in ("nothing", "mask over the future", "positions", "division by √K")
    )
    assert whole["copied of 200"] > 100
    assert future["loss"] < whole["loss"] + 0.1 and future["copied of 200"] < 20
    assert positions["loss"] > 5 * whole["loss"] and positions["copied of 200"] < 20
    assert scale["loss"] > whole["loss"]


@pytest.mark.slow
def test_only_the_norm_after_the_sum_needs_a_warm_up():
    losses = {
        (norm_first, warm_up): tutorial.copy_with(norm_first, warm_up, 300)
        for norm_first in (True, False)
        for warm_up in (True, False)
    }
    assert losses.pop((False, False)) > 2, "no better than guessing"
    assert max(losses.values()) < 0.3


@pytest.mark.slow
def test_every_training_sentence_of_multi30k_comes_back(multi30k, monkeypatch, fresh_corpora):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    corpus = tutorial.find_multi30k()
    pieces, _ = tutorial.learn_pieces(corpus, 5000)
    monkeypatch.setattr(tutorial, "pieces_at_hand", lambda: pieces)
    monkeypatch.setattr(tutorial, "corpus_at_hand", lambda: corpus)
    assert len(corpus.splits["train"]) == 29_000
    assert tutorial.check_every_training_sentence_comes_back_from_its_pieces() is None
