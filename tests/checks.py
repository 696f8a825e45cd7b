"""Checks of the model that the text does not show. Each takes the script as a module.

test_model.py runs them all. test_faults.py runs some with a faulty copy of the script.
"""

import copy
import inspect
import itertools
import math
import random
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn
from torch.testing import assert_close

SIZES = {"N": 1, "d_model": 8, "d_ff": 16, "h": 2}


def small_inputs() -> tuple[torch.Tensor, ...]:
    """Source (2, 5) and target (2, 4) with their masks; one source is padded."""
    src_mask = torch.ones(2, 1, 5, dtype=torch.bool)
    src_mask[1, 0, 3:] = False
    causal = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    return torch.randint(11, (2, 5)), torch.randint(13, (2, 4)), src_mask, causal


# Layers and attention ---------------------------------------------------------------------------


def check_a_stack_is_its_layers_in_order_and_a_norm_in_pre_norm(at):
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
        assert_close(model.encoder(x, None), encoded)
        assert_close(model.decoder(x, memory, None, None), decoded)


def check_a_bias_is_added_to_the_scores(at):
    query, key, value, mask = at.random_attention_inputs()
    bias = torch.randn(4, 3, 5)  # one for each head
    output, _ = at.attention(query, key, value, mask, bias=bias)
    added = bias.masked_fill(~mask, -torch.inf)
    assert_close(output, nn.functional.scaled_dot_product_attention(query, key, value, added))


def check_fused_attention_equals_plain_attention(at):
    query, key, value, mask = at.random_attention_inputs()
    biases = None, torch.randn(4, 3, 5), torch.randn(2, 1, 3, 5)
    masks = None, mask, mask.int(), mask.float(), mask[:, :, :1]
    for dtype, m, bias in itertools.product((torch.float, torch.double), masks, biases):
        q, k, v = (x.to(dtype) for x in (query, key, value))
        plain, _ = inspect.unwrap(at.attention)(q, k, v, m, bias=bias)
        fused, _ = at.fused_attention(q, k, v, m, None, bias)
        assert_close(fused, plain)


def check_the_kept_weights_have_no_graph(at):
    model = at.tiny_model().train()
    attn = model.encoder.layers[0].self_attn
    for length in (5, 3):
        model.encode(torch.randint(11, (2, length)), None)
        assert attn.attn.shape == (2, 4, length, length)
        assert not attn.attn.requires_grad


def check_rotary_attention_sees_distances_only(at):
    attn = at.RotaryAttention(2, 8, 0.0)
    x = torch.randn(1, 5, 8)
    alone = attn(x, x, x)
    moved = torch.cat([torch.randn(1, 2, 8), x], dim=1)
    later = attn(moved, moved, moved, torch.arange(7).expand(1, 7, 7) > 1)
    assert_close(later[:, 2:], alone)
    assert not torch.allclose(attn(x.flip(1), x.flip(1), x.flip(1)), alone.flip(1))
    turned = at.rotate(torch.tensor([1.0, 0.0] * 4).expand(9, 8), torch.arange(9))  # cosine, sine
    waves = at.PositionalEncoding(8, 0.0).pe[0, :9]
    assert_close(turned, waves.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))


def check_no_two_matrices_start_alike(at):
    model = at.make_model(11, 13, **SIZES | {"N": 2})
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    for one, other in itertools.combinations(matrices, 2):
        assert one.shape != other.shape or not torch.equal(one, other)


# Dropout ----------------------------------------------------------------------------------------


def check_a_dropout_rate_of_one_leaves_nothing(at):
    model = at.tiny_model(dropout=1.0).train()
    assert model(*small_inputs()).eq(0).all(), "after an embedding or a sub-layer"
    x = torch.randn(2, 5, 8)
    feed = at.PositionwiseFeedForward(8, 16, 1.0)
    assert_close(feed(x), feed.narrow.bias.expand(2, 5, 8))
    attn = at.MultiHeadedAttention(2, 8, 1.0)
    assert_close(attn(x, x, x), attn.linears[3].bias.expand(2, 5, 8))


def check_fast_dropout_is_off_in_eval_mode(at):
    model = at.tiny_model(dropout=0.5)
    at.use_fast_dropout(model)
    inputs = torch.ones(1, 3).long(), torch.ones(1, 3).long(), None, at.subsequent_mask(3)
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.allclose(model(*inputs), model(*inputs))


def check_evaluation_has_no_dropout_and_changes_nothing(at):
    model = at.make_model(11, 13, **SIZES, dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    batch = at.Batch(torch.randint(4, 11, (2, 5)), torch.randint(4, 13, (2, 4)))
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD))
    loss, state = at.run_epoch([batch, batch], model, compute, mode="eval", accum_iter=2)
    assert state == at.TrainState(step=0, samples=4, tokens=12)
    assert math.isclose(loss, at.evaluate_loss(model.train(), [batch])["nll"], rel_tol=1e-6)
    assert model.training  # as before
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def check_decoding_has_no_dropout_and_no_gradients(at):
    batch = at.Batch(at.pad_ids([[4, 5, 6, at.END], [7, at.END]]))
    model = at.tiny_model(dropout=0.5)
    for decode in (at.greedy_decode, at.beam_search):
        written = decode(model.eval(), batch.src, batch.src_mask, 9, at.START)
        again = decode(model.train(), batch.src, batch.src_mask, 9, at.START)
        assert torch.equal(again, written)
        assert model.training
        assert not written.requires_grad


# Loss, averages and schedule --------------------------------------------------------------------


def check_the_loss_is_the_divergence_from_its_distribution(at):
    log_probs = torch.randn(3, 5, 9, dtype=torch.double).log_softmax(-1)
    for smoothing, pad in itertools.product((0.0, 0.1, 0.9), (2, 0, 8)):
        target = torch.randint(9, (3, 5))
        target[0, 2:] = pad
        criterion = at.LabelSmoothing(9, pad, smoothing)
        distribution = criterion.distribution(target.flatten()).double()
        assert_close(distribution.sum(-1), (target != pad).flatten().double())
        assert distribution[:, pad].eq(0).all()
        divergence = nn.functional.kl_div(log_probs.flatten(0, 1), distribution, reduction="sum")
        assert_close(criterion(log_probs, target), divergence, rtol=1e-6, atol=1e-6)


def check_padding_costs_nothing(at):
    """Neither the word padding with probability zero nor a target that is padding."""
    for smoothing in (0.0, 0.3):
        criterion = at.LabelSmoothing(9, at.PAD, smoothing)
        logits = torch.randn(4, 9)
        logits[:, at.PAD] = -torch.inf
        logits.requires_grad_()
        target = torch.tensor([4, at.PAD, 5, 3])
        loss = criterion(logits.log_softmax(-1), target)
        assert_close(loss, criterion(logits[[0, 2, 3]].log_softmax(-1), target[[0, 2, 3]]))
        loss.backward()
        assert logits.grad.isfinite().all()
        assert logits.grad[1].eq(0).all()


def check_a_probability_of_zero_costs_nothing_or_everything(at):
    """Nothing where the target is zero, else everything."""
    logits = torch.randn(2, 9)
    logits[1, 7] = -torch.inf
    other = torch.tensor([4, 5])
    assert at.LabelSmoothing(9, at.PAD, 0.0)(logits.log_softmax(-1), other).isfinite()
    assert at.LabelSmoothing(9, at.PAD, 0.3)(logits.log_softmax(-1), other) == torch.inf
    right = torch.tensor([4, 7])
    assert at.LabelSmoothing(9, at.PAD, 0.0)(logits.log_softmax(-1), right) == torch.inf


def check_an_average_is_the_mean_of_every_weight(at):
    models = [at.tiny_model() for _ in range(3)]
    mean = at.tiny_model()
    at.average(mean, iter(models))
    for weight, *others in zip(*(each.parameters() for each in (mean, *models)), strict=True):
        assert_close(weight, torch.stack(others).mean(dim=0))


def check_the_linear_schedule_reaches_the_peak_and_zero(at):
    peak = at.rate(50, 64, 1.0, 50)
    for step, share in ((25, 0.5), (50, 1.0), (150, 0.5), (250, 0.0), (300, 0.0)):
        assert math.isclose(at.linear_rate(step, 64, 1.0, warmup=50, total=250), share * peak)
    assert at.linear_rate(1, 64, 2.0, 1, 1) == 0


# Data and decoding ------------------------------------------------------------------------------


def check_sequences_to_copy_start_and_end(at):
    batches = list(at.data_gen(12, 3, 2))
    assert len(batches) == 2
    for batch in batches:
        assert batch.tgt[:, 0].eq(at.START).all()
        assert batch.tgt_y[:, -1].eq(at.END).all()
        assert torch.equal(batch.tgt[:, 1:], batch.src)


def check_decoding_writes_the_start_symbol_first(at):
    model = at.tiny_model()
    src = torch.tensor([[4, 5, 6], [7, 8, 9]])
    for decode in (at.greedy_decode, at.beam_search):
        assert decode(model, src, at.Batch(src).src_mask, 5, at.START)[:, 0].eq(at.START).all()


def check_a_search_ends_early_and_loses_nothing(at):
    saved = 0
    for seed, beam in itertools.product(range(5), (3, 4)):
        torch.manual_seed(seed)
        model = at.make_model(9, 9, N=1, d_model=16, d_ff=32, h=4).eval()
        model.generator.proj.weight.data *= 3
        model.generator.proj.bias.data[at.END] = seed - 1.0
        model.generator.proj.bias.data[at.PAD] = -1e4  # so that padding is only at the end
        calls = []
        hook = model.generator.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        batch = at.Batch(at.pad_ids([[4, 5, 6, 7, at.END], [7, 8, at.END]]))
        rows = at.beam_search(model, batch.src, batch.src_mask, 12, at.START, beam, 1.5)
        hook.remove()
        saved += 11 - len(calls)
        for src, found in zip((batch.src[:1], batch.src[1:, :3]), rows, strict=True):
            with at.evaluating(model):
                log_probs_after = at.log_probs_of(model, src, at.Batch(src).src_mask)
                best = at.search_one(log_probs_after, 11, beam, 1.5)
            assert found[found != at.PAD].tolist() == best
    assert saved


def check_the_cache_serves_a_language_model(at):
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
                assert_close(states, whole[:, length - 1], rtol=1e-4, atol=1e-4)


def check_sampling_follows_temperature_and_top_k(at):
    """The model's next token depends on nothing."""
    model = at.make_language_model(7, N=1, d_model=16, d_ff=32, h=4).eval()
    nn.init.zeros_(model.generator.proj.weight)
    model.generator.proj.bias.data = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.2, 0.3, 0.5]).log()
    drawn = at.sample(model, [at.START], 200, temperature=0.5)
    assert abs(drawn.count(6) / 200 - 0.25 / 0.38) < 0.08  # 0.38 = 0.04 + 0.09 + 0.25
    assert set(at.sample(model, [at.START], 40, top_k=2)) == {at.START, 5, 6}


# Text -------------------------------------------------------------------------------------------


def toy_translator(at):
    """An untrained model of subwords."""
    corpus = at.read_builtin()
    model = at.make_model(300, 300, **SIZES, max_len=64)
    model.generator.proj.bias.data[at.PAD] = -1e4  # no trained model writes it
    vocabularies = at.learn_subwords(corpus, 300)
    return at.Translator("toy", model.eval(), corpus.name, corpus.languages, vocabularies)


def check_a_vocabulary_keeps_frequent_words_and_decodes_to_the_end(at):
    sentences = [["a", "b", "a"], ["a", "b", "c", "<s>", "<s>"]]
    vocabulary = at.build_vocabulary(sentences, min_freq=2)
    assert vocabulary.words == (*at.SPECIALS, "a", "b")
    assert vocabulary.encode(["a c b zebra"], "de") == [[4, at.UNKNOWN, 5, at.UNKNOWN]]
    assert vocabulary.decode([at.START, 4, 5, at.PAD, at.END, 4]) == "a b"


def check_each_source_keeps_its_target(at):
    pairs = [("Hund", "dog"), ("Katze Katze", "cat cat")]
    corpus = at.Corpus("toy", ("de", "en"), {"train": pairs, "val": pairs, "test": pairs})
    words = at.learn_words(corpus, min_freq=1)
    for (source, target), (src, tgt) in zip(
        at.encode_pairs(pairs, words, corpus.languages), pairs, strict=True
    ):
        assert words[0].decode(source) == src
        assert words[1].decode(target) == tgt


def check_batches_come_in_random_order(at):
    batches = at.token_batches([(n, n) for n in range(1, 60)], 100, random.Random(1))
    longest = [max(batch) for batch in batches]
    assert longest != sorted(longest)


def check_translations_keep_the_order_of_the_sentences(at):
    translator = toy_translator(at)
    sentences = ["Ein Mann mit einem Hund lacht.", "Hund.", "Eine Frau rennt."]
    for _, ids in at.source_parts(translator, sentences):
        assert ids[-1] == at.END
    alone = [at.translate(translator, [sentence])[0] for sentence in sentences]
    assert len(set(alone)) == 3
    assert at.translate(translator, sentences) == alone


def check_bleu_cuts_punctuation_off(at):
    assert at.corpus_bleu(["A small dog runs ."], ["A small dog runs."])[0] > 99


CHECKS: dict[str, Callable[[ModuleType], None]] = {
    name: check for name, check in vars().items() if name.startswith("check_")
}
