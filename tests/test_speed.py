"""nn.Transformer computes what ours computes, every case is measured, and a benchmark goes on."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

import the_annotated_transformer as at
from tools import records
from tools.results import flops, outside, speed

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
TINY = dataclasses.replace(speed.SMALL, data="builtin", N=2, d_model=16, d_ff=32, batch_tokens=64)
WORKER = at.Worker(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    """Cases of a moment, on the built-in captions."""
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    monkeypatch.setattr(speed, "WARM_UP", 1)
    monkeypatch.setattr(speed, "SIZES", dict.fromkeys(speed.SIZES, TINY))
    test = {"test_2016_flickr": at.builtin_corpus()["test"][:4]}
    corpus = at.Corpus("x", ("de", "en"), test)
    monkeypatch.setattr(at, "read_multi30k", lambda languages: corpus)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records, "wait_for_quiet", Mock())


@pytest.fixture
def batch() -> at.Batch:
    """Two pairs, the first of them padded on both sides."""
    pairs = [([5, 6, 7], [0, 8, 9, 1]), ([4, 5, 6, 7, 8], [0, 4, 9, 9, 5, 1])]
    return at.collate([([*src, at.END], tgt) for src, tgt in pairs])


def loss_of(model: torch.nn.Module, batch: at.Batch) -> torch.Tensor:
    criterion = at.LabelSmoothing(13, at.PAD, TINY.smoothing)
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
    return at.SimpleLossCompute(model.generator, criterion)(states, batch.tgt_y, 1)[0]


@pytest.mark.parametrize("norm_first", [True, False])
def test_nn_transformer_computes_what_ours_computes(batch, monkeypatch, norm_first):
    """The same weights give the same states at real positions, and the same loss."""
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)  # our norms
    config = dataclasses.replace(TINY, norm_first=norm_first)
    ours = at.build_model(config, 11, 13)
    theirs = outside.TorchModel(ours, config).eval()
    attentions = [m for m in theirs.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    assert {attention.dropout for attention in attentions} == {TINY.attention_dropout}
    at.draw_weights(theirs)
    inputs = batch.src, batch.tgt, batch.src_mask, batch.tgt_mask
    real = batch.tgt_y != at.PAD
    torch.testing.assert_close(theirs(*inputs)[real], ours.eval()(*inputs)[real])
    torch.testing.assert_close(loss_of(theirs, batch), loss_of(ours, batch))


def test_nn_transformer_trains_and_goes_on_as_if_it_had_not_been_stopped(tmp_path, monkeypatch):
    config = dataclasses.replace(TINY, epochs=3, average=2, batch_tokens=2000)
    outside.train_outside(config, tmp_path / "whole")
    fit = at.fit
    monkeypatch.setattr(at, "fit", lambda run: fit(run, minutes=1e-9))
    for _ in range(3):
        outside.train_outside(config, tmp_path / "pieces")
    whole, pieces = (
        torch.load(tmp_path / name / "last.pt")["model"] for name in ("whole", "pieces")
    )
    for name, weight in whole.items():
        assert torch.equal(weight, pieces[name]), name
    losses = [entry["loss"] for entry in at.open_run(tmp_path / "whole", WORKER).history[:3]]
    assert losses[2] < losses[0]


def test_the_count_of_operations_is_that_of_pytorch():
    from torch.utils.flop_counter import FlopCounterMode

    model = at.make_model(11, 13, N=2, d_model=16, d_ff=48, h=4)
    batch = at.Batch(torch.ones(1, 5).long(), torch.ones(1, 4).long())  # S = 5, T = 3
    with FlopCounterMode(display=False) as counter:
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        model.generator(states).sum().backward()
    assert counter.get_total_flops() == flops.training_flops(N=2, D=16, d_ff=48, V=13, S=5, T=3)


SAME_TEXT = """
import the_annotated_transformer as at
from tools.results import ctranslate

translator = at.load_trained_model("pretrained")
sources = [source for source, _ in at.builtin_corpus()["val"][:30]]
theirs = at.translate(translator, sources, ctranslate.decoder(translator, beam=1, threads=1))
ours = at.translate(translator, sources, at.greedy_decode)
assert sum(map(str.__eq__, theirs, ours)) >= 29, "the same weights; rounding may turn a tie"
"""


def test_ctranslate2_says_what_ours_says():
    """In a process of its own: its threads would let those hang that other tests fork."""
    if importlib.util.find_spec("ctranslate2") is None:
        pytest.skip("ctranslate2 is not installed: see tools/results/speed.py")
    subprocess.run([sys.executable, "-c", SAME_TEXT], check=True)


ENDS = "small-fp32-2-threads", "fp32-beam1"
SMALL_CASES = [name for name in speed.CASES if name.endswith(ENDS)]
SMALL_CASES.remove("decode-ctranslate2-shipped-fp32-beam1")  # its threads stay when it is done


@pytest.mark.parametrize("case", SMALL_CASES)
def test_a_case_is_measured(capsys, tmp_path, case):
    speed.measure(case, tmp_path / "run")
    numbers = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(number > 0 for number in numbers.values())


def test_all_train_on_the_same_batches(tmp_path):
    """Also in one folder; operations are counted as flops.py counts them."""
    for code in ("torch", "ours"):
        training = speed.Training(speed.Case("train", code), tmp_path / "run")
        before = [weight.clone() for weight in training.net.parameters()]
        train = at.IdPairs(tmp_path / "run")
        numbers = at.batches_of_epoch(at.settings_of(tmp_path / "run"), train, 1)[:3]
        batches = [*at.load_batches(train, numbers, WORKER)]
        assert training.updates(3).tokens == sum(batch.ntokens for batch in batches)
        words = training.model.generator.proj.out_features
        shapes = [(*batch.src.shape, batch.tgt.size(1)) for batch in batches]
        counts = [size * flops.training_flops(2, 16, 32, words, S, T) for size, S, T in shapes]
        assert training.operations == sum(counts)
        for old, new in zip(before, training.net.parameters(), strict=True):
            assert not torch.equal(old, new)


def test_a_case_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"2-threads failed:\nerror: .*train\.de\.gz"):
        speed.measure_apart(speed.Case("train", "ours"))


def test_a_benchmark_goes_on_after_a_stop(monkeypatch, tmp_path):
    cases = dict(list(speed.CASES.items())[:2])
    measured = []

    def measure_apart(case):
        measured.append(case.name)
        if len(measured) == 4:
            raise RuntimeError("stopped")
        return {"speed": float(len(measured))}

    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(speed, "measure_apart", measure_apart)
    monkeypatch.setattr(speed, "SMALL", TINY)
    monkeypatch.setattr(speed, "CASES", cases)
    assert [speed.main(["run"]), speed.main(["run"])] == [1, 0]
    one, other = cases
    assert measured == [one, other] * 2 + [other] + [one, other] * 3
    first = records.read("benchmark")["cases"][0]
    assert [each["speed"] for each in first["rounds"]] == [1.0, 3.0, 6.0, 8.0, 10.0]
