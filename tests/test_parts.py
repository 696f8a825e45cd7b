"""Every part, ours or a reader's, in training, decoding, maps, files and the command line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import the_annotated_transformer as at

MY_PARTS = Path(__file__).with_name("my_parts.py")
TODAY = {
    "attention": "rotary-grouped",
    "feed_forward": "swiglu",
    "norm": "rms",
    "positions": "none",
    "bias": False,
}
MINE = {
    "attention": "learnt-distance",
    "feed_forward": "soft",
    "norm": "unit",
    "positions": "ramp",
    "decoder_layer": "feed-forward-first",
}
WAYS = {
    "plain": {},
    "plain post-norm": {"norm_first": False},
    "rotary": {"attention": "rotary", "positions": "none"},
    "grouped": {"attention": "grouped"},
    "rotary-grouped": {"attention": "rotary-grouped", "positions": "none"},
    "distance": {"attention": "distance", "positions": "none"},
    "learnt": {"positions": "learnt"},
    "no positions": {"positions": "none"},
    "no biases": {"bias": False},
    "all of today": TODAY,
    "sharp": {"attention": "sharp"},
    "learnt-distance": {"attention": "learnt-distance", "positions": "none"},
    "all of mine": MINE,
    "mine with today's": TODAY | {"decoder_layer": "feed-forward-first", "feed_forward": "soft"},
}
SIZES = {"N": 2, "d_model": 16, "d_ff": 32, "h": 4, "dropout": 0.1, "max_len": 32}
OURS = {kind: dict(parts) for kind, parts in at.PARTS.items()}


def leave_only_ours() -> None:
    for kind, parts in at.PARTS.items():
        parts.clear()
        parts.update(OURS[kind])


@pytest.fixture(autouse=True)
def my_parts(monkeypatch) -> Iterator[None]:
    """The parts of the file, as `--parts` reads them; afterwards only ours are left."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    at.read_parts(MY_PARTS)
    yield
    leave_only_ours()


@pytest.fixture(params=WAYS)
def way(request) -> dict:
    """Every other way is a post-norm model."""
    return {"norm_first": list(WAYS).index(request.param) % 2 == 0} | WAYS[request.param]


def made(way: dict, **more) -> at.EncoderDecoder:
    """A model of 11 source and 13 target tokens in eval mode; no weight is zero or one."""
    torch.manual_seed(1)
    sizes = {"src_vocab": 11, "tgt_vocab": 13} | SIZES | way | more
    model = at.build_model(**sizes).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def batch() -> at.Batch:
    """Three sentences of different lengths, and a target of six tokens for each."""
    torch.manual_seed(2)
    src = at.pad_ids([[4, 5, 6, 7, 1], [9, 4, 1], [10, 8, 8, 1]])
    return at.Batch(src, torch.randint(4, 13, (3, 7)))


def step(model: at.EncoderDecoder, given: at.Batch) -> None:
    """One update by plain gradient descent."""
    loss_compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD, 0.1))
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, 1.0)
    at.run_epoch([given], model, loss_compute, descent, schedule)


def test_every_part_is_tested():
    for kind, parts in at.PARTS.items():
        tested = {way[kind] for way in WAYS.values() if kind in way}
        assert tested - {"plain"} == set(parts), kind


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in OURS for name in OURS[kind]])
def test_every_part_fits_the_sizes_that_the_program_chooses(kind, name):
    config = at.Config(**{kind: name})
    with torch.device("meta"):
        model = at.new_model(config, (range(50), range(50)))
    assert at.arguments_of(model)[kind] == name


# From training to a translation -----------------------------------------------------------------


def test_cached_decoding_equals_plain_decoding(way):
    assert at.cache_agrees(made(way))


def test_a_beam_finds_what_the_search_of_one_sentence_finds(way):
    """A beam of one finds what greedy decoding finds."""
    model = made(way)
    given = batch()
    model.generator.proj.weight.data *= 2
    arguments = model, given.src, given.src_mask, torch.tensor([12, 9, 12]), at.START
    assert torch.equal(at.beam_search(*arguments, beam=1), at.greedy_decode(*arguments))
    rows = at.beam_search(*arguments, beam=4, alpha=0.6)
    for n, row in enumerate(rows.tolist()):
        one = slice(n, n + 1)
        with at.evaluating(model):
            log_probs_after = at.log_probs_of(model, given.src[one], given.src_mask[one])
            best = at.search_one(log_probs_after, arguments[3][n] - 1, beam=4, alpha=0.6)
        assert row == best + [at.PAD] * (len(row) - len(best))


def test_a_step_of_training_changes_every_weight(way):
    model = made(way, dropout=0.0)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    step(model, batch())
    for name, weight in model.named_parameters():
        noise = "linears.1.bias" in name  # the same score for every key of a query: no gradient
        assert noise or not torch.equal(weight, before[name]), name


def test_the_kernel_for_gpus_computes_the_same_states(way, monkeypatch):
    model = made(way).double()  # without a norm the states are large
    given = batch()
    inputs = given.src, given.tgt, given.src_mask, given.tgt_mask
    plain = model(*inputs)
    calls = []

    def fused(query, key, value, mask=None, dropout=None, bias=None):
        calls.append(query.shape)
        return at.fused_attention(query, key, value, mask, dropout, bias)

    monkeypatch.setattr(at, "attention", fused)
    torch.testing.assert_close(model(*inputs), plain, rtol=1e-6, atol=1e-6)
    assert calls
    assert model.decoder.layers[0].src_attn.attn is None


def test_maps_are_the_weights_of_each_attention(way):
    """The weights that `attend` computes, without dropout, from what each attention was given."""
    model = made(way).train()
    given = batch()
    seen = {}

    def remember(attn, inputs):
        seen[attn] = inputs

    attentions = at.attentions_of(model)
    hooks = [a.register_forward_pre_hook(remember) for each in attentions.values() for a in each]
    maps = at.attention_weights(model, given)
    for hook in hooks:
        hook.remove()
    assert model.training
    model.eval()
    masks = given.src_mask, given.tgt_mask, given.src_mask
    for (kind, weights), mask in zip(maps.items(), masks, strict=True):
        assert weights.shape[:3] == (3, 2, 4)  # (B, N, H, T, S)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert weights.masked_select(~mask[:, None, None]).eq(0).all()
        for number, attn in enumerate(attentions[kind]):
            query, key, value, mask = seen[attn]
            q, k, v = attn.project(query, key, value)
            _, expected = attn.attend(q, k, v, mask.unsqueeze(1))
            torch.testing.assert_close(weights[:, number], expected)


# Files and the command line ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabularies() -> tuple:
    return at.learn_subwords(at.read_builtin(), 60)


def test_a_folder_gives_back_the_same_model(way, vocabularies, tmp_path):
    model = made(way, src_vocab=60, tgt_vocab=60, share_embeddings=True)
    at.save_model(at.Translator("toy", model, "none", ("de", "en"), vocabularies), tmp_path)
    back = at.load_trained_model(tmp_path, torch.device("cpu")).model
    assert back.arguments == model.arguments
    assert list(map(type, back.modules())) == list(map(type, model.modules()))
    given = batch()
    inputs = given.src, given.tgt, given.src_mask, given.tgt_mask
    assert torch.equal(back.generator(back(*inputs)), model.generator(model(*inputs)))


def options(way: dict) -> list[str]:
    """A way as the command line takes it."""
    words = []
    for name, value in way.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", value]
    return words


@pytest.mark.parametrize(
    ("way", "is_mine"), [(TODAY, False), (MINE | {"norm_first": False}, True)], ids=["ours", "mine"]
)
def test_parts_at_the_command_line(way, is_mine, small_corpus, tmp_path, capsys):
    """Train, go on, translate and evaluate; without --parts an error says how to add a part."""
    run = str(tmp_path / "run")
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 4 --max-len 64 --batch-tokens 512 --warmup 1"
    train = ["train", "--folder", run, "--data", str(small_corpus), *sizes.split(), *options(way)]
    parts = ["--parts", str(MY_PARTS)]
    assert at.main([*train, "--epochs", "1", *parts]) == 0
    assert at.main(["resume", run, "--epochs", "2", *parts]) == 0
    history = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    assert {entry["epoch"] for entry in history} == {1, 2}
    arguments = json.loads(Path(run, "config.json").read_bytes())["model"]
    assert arguments.items() >= way.items()
    for command in (["translate", "Ein Mann lacht."], ["evaluate", "--split", "val"]):
        assert at.main([*command, "--model", run, *parts]) == 0
    said = capsys.readouterr()
    assert "val: BLEU" in said.out
    assert "error" not in said.err
    leave_only_ours()
    for command in (["resume", run], ["translate", "Hund", "--model", run]):
        assert at.main(command) == is_mine
        if is_mine:
            error = capsys.readouterr().err
            assert error.startswith("error: ")
            assert error.count("\n") == 1
            assert "--parts FILE.py" in error
            assert '"] = YourClass' in error


def test_a_missing_file_of_parts_is_refused(tmp_path, capsys):
    assert at.main(["translate", "Hund", "--parts", str(tmp_path / "mine.py")]) == 1
    assert "mine.py is missing" in capsys.readouterr().err


# Parts that a cache cannot follow ---------------------------------------------------------------


class WindowOfQueries(at.MultiHeadedAttention):
    """Nine places back, counted as if the first query stood at place 0."""

    def attend(self, q, k, v, mask):
        queries = torch.arange(q.size(-2)).unsqueeze(1)
        near = (queries - torch.arange(k.size(-2))).abs() < 9
        return at.attention(q, k, v, near if mask is None else (mask != 0) & near)


class SlopeFromZero(at.MultiHeadedAttention):
    """A bias by distance as if the first query stood at place 0."""

    def attend(self, q, k, v, mask):
        queries = torch.arange(q.size(-2)).unsqueeze(1)
        distance = (queries - torch.arange(k.size(-2))).abs()
        return at.attention(q, k, v, mask, bias=-0.1 * distance)


class IgnoresTheMask(at.MultiHeadedAttention):
    """Sees the future where there is one."""

    def attend(self, q, k, v, mask):
        return at.attention(q, k, v)


class CausalConvolution(at.PositionwiseFeedForward):
    """Reads the position before as well."""

    def forward(self, x):
        before = nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
        return super().forward(x + before)


class GateThatStartsAtZero(at.PositionwiseFeedForward):
    """Sums over positions, as soon as training has moved its gate."""

    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__(d_model, d_ff, dropout)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return super().forward(x) + self.gate * x.cumsum(dim=1)


class NormOverPositions(nn.Module):
    """Takes the mean over the positions away."""

    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return x - 0.1 * x.mean(dim=1, keepdim=True)


WRONG = [
    ("attention", WindowOfQueries),
    ("attention", SlopeFromZero),
    ("attention", IgnoresTheMask),
    ("feed_forward", CausalConvolution),
    ("feed_forward", GateThatStartsAtZero),
    ("norm", NormOverPositions),
]


@pytest.mark.parametrize("kind, part", WRONG, ids=[part.__name__ for _, part in WRONG])
def test_cache_agrees_notices_a_wrong_part(kind, part):
    assert not at.cache_agrees(at.tiny_model(**{kind: part}))


def test_training_refuses_a_wrong_part_when_it_starts(small_corpus, tmp_path):
    at.PARTS["feed_forward"]["wrong"] = CausalConvolution
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 4, "epochs": 1}
    config = at.Config(data=str(small_corpus), feed_forward="wrong", **sizes)
    with pytest.raises(at.UserError, match="feed_forward wrong"):
        at.train_model(config, tmp_path / "run")
    assert not (tmp_path / "run" / "last.pt").exists()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("attention", ["plain", "wrong"])
def test_cache_agrees_leaves_model_and_random_state_as_they_were(attention, training):
    at.PARTS["attention"]["wrong"] = IgnoresTheMask
    model = made({"attention": attention}).train(training)
    step(model, batch())
    model.train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    map_before = model.decoder.layers[0].self_attn.attn.clone()
    state = torch.get_rng_state()
    assert at.cache_agrees(model) == (attention == "plain")
    assert torch.equal(torch.get_rng_state(), state)
    assert {module.training for module in model.modules()} == {training}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(model.decoder.layers[0].self_attn.attn, map_before)
    assert all(weight.requires_grad for weight in model.parameters())
    step(model, batch())  # and it can be trained further


def test_cache_agrees_takes_a_tolerance():
    model = at.tiny_model()
    assert at.cache_agrees(model)
    assert not at.cache_agrees(model, tolerance=0.0)
