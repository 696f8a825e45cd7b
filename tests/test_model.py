"""The model, its loss, its masks and its decoding, beyond what the checks of the text show."""

import inspect

import checks
import pytest
import torch
from checks import SIZES, small_inputs
from torch import nn
from torch.testing import assert_close


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


@pytest.mark.parametrize("check", checks.CHECKS)
def test_check(at, check):
    checks.CHECKS[check](at)


# make_model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, numbers",
    [
        ({"d_model": 8, "h": 3}, "8 3"),
        ({"d_model": 7, "h": 1}, "7"),  # sines and cosines come in pairs
        ({"d_model": 6, "h": 2, "attention": "rotary"}, "6 2"),  # heads of odd width
        ({"share_embeddings": True}, "11 13"),
        ({"max_len": 4}, "5 4"),  # five words in the source
    ],
    ids=str,
)
def test_an_impossible_size_raises_an_error_that_names_it(at, change, numbers):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        at.build_model(**{"src_vocab": 11, "tgt_vocab": 13} | SIZES | change)(*small_inputs())
    assert all(number in str(caught.value) for number in numbers.split())


@pytest.mark.parametrize(
    "kind", ["attention", "feed_forward", "norm", "positions", "encoder_layer", "decoder_layer"]
)
def test_an_unknown_part_raises_an_error_that_says_how_to_add_it(at, kind):
    with pytest.raises(
        ValueError, match=rf'{kind} .mine. is not .* PARTS\["{kind}"\]\["mine"\] = '
    ):
        at.build_model(src_vocab=11, tgt_vocab=13, **SIZES, **{kind: "mine"})


def test_a_misspelt_argument_is_refused(at):
    for make in (at.make_model, at.build_model):
        with pytest.raises(TypeError, match="unexpected keyword argument 'atention'"):
            make(src_vocab=11, tgt_vocab=13, atention="plain")


@pytest.mark.parametrize("share", [True, False])
def test_matrices_are_shared_as_asked(at, share):
    model = at.make_model(13, 13, **SIZES, share_embeddings=share)
    matrix = model.tgt_embed[0].lut.weight
    assert (model.src_embed[0].lut.weight is matrix) == share
    assert (model.generator.proj.weight is matrix) == share
    assert matrix.std().item() == pytest.approx(8**-0.5, rel=0.2), "it starts as an embedding"


def test_a_model_can_be_made_again_from_its_arguments(at):
    sizes = {"src_vocab": 11, "tgt_vocab": 13} | SIZES
    model = at.build_model(**sizes, attention="rotary", positions="none", bias=False)
    arguments = at.arguments_of(model)
    assert all(isinstance(x, int | float | str) for x in arguments.values())
    again = at.build_model(**arguments)
    assert at.arguments_of(again) == arguments
    again.load_state_dict(model.state_dict())
    assert all(m.bias is None for m in again.modules() if isinstance(m, nn.Linear))


def test_a_class_without_a_name_cannot_be_saved(at):
    model = at.make_model(11, 13, **SIZES, norm=nn.Identity)
    with pytest.raises(at.UserError, match=r'has no name: set PARTS\["norm"\]'):
        at.arguments_of(model)


def test_heads_of_keys_can_be_shared_by_any_number_of_heads(at):
    for h, groups in ((1, 1), (3, 1), (4, 2), (6, 3)):
        attn = at.GroupedAttention(h, 12)
        assert attn.linears[1].out_features == groups * 12 // h
    with pytest.raises(ValueError, match=r"h \(3\) must be divisible by groups \(2\)"):
        at.GroupedAttention(3, 12, groups=2)


def test_cross_attention_stays_plain(at):
    model = at.make_model(11, 13, **SIZES, attention=at.RotaryAttention)
    assert type(model.encoder.layers[0].self_attn) is at.RotaryAttention
    assert type(model.decoder.layers[0].self_attn) is at.RotaryAttention
    assert type(model.decoder.layers[0].src_attn) is at.MultiHeadedAttention


def test_parameters_of_the_base_and_the_big_model(at):
    for D, F, h, count in ((512, 2048, 8, 63_121_544), (1024, 4096, 16, 214_286_472)):
        with torch.device("meta"):
            model = at.make_model(37_000, 37_000, 6, D, F, h, share_embeddings=True)
        assert at.count_parameters(model) == count


def test_weights_of_pytorchs_norm_fit_the_norm_of_the_text(at):
    theirs = at.tiny_model()
    for norm in (module for module in theirs.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    ours = at.tiny_model(norm=at.LayerNorm)
    assert any(isinstance(module, at.LayerNorm) for module in ours.modules())
    ours.load_state_dict(theirs.state_dict())
    inputs = small_inputs()
    assert_close(ours(*inputs), theirs(*inputs))


# Attention and masks ----------------------------------------------------------------------------


def test_fused_attention_drops_weights_in_training_only(at):
    query, key, value, mask = at.random_attention_inputs()
    dropout = nn.Dropout(0.5)
    plain, _ = inspect.unwrap(at.attention)(query, key, value, mask)
    assert not torch.allclose(at.fused_attention(query, key, value, mask, dropout, None)[0], plain)
    dropout.eval()
    assert_close(at.fused_attention(query, key, value, mask, dropout, None)[0], plain)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.long, torch.float])
def test_a_mask_may_be_of_ones_and_zeros(at, dtype):
    model = at.tiny_model()
    src, tgt, src_mask, tgt_mask = small_inputs()
    mask = src_mask.to(dtype)
    assert_close(model(src, tgt, mask, tgt_mask.to(dtype)), model(src, tgt, src_mask, tgt_mask))
    for decode in (at.greedy_decode, at.beam_search):
        rows = decode(model, src, src_mask, 9, at.START)
        assert torch.equal(decode(model, src, mask, 9, at.START), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_may_see_no_key_stays_finite(at, dtype):
    query, key, value, mask = at.random_attention_inputs()
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


def test_a_batch_takes_the_number_of_padding_and_moves_to_a_device(at):
    batch = at.Batch(torch.tensor([[5, 1, 2, 2]]), torch.tensor([[0, 7, 1, 2]]), pad=7)
    assert batch.src_mask.all()
    assert batch.ntokens == 2
    assert batch.tgt_mask[0].int().tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    moved = at.move(batch, torch.device("meta"))
    assert {getattr(moved, name).device.type for name in ("src", "tgt_y", "tgt_mask")} == {"meta"}
    assert moved.ntokens == 2


# Dropout ----------------------------------------------------------------------------------------


def test_a_training_run_has_a_dropout_rate_for_attention_weights(at):
    vocabulary = range(13)
    for rate in (0.0, 0.2):
        config = at.Config(N=1, d_model=8, d_ff=16, h=2, dropout=0.3, attention_dropout=rate)
        modules = list(at.new_model(config, (vocabulary, vocabulary)).modules())
        assert {m.dropout.p for m in modules if isinstance(m, at.MultiHeadedAttention)} == {rate}
        assert {m.dropout.p for m in modules if isinstance(m, at.SublayerConnection)} == {0.3}


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_fast_dropout_drops_its_share_and_scales_the_rest(at, rate):
    x = torch.full((301, 333), 2.0, requires_grad=True)
    dropped = at.FastDropout(rate)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=0.006)
    left = dropped[dropped != 0]
    assert_close(left, torch.full_like(left, 2 / (1 - rate)), rtol=0.02, atol=0)
    dropped.sum().backward()
    assert torch.equal(x.grad != 0, dropped != 0)


def test_fast_dropout_drops_neighbours_independently_and_follows_the_seed(at):
    dropout = at.FastDropout(0.5)
    x = torch.ones(1000, 160)
    first, second = (torch.manual_seed(3) and dropout(x) for _ in range(2))
    assert torch.equal(first, second)
    kept = (first != 0).float().flatten()
    for lag in (1, 7, 8, 16, 160):
        assert (kept[lag:] * kept[:-lag]).mean().item() == pytest.approx(0.25, abs=0.01)


# Number formats ---------------------------------------------------------------------------------


def test_log_probabilities_and_loss_are_in_fp32_under_bf16(at):
    model = at.tiny_model()
    batch = at.Batch(*small_inputs()[:2])
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
    assert model.double().generator(model(*given)).dtype == torch.float64
    assert model.bfloat16().generator(model(*given)).dtype == torch.float32


# Decoding ---------------------------------------------------------------------------------------


def test_decoding_stops_at_its_limits(at):
    model = at.tiny_model()
    src = torch.tensor([[4, 5], [6, 7]])
    mask = at.Batch(src).src_mask
    model.generator.proj.bias.data[at.END] = -99.0  # it never ends by itself
    assert at.beam_search(model, src, mask, 1).tolist() == [[at.START], [at.START]]
    for decode in (at.greedy_decode, at.beam_search):
        rows = decode(model, src, mask, torch.tensor([2, 6]), at.START)
        assert rows.shape == (2, 6)
        assert rows[0, 2:].tolist() == 4 * [at.PAD]


def test_without_a_mask_every_source_token_is_open(at):
    src = torch.randint(4, 11, (3, 6))
    everything = torch.ones(3, 1, 6, dtype=torch.bool)
    for seed in range(5):
        torch.manual_seed(seed)
        model = at.tiny_model()
        for decode in (at.greedy_decode, at.beam_search):
            rows = [decode(model, src, mask, 12, at.START) for mask in (None, everything)]
            assert torch.equal(*rows)


def test_a_search_works_after_a_step_of_training_and_changes_nothing(at):
    """The kept weights hold no graph: a model with one could not be copied."""
    model = at.tiny_model()
    src = at.pad_ids([[4, 5, 6, at.END], [7, at.END]])
    batch = at.Batch(src, src)
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD, 0.1))
    at.run_epoch([batch], model, compute, *at.make_optimizer(model, 1.0, 10))
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)  # with a graph
    kinds = list(map(type, model.modules()))
    rows = at.beam_search(model, batch.src, batch.src_mask, 9, beam=1)
    assert torch.equal(rows, at.greedy_decode(model, batch.src, batch.src_mask, 9, at.START))
    assert list(map(type, model.modules())) == kinds
    cached = at.with_cache(model.decoder, model.encode(batch.src, batch.src_mask))
    for ours, shared in zip(model.decoder.parameters(), cached.parameters(), strict=True):
        assert ours.data_ptr() == shared.data_ptr()
    states.sum().backward()


def test_a_sample_goes_on_to_its_end_or_limit(at):
    model = at.make_language_model(13, N=2, d_model=16, d_ff=32, h=4)
    begin = [at.START, 5]
    for wrong in ({"temperature": 0.0}, {"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(ValueError, match="above zero"):
            at.sample(model, begin, 9, **wrong)
    assert at.sample(model, begin, 1) == begin
    model.generator.proj.bias.data[at.END] = -torch.inf
    drawn = [torch.manual_seed(seed) and at.sample(model, begin, 20) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 20
    model.generator.proj.bias.data[at.END] = 1e4
    assert at.sample(model, begin, 20) == [*begin, at.END]
