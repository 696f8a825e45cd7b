"""The model, its attention, masks and weights, beyond what the checks of the text show."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import the_annotated_transformer as at

SIZES = {"N": 1, "d_model": 8, "d_ff": 16, "h": 2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def inputs() -> tuple[torch.Tensor, ...]:
    """Source (2, 5) and target (2, 4) with their masks; one source is padded."""
    src_mask = torch.ones(2, 1, 5, dtype=torch.bool)
    src_mask[1, 0, 3:] = False
    return torch.randint(11, (2, 5)), torch.randint(13, (2, 4)), src_mask, at.subsequent_mask(4)


# Attention and masks ----------------------------------------------------------------------------


def random_attention_inputs() -> tuple[torch.Tensor, ...]:
    """Three queries, five keys, five values, a mask; two sentences and four heads."""
    query = torch.randn(2, 4, 3, 8)
    key = torch.randn(2, 4, 5, 8)
    value = torch.randn(2, 4, 5, 6)
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[..., :2] = True  # each query may see at least two keys
    return query, key, value, mask


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_attention_equals_torchs(dtype):
    """With a bias for each head or none, and masks of any shape and type."""
    *given, mask = random_attention_inputs()
    query, key, value = (x.to(dtype) for x in given)
    masks = torch.ones(1, 1, 1, 5).bool(), mask, mask.int(), mask.float(), mask[:, :, :1]
    for m, size in itertools.product(masks, [(1, 1, 1), (4, 3, 5), (2, 1, 3, 5)]):
        bias = torch.randn(size)
        added = bias.to(dtype).masked_fill(m == 0, -torch.inf)
        expected = functional.scaled_dot_product_attention(query, key, value, added)
        assert_close(at.attention(query, key, value, m, bias=bias)[0], expected)


@pytest.mark.parametrize(
    "wrong",
    [
        nn.Transformer.generate_square_subsequent_mask(5),  # zeros and −∞
        torch.zeros(5, 5).masked_fill(at.subsequent_mask(5)[0] == 0, -1e9),
        torch.zeros(5, 5),  # to be added, it closes nothing
        torch.tensor([1.0, 1.0, 0.5, 1.0, 1.0]),
        torch.tensor([1, 2, 0, 0, 1]),
        torch.tensor([1.0, torch.nan, 0.0, 0.0, 1.0]),
    ],
)
def test_a_mask_that_is_meant_to_be_added_or_of_other_numbers_is_refused(wrong):
    query, key, value, _ = random_attention_inputs()
    with pytest.raises(ValueError, match="mask"):
        at.attention(query, key, value, wrong.expand(5, 5)[: query.size(-2)])
    with pytest.raises(ValueError, match="mask"):
        at.tiny_model()(*(torch.randint(11, (1, 5)) for _ in range(2)), None, wrong.expand(1, 5, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_may_see_no_key_stays_finite(dtype):
    query, key, value, mask = random_attention_inputs()
    mask[0, 0, 1] = False
    given = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
    output, weights = at.attention(*given, mask)
    output.float().square().sum().backward()
    assert output.dtype == dtype
    assert output.isfinite().all()
    closed = ~mask.expand_as(weights)
    closed[0, :, 1] = False
    assert weights[closed].eq(0).all()
    assert all(tensor.grad.isfinite().all() for tensor in given)


def test_the_masks_and_targets_of_a_batch():
    """The number of padding is an argument, and a mask is right on any device."""
    for pad in (at.PAD, 9):
        src = torch.tensor([[5, 6, at.END], [7, at.END, pad]])
        tgt = torch.tensor([[at.START, 8, 4, at.END], [at.START, at.END, pad, pad]])
        batch = at.Batch(src, tgt, pad)
        assert batch.src_mask.int().tolist() == [[[1, 1, 1]], [[1, 1, 0]]]
        assert batch.tgt[0].tolist() == [at.START, 8, 4]
        assert batch.tgt_y[0].tolist() == [8, 4, at.END]
        for sentence, query, key in itertools.product(range(2), range(3), range(3)):
            real = batch.tgt[sentence, key] != pad
            assert batch.tgt_mask[sentence, query, key] == (real and key <= query)
        assert batch.ntokens == 4
    moved = at.move(batch, torch.device("meta"))
    assert {getattr(moved, name).device.type for name in ("src", "tgt_y", "tgt_mask")} == {"meta"}
    assert moved.ntokens == 4


def test_padding_changes_no_real_output():
    model = at.tiny_model()
    src = torch.randint(11, (1, 5))
    tgt = torch.randint(13, (1, 3))
    alone = model(src, tgt, None, at.subsequent_mask(3))
    padded_src = functional.pad(src, (0, 4), value=7)
    padded_tgt = functional.pad(tgt, (0, 2), value=7)
    src_mask = (torch.arange(9) < 5).view(1, 1, 9)
    tgt_mask = at.subsequent_mask(5) & (torch.arange(5) < 3)
    for dtype in (torch.bool, torch.uint8, torch.long, torch.float):  # of ones and zeros
        padded = model(padded_src, padded_tgt, src_mask.to(dtype), tgt_mask.to(dtype))
        assert_close(padded[:, :3], alone)


def test_without_positions_the_encoder_is_permutation_equivariant():
    model = at.tiny_model()
    src = torch.randint(11, (2, 5))
    order = torch.tensor([3, 0, 4, 1, 2])
    words_only = model.src_embed[0]
    permuted = model.encoder(words_only(src[:, order]), None)
    assert_close(permuted, model.encoder(words_only(src), None)[:, order])
    with_order = model.encode(src[:, order], None)
    assert not torch.allclose(with_order, model.encode(src, None)[:, order])


def test_a_future_token_changes_no_earlier_output():
    model = at.tiny_model()
    src = torch.randint(11, (2, 5))
    tgt = torch.randint(13, (2, 6))
    changed = tgt.clone()
    changed[:, 4] = (tgt[:, 4] + 1) % 13
    before = model(src, tgt, None, at.subsequent_mask(6))
    after = model(src, changed, None, at.subsequent_mask(6))
    assert_close(before[:, :4], after[:, :4])
    change = (before[:, 4:] - after[:, 4:]).abs()
    assert change.amax(-1).gt(1e-4).all()


# Parts ------------------------------------------------------------------------------------------


def randomly(module: nn.Module) -> nn.Module:
    """The module with weights of which no two are alike."""
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.3)
    return module


def test_layer_norm_equals_torchs():
    x = (3 + torch.randn(2, 5, 8)) / 1000  # small enough that the place of eps matters
    ours = randomly(at.LayerNorm(8))
    theirs = nn.LayerNorm(8, eps=1e-6)
    theirs.load_state_dict(ours.state_dict())
    assert_close(ours(x), theirs(x))


def copy_attention(ours: at.MultiHeadedAttention, theirs: nn.MultiheadAttention) -> None:
    """Let PyTorch's module use our weights; it keeps the first three projections in one matrix."""
    first = ours.linears[:3]
    theirs.in_proj_weight = nn.Parameter(torch.cat([linear.weight for linear in first]))
    theirs.in_proj_bias = nn.Parameter(torch.cat([linear.bias for linear in first]))
    theirs.out_proj = ours.linears[3]


def copy_layer(ours: at.EncoderLayer | at.DecoderLayer, theirs: nn.Module) -> None:
    """Let PyTorch's encoder or decoder layer use our weights, drawn at random."""
    randomly(ours)
    copy_attention(ours.self_attn, theirs.self_attn)
    if isinstance(ours, at.DecoderLayer):
        copy_attention(ours.src_attn, theirs.multihead_attn)
    theirs.linear1 = ours.feed_forward.widen
    theirs.linear2 = ours.feed_forward.narrow
    for number, connection in enumerate(ours.sublayer, 1):
        setattr(theirs, f"norm{number}", connection.norm)


def in_training(layer: nn.Module, *given, **masks) -> torch.Tensor:
    """The output of a layer; from the same seed, dropout zeroes the same entries."""
    torch.manual_seed(1)
    return layer(*given, **masks)


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_equal_torchs(norm_first):
    """With padding in the source, a causal mask on the target, and dropout."""
    x = torch.randn(1, 3, 8)
    memory = torch.randn(1, 5, 8)
    mask = torch.tensor([[[True, True, True, False, False]]])
    causal = at.subsequent_mask(3)
    form = {"batch_first": True, "norm_first": norm_first}
    attn, src_attn = at.clones(at.MultiHeadedAttention(2, 8, 0.3), 2)
    ff = at.PositionwiseFeedForward(8, 16, 0.3)
    ours = at.EncoderLayer(8, attn, ff, 0.3, norm_first)
    theirs = nn.TransformerEncoderLayer(8, 2, 16, 0.3, **form)
    copy_layer(ours, theirs)
    expected = in_training(theirs, memory, src_key_padding_mask=~mask[0])
    assert_close(in_training(ours, memory, mask), expected)
    ours = at.DecoderLayer(8, attn, src_attn, ff, 0.3, norm_first)
    theirs = nn.TransformerDecoderLayer(8, 2, 16, 0.3, **form)
    copy_layer(ours, theirs)
    masks = {"tgt_mask": ~causal[0], "memory_key_padding_mask": ~mask[0]}
    expected = in_training(theirs, x, memory, **masks)
    assert_close(in_training(ours, x, memory, mask, causal), expected)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_stack_is_its_layers_in_order_and_a_norm_in_pre_norm(norm_first):
    x = torch.randn(2, 3, 16)
    memory = torch.randn(2, 5, 16)
    model = at.tiny_model(norm_first=norm_first)
    encoded = x
    decoded = x
    for encoder_layer in model.encoder.layers:
        encoded = encoder_layer(encoded, None)
    for decoder_layer in model.decoder.layers:
        decoded = decoder_layer(decoded, memory, None, None)
    if norm_first:
        encoded = functional.layer_norm(encoded, (16,), eps=1e-6)
        decoded = functional.layer_norm(decoded, (16,), eps=1e-6)
    assert_close(model.encoder(x, None), encoded)
    assert_close(model.decoder(x, memory, None, None), decoded)


def test_positional_encoding_is_the_formula():
    positions = at.PositionalEncoding(8, 0.0, max_len=50)
    pe = positions(torch.ones(2, 50, 8))[1] - 1
    for p, i in itertools.product((0, 1, 7, 49), range(4)):
        angle = p / 10_000 ** (2 * i / 8)
        assert pe[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert pe[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_one_matrix_moves_every_position():
    pe = at.PositionalEncoding(8, 0.0, max_len=60).pe[0]
    assert_close(pe[:55] @ at.turn(5, 8), pe[5:], atol=1e-5, rtol=0)
    assert_close(pe[5:] @ at.turn(-5, 8), pe[:55], atol=1e-5, rtol=0)


def test_rotate_multiplies_complex_numbers():
    x = torch.randn(9, 8)
    places = torch.arange(9)
    angle = places.unsqueeze(1) / 10_000 ** (torch.arange(0, 8, 2) / 8)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    assert_close(at.rotate(x, places), torch.view_as_real(pairs * turn).flatten(-2))


def test_turned_keys_are_shared_by_groups_and_values_are_not_turned():
    attn = at.draw_weights(at.RotaryGroupedAttention(4, 16, dropout=0.0))
    x = torch.randn(2, 5, 16)
    places = torch.arange(5)
    query, key, value = at.MultiHeadedAttention.project(attn, x, x, x)
    turned = at.rotate(query, places), at.rotate(key, places), value
    mask = torch.rand(2, 5, 5) > 0.5
    mask[:, :, 0] = True  # each query sees something
    expected = functional.scaled_dot_product_attention(*turned, mask[:, None], enable_gqa=True)
    assert_close(attn(x, x, x, mask), attn.join(expected))


@pytest.mark.parametrize("kind", [at.GroupedAttention, at.ModernAttention, at.LatentAttention])
def test_padding_is_hidden_from_shared_keys(kind):
    attn = at.draw_weights(kind(4, 16, dropout=0.0))
    x = torch.randn(2, 5, 16)
    mask = torch.tensor([True, True, True, False, False]).expand(2, 1, 5)  # as of a source
    assert_close(attn(x, x, x, mask)[:, :3], attn(*3 * [x[:, :3]]))


def test_rms_norm_is_that_of_torch():
    x = torch.randn(2, 5, 8) / 1000  # small, so that eps counts
    ours = at.draw_weights(at.RMSNorm(8))
    theirs = nn.RMSNorm(8, eps=1e-6)
    theirs.load_state_dict(ours.state_dict())
    assert_close(ours(x), theirs(x))


def test_swiglu_is_the_formula():
    x = torch.randn(2, 5, 8)
    net = at.SwiGLU(8, 12, dropout=0.0)
    gate = x @ net.gate.weight.T
    swish = gate / (1 + torch.exp(-gate))
    assert_close(net(x), (swish * (x @ net.widen.weight.T)) @ net.narrow.weight.T)


def test_a_window_is_a_banded_mask():
    attn = at.draw_weights(at.WindowAttention(4, 16, dropout=0.0, window=3))
    plain = at.MultiHeadedAttention(4, 16, dropout=0.0)
    plain.load_state_dict(attn.state_dict())
    x = torch.randn(2, 9, 16)
    band = at.subsequent_mask(9).triu(-2)  # the diagonal and two places before it
    assert_close(attn(x, x, x, at.subsequent_mask(9)), plain(x, x, x, band))


def test_a_mixture_that_takes_all_is_their_weighted_sum():
    mixture = at.draw_weights(at.MixtureOfExperts(8, 12, dropout=0.0, experts=3, active=3)).eval()
    x = torch.randn(2, 5, 8)
    shares = mixture.router(x).sigmoid()
    shares = shares / shares.sum(-1, keepdim=True)  # (2, 5, 3)
    outputs = torch.stack([expert(x) for expert in mixture.experts], dim=-1)  # (2, 5, 8, 3)
    assert_close(mixture(x), (outputs * shares.unsqueeze(2)).sum(-1))


def test_an_expert_with_more_than_its_share_is_chosen_less_and_says_the_same():
    mixture = at.draw_weights(at.MixtureOfExperts(8, 12, dropout=0.0, experts=3, active=1))
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        mixture.router.weight[:] = 0.0  # a tie: one expert gets every position
        before = mixture(x)
        assert mixture.handicap.lt(0).sum() == 2
        assert mixture.handicap.gt(0).sum() == 1
        moved = mixture.eval().handicap.clone()
        after = mixture(x)
    assert torch.equal(mixture.handicap, moved)
    assert not torch.allclose(before, after)
    first = mixture.experts[moved.argmin()]
    assert_close(after, first(x))


# make_model -------------------------------------------------------------------------------------


def test_a_new_model_starts_as_described():
    model = at.make_model(1000, 900, N=2, d_model=64, d_ff=256, h=4, dropout=0.3)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.99 * bound < module.weight.abs().max() <= bound
            assert module.bias.eq(0).all()
        if isinstance(module, nn.Dropout):
            assert module.p == 0.3
    embedded = model.src_embed[0](torch.arange(1000))
    assert embedded.std().item() == pytest.approx(1, abs=0.02)
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    for one, other in itertools.combinations(matrices, 2):
        assert one.shape != other.shape or not torch.equal(one, other), "copies start alike"


@pytest.mark.parametrize("share", [True, False])
def test_matrices_are_shared_as_asked(share):
    model = at.make_model(13, 13, **SIZES, share_embeddings=share)
    matrix = model.tgt_embed[0].lut.weight
    assert (model.src_embed[0].lut.weight is matrix) == share
    assert (model.generator.proj.weight is matrix) == share
    assert matrix.std().item() == pytest.approx(8**-0.5, rel=0.2), "it starts as an embedding"


@pytest.mark.parametrize(
    "D, F, h, total", [(16, 40, 4, None), (512, 2048, 8, 63_121_544), (1024, 4096, 16, 214_286_472)]
)
def test_the_parameters_are_those_of_the_formulas(D, F, h, total):
    """The paper's base and big model among them."""
    attention = 4 * (D * D + D)
    feed_forward = (D * F + F) + (F * D + D)
    norm = 2 * D
    layers = (attention + feed_forward + 2 * norm) + (2 * attention + feed_forward + 3 * norm)
    with torch.device("meta"):
        shared = at.make_model(37_000, 37_000, 6, D, F, h, share_embeddings=True)
        three = at.make_model(11, 13, 6, D, F, h)
    assert at.count_parameters(shared) == 6 * layers + 2 * norm + 37_000 * D + 37_000
    assert at.count_parameters(three) == 6 * layers + 2 * norm + (11 + 13 + 13) * D + 13
    assert total in (None, at.count_parameters(shared))


@pytest.mark.parametrize(
    "change, numbers",
    [
        ({"d_model": 8, "h": 3}, "8 3"),
        ({"d_model": 7, "h": 1}, "7"),  # sines and cosines come in pairs
        ({"d_model": 6, "h": 2, "attention": "rotary"}, "6 2"),  # heads of odd width
        ({"share_embeddings": True}, "11 13"),
        ({"max_len": 4}, "5 4"),  # five words in the source
        ({"attention": "mine"}, "attention mine"),
        ({"norm": "mine"}, "norm mine"),
    ],
    ids=str,
)
def test_an_impossible_size_or_part_raises_an_error_that_names_it(change, numbers):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        at.build_model(at.ModelConfig(**{"share_embeddings": False} | SIZES | change), 11, 13)(
            *inputs()
        )
    assert all(number in str(caught.value) for number in numbers.split())


def test_cross_attention_stays_plain():
    """Rotated by places of two sentences it would measure no distance."""
    model = at.make_model(11, 13, **SIZES)
    at.exchange(model, "attention", lambda: at.RotaryAttention(2, 8))
    assert type(model.decoder.layers[0].self_attn) is at.RotaryAttention
    assert type(model.decoder.layers[0].src_attn) is at.MultiHeadedAttention


# Dropout and number formats ---------------------------------------------------------------------


def test_a_dropout_rate_of_one_leaves_nothing():
    model = at.tiny_model(dropout=1.0).train()
    assert model(*inputs()).eq(0).all(), "after an embedding or a sub-layer"
    x = torch.randn(2, 5, 8)
    feed = at.PositionwiseFeedForward(8, 16, 1.0)
    assert_close(feed(x), feed.narrow.bias.expand(2, 5, 8))
    attn = at.MultiHeadedAttention(2, 8, 1.0)
    assert_close(attn(x, x, x), attn.linears[3].bias.expand(2, 5, 8))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_fast_dropout_drops_its_share_independently_and_scales_the_rest(rate):
    dropout = at.FastDropout(rate)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    dropped, again = (torch.manual_seed(3) and dropout(x) for _ in range(2))
    assert torch.equal(dropped, again), "it follows the seed"
    kept = (dropped != 0).float().flatten()
    assert kept.mean().item() == pytest.approx(1 - rate, abs=0.006)
    for lag in (1, 7, 8, 16, 333):
        both = (kept[lag:] * kept[:-lag]).mean().item()
        assert both == pytest.approx((1 - rate) ** 2, abs=0.01)
    left = dropped[dropped != 0]
    assert_close(left, torch.full_like(left, 2 / (1 - rate)), rtol=0.02, atol=0)
    dropped.sum().backward()
    assert torch.equal(x.grad != 0, dropped != 0)
    assert torch.equal(dropout.eval()(x), x)


def test_log_probabilities_and_loss_are_in_fp32_under_bf16():
    model = at.tiny_model()
    batch = at.Batch(*inputs()[:2])
    given = (batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD, 0.1))
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states = model(*given)
            log_probs = model.generator(states)
            loss_sum, loss = compute(states, batch.tgt_y, batch.ntokens)
        assert {x.dtype for x in (log_probs, loss_sum, loss)} == {torch.float32}
        losses.append(loss.item())
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
