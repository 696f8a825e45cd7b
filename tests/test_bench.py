"""The benchmark: baselines that compute the same, cases that run, a benchmark that goes on."""

import dataclasses
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from unittest.mock import create_autospec

import pytest
import torch
from conftest import PROJECT

import the_annotated_transformer as tutorial
from tools.results import speed as bench

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
CASES = [name for name in bench.CASES if name.endswith(("small-fp32-1x2", "fp32-beam1"))]
CASES.remove("decode-ctranslate2-shipped-fp32-beam1")  # its threads stay when it is done
TINY = dataclasses.replace(bench.SMALL, data="builtin", N=2, d_model=16, d_ff=32, batch_tokens=64)


@pytest.fixture
def batch() -> tutorial.Batch:
    """Two pairs, the first of them padded on both sides."""
    pairs = [([5, 6, 7], [0, 8, 9, 1]), ([4, 5, 6, 7, 8], [0, 4, 9, 9, 5, 1])]
    return tutorial.collate([([*src, tutorial.END], tgt) for src, tgt in pairs])


@pytest.fixture
def ours() -> tutorial.EncoderDecoder:
    torch.manual_seed(0)
    model = tutorial.make_model(11, 13, 2, 16, 32, 4, 0.0)
    tutorial.use_fast_dropout(model)
    return model


def loss_of(model: torch.nn.Module, batch: tutorial.Batch) -> torch.Tensor:
    """The smoothed loss of a batch."""
    criterion = tutorial.LabelSmoothing(13, tutorial.PAD, TINY.smoothing)
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
    return tutorial.SimpleLossCompute(model.generator, criterion)(states, batch.tgt_y, 1)[0]


def test_nn_transformer_computes_what_ours_computes(ours, batch, monkeypatch):
    """The same weights give the same states at real positions, and the same loss."""
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)  # our norms
    theirs = bench.TorchModel((range(11), range(13)), TINY)
    rates = [m.dropout for m in theirs.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    assert rates == [0.0] * 6, "its attention can use the fused kernel"
    for side in ("encoder", "decoder"):
        stack = getattr(ours, side)
        core = getattr(theirs.core, side)
        for one, other in zip(stack.layers, core.layers, strict=True):
            tutorial.copy_layer(one, other)
        with torch.no_grad():
            core.norm.weight.copy_(stack.norm.weight.normal_())
            core.norm.bias.copy_(stack.norm.bias.normal_())
    theirs.src_embed.load_state_dict(ours.src_embed.state_dict())
    theirs.tgt_embed.load_state_dict(ours.tgt_embed.state_dict())
    theirs.generator.load_state_dict(ours.generator.state_dict())
    theirs.eval()
    inputs = batch.src, batch.tgt, batch.src_mask, batch.tgt_mask
    real = batch.tgt_y != tutorial.PAD
    torch.testing.assert_close(theirs(*inputs)[real], ours(*inputs)[real])
    torch.testing.assert_close(loss_of(theirs, batch), loss_of(ours, batch))


def test_the_batches_of_2022():
    pairs = [*tutorial.builtin_corpus()["train"][:99], ("Hund " * 80, "dog " * 80)]
    corpus = tutorial.Corpus("x", ("de", "en"), {"train": pairs})
    vocabularies = tutorial.learn_words(corpus, 1)
    batches = list(itertools.islice(bench.batches_of_2022(corpus, vocabularies), 5))
    shapes = [(*batch.src.shape, batch.tgt.size(1)) for batch in batches]
    expected = [(32, 72, 71)] * 3 + [(4, 72, 71), (32, 72, 71)]
    assert shapes == expected
    assert not torch.equal(batches[0].src, batches[4].src), "each pass has another order"
    symbols = [(row != tutorial.PAD).sum().item() for batch in batches[:4] for row in batch.src]
    tokenizer = tutorial.load_tokenizer("de")
    lengths = [len(tutorial.tokenize(source, tokenizer)) for source, _ in pairs]
    assert sorted(symbols) == sorted(min(72, length + 2) for length in lengths)


SAME_TEXT = """
from tools.results import ctranslate
from tools.results.ctranslate import at

translator = at.load_trained_model("pretrained")
sources = [source for source, _ in at.builtin_corpus()["val"][:30]]
theirs = at.translate(translator, sources, ctranslate.decoder(translator, beam=1, threads=1))
ours = at.translate(translator, sources, at.greedy_decode)
print(sum(one == other for one, other in zip(theirs, ours, strict=True)))
"""


def test_ctranslate2_says_what_ours_says():
    """In a process of its own: its threads would let those hang that other tests fork."""
    if importlib.util.find_spec("ctranslate2") is None:
        pytest.skip("ctranslate2 is installed by make bench")
    command = [sys.executable, "-c", SAME_TEXT]
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "tools")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 29, "the same weights; rounding may turn a tie"


@pytest.fixture
def tiny(monkeypatch):
    """Cases of a moment, on the built-in captions; what they take away comes back."""
    for owner, name, _ in bench.GAINS.values():
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    monkeypatch.setitem(bench.SIZES, "small", TINY)
    test = {"test_2016_flickr": tutorial.builtin_corpus()["test"][:4]}
    corpus = tutorial.Corpus("x", ("de", "en"), test)
    monkeypatch.setattr(tutorial, "find_multi30k", lambda languages: corpus)


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_measured(tiny, capsys, tmp_path, case):
    bench.measure(case, tmp_path / "run")
    numbers = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(number > 0 for number in numbers.values())


@pytest.mark.parametrize("gain", bench.GAINS)
def test_what_takes_the_place_of_a_gain_is_called(tiny, monkeypatch, tmp_path, gain):
    owner, name, plain = bench.GAINS[gain]
    spy = create_autospec(plain, side_effect=plain)
    monkeypatch.setitem(bench.GAINS, gain, (owner, name, spy))
    bench.measure(f"without-ours-small-{bench.FAST}-1x2-{gain}", tmp_path / "run")
    assert spy.called


def test_2022_computes_what_ours_computes(tiny, ours, batch):
    loss = loss_of(ours, batch)
    for gain in bench.NOT_IN_2022:
        setattr(*bench.GAINS[gain])
    torch.testing.assert_close(loss_of(ours, batch), loss)


def test_2022_has_its_batches_and_dropout_on_attention(tiny, tmp_path):
    worker = tutorial.Worker(0, 1, torch.device("cpu"))
    case = bench.CASES["train-2022-small-fp32-1x2"]
    training = bench.training_of(case, TINY, worker, tmp_path / "run")
    assert next(training.batches).src.shape == (32, 72)
    state = training.updates(2)
    assert (state.step, state.samples) == (2, 2 * bench.ACCUMULATED * 32)
    assert training.net.encoder.layers[0].self_attn.dropout.p == 0.1


@pytest.mark.parametrize("code", ["torch", "ours"])
def test_both_train_on_the_same_batches(tiny, tmp_path, code):
    worker = tutorial.Worker(0, 1, torch.device("cpu"))
    training = bench.training_of(bench.Case("train", code), TINY, worker, tmp_path / "run")
    before = [weight.clone() for weight in training.net.parameters()]
    assert training.updates(3).tokens == tokens_of_three_updates(tmp_path / "run")
    for old, new in zip(before, training.net.parameters(), strict=True):
        assert not torch.equal(old, new)


def tokens_of_three_updates(folder) -> int:
    """The true target tokens of the first batches of a run."""
    config, _ = tutorial.read_settings(folder)
    train = tutorial.IdPairs(folder)
    batches = tutorial.batches_of_epoch(config, train, 1)[:3]
    return sum(train.batch(numbers).ntokens for numbers in batches)


@pytest.mark.slow
def test_two_processes_are_measured_together(multi30k, monkeypatch, capsys):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    assert bench.main(["measure", f"train-ours-small-{bench.FAST}-2x1"]) == 0
    result = json.loads(capsys.readouterr().out)["peak MB"]
    assert result > 1500, "of both"


def test_a_benchmark_goes_on_after_a_stop(monkeypatch, capsys, tmp_path):
    one, other = list(bench.CASES)[:2]
    measured = []

    def wait_for_quiet():
        if len(measured) == 3:
            measured.append("refused")
            raise ValueError("others use the cores")

    def measure_apart(case):
        measured.append(case.name)
        return {"speed": float(len(measured))}

    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(bench.records, "RESULTS", tmp_path)
    monkeypatch.setattr(bench.records, "wait_for_quiet", wait_for_quiet)
    monkeypatch.setattr(bench, "measure_apart", measure_apart)
    monkeypatch.setattr(bench, "SMALL", TINY)
    monkeypatch.setattr(bench, "CASES", {name: bench.CASES[name] for name in (one, other)})
    assert bench.main(["run", "--name", "some"]) == 1
    assert capsys.readouterr().err == "error: others use the cores\n"
    assert bench.main(["run", "--name", "some"]) == 0
    expected = [one, other, one, "refused", other, *[one, other] * 3]
    assert measured == expected
    first, second = bench.records.read("some")["cases"]
    result = [each["speed"] for each in first["rounds"]]
    expected = [1.0, 3.0, 6.0, 8.0, 10.0]
    assert result == expected
    assert (first["speed"], second["speed"]) == (6.0, 7.0)


def test_a_case_that_fails_says_why(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    assert bench.main(["measure", "train-ours-small-fp32-1x2"]) == 1
    assert "small-fp32-1x2 failed:\nerror: Multi30k is out of reach" in capsys.readouterr().err
