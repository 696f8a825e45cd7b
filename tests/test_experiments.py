"""The small experiments: each is made once, and measures what it says."""

import itertools
from unittest.mock import Mock

import pytest
import torch

import the_annotated_transformer as at
from tools import records
from tools.results import experiments


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)


@pytest.mark.parametrize("warm", [True, False])
def test_a_training_without_warm_up_begins_at_the_peak(monkeypatch, warm):
    rates = []

    def run_epoch(batches, model, compute, optimizer, scheduler):
        for _ in batches:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return 1.0, None

    monkeypatch.setattr(at, "run_epoch", run_epoch)
    peak = pytest.approx(experiments.warmed(2.0, warm, True, 1)["peak"])
    assert max(rates) == rates[experiments.WARMUP - 1] == peak
    assert (rates[0] == peak) == (not warm)


def test_copies_are_told_apart(monkeypatch):
    src = torch.full((5, 5), 7)
    written = torch.tensor([[at.START, 7, 7, 7, 7, 7, at.END]]).repeat(5, 1)
    written[1, 3] = 9  # a wrong token
    written[2, 4] = at.END  # ended early
    written[3, 6] = 9  # ran over
    monkeypatch.setattr(at, "greedy_decode", lambda *given, **how: written)
    counts = at.kinds_of_copies(None, at.Batch(src))
    assert counts == {"copied": 2, "ended early": 1, "ran over": 1, "wrong token": 1}


def test_the_layers_that_look_back_differ_in_reach_and_not_in_size():
    mask = at.subsequent_mask(12)
    reach = {"self-attention": 11, "GRU": 11, "convolution over 8": 10}  # from position 3
    layers = at.three_layers()
    for name, layer in layers.items():
        x = torch.randn(1, 12, at.THIN)
        changed = x.clone()
        changed[0, 3] += 1
        moved = (layer(x, mask) - layer(changed, mask))[0].abs().amax(-1)
        assert moved.nonzero().flatten().tolist() == list(range(3, reach[name] + 1)), name
    sizes = [at.count_parameters(layer) for layer in layers.values()]
    assert max(sizes) < 1.01 * min(sizes)


def test_the_right_answer_is_the_token_so_many_places_back():
    def repeats(ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(ids.roll(5, dims=1), experiments.LETTERS)

    answers, right = experiments.asked(repeats, 5, 4, 3)
    assert torch.equal(answers.argmax(-1), right)
    assert len(right) == 3 * 4


def test_a_convolution_learns_what_lies_within_its_reach(monkeypatch):
    monkeypatch.setattr(experiments, "UPDATES", 100)
    near, far = (experiments.look_back("convolution over 8", n, 16, 1) for n in (7, 8))
    assert near["accuracy"] > 0.5
    assert far["accuracy"] < 0.1  # chance: one of 16


def test_the_price_of_a_head_is_what_perplexity_rises_by(results, shipped, monkeypatch):
    captions = at.Corpus("x", ("de", "en"), {"val": at.builtin_corpus()["val"][:6]})
    monkeypatch.setattr(at, "find_corpus", lambda name: captions)
    experiments.heads()
    record = records.read("heads")
    [row] = [
        row
        for row in record["rows"]
        if (row["attention"], row["layer"], row["off"]) == ("cross-attention", 2, [1, 3])
    ]
    _, ids = at.usable_pairs(shipped, captions.pairs("val"))
    attn = shipped.model.decoder.layers[1].src_attn
    matrix = attn.linears[3].weight.data
    before = matrix.clone()
    matrix[:, : attn.d_k] = matrix[:, 2 * attn.d_k :] = 0
    without = at.evaluate_loss(shipped.model, at.batches_to_score(shipped, ids))["perplexity"]
    matrix.copy_(before)
    assert row["changes"] == [pytest.approx(without - record["perplexity"][0], abs=1e-3)]


def test_layers_are_timed_in_turn_and_once(results, monkeypatch):
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    assert all(experiments.milliseconds(x, 2, 4) > 0 for x in experiments.layers_to_time().values())
    timed = Mock(side_effect=itertools.count())
    monkeypatch.setattr(experiments, "milliseconds", timed)
    for _ in range(2):
        experiments.length_cost()
    rows = records.read("length-cost")["rows"]
    assert timed.call_count == len(rows) * experiments.ROUNDS
    assert rows[0]["milliseconds"] == [len(rows) * n for n in range(experiments.ROUNDS)]
