"""The benchmark: baselines that compute the same, cases that run, tables that add up."""

import dataclasses
import itertools
import json

import baselines
import bench
import pytest
import torch

import the_annotated_transformer as tutorial

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
TINY = dataclasses.replace(
    bench.WORDS, data="builtin", N=2, d_model=16, d_ff=32, h=4, dropout=0.0, batch_tokens=64
)


def some_batch() -> tutorial.Batch:
    """Two pairs, the first of them padded on both sides."""
    pairs = [([5, 6, 7], [0, 8, 9, 1]), ([4, 5, 6, 7, 8], [0, 4, 9, 9, 5, 1])]
    return tutorial.collate([([*src, tutorial.END], tgt) for src, tgt in pairs])


def ours() -> tuple[tutorial.EncoderDecoder, tutorial.ModelWithLoss]:
    torch.manual_seed(0)
    model = tutorial.make_model(11, 13, 2, 16, 32, 4, 0.0)
    criterion = tutorial.LabelSmoothing(13, tutorial.PAD, baselines.SMOOTHING)
    return model, tutorial.ModelWithLoss(tutorial.make_fast(model), criterion)


def like_ours(model) -> baselines.TorchModel:
    """nn.Transformer with the weights of our model."""
    theirs = baselines.TorchModel((11, 13), TINY)
    for side in ("encoder", "decoder"):
        stack, core = getattr(model, side), getattr(theirs.core, side)
        for one, other in zip(stack.layers, core.layers, strict=True):
            tutorial.copy_layer(one, other)
        with torch.no_grad():
            core.norm.weight.copy_(stack.norm.scale.normal_())
            core.norm.bias.copy_(stack.norm.shift.normal_())
    theirs.source.lut.load_state_dict(model.src_embed[0].lut.state_dict())
    theirs.target.lut.load_state_dict(model.tgt_embed[0].lut.state_dict())
    theirs.proj.load_state_dict(model.generator.proj.state_dict())
    return theirs


def test_nn_transformer_computes_what_ours_computes():
    """The same weights give the same scores; its loss is the cross-entropy of these."""
    (model, loss_model), batch, scores = ours(), some_batch(), []
    theirs = like_ours(model)
    theirs.proj.register_forward_hook(lambda module, given, out: scores.append(out))
    loss = theirs(batch)
    log_probs, real = scores[0].log_softmax(-1), batch.tgt_y[batch.tgt_y != tutorial.PAD]
    torch.testing.assert_close(loss_model.criterion(log_probs, real), loss_model(batch))
    by_hand = -0.9 * log_probs[range(len(real)), real].sum() - 0.1 * log_probs.mean(-1).sum()
    torch.testing.assert_close(loss, by_hand)


def test_attention_of_the_baseline_can_use_the_fused_kernel():
    model = baselines.TorchModel((11, 13), bench.SIZES["small"])
    rates = [m.dropout for m in model.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    assert rates == [0.0] * 9


def test_the_materialised_model_computes_what_ours_computes_and_stores_weights():
    model, loss_model = ours()
    other = baselines.MaterialisedModel((11, 13), TINY)
    other.model.load_state_dict(model.state_dict())
    batch = some_batch()
    for _ in range(2):
        torch.testing.assert_close(other(batch), loss_model(batch))
    assert {len(m.record) for m in other.modules() if hasattr(m, "record")} == {1}


def test_the_feed_of_2022():
    corpus = tutorial.read_builtin()
    vocabularies = tutorial.learn_words(corpus, 1)
    feed = baselines.feed_of_2022(corpus, vocabularies)
    passes = -(-len(corpus.splits["train"]) // 32)
    batches = list(itertools.islice(feed, passes + 2))
    assert batches[0].src.shape == (32, 72) and batches[0].tgt.shape == (32, 71)
    sentences = sum(len(batch.src) for batch in batches[:passes])
    assert sentences == len(corpus.splits["train"]), "each sentence once"
    assert not torch.equal(batches[0].src, batches[passes].src), "then in another order"
    assert (batches[0].tgt_y == tutorial.PAD).float().mean() > 0.7


def test_ctranslate2_says_what_ours_says(tmp_path):
    pytest.importorskip("ctranslate2")
    translator = bench.shipped()
    engine = baselines.ctranslate2_model(translator, tmp_path / "model", "float32", 1)
    sources = [source for source, _ in tutorial.builtin_corpus()["val"][:30]]
    rows = [ids for _, ids in tutorial.source_parts(translator, sources)]
    words = translator.vocabularies[0].words
    found = engine.translate_batch([[words[n] for n in row] for row in rows], beam_size=1)
    index = {word: n for n, word in enumerate(words)}
    theirs = [[index[word] for word in each.hypotheses[0]] for each in found]
    same = 0
    for row, written in zip(rows, theirs, strict=True):
        batch = tutorial.Batch(torch.tensor([row]))
        cap = tutorial.length_cap(len(row), 256)
        mine = tutorial.greedy_search(translator.model, batch.src, batch.src_mask, cap)[0].tolist()
        same += tutorial.symbols_of_text(mine) == written
    assert same >= 29, "the same weights; rounding may turn a tie"


# Cases ------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Cases of a moment, on the built-in captions."""
    monkeypatch.setattr(bench.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tutorial, "tokens_of", tutorial.tokens_of)  # to be restored
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    monkeypatch.setattr(bench, "BUDGET", 64)
    monkeypatch.setitem(bench.SIZES, "small", TINY)
    captions = tutorial.builtin_corpus()["test"][:40]
    corpus = tutorial.Corpus("x", ("de", "en"), {"test_2016_flickr": captions})
    monkeypatch.setattr(tutorial, "find_multi30k", lambda languages: corpus)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)


@pytest.mark.parametrize("code", ["ours", "torch", "feed2022"])
def test_a_training_is_measured(tiny, code):
    numbers = bench.measure(bench.Case("train", code, threads=1))
    assert numbers["tokens per second"] > 0 and numbers["updates"] >= 3


def test_other_cases_are_measured(tiny):
    assert bench.measure(bench.Case("scale", change=("d_model", 64)))["GFLOP/s"] > 0
    for code in ("ours", "plain"):
        times = bench.measure_positions(bench.Case("position", code, change=("s", 2)), longest=32)
        assert set(times) == {"16", "32"} and all(ms > 0 for ms in times.values())
    for code, beam in (("ours", 1), ("ours", 2), ("plain", 1)):
        numbers = bench.measure(bench.Case("decode", code, "shipped", beam=beam))
        assert numbers["sentences per second"] > 0 and numbers["symbols"] > 0


@pytest.mark.parametrize("gain", [name for name in bench.GAINS if "batches" not in name])
def test_without_a_gain_the_loss_is_the_same(monkeypatch, gain):
    """What is taken away is speed and nothing else."""
    _, loss_model = ours()
    batch = some_batch()
    before = loss_model(batch)
    monkeypatch.setattr(*bench.GAINS[gain])
    torch.testing.assert_close(loss_model(batch), before)


def test_unsorted_batches_hold_every_sentence_once():
    lengths = [(n % 7 + 1, n % 5 + 1) for n in range(100)]
    batches = bench.unsorted_batches(lengths, 30)
    assert sorted(n for batch in batches for n in batch) == list(range(100))
    assert len(batches) == pytest.approx(sum(map(max, lengths)) / 30, abs=2)


def test_a_case_of_two_ranks_runs_two_processes(monkeypatch, capsys):
    """Also when it is measured by hand."""
    commands = []

    def run(command, **_):
        commands.append(command)
        return bench.subprocess.CompletedProcess(command, 0, '{"speed": 1}\n', "")

    monkeypatch.setattr(bench.subprocess, "run", run)
    assert bench.main(["measure", "train-ours-small-fp32-2x1"]) == 0
    assert "--nproc-per-node=2" in commands[0]
    assert json.loads(capsys.readouterr().out) == {"speed": 1}


@pytest.mark.slow
@pytest.mark.parametrize("code", ["ours", "torch"])
def test_two_processes_are_measured_together(multi30k, monkeypatch, code):
    monkeypatch.setenv("MULTI30K_DIR", multi30k)
    numbers = bench.run_case(bench.CASES[f"train-{code}-small-fp32-2x1"])
    assert numbers["tokens per second"] > 0 and numbers["peak MB"] > 600, "of both"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "train-ours-small-fp32-1x2"], "is for all cases: name another file"),
        (["measure", "train-nothing"], "nothing is called train-nothing: choose among"),
        (["run"], "Multi30k is out of reach"),
        (["table", "--name", "none"], "No such file"),
    ],
    ids=str,
)
def test_bad_input(monkeypatch, capsys, tmp_path, arguments, words):
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    assert bench.main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and words in err and len(err.splitlines()) == 1


def test_a_case_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"(?s)train-ours-small-fp32-1x2 failed.*is missing"):
        bench.run_case(bench.CASES["train-ours-small-fp32-1x2"])


def test_a_benchmark_goes_on_after_a_stop(monkeypatch, tmp_path):
    names = ["train-ours-small-fp32-1x2", "decode-plain-shipped-fp32-beam1"]
    measured = []

    def run_case(case):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(case.name)
        return {"speed": float(len(measured))}

    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(bench.results, "wait_for_quiet", lambda: None)
    monkeypatch.setattr(bench.records, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "run_case", run_case)
    with pytest.raises(KeyboardInterrupt):
        bench.run(names, 3, "some")
    assert not (tmp_path / "some.json").exists()
    monkeypatch.setattr(bench, "run_case", lambda case: {"speed": 7.0})
    bench.run(names, 3, "some")
    content = bench.records.read("some")
    first, second = content["cases"]
    assert first["rounds"] == [{"speed": 1.0}, {"speed": 3.0}, {"speed": 7.0}]
    assert (first["speed"], second["speed"]) == (3.0, 7.0) and content["made"]["code"]


def test_the_published_tables_are_those_of_the_file():
    content = bench.records.read("benchmark")
    assert bench.readme_tables(content) in bench.results.README.read_text(encoding="utf-8")
