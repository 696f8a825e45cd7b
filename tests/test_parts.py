"""Every part, ours or a reader's, in training, decoding, maps, files and the command line."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import log_of
from torch import nn
from torch.testing import assert_close

import the_annotated_transformer as at

MY_PARTS = Path(__file__).with_name("my_parts.py")
TODAY = {
    "attention": "rotary-grouped", "feed_forward": "swiglu", "norm": "rms", "positions": "none",
    "bias": False,
}  # fmt: skip
MINE = {
    "attention": "learnt-distance", "feed_forward": "soft", "positions": "ramp",
    "encoder_layer": "parallel", "decoder_layer": "feed-forward-first",
}  # fmt: skip
WAYS = {
    "plain": {},
    "plain post-norm": {"norm_first": False},
    "rotary": {"attention": "rotary", "positions": "none"},
    "grouped": {"attention": "grouped"},
    "multi-query": {"attention": "multi-query", "norm_first": False},
    "normed": {"attention": "normed"},
    "modern": {"attention": "modern", "positions": "none"},
    "window": {"attention": "short-window"},
    "latent": {"attention": "latent"},
    "experts": {"feed_forward": "experts"},
    "distance": {"attention": "distance", "positions": "none", "norm_first": False},
    "all of today": TODAY,
    "sharp": {"attention": "sharp"},
    "all of mine": MINE | {"norm_first": False},
    "mine with today's": TODAY | {"decoder_layer": "feed-forward-first", "norm": "unit"},
}
SIZES = {
    "N": 2, "d_model": 16, "d_ff": 32, "h": 4, "dropout": 0.1, "attention_dropout": 0.1,
    "share_embeddings": False, "max_len": 32,
}  # fmt: skip
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
    return WAYS[request.param]


def made(way: dict, vocab=(11, 13), **more) -> at.EncoderDecoder:
    """A model of 11 source and 13 target tokens in eval mode; no weight is zero or one."""
    torch.manual_seed(1)
    model = at.build_model(at.ModelConfig(**SIZES | way | more), *vocab).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def batch() -> at.Batch:
    """Three sentences of different lengths, and a target of six tokens for each."""
    torch.manual_seed(2)
    src = at.pad_ids([[4, 5, 6, 7, 1], [9, 4, 1], [10, 8, 8, 1]])
    return at.Batch(src, torch.randint(4, 13, (3, 7)))


def states_of(model: at.EncoderDecoder) -> torch.Tensor:
    given = batch()
    return model(given.src, given.tgt, given.src_mask, given.tgt_mask)


def step(model: at.EncoderDecoder) -> None:
    """One update by plain gradient descent."""
    loss_compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD, 0.1))
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, 1.0)
    at.run_epoch([batch()], model, loss_compute, descent, schedule)


# From training to a translation -----------------------------------------------------------------


def test_a_step_of_training_changes_every_weight(way):
    model = made(way, dropout=0.0)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    step(model)
    for name, weight in model.named_parameters():
        noise = "linears.1.bias" in name  # the same score for every key of a query: no gradient
        at_rest = ".experts." in name  # those that no position has chosen
        assert noise or at_rest or not torch.equal(weight, before[name]), name


def test_in_bf16_it_computes_about_the_same(way):
    model = made(way)
    exact = states_of(model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = states_of(model)
    assert (rounded - exact).norm() < 0.1 * exact.norm()


def test_a_beam_finds_what_the_search_of_one_sentence_finds_without_a_cache(way):
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


def test_maps_are_the_weights_of_each_attention(way):
    """The weights that `attend` computes, without dropout, from what each attention was given."""
    model = made(way).train()
    given = batch()
    seen = {}
    attentions = at.attentions_of(model)
    for attn in (attn for each in attentions.values() for attn in each):
        attn.register_forward_pre_hook(lambda attn, inputs: seen.update({attn: inputs}))
    maps = at.attention_weights(model, given)
    assert model.training
    model.eval()
    for kind, weights in maps.items():
        assert weights.shape[:3] == (3, 2, 4)  # (B, N, H, T, S)
        assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        for number, attn in enumerate(attentions[kind]):
            query, key, value, mask = seen[attn]
            assert weights[:, number].masked_select(~mask.unsqueeze(1)).eq(0).all()
            q, k, v = attn.project(query, key, value)
            assert_close(weights[:, number], attn.attend(q, k, v, mask.unsqueeze(1))[1])


# Weights and names ------------------------------------------------------------------------------


def test_a_part_keeps_the_weights_that_it_begins_with():
    named = {"attention": "learnt-distance", "norm": "unit", "positions": "ramp"}
    model = at.build_model(at.ModelConfig(**SIZES | named), 11, 13)
    assert model.get_parameter("encoder.layers.1.self_attn.rates").eq(0.1).all()
    assert model.get_parameter("decoder.layers.0.sublayer.2.norm.length") == 4
    assert model.get_parameter("tgt_embed.1.slope").eq(1 / 32).all()


@pytest.mark.parametrize("kind", ["attention", "feed_forward", "norm"])
def test_a_part_is_made_anew_for_each_place(kind):
    class Drawn(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.drawn = nn.Parameter(torch.randn(config.d_model))

    at.PARTS[kind]["drawn"] = Drawn
    weights = at.build_model(at.ModelConfig(**SIZES | {kind: "drawn"}), 11, 13).named_parameters()
    drawn = [tuple(weight.tolist()) for name, weight in weights if name.endswith("drawn")]
    assert len(set(drawn)) == len(drawn) > 3


def test_what_a_model_or_a_layer_does_not_have_cannot_be_exchanged():
    model = at.tiny_model()
    with pytest.raises(ValueError, match="generator"):
        at.exchange(model, "generator", nn.Identity)
    at.exchange(model, "encoder_layer", lambda: nn.Linear(16, 16))
    names = {"attention": "self_attn", "feed_forward": "feed_forward", "norm": "norm"}
    for kind, name in names.items():
        with pytest.raises(ValueError, match=f"Linear has no {name}"):
            at.exchange(model, kind, nn.Identity)


# Files and the command line ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabularies() -> tuple:
    return at.learn_subwords(at.read_builtin(), 60)


def test_a_folder_gives_back_the_same_model(way, vocabularies, tmp_path):
    config = at.ModelConfig(**SIZES | way | {"share_embeddings": True})
    model = made(way, vocab=(60, 60), share_embeddings=True)
    about = "toy", model, "none", ("de", "en"), vocabularies
    at.save_model(at.Translator(*about, config=config), tmp_path)
    back = at.load_trained_model(tmp_path, torch.device("cpu")).model
    assert list(map(type, back.modules())) == list(map(type, model.modules()))
    assert torch.equal(states_of(back), states_of(model))


def test_a_part_that_the_settings_do_not_name_is_not_lost_in_silence(vocabularies, tmp_path):
    config = at.ModelConfig(**SIZES | {"share_embeddings": True})
    model = at.build_model(config, 60, 60)
    at.exchange(model, "positions", lambda: nn.Dropout(0.1))
    about = "toy", model, "none", ("de", "en"), vocabularies
    with pytest.raises(at.UserError, match="PARTS"):
        at.save_model(at.Translator(*about, config=config), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("way, is_mine", [(TODAY, False), (MINE, True)], ids=["ours", "mine"])
def test_parts_at_the_command_line(way, is_mine, small_corpus, tmp_path, capsys):
    """Train, go on, translate and evaluate; without --parts an error says how to add a part."""
    run = str(tmp_path / "run")
    train = ["train", "--folder", run, "--data", str(small_corpus), "--epochs", "1"]
    train += "--N 1 --d-model 16 --d-ff 32 --h 4 --max-len 64 --batch-tokens 512".split()
    for name, value in way.items():
        option = name.replace("_", "-")
        train += [f"--{option}", value] if value is not False else [f"--no-{option}"]
    if is_mine:
        train += ["--optimizer", "descent", "--schedule", "flat"]
    parts = ["--parts", str(MY_PARTS)]
    assert at.main([*train, *parts]) == 0
    assert at.main(["resume", run, "--epochs", "2", *parts]) == 0
    assert {entry["epoch"] for entry in log_of(Path(run))} == {1, 2}
    assert json.loads(Path(run, "config.json").read_bytes())["settings"].items() >= way.items()
    for command in (["translate", "Ein Mann lacht."], ["evaluate", "--split", "val"]):
        assert at.main([*command, "--model", run, *parts]) == 0
    leave_only_ours()
    capsys.readouterr()
    for command in (["resume", run], ["translate", "Hund", "--model", run]):
        assert at.main(command) == is_mine
        assert ("--parts" in capsys.readouterr().err) == is_mine


# Parts that a cache cannot follow ---------------------------------------------------------------


class WindowOfQueries(at.MultiHeadedAttention):
    """Nine places back, counted as if the first query stood at place 0."""

    reach = 9

    def attend(self, q, k, v, mask):
        queries = torch.arange(q.size(-2)).unsqueeze(1)
        near = (queries - torch.arange(k.size(-2))).abs() < self.reach
        return at.attention(q, k, v, near if mask is None else (mask != 0) & near)


class FarWindow(WindowOfQueries):
    """The same, which a short sentence does not show."""

    reach = 200


class WholeSentences(at.MultiHeadedAttention):
    """Refuses a position that comes alone."""

    def attend(self, q, k, v, mask):
        if q.size(-2) != k.size(-2) and mask is None:
            raise ValueError("attention wrong: one position at a time")
        return super().attend(q, k, v, mask)


class GateThatStartsAtZero(at.PositionwiseFeedForward):
    """Sums over positions, as soon as training has moved its gate."""

    def __init__(self, d_model, d_ff):
        super().__init__(d_model, d_ff)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return super().forward(x) + self.gate * x.cumsum(dim=1)


class NormOverPositions(nn.Module):
    """Takes the mean over the positions away."""

    def forward(self, x):
        return x - 0.1 * x.mean(dim=1, keepdim=True)


WRONG = [
    ("attention", lambda config: WindowOfQueries(config.h, config.d_model)),
    ("attention", lambda config: FarWindow(config.h, config.d_model)),
    ("attention", lambda config: WholeSentences(config.h, config.d_model)),
    ("feed_forward", lambda config: GateThatStartsAtZero(config.d_model, config.d_ff)),
    ("norm", lambda config: NormOverPositions()),
]


@pytest.mark.parametrize("kind, make", WRONG)
def test_a_run_refuses_a_wrong_part_when_it_begins(kind, make, small_corpus, tmp_path):
    at.PARTS[kind]["wrong"] = make
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 4, "epochs": 1}
    config = at.Config(data=str(small_corpus), **{kind: "wrong"}, **sizes)
    with pytest.raises(at.UserError, match=f"{kind} wrong"):
        at.train_model(config, tmp_path / "run")
    assert not (tmp_path / "run" / "last.pt").exists()


@pytest.mark.parametrize("attention", [at.MultiHeadedAttention, WindowOfQueries])
def test_the_check_of_the_cache_leaves_model_and_random_state_as_they_were(attention):
    model = at.tiny_model().train()
    at.exchange(model, "attention", lambda: attention(4, 16))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert at.cache_agrees(model) == (attention is at.MultiHeadedAttention)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
