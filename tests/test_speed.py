"""Baselines compute what ours computes, every case is measured, and a benchmark goes on."""

import dataclasses
import importlib.util
import itertools
import json
import subprocess
import sys
from unittest.mock import create_autospec

import pytest
import torch

import the_annotated_transformer as at
from tools import records
from tools.results import baselines, plan, speed

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
TINY = dataclasses.replace(speed.SMALL, data="builtin", N=2, d_model=16, d_ff=32, batch_tokens=64)
WORKER = at.Worker(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Cases of a moment, on the built-in captions; gains that are taken away come back."""
    for owner, name, _ in baselines.GAINS.values():
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(speed, "SECONDS", {"cpu": 0.01, "cuda": 0.01})
    monkeypatch.setattr(speed, "SECONDS_OF_PACE", 0.01)
    monkeypatch.setattr(speed, "WARM_UP", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(speed, "SIZES", {"small": TINY, "base": TINY})
    monkeypatch.setattr(plan, "RUNS", dict.fromkeys(plan.RUNS, TINY))
    test = {"test_2016_flickr": at.builtin_corpus()["test"][:4]}
    corpus = at.Corpus("x", ("de", "en"), test)
    monkeypatch.setattr(at, "find_multi30k", lambda languages: corpus)


# Baselines ----------------------------------------------------------------------------------------


@pytest.fixture
def batch() -> at.Batch:
    """Two pairs, the first of them padded on both sides."""
    pairs = [([5, 6, 7], [0, 8, 9, 1]), ([4, 5, 6, 7, 8], [0, 4, 9, 9, 5, 1])]
    return at.collate([([*src, at.END], tgt) for src, tgt in pairs])


@pytest.fixture
def ours() -> at.EncoderDecoder:
    model = at.make_model(11, 13, N=2, d_model=16, d_ff=32, h=4, dropout=0.1).eval()
    at.use_fast_dropout(model)
    return model


def loss_of(model: torch.nn.Module, batch: at.Batch) -> torch.Tensor:
    """The smoothed loss of a batch."""
    criterion = at.LabelSmoothing(13, at.PAD, TINY.smoothing)
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
    return at.SimpleLossCompute(model.generator, criterion)(states, batch.tgt_y, 1)[0]


def test_nn_transformer_computes_what_ours_computes(ours, batch, monkeypatch):
    """The same weights give the same states at real positions, and the same loss."""
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)  # our norms
    theirs = baselines.TorchModel((range(11), range(13)), TINY)
    attentions = [m for m in theirs.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    assert {attention.dropout for attention in attentions} == {TINY.attention_dropout}
    for side in ("encoder", "decoder"):
        stack = getattr(ours, side)
        core = getattr(theirs.core, side)
        for one, other in zip(stack.layers, core.layers, strict=True):
            at.copy_layer(one, other)
        with torch.no_grad():
            core.norm.weight.copy_(stack.norm.weight.normal_())
            core.norm.bias.copy_(stack.norm.bias.normal_())
    theirs.src_embed.load_state_dict(ours.src_embed.state_dict())
    theirs.tgt_embed.load_state_dict(ours.tgt_embed.state_dict())
    theirs.generator.load_state_dict(ours.generator.state_dict())
    theirs.eval()
    inputs = batch.src, batch.tgt, batch.src_mask, batch.tgt_mask
    real = batch.tgt_y != at.PAD
    torch.testing.assert_close(theirs(*inputs)[real], ours(*inputs)[real])
    torch.testing.assert_close(loss_of(theirs, batch), loss_of(ours, batch))


def test_2022_computes_what_ours_computes(ours, batch):
    loss = loss_of(ours, batch)
    for gain in baselines.NOT_IN_2022:
        setattr(*baselines.GAINS[gain])
    torch.testing.assert_close(loss_of(ours, batch), loss)


def test_the_batches_of_2022():
    pairs = [*at.builtin_corpus()["train"][:99], ("Hund " * 80, "dog " * 80)]
    corpus = at.Corpus("x", ("de", "en"), {"train": pairs})
    vocabularies = at.learn_words(corpus, 1)
    batches = list(itertools.islice(baselines.batches_of_2022(corpus, vocabularies), 5))
    shapes = [(*batch.src.shape, batch.tgt.size(1)) for batch in batches]
    assert shapes == [(32, 72, 71)] * 3 + [(4, 72, 71), (32, 72, 71)]
    assert not torch.equal(batches[0].src, batches[4].src), "each pass has another order"
    symbols = [(row != at.PAD).sum().item() for batch in batches[:4] for row in batch.src]
    tokenizer = at.load_tokenizer("de")
    lengths = [len(at.tokenize(source, tokenizer)) for source, _ in pairs]
    assert sorted(symbols) == sorted(min(72, length + 2) for length in lengths)


SAME_TEXT = """
import the_annotated_transformer as at
from tools.results import ctranslate

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
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 29, "the same weights; rounding may turn a tie"


# One measurement ----------------------------------------------------------------------------------

SMALL_CASES = [name for name in speed.CASES if name.endswith(("small-fp32-1x2", "fp32-beam1"))]
SMALL_CASES.remove("decode-ctranslate2-shipped-fp32-beam1")  # its threads stay when it is done


@pytest.mark.parametrize("case", [*SMALL_CASES, next(iter(speed.PACED))])
def test_a_case_is_measured(capsys, tmp_path, case):
    speed.measure(case, tmp_path / "run")
    numbers = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(number > 0 for number in numbers.values())


@pytest.mark.parametrize("gain", baselines.GAINS)
def test_what_takes_the_place_of_a_gain_is_called(monkeypatch, tmp_path, gain):
    owner, name, plain = baselines.GAINS[gain]
    spy = create_autospec(plain, side_effect=plain)
    monkeypatch.setitem(baselines.GAINS, gain, (owner, name, spy))
    speed.measure(f"without-ours-small-{speed.FAST}-1x2-{gain}", tmp_path / "run")
    assert spy.called


def test_2022_has_its_batches_and_dropout_on_attention(tmp_path):
    case = speed.Case("train", "2022")
    training = speed.Training(case, WORKER, tmp_path / "run")
    assert next(training.batches).src.shape == (32, 72)
    state = training.updates(2)
    assert (state.step, state.samples) == (2, 2 * baselines.ACCUMULATED * 32)
    assert training.net.encoder.layers[0].self_attn.dropout.p == 0.1


def test_all_train_on_the_same_batches(tmp_path):
    """Also in one folder; operations are counted as the text counts them."""
    for code in ("torch", "ours"):
        training = speed.Training(speed.Case("train", code), WORKER, tmp_path / "run")
        before = [weight.clone() for weight in training.net.parameters()]
        config, _ = at.read_settings(tmp_path / "run")
        train = at.IdPairs(tmp_path / "run")
        batches = [train.batch(each) for each in at.batches_of_epoch(config, train, 1)[:3]]
        assert training.updates(3).tokens == sum(batch.ntokens for batch in batches)
        words = training.model.generator.proj.out_features
        assert training.operations == sum(
            len(x.src) * at.training_flops(2, 16, 32, words, x.src.size(1), x.tgt.size(1))
            for x in batches
        )
        for old, new in zip(before, training.net.parameters(), strict=True):
            assert not torch.equal(old, new)


@pytest.mark.slow
def test_two_processes_are_measured_together(multi30k, monkeypatch, capsys):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    assert speed.main(["measure", f"train-ours-small-{speed.FAST}-2x1"]) == 0
    assert json.loads(capsys.readouterr().out)["peak MB"] > 1500, "of both"


def test_a_case_that_fails_says_why(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    assert speed.main(["measure", "train-ours-small-fp32-1x2"]) == 1
    assert "small-fp32-1x2 failed:\nerror: Multi30k is out of reach" in capsys.readouterr().err


# Rounds -------------------------------------------------------------------------------------------


def test_a_benchmark_goes_on_after_a_stop(monkeypatch, capsys, tmp_path):
    one, other = list(speed.CASES)[:2]
    measured = []

    def wait_for_quiet():
        if len(measured) == 3:
            measured.append("refused")
            raise ValueError("others use the cores")

    def measure_apart(case):
        measured.append(case.name)
        return {"speed": float(len(measured))}

    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records, "wait_for_quiet", wait_for_quiet)
    monkeypatch.setattr(speed, "measure_apart", measure_apart)
    monkeypatch.setattr(speed, "SMALL", TINY)
    monkeypatch.setattr(speed, "CASES", {name: speed.CASES[name] for name in (one, other)})
    assert speed.main(["run"]) == 1
    assert capsys.readouterr().err == "error: others use the cores\n"
    assert speed.main(["run"]) == 0
    assert measured == [one, other, one, "refused", other, *[one, other] * 3]
    first, second = records.read("benchmark")["cases"]
    assert [each["speed"] for each in first["rounds"]] == [1.0, 3.0, 6.0, 8.0, 10.0]
    assert (first["speed"], second["speed"]) == (6.0, 7.0)


def test_the_pace_is_measured_once(monkeypatch, tmp_path):
    measured = []
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records, "wait_for_quiet", lambda: measured.append("quiet"))
    monkeypatch.setattr(
        speed, "measure_apart", lambda case: measured.append(case.size) or {"seconds per update": 2}
    )
    for _ in range(2):
        assert speed.main(["pace"]) == 0
    assert measured == [each for run in plan.PACED for each in ("quiet", run)]
    assert records.read("pace")[plan.PACED[0]]["seconds"] == 2


# A GPU, tried on a CPU ----------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A CPU in its place, which has no memory of its own to ask for."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records, "graphics_card", lambda: "a card")
    monkeypatch.setattr(speed, "CASES", speed.by_name(speed.cases_of_gpu()))
    monkeypatch.setattr(speed, "peak", lambda dtype: 1e12)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    allocated = itertools.count(step=2**20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(allocated))


def test_every_case_of_a_gpu_is_measured_in_turn(gpu, capsys):
    speed.run_on_gpu()
    record = records.read("gpu")
    assert [case["name"] for case in record["cases"]] == list(speed.CASES)
    for case in record["cases"]:
        assert len(case["rounds"]) == speed.ROUNDS
        assert case["peak MB"] == 2, "what it holds, and what it adds while it works"
        assert case["share of peak"] * 1e12 == pytest.approx(case["operations per second"])
    turns = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    assert [turn.split(",")[0] for turn in turns[:9]] == ["round 1"] * 8 + ["round 2"]


@pytest.mark.parametrize("command", [["run"], ["measure", next(iter(speed.CASES))]])
def test_no_gpu_is_refused_before_anything_is_done(monkeypatch, capsys, command):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(speed, "DEVICE", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert speed.main(command) == 1
    assert capsys.readouterr().err.startswith("error: no NVIDIA GPU")
