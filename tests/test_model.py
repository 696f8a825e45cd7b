"""The model, its loss and its masks beyond what the checks of the text show.

Tests that take the module `at` and nothing else are used by test_faults.py too.
"""

import copy
import inspect
import itertools
import math

import pytest
import torch
from torch import nn

SIZES = {"N": 1, "d_model": 8, "d_ff": 16, "h": 2}


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


def small_inputs() -> tuple[torch.Tensor, ...]:
    """Source (2, 5), target (2, 4), and their masks, one of the sources padded."""
    src_mask = torch.ones(2, 1, 5, dtype=torch.bool)
    src_mask[1, 0, 3:] = False
    causal = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    return torch.randint(11, (2, 5)), torch.randint(13, (2, 4)), src_mask, causal


# make_model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        ({"d_model": 8, "h": 3}, "8 3 divisible"),
        ({"d_model": 7, "h": 1}, "7"),  # sines and cosines come in pairs
        ({"d_model": 6, "h": 2, "attention": "rotary"}, "6 2"),  # heads of odd width
        ({"d_model": 9, "h": 3, "attention": "grouped", "positions": "none"}, "3 2"),
        ({"share_embeddings": True}, "11 13 one vocabulary"),
        ({"max_len": 4}, "5 4"),  # five words in the source
    ],
    ids=str,
)
def test_a_size_that_cannot_work_is_named(at, change, words):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        at.make_model(**{"src_vocab": 11, "tgt_vocab": 13} | SIZES | change)(*small_inputs())
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)


@pytest.mark.parametrize(
    "kind", ["attention", "feed_forward", "norm", "positions", "encoder_layer", "decoder_layer"]
)
def test_an_unknown_kind_is_refused_and_the_way_to_add_it_is_told(at, kind):
    with pytest.raises(ValueError, match=rf'{kind} .mine. is not .* {kind.upper()}\["mine"\] = '):
        at.make_model(11, 13, **SIZES, **{kind: "mine"})


def test_matrices_are_shared_as_asked(at):
    for ways, src, out in (
        ({}, False, False),
        ({"tie_output": True}, False, True),
        ({"share_embeddings": True}, True, True),
        ({"share_embeddings": True, "tie_output": True}, True, True),
    ):
        model = at.make_model(13, 13, **SIZES, **ways)
        matrix = model.tgt_embed[0].lut.weight
        assert (model.src_embed[0].lut.weight is matrix) == src
        assert (model.generator.proj.weight is matrix) == out
        assert abs(matrix.std() * math.sqrt(8) - 1) < 0.2, "it starts as an embedding does"


def test_arguments_stay_with_the_model_as_plain_values(at):
    model = at.make_model(11, 13, **SIZES, attention="rotary", positions="none")
    again = at.make_model(**model.arguments)
    assert again.arguments == model.arguments
    assert all(isinstance(x, int | float | str | None) for x in model.arguments.values())
    assert model.arguments["attention"] == "rotary"


def test_only_self_attention_follows_the_kind(at):
    model = at.make_model(11, 13, **SIZES, attention="rotary")
    assert type(model.encoder.layers[0].self_attn) is at.RotaryAttention
    assert type(model.decoder.layers[0].self_attn) is at.RotaryAttention
    assert type(model.decoder.layers[0].src_attn) is at.MultiHeadedAttention


def test_without_biases_there_are_none(at):
    model = at.make_model(11, 13, **SIZES, bias=False)
    biased = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert all(module.bias is None for module in biased)


def test_parameters_of_the_base_and_the_big_model(at):
    for D, F, h, count in ((512, 2048, 8, 63_121_544), (1024, 4096, 16, 214_286_472)):
        with torch.device("meta"):
            model = at.make_model(37_000, 37_000, 6, D, F, h, share_embeddings=True)
        assert at.count_parameters(model) == count


def test_41000_tokens_give_the_parameters_of_table_3_but_not_of_the_big_model(at):
    rows = {  # millions, as the paper has them
        65: {},
        36: {"N": 2},
        50: {"N": 4},
        80: {"N": 8},
        28: {"d_model": 256},
        168: {"d_model": 1024},
        53: {"d_ff": 1024},
        90: {"d_ff": 4096},
        213: {"d_model": 1024, "d_ff": 4096, "h": 16},
    }
    fits = {}
    for paper, sizes in rows.items():
        for vocab in (36_000, 41_000):
            with torch.device("meta"):
                model = at.make_model(vocab, vocab, **sizes, share_embeddings=True)
            fits[paper, vocab] = round(at.count_parameters(model) / 1e6) == paper
    assert all(fits[paper, 41_000] == (paper != 213) for paper in rows)
    assert fits[213, 36_000]


# Layers and stacks ------------------------------------------------------------------------------


def test_the_output_is_normalised_in_both_orders(at):
    for norm_first in (True, False):
        model = at.make_model(11, 13, **SIZES, norm_first=norm_first).eval()
        states = model(*small_inputs())
        torch.testing.assert_close(states.mean(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)
        variance = states.var(-1, unbiased=False)
        torch.testing.assert_close(variance, torch.ones(2, 4), atol=1e-2, rtol=0)
        norms = sum(isinstance(module, nn.LayerNorm) for module in model.modules())
        assert norms == 2 + 3 + 2 * norm_first, "a final norm belongs to pre-norm only"


def test_a_stack_is_its_layers_one_after_the_other_and_a_norm(at):
    x = torch.randn(2, 3, 16)
    memory = torch.randn(2, 5, 16)
    for norm_first in (True, False):
        model = at.tiny_model(norm_first=norm_first)
        encoded = x
        decoded = x
        for encoder_layer in model.encoder.layers:
            encoded = encoder_layer(encoded, None)
        for decoder_layer in model.decoder.layers:
            decoded = decoder_layer(decoded, memory, None, None)
        if norm_first:
            encoded = nn.functional.layer_norm(encoded, (16,), eps=1e-6)
            decoded = nn.functional.layer_norm(decoded, (16,), eps=1e-6)
        torch.testing.assert_close(model.encoder(x, None), encoded)
        torch.testing.assert_close(model.decoder(x, memory, None, None), decoded)


def test_models_can_be_built_with_the_norm_of_the_text(at, monkeypatch):
    """Its parameters have the names of PyTorch's, so the weights of one fit the other."""
    theirs = at.tiny_model()
    for norm in (module for module in theirs.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    monkeypatch.setitem(at.NORM, "layer", at.LayerNorm)
    ours = at.tiny_model()
    assert any(isinstance(module, at.LayerNorm) for module in ours.modules())
    ours.load_state_dict(theirs.state_dict())
    inputs = small_inputs()
    torch.testing.assert_close(ours(*inputs), theirs(*inputs))


def test_rotary_attention_knows_distances_and_no_places(at):
    attn = at.RotaryAttention(2, 8, 0.0)
    x = torch.randn(1, 5, 8)
    before = torch.randn(1, 2, 8)
    alone = attn(x, x, x)
    moved = torch.cat([before, x], dim=1)
    later = attn(moved, moved, moved, torch.arange(7).expand(1, 7, 7) > 1)
    torch.testing.assert_close(later[:, 2:], alone)
    assert not torch.allclose(attn(x.flip(1), x.flip(1), x.flip(1)), alone.flip(1))
    turned = at.rotate(torch.tensor([1.0, 0.0] * 4).expand(9, 8), torch.arange(9))  # cosine, sine
    waves = at.PositionalEncoding(8, 0.0).pe[0, :9]
    torch.testing.assert_close(turned, waves.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))


# Attention and masks ----------------------------------------------------------------------------


def test_a_bias_is_added_to_the_scores(at):
    query, key, value, mask = at.random_attention_inputs()
    bias = torch.randn(4, 3, 5)  # one for each head
    output, weights = at.attention(query, key, value, mask, bias=bias)
    added = bias.masked_fill(~mask, -torch.inf)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, added)
    torch.testing.assert_close(output, expected)
    assert weights.masked_select(~mask).eq(0).all()


def test_fused_attention_computes_what_plain_attention_does(at):
    query, key, value, mask = at.random_attention_inputs()
    each_head = torch.randn(4, 3, 5)
    each_sentence = torch.randn(2, 1, 3, 5)
    for dtype in (torch.float, torch.double):
        q, k, v = (x.to(dtype) for x in (query, key, value))
        for m in (None, mask, mask.int(), mask.float(), mask[:, :, :1]):
            for bias in (None, each_head, each_sentence):
                plain, _ = inspect.unwrap(at.attention)(q, k, v, m, bias=bias)
                fused, weights = at.fused_attention(q, k, v, m, None, bias)
                assert weights is None
                assert fused.dtype == dtype
                torch.testing.assert_close(fused, plain)


def test_fused_attention_drops_weights_in_training_only(at):
    query, key, value, mask = at.random_attention_inputs()
    dropout = nn.Dropout(0.5)
    plain, _ = inspect.unwrap(at.attention)(query, key, value, mask)
    assert not torch.allclose(at.fused_attention(query, key, value, mask, dropout, None)[0], plain)
    dropout.eval()
    fused, _ = at.fused_attention(query, key, value, mask, dropout, None)
    torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.long, torch.float])
def test_masks_of_ones_and_zeros_mean_what_they_say(at, dtype):
    """Of any number format, as code of 2018 and 2022 has them."""
    model = at.tiny_model()
    src, tgt, src_mask, tgt_mask = small_inputs()
    mask = src_mask.to(dtype)
    states = model(src, tgt, src_mask, tgt_mask)
    torch.testing.assert_close(model(src, tgt, mask, tgt_mask.to(dtype)), states)
    for decode in (at.greedy_decode, at.beam_search):
        rows = decode(model, src, src_mask, 9, at.START)
        assert torch.equal(decode(model, src, mask, 9, at.START), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_without_an_open_cell_is_finite_in_every_format(at, dtype):
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


def test_the_weights_of_the_last_call_are_kept_without_their_graph(at):
    model = at.tiny_model().train()
    attn = model.encoder.layers[0].self_attn
    for length in (5, 3):
        src = torch.randint(11, (2, length))
        model.encode(src, None)
        assert attn.attn.shape == (2, 4, length, length)
        assert not attn.attn.requires_grad


def test_a_batch_knows_padding_by_the_number_that_it_is_given(at):
    batch = at.Batch(torch.tensor([[5, 1, 2, 2]]), torch.tensor([[0, 7, 1, 2]]), pad=7)
    assert batch.src_mask.all()
    assert batch.ntokens == 2
    assert batch.tgt_mask[0].int().tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, name).device.type for name in ("src", "tgt_y", "tgt_mask")} == {"meta"}
    assert batch.src.device.type == "cpu"
    assert moved.ntokens == 2


# Dropout ----------------------------------------------------------------------------------------


def test_where_everything_is_dropped_nothing_is_left(at):
    """At a rate of one a dropout that is missing lets something through."""
    model = at.tiny_model(dropout=1.0).train()
    assert model(*small_inputs()).eq(0).all(), "after an embedding, or after a sub-layer"
    x = torch.randn(2, 5, 8)
    feed = at.PositionwiseFeedForward(8, 16, 1.0)
    torch.testing.assert_close(feed(x), feed.narrow.bias.expand(2, 5, 8))
    attn = at.MultiHeadedAttention(2, 8, 1.0)
    torch.testing.assert_close(attn(x, x, x), attn.linears[3].bias.expand(2, 5, 8))


def test_dropout_of_attention_weights_may_differ(at):
    for given, expected in ((0.0, 0.0), (0.1, 0.1), (None, 0.3)):
        modules = at.tiny_model(dropout=0.3, attention_dropout=given).modules()
        rates = {m.dropout.p for m in modules if isinstance(m, at.MultiHeadedAttention)}
        assert rates == {expected}


def test_judging_is_without_dropout_and_changes_nothing(at):
    """By `run_epoch` and by `evaluate_loss` alike."""
    torch.manual_seed(0)
    model = at.make_model(11, 13, **SIZES, dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    batch = at.Batch(torch.randint(4, 11, (2, 5)), torch.randint(4, 13, (2, 4)))
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD))
    loss, state = at.run_epoch([batch, batch], model, compute, mode="eval", accum_iter=2)
    assert state == at.TrainState(step=0, samples=4, tokens=12)
    nll = at.evaluate_loss(model.train(), [batch])["nll"]
    assert math.isclose(loss, nll, rel_tol=1e-6)
    assert model.training  # as before
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_text_is_decoded_without_dropout_and_without_gradients(at):
    src = at.pad_ids([[4, 5, 6, at.END], [7, at.END]])
    model = at.tiny_model(dropout=0.5)
    batch = at.Batch(src, src)
    for decode in (at.greedy_decode, at.beam_search):
        written = decode(model.eval(), batch.src, batch.src_mask, 9, at.START)
        again = decode(model.train(), batch.src, batch.src_mask, 9, at.START)
        assert torch.equal(again, written)
        assert model.training
        assert not written.requires_grad
        assert all(weight.grad is None for weight in model.parameters())


# The loss ---------------------------------------------------------------------------------------


def test_the_loss_is_the_divergence_from_its_distribution(at):
    log_probs = torch.randn(3, 5, 9, dtype=torch.double).log_softmax(-1)
    for smoothing, pad in itertools.product((0.0, 0.1, 0.9), (2, 0, 8)):
        target = torch.randint(9, (3, 5))
        target[0, 2:] = pad
        criterion = at.LabelSmoothing(9, pad, smoothing)
        distribution = criterion.distribution(target.flatten()).double()
        real = (target != pad).flatten()
        torch.testing.assert_close(distribution.sum(-1), real.double())
        assert distribution[:, pad].eq(0).all()
        flat = log_probs.flatten(0, 1)
        expected = nn.functional.kl_div(flat, distribution, reduction="sum")
        torch.testing.assert_close(criterion(log_probs, target), expected, rtol=1e-6, atol=1e-6)


def test_padding_costs_nothing_whatever_its_probability(at):
    """The word padding with probability zero, and what is said where the target is padding."""
    for smoothing in (0.0, 0.3):
        criterion = at.LabelSmoothing(9, at.PAD, smoothing)
        logits = torch.randn(4, 9)
        logits[:, at.PAD] = -torch.inf
        logits.requires_grad_()
        target = torch.tensor([4, at.PAD, 5, 3])
        loss = criterion(logits.log_softmax(-1), target)
        alone = criterion(logits[[0, 2, 3]].log_softmax(-1), target[[0, 2, 3]])
        torch.testing.assert_close(loss, alone)
        loss.backward()
        assert logits.grad.isfinite().all()
        assert logits.grad[1].eq(0).all()


def test_a_probability_of_zero_costs_nothing_or_everything(at):
    """Nothing without smoothing, where nothing is asked of the word; else everything."""
    logits = torch.randn(2, 9)
    logits[1, 7] = -torch.inf
    target = torch.tensor([4, 5])
    assert at.LabelSmoothing(9, at.PAD, 0.0)(logits.log_softmax(-1), target).isfinite()
    assert at.LabelSmoothing(9, at.PAD, 0.3)(logits.log_softmax(-1), target) == torch.inf
    right = torch.tensor([4, 7])
    assert at.LabelSmoothing(9, at.PAD, 0.0)(logits.log_softmax(-1), right) == torch.inf


# Number formats ---------------------------------------------------------------------------------


def test_log_probabilities_and_loss_stay_in_fp32_under_bf16(at):
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
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(batch.tgt.shape))
        losses.append(loss.item())
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert model.double().generator(model(*given)).dtype == torch.float64
    assert model.bfloat16().generator(model(*given)).dtype == torch.float32


# A language model -------------------------------------------------------------------------------


def test_a_text_is_drawn_to_its_end_or_limit(at):
    model = at.make_language_model(13, N=2, d_model=16, d_ff=32, h=4)
    begin = [at.START, 5]
    for temperature in (0.0, -1.0):
        with pytest.raises(ValueError, match="must be above zero"):
            at.sample(model, begin, 9, temperature)
    assert at.sample(model, begin, 1) == begin
    model.generator.proj.bias.data[at.END] = -torch.inf
    greedy = list(begin)
    with at.evaluating(model):
        for length in range(2, 20):
            states = model(None, torch.tensor([greedy]), None, at.subsequent_mask(length))
            greedy.append(model.generator(states)[0, -1].argmax().item())
    for temperature in (0.1, 1.0, 100.0):
        assert at.sample(model, begin, 20, temperature, top_k=1) == greedy
    drawn = [torch.manual_seed(seed) and at.sample(model, begin, 20) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 20
    model.generator.proj.bias.data[at.END] = 1e4
    assert at.sample(model, begin, 20) == [*begin, at.END]


def test_the_cache_serves_a_language_model(at):
    """`with_cache` without a memory gives the states of the whole text, one after the other."""
    for parts in ({}, {"attention": "rotary", "positions": "none"}):
        model = at.make_language_model(13, 2, 16, 32, 4, **parts)
        at.draw_weights(model).eval()
        ids = torch.randint(13, (2, 12))
        with torch.no_grad():
            whole = model(None, ids, None, at.subsequent_mask(12))
            decoder = at.with_cache(model.decoder)
            for length in range(1, 13):
                x = model.tgt_embed(ids[:, :length])[:, -1:]  # (B, 1, D)
                states = decoder(x, None).squeeze(1)
                expected = whole[:, length - 1]
                torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-4)


# Words and text ---------------------------------------------------------------------------------


def test_a_vocabulary_counts_and_sorts(at):
    sentences = [["a", "b", "a"], ["a", "b", "c", "<s>", "<s>"]]
    vocabulary = at.build_vocabulary(sentences, min_freq=2)
    assert vocabulary.words == (*at.SPECIALS, "a", "b")
    assert len(vocabulary) == 6
    ids = [4, at.UNKNOWN, 5, at.UNKNOWN]
    assert vocabulary.encode(["a c b zebra"], "de") == [ids]
    assert len(vocabulary) == 6
    assert vocabulary.decode([at.START, 4, 5, at.PAD, at.END, 4]) == "a b"


def test_vocabularies_know_the_training_split_only(at):
    train = [("Hund Hund", "dog dog")]
    rest = [("Katze", "cat")]
    corpus = at.Corpus("toy", ("de", "en"), {"train": train, "val": rest, "test": rest})
    vocabularies = at.learn_words(corpus, min_freq=1)
    assert [vocabulary.words[4:] for vocabulary in vocabularies] == [("Hund",), ("dog",)]
    pairs = at.encode_pairs(train + rest, vocabularies, corpus.languages)
    assert pairs[0] == ([4, 4, at.END], [at.START, 4, 4, at.END])
    assert pairs[1][0] == [at.UNKNOWN, at.END]
