"""The bench of Part 10: its rows differ in one thing, and are measured as its table says."""

import random
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import the_annotated_transformer as at
from tools import records
from tools.results import bench
from tools.views import bench as views

ROW = pytest.mark.parametrize("name", bench.ROWS)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Few narrow layers that read built-in captions in short streams; records of their own."""
    pairs = at.read_builtin().splits
    texts = {split: [english for _, english in pairs[split][:120]] for split in ("train", "val")}
    corpus = at.Corpus("toy", ("en",), {"train": [(text,) for text in texts["train"]]})
    subwords, _ = at.learn_subwords(corpus, 90)
    ids = {split: subwords.encode(each) for split, each in texts.items()}
    monkeypatch.setattr(bench, "captions", lambda: (subwords, ids))
    sizes = {"N": 2, "d_model": 16, "h": 4, "max_len": 40}
    monkeypatch.setattr(bench, "SIZES", bench.SIZES | sizes)
    monkeypatch.setattr(bench, "LENGTH", 40)
    monkeypatch.setattr(bench, "WRITERS", 3)
    monkeypatch.setattr(bench, "EPOCHS", 1)
    monkeypatch.setattr(bench, "WARMUP", 2)
    monkeypatch.setattr(bench, "UPDATES", 1)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    rows = {name: replace(row, full=row.full[:1] and (1,)) for name, row in bench.ROWS.items()}
    monkeypatch.setattr(bench, "ROWS", rows)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(records, "wait_for_quiet", lambda: None)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))


def drawn(name: str) -> at.LanguageModel:
    """A model of a row, all of whose weights differ."""
    torch.manual_seed(1)
    subwords, _ = bench.captions()
    model = bench.build(bench.ROWS[name], len(subwords))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


# The models and their data ------------------------------------------------------------------------


def test_rows_have_as_many_parameters_that_act_on_a_token():
    counts = {}
    for name, row in bench.ROWS.items():
        with torch.device("meta"):
            counts[name] = bench.active_parameters(bench.build(row, bench.SUBWORDS))
    for name, count in counts.items():
        assert count == pytest.approx(counts["base"], rel=0.02), name


def test_experts_at_rest_are_counted_apart(small):
    model = drawn("experts")
    states = torch.randn(1, 1, 16, requires_grad=True)
    acting = 0
    for layer in model.decoder.layers:
        layer.feed_forward(states).sum().backward()
        biases = [expert.narrow.bias for expert in layer.feed_forward.experts]
        acting += sum(bias.grad is not None and bias.grad.any().item() for bias in biases)
    assert acting == 2 * len(model.decoder.layers)
    at_rest = at.count_parameters(model) - bench.active_parameters(model)
    assert at_rest == 12 * at.count_parameters(model.decoder.layers[0].feed_forward.experts[0])


@ROW
def test_a_row_agrees_with_and_without_a_cache(small, name):
    model = drawn(name).double()
    ids = torch.randint(90, (2, 40))
    with torch.no_grad():
        whole = model(None, ids, None, at.subsequent_mask(40))
        decoder = at.with_cache(model.decoder)
        for place, x in enumerate(model.tgt_embed(ids).split(1, dim=1)):  # (2, 1, D)
            assert_close(decoder(x, None)[:, 0], whole[:, place])


def test_what_is_written_is_the_likeliest_and_the_cache_is_counted(small):
    model = drawn("base")
    written, held = bench.write(model)
    with at.evaluating(model):
        log_probs = model.generator(model(None, written[:, :-1], None, at.subsequent_mask(39)))
    assert torch.equal(written[:, 1:], log_probs.argmax(-1))
    assert held == 3 * 39 * 2 * 2 * 16 * 4  # texts, tokens, layers, keys and values, width, bytes


@ROW
def test_no_row_looks_ahead(small, name):
    model = drawn(name)
    ids = torch.randint(90, (2, 40))
    later = ids.clone()
    later[:, 30:] = torch.randint(90, (2, 10))
    mask = at.subsequent_mask(40)
    with torch.no_grad():
        assert_close(model(None, ids, None, mask)[:, :30], model(None, later, None, mask)[:, :30])


def test_only_some_layers_have_windows(small):
    layers = drawn("window").decoder.layers
    assert [hasattr(layer.self_attn, "window") for layer in layers] == [True, False]


def test_streams_predict_each_token_once(small, monkeypatch):
    monkeypatch.setattr(bench, "LENGTH", 5)
    ids = [[7, 8], [9], [10, 11, 12], [13]]
    rows = bench.streams(ids)
    assert rows.tolist() == [[0, 7, 8, 1, 0, 9], [9, 1, 0, 10, 11, 12]]
    shuffled = bench.streams(ids, random.Random(1))
    assert not torch.equal(shuffled, rows)
    assert ids == [[7, 8], [9], [10, 11, 12], [13]]


def test_a_seed_gives_each_row_the_same_batches(small):
    def ids(seed: int, epoch: int) -> list:
        return [batch.tgt.tolist() for batch in bench.batches_of_epoch(seed, epoch)]

    assert ids(1, 1) == ids(1, 1)
    assert ids(1, 1) != ids(1, 2) != ids(2, 1)


# Records and their table --------------------------------------------------------------------------


@ROW
def test_a_row_is_trained_once_and_recorded(small, name, monkeypatch):
    assert bench.main(["train", name, "3"]) == 0
    found = records.read(f"bench/{name}-3")
    weights = torch.load(at.runs_folder() / "bench" / f"{name}-3" / "model.pt")
    model = drawn(name)
    model.load_state_dict(weights)
    _, ids = bench.captions()
    rows = bench.streams(ids["val"])
    scores = at.evaluate_loss(model, [at.Batch(rows, rows)])
    assert found["log"][-1]["perplexity"] == pytest.approx(scores["perplexity"], rel=1e-3)
    monkeypatch.setattr(bench, "trained", None)
    assert bench.main(["train", name, "3"]) == 0


def test_a_row_that_does_not_exist_is_refused(small, capsys):
    assert bench.main(["train", "alchemy", "1"]) == 1
    assert "alchemy" in capsys.readouterr().err


def test_rows_are_timed_in_turn_and_once(small, monkeypatch):
    turns = []
    write = bench.write
    monkeypatch.setattr(bench, "write", lambda model: turns.append(model) or write(model))
    for _ in range(2):
        assert bench.main(["speed", "latent", "base"]) == 0
    assert turns[:2] == turns[2:4] == turns[4:6] == turns[6:]
    rows = records.read("bench/speed")["rows"]
    assert list(rows) == ["latent", "base"]
    assert all(len(row["training"]) == len(row["writing"]) == 2 for row in rows.values())
    assert rows["latent"]["bytes"] < rows["base"]["bytes"]


def lines_of_table() -> list[list[str]]:
    head, _, *rows = [line for line in views.bench().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]


def test_the_table_shows_what_is_on_record(small):
    assert "|" not in views.bench()
    for name, seed, perplexity in (("muon", 1, 10), ("base", 2, 20), ("base", 1, 24)):
        run = {"row": name, "seed": seed, "active": 1e6, "parameters": 1e6, "minutes": 4}
        run["log"] = [{"perplexity": 99}, {"perplexity": perplexity}]
        records.write(f"bench/{name}-{seed}", run | records.circumstances())
    head, *rows = lines_of_table()
    assert rows == [
        [bench.ROWS["base"].name, "22.0 (20.0–24.0)"],
        [bench.ROWS["muon"].name, "10.0"],
    ]
    assert "1 or 2 seeds" in views.bench()
    timed = {"base": {"training": [100, 200, 300], "writing": [400, 400, 400], "bytes": [5]}}
    records.write("bench/speed", {"rows": timed, "made": records.circumstances()})
    longer, *rows = lines_of_table()
    assert len(longer) == len(head) + 3
    assert [row[len(head) :] for row in rows] == [["200", "400", "5"], 3 * ["–"]]
    assert "within 50% of them" in views.bench()


def test_rows_from_different_machines_do_not_share_a_table(small):
    for seed, device in ((1, "cpu"), (2, "cuda")):
        run = {"row": "base", "seed": seed, "active": 1, "parameters": 1, "minutes": 4}
        run["log"] = [{"perplexity": 9}]
        records.write(f"bench/base-{seed}", run | records.circumstances() | {"device": device})
    with pytest.raises(ValueError, match="device"):
        views.bench()
