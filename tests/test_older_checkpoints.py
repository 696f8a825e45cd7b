"""State dicts of the code of 2018 and 2022, built here from their description alone."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, from_older_checkpoint, pad_ids

SIZES = {"source": 11, "target": 13, "N": 2, "D": 12, "hidden": 20, "positions": 9}
HEADS = 3


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


def sinusoids(positions: int, D: int) -> Tensor:
    """Sine and cosine in turn, one number after the other: (1, positions, D)."""
    wave = math.sin, math.cos
    rows = [
        [wave[i % 2](p / 10_000 ** ((i - i % 2) / D)) for i in range(D)] for p in range(positions)
    ]
    return torch.tensor([rows])


def older_state(source: int, target: int, N: int, D: int, hidden: int, positions: int) -> dict:
    """Random weights under the names, and in the shapes, of the older code."""
    linears, norms = {"generator.proj": (target, D)}, ["encoder.norm", "decoder.norm"]
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "src_attn"])):
        for layer in (f"{stack}.layers.{n}" for n in range(N)):
            linears |= {f"{layer}.{a}.linears.{n}": (D, D) for a in attentions for n in range(4)}
            linears[f"{layer}.feed_forward.w_1"] = hidden, D
            linears[f"{layer}.feed_forward.w_2"] = D, hidden
            norms += [f"{layer}.sublayer.{n}.norm" for n in range(1 + len(attentions))]
    state = {f"{name}.weight": torch.randn(shape) * 0.3 for name, shape in linears.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) * 0.3 for name, shape in linears.items()}
    state |= {f"{name}.a_2": torch.rand(D) + 0.5 for name in norms}
    state |= {f"{name}.b_2": torch.randn(D) * 0.3 for name in norms}
    for side, words in (("src", source), ("tgt", target)):
        state[f"{side}_embed.0.lut.weight"] = torch.randn(words, D) * D**-0.5
        state[f"{side}_embed.1.pe"] = sinusoids(positions, D)
    return state


def older_log_probs(state: dict[str, Tensor], h: int, batch: Batch) -> Tensor:
    """What the older code computes with such a state dict, step by step."""

    def norm(x: Tensor, at: str) -> Tensor:
        s = x.std(dim=-1, unbiased=True, keepdim=True)
        return (
            state[f"{at}.a_2"] * (x - x.mean(dim=-1, keepdim=True)) / (s + 1e-6)
            + state[f"{at}.b_2"]
        )

    def linear(x: Tensor, at: str) -> Tensor:
        return x @ state[f"{at}.weight"].T + state[f"{at}.bias"]

    def attend(x: Tensor, y: Tensor, mask: Tensor, at: str) -> Tensor:
        q, k, v = (linear(z, f"{at}.linears.{n}").chunk(h, dim=-1) for n, z in enumerate((x, y, y)))
        heads = [
            (a @ b.mT / math.sqrt(a.size(-1))).masked_fill(~mask, -1e9).softmax(dim=-1) @ c
            for a, b, c in zip(q, k, v, strict=True)
        ]
        return linear(torch.cat(heads, dim=-1), f"{at}.linears.3")

    def stack(name: str, ids: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        side = "src" if memory is None else "tgt"
        table, pe = state[f"{side}_embed.0.lut.weight"], state[f"{side}_embed.1.pe"]
        x = table[ids] * math.sqrt(table.size(1)) + pe[:, : ids.size(1)]
        layers = sum(n.startswith(name) and n.endswith("w_1.bias") for n in state)
        for at in (f"{name}.layers.{n}" for n in range(layers)):
            y = norm(x, f"{at}.sublayer.0.norm")
            x = x + attend(y, y, mask, f"{at}.self_attn")
            if memory is not None:
                y = norm(x, f"{at}.sublayer.1.norm")
                x = x + attend(y, memory, batch.src_mask, f"{at}.src_attn")
            y = norm(x, f"{at}.sublayer.{1 if memory is None else 2}.norm")
            x = x + linear(linear(y, f"{at}.feed_forward.w_1").relu(), f"{at}.feed_forward.w_2")
        return norm(x, f"{name}.norm")

    memory = stack("encoder", batch.src, batch.src_mask)
    states = stack("decoder", batch.tgt, batch.tgt_mask, memory)
    return F.log_softmax(linear(states, "generator.proj"), dim=-1)


def some_batch(source: int = 11, target: int = 13) -> Batch:
    """Two pairs of unequal lengths, so that both sides have padding."""
    ids = [torch.randint(3, limit, (8,)).tolist() for limit in (source, target)]
    src = pad_ids([[*ids[0][:3], END], [*ids[0][3:], END]])
    return Batch(src, pad_ids([[START, *ids[1][:5], END], [START, *ids[1][5:], END]]))


def log_probs(model: tutorial.EncoderDecoder, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model.generator(model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask))


def refused(state: dict, **how) -> str:
    with pytest.raises(ValueError) as caught:
        from_older_checkpoint(state, **{"h": HEADS} | how)
    return str(caught.value)


# What it says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "h, change",
    [
        (3, {}),
        (1, {"N": 1}),
        (6, {"N": 3, "source": 17, "target": 7}),
        (2, {"D": 4, "hidden": 3}),
        (8, {"D": 64, "hidden": 48}),
    ],
    ids=str,
)
def test_the_same_log_probabilities(h, change):
    sizes = SIZES | change
    state, batch = older_state(**sizes), some_batch(sizes["source"], sizes["target"])
    ours = log_probs(from_older_checkpoint(state, h=h), batch)
    assert ours.shape == (*batch.tgt.shape, sizes["target"])
    torch.testing.assert_close(ours, older_log_probs(state, h, batch), atol=1e-4, rtol=0)


def test_eight_heads_unless_told():
    state, batch = older_state(**SIZES | {"D": 16}), some_batch()
    assert torch.equal(
        log_probs(from_older_checkpoint(state), batch),
        log_probs(from_older_checkpoint(state, h=8), batch),
    )


def test_the_number_of_heads_matters():
    state, batch = older_state(**SIZES), some_batch()
    wrong = log_probs(from_older_checkpoint(state, h=2), batch)
    assert (wrong - older_log_probs(state, HEADS, batch)).abs().max() > 0.01


def test_sizes_are_read_from_the_state():
    model = from_older_checkpoint(older_state(**SIZES), h=HEADS)
    assert len(model.encoder.layers) == len(model.decoder.layers) == SIZES["N"]
    assert model.src_embed[0].lut.weight.shape == (11, 12)
    assert model.generator.proj.weight.shape == (13, 12)
    assert model.encoder.layers[1].feed_forward.widen.weight.shape == (20, 12)
    assert model.src_embed[1].pe.shape == model.tgt_embed[1].pe.shape == (1, 9, 12)
    assert model.decoder.layers[0].src_attn.h == HEADS


def flat_state() -> dict:
    """Small inputs and layers that add little: deviations of about 0.1 to 0.2 at the norms."""
    state = older_state(**SIZES)
    for name in state:
        if "embed" in name:
            state[name] *= 0.14
        elif "linears.3" in name or "w_2" in name:
            state[name] *= 0.01
    return state


def test_flat_vectors_need_a_tiny_eps():
    state, batch, deviations = flat_state(), some_batch(), []
    expected = older_log_probs(state, HEADS, batch)
    model = from_older_checkpoint(state, h=HEADS)
    for module in model.modules():
        if isinstance(module, tutorial.LayerNorm):
            module.register_forward_pre_hook(
                lambda _, inputs: deviations.append(inputs[0].std(-1, unbiased=False).flatten())
            )
    torch.testing.assert_close(log_probs(model, batch), expected, atol=1e-4, rtol=0)
    assert torch.cat(deviations).min() < 0.1 and torch.cat(deviations).max() < 0.25
    larger = log_probs(from_older_checkpoint(state, h=HEADS, eps=1e-5), batch)
    assert (larger - expected).abs().max() > 3e-4


# The state dict ---------------------------------------------------------------------------------


def test_from_a_file():
    state, batch = older_state(**SIZES), some_batch()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read = torch.load(file, weights_only=True, map_location="cpu")
    ours = log_probs(from_older_checkpoint(read, h=HEADS), batch)
    torch.testing.assert_close(ours, older_log_probs(state, HEADS, batch), atol=1e-4, rtol=0)


def test_half_precision_is_read_without_further_loss():
    half = {name: tensor.half() for name, tensor in older_state(**SIZES).items()}
    whole, batch = {name: tensor.float() for name, tensor in half.items()}, some_batch()
    ours = [log_probs(from_older_checkpoint(state, h=HEADS), batch) for state in (half, whole)]
    assert torch.equal(*ours)


def test_the_model_stands_alone():
    state, batch = older_state(**SIZES), some_batch()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    model = from_older_checkpoint(state, h=HEADS)
    before = log_probs(model, batch)
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.items())
    for tensor in state.values():
        tensor.zero_()
    assert torch.equal(log_probs(model, batch), before)
    assert not model.training and all(p.requires_grad for p in model.parameters())


def test_stored_positions_are_used_whatever_they_are():
    state, batch = older_state(**SIZES), some_batch()
    plain = older_log_probs(state, HEADS, batch)
    for side in ("src", "tgt"):
        state[f"{side}_embed.1.pe"] = torch.randn(1, 9, 12)
    expected = older_log_probs(state, HEADS, batch)
    assert (plain - expected).abs().max() > 0.01
    ours = log_probs(from_older_checkpoint(state, h=HEADS), batch)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_it_decodes():
    model = from_older_checkpoint(older_state(**SIZES), h=HEADS)
    src = pad_ids([[4, 5, 6, END], [7, END]])
    written = tutorial.greedy_decode(model, src, (src != PAD).unsqueeze(1), 6, START)
    assert written.shape[0] == 2 and written.shape[1] <= 7


# What does not fit ------------------------------------------------------------------------------


def test_a_missing_name_is_named():
    whole = older_state(**SIZES | {"N": 1})
    for name in whole:
        message = refused({other: tensor for other, tensor in whole.items() if other != name})
        assert name in message, message


def test_an_entry_that_is_no_tensor_is_named():
    whole = older_state(**SIZES | {"N": 1})
    for name in whole:
        assert name in refused(whole | {name: [1.0, 2.0]})


def test_a_wrong_shape_is_refused():
    """Sizes are read from five axes: if one of these is wrong, another name may get the blame."""
    whole = older_state(**SIZES | {"N": 1})
    sizing = ("src_embed.0", "generator.proj.weight", "encoder.layers.0.feed_forward.w_1.weight")
    for name, tensor in whole.items():
        read = name.startswith((*sizing, "src_embed.1"))
        for wrong in (tensor[..., :-2], tensor.unsqueeze(0), tensor.sum()):
            message = refused(whole | {name: wrong})
            assert read or name in message, message


@pytest.mark.parametrize(
    "name, shape, words",
    [
        ("epoch", (), ["epoch", "nothing"]),
        ("encoder.norm.scale", (12,), ["encoder.norm.scale", "nothing", "[12]"]),
        ("encoder.norm.a_2", (11,), ["encoder.norm.a_2", "[12]", "[11]"]),
        ("encoder.norm.a_2", (1,), ["encoder.norm.a_2", "[12]", "[1]"]),
        ("decoder.layers.2.feed_forward.w_1.bias", (20,), ["decoder.layers.2.", "nothing"]),
        ("encoder.layers.5.feed_forward.w_1.bias", (20,), ["decoder.layers.2.", "no tensor"]),
        ("src_embed.1.pe", (9, 1, 12), ["src_embed.1.pe", "[1, 1, 12]", "[9, 1, 12]"]),
        ("tgt_embed.1.pe", (1, 8, 12), ["tgt_embed.1.pe", "[1, 9, 12]", "[1, 8, 12]"]),
        ("tgt_embed.0.lut.weight", (14, 12), ["tgt_embed.0.lut.weight", "[13, 12]", "[14, 12]"]),
    ],
)
def test_a_state_dict_of_another_layout(name, shape, words):
    message = refused(older_state(**SIZES) | {name: torch.ones(shape)})
    assert all(word in message for word in words), message


def test_a_number_among_the_tensors():
    assert "step" in refused(older_state(**SIZES) | {"step": 7})


@pytest.mark.parametrize("h", [5, 7, 24])
def test_heads_that_do_not_divide(h):
    assert refused(older_state(**SIZES), h=h) == f"d_model (12) must be divisible by h ({h})"


@pytest.mark.parametrize("h", [0, -3])
def test_heads_below_one(h):
    assert f"{h}" in refused(older_state(**SIZES), h=h)


def test_other_dictionaries():
    state = older_state(**SIZES)
    for other in (
        {},
        {"model": state},
        {f"module.{name}": tensor for name, tensor in state.items()},
        tutorial.tiny_model().state_dict(),
        tutorial.nn.Linear(2, 3).state_dict(),
    ):
        message = refused(other)
        assert "older" in message and ("src_embed.0.lut.weight" in message or "w_1" in message)
