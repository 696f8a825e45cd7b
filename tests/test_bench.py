"""The benchmark: baselines that compute the same, a machine that is quiet, tables that add up."""

import itertools
import json
import multiprocessing
import sys
import time

import pytest
import torch
from conftest import PROJECT

import the_annotated_transformer as tutorial

sys.path.insert(0, str(PROJECT / "docs"))
import baselines
import bench

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
TINY = tutorial.Config(N=2, d_model=16, d_ff=32, h=4, dropout=0.0)


def some_batch() -> tutorial.Batch:
    """Two pairs, the first of them padded on both sides."""
    pairs = [([5, 6, 7], [0, 8, 9, 1]), ([4, 5, 6, 7, 8], [0, 4, 9, 9, 5, 1])]
    return tutorial.collate([([*src, tutorial.END], tgt) for src, tgt in pairs])


def loss_of(loss_model, batch) -> torch.Tensor:
    return loss_model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask, batch.tgt_y)


def ours() -> tuple[tutorial.EncoderDecoder, tutorial.SummedLoss]:
    torch.manual_seed(0)
    model = tutorial.make_model(11, 13, 2, 16, 32, 4, 0.0)
    criterion = tutorial.LabelSmoothing(13, tutorial.PAD, baselines.SMOOTHING)
    return model, tutorial.SummedLoss(model, criterion)


def like_ours(ours_too: bool) -> tuple[baselines.TorchModel, torch.nn.Module]:
    """nn.Transformer with the weights of our model, and our loss model."""
    model, loss_model = ours()
    theirs = baselines.TorchModel((11, 13), TINY, None, ours_too)
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
    return theirs, loss_model


def test_nn_transformer_computes_what_ours_computes():
    """The same weights give the same loss: what is timed is the same task."""
    theirs, loss_model = like_ours(ours_too=True)
    batch = some_batch()
    torch.testing.assert_close(loss_of(theirs, batch), loss_of(loss_model, batch))


def test_the_loss_of_pytorch_is_the_cross_entropy_of_the_same_scores():
    theirs, _ = like_ours(ours_too=False)
    batch, scores = some_batch(), []
    theirs.proj.register_forward_hook(lambda module, given, out: scores.append(out))
    loss = loss_of(theirs, batch)
    log_probs, real = scores[0].log_softmax(-1), batch.tgt_y[batch.tgt_y != tutorial.PAD]
    by_hand = -0.9 * log_probs[range(len(real)), real].sum() - 0.1 * log_probs.mean(-1).sum()
    torch.testing.assert_close(loss, by_hand)


def test_attention_of_the_baseline_can_use_the_fused_kernel():
    model = baselines.TorchModel((11, 13), bench.SIZES["small"], None)
    rates = [m.dropout for m in model.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    assert rates == [0.0] * 9


def test_the_materialised_model_computes_what_ours_computes():
    model, loss_model = ours()
    other = baselines.MaterialisedModel((11, 13), TINY)
    other.model.load_state_dict(model.state_dict())
    batch = some_batch()
    expected = loss_of(loss_model, batch)
    torch.testing.assert_close(loss_of(other, batch), expected)


def test_the_feed_of_2022():
    corpus = tutorial.read_builtin()
    vocabularies = tutorial.learn_words(corpus, 1)
    feed = baselines.feed_of_2022(corpus, vocabularies)
    batches = list(itertools.islice(feed, 100))  # more than an epoch
    assert all(b.src.shape == (32, 72) and b.tgt.shape == (32, 71) for b in batches[:90])
    assert sum(len(batch.src) for batch in batches[:94]) == 3000, "each sentence once"
    assert not torch.equal(batches[0].src, batches[94].src), "another order in the next epoch"
    share = tutorial.padding_share(batches[:10])
    assert share > 0.75


def test_ctranslate2_says_what_ours_says(tmp_path):
    pytest.importorskip("ctranslate2")
    translator = tutorial.load_pretrained(PROJECT / "pretrained", torch.device("cpu"))
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


# The machine ------------------------------------------------------------------------------------


def test_a_busy_machine_is_refused():
    looks = iter([0.9, 0.9, 0.02])
    bench.wait_for_quiet(look=lambda: next(looks))
    with pytest.raises(ValueError, match=r"^90% of this machine's cores are in use by others"):
        bench.wait_for_quiet(patience=0, look=lambda: 0.9)


def burn(until: float) -> None:
    while time.monotonic() < until:
        pass


def test_work_of_others_is_seen():
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=burn, args=(time.monotonic() + 1.5,))
    worker.start()
    try:
        assert bench.share_in_use(1.0) > 0.5 / torch.get_num_threads() / 8
    finally:
        worker.join()


# Cases and tables -------------------------------------------------------------------------------


def test_every_target_has_its_cases():
    cases = {name: {"tokens per second": 1.0, "peak MB": 1.0, "sentences per second": 1.0,
                    "16": 1.0, "512": 1.4} for name in bench.CASES}  # fmt: skip
    found = bench.ratios(cases)
    assert len(found) == 2 * len(bench.TARGETS) + 4 + 2 + 2 + 2
    assert all(row["ratio"] == 1.0 for row in found[:-2]) and found[-1]["ratio"] == 1.4
    reached = {row["what"] for row in found if row["reached"]}
    assert "the 512th symbol against the 16th, 8 at once" in reached
    assert not any("feed of 2022" in what for what in reached)


def test_a_case_is_measured(monkeypatch):
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    monkeypatch.setattr(bench, "BUDGET", 64)
    monkeypatch.setitem(bench.SIZES, "small", TINY)
    encoded = tutorial.encode_corpus("builtin", ("de", "en"), 2, 256)
    monkeypatch.setattr(bench, "encoded_words", lambda: encoded)
    for code in ("ours", "torch", "torch+ours", "feed2022"):
        found = bench.measure_training(bench.Case("train", code, threads=1))
        assert found["tokens per second"] > 0 and found["updates"] >= 3
    monkeypatch.setattr(tutorial.SummedLoss, "forward", tutorial.SummedLoss.forward)  # to restore
    for code, change in (("ours", ("length", 8)), ("whole loss", ("V", 50))):
        case = bench.Case("scale", code, change=change)
        assert bench.measure_scale(case)["GFLOP/s"] > 0
    for code in ("ours", "plain"):
        case = bench.Case("position", code, change=("sentences", 2))
        times = bench.measure_positions(case, longest=32)
        assert set(times) >= {"16", "32"} and all(ms > 0 for ms in times.values())


@pytest.mark.parametrize("gain", [name for name in bench.GAINS if "batches" not in name])
def test_without_a_gain_the_loss_is_the_same(monkeypatch, gain):
    """What is taken away is speed and nothing else."""
    _, loss_model = ours()
    batch = some_batch()
    before = loss_of(loss_model, batch)
    monkeypatch.setattr(*bench.GAINS[gain])
    torch.testing.assert_close(loss_of(loss_model, batch), before)


def test_a_profile_names_the_operations(monkeypatch):
    monkeypatch.setattr(bench, "SECONDS", bench.SECONDS)
    monkeypatch.setattr(bench, "BUDGET", 64)
    monkeypatch.setitem(bench.SIZES, "small", TINY)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    shares = bench.profile(bench.Case("scale", change=("length", 8), threads=1))
    assert 0 < sum(shares.values()) <= 1 and any(name.startswith("aten::") for name in shares)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_unsorted_batches_hold_every_sentence_once():
    lengths = [(n % 7 + 1, n % 5 + 1) for n in range(100)]
    batches = bench.unsorted_batches(lengths, 30, None)
    assert sorted(n for batch in batches for n in batch) == list(range(100))
    assert len(batches) == pytest.approx(sum(map(max, lengths)) / 30, abs=2)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "peak-matmul-2048-fp32-1x2"], "is for all cases: name another file for some"),
        (["measure", "train-nothing"], "no case is called train-nothing: `list` names them all"),
        (["run"], "Multi30k is out of reach"),
        (["table"], "No such file"),
    ],
    ids=str,
)
def test_bad_input(monkeypatch, capsys, tmp_path, arguments, words):
    monkeypatch.setattr(tutorial, "MULTI30K_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tutorial.time, "sleep", lambda seconds: None)
    assert bench.main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and words in err and len(err.splitlines()) == 1


def test_a_case_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"(?s)train-ours-small-fp32-1x1 failed.*is missing"):
        bench.run_case(bench.CASES["train-ours-small-fp32-1x1"])


def test_a_benchmark_goes_on_after_a_stop(monkeypatch, tmp_path):
    names, measured = ["train-ours-small-fp32-1x1", "peak-matmul-2048-fp32-1x2"], []

    def run_case(case):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(case.name)
        return {"speed": float(len(measured))}

    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(bench, "facts", dict)
    monkeypatch.setattr(bench, "wait_for_quiet", lambda: None)
    monkeypatch.setattr(bench, "run_case", run_case)
    output = tmp_path / "benchmark.json"
    with pytest.raises(KeyboardInterrupt):
        bench.run(names, 3, output)
    assert not output.exists()
    monkeypatch.setattr(bench, "run_case", lambda case: {"speed": 7.0})
    bench.run(names, 3, output)
    first, second = json.loads(output.read_text())["cases"]
    assert first["rounds"] == [{"speed": 1.0}, {"speed": 7.0}, {"speed": 7.0}]
    assert first["speed"] == 7.0
    assert second["rounds"] == [{"speed": 2.0}], "a curve has one round"


def test_decoding_is_measured(monkeypatch, tmp_path):
    captions = tutorial.builtin_corpus()["test"][:40]
    corpus = tutorial.Corpus("x", ("de", "en"), {"test_2016_flickr": captions})
    monkeypatch.setattr(tutorial, "find_multi30k", lambda languages: corpus)
    for code, beam in (("ours", 1), ("ours", 2), ("plain", 1)):
        found = bench.measure_decoding(bench.Case("decode", code, "shipped", beam=beam))
        assert found["sentences per second"] > 0 and found["symbols"] > 0


def test_the_published_tables_are_those_of_the_file():
    if not (PROJECT / bench.RESULTS).is_file():
        pytest.skip("no benchmark yet")
    content = json.loads((PROJECT / bench.RESULTS).read_text())
    assert {case["name"] for case in content["cases"]} == set(bench.CASES)
    assert content["ratios"] == bench.ratios({case["name"]: case for case in content["cases"]})
    assert content["rounds"] >= 5
    assert all(
        len(c["rounds"]) >= (1 if c["task"] in bench.CURVES else 5) for c in content["cases"]
    )
    earlier = json.loads((PROJECT / bench.EARLIER).read_text())
    assert bench.readme_table(content, earlier) in (PROJECT / "README.md").read_text()
