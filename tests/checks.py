"""Checks of the model that the text does not show. Each takes the script as a module.

test_model.py runs them all. test_faults.py runs some with a faulty copy of the script.
"""

import collections
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


def check_the_derivative_of_the_softmax(at):
    scores = torch.randn(2, 5)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=1), scores)
    assert_close(at.size_of_derivative(scores), jacobian.flatten(1).norm(dim=1))


def check_embeddings_start_with_unit_variance(at):
    assert abs(at.Embeddings(256, 1000)(torch.arange(1000)).std() - 1) < 0.01


def check_positional_encoding_is_the_formula(at):
    positions = at.PositionalEncoding(8, 0.0, max_len=50)
    assert not positions.state_dict()  # nothing to save
    pe = positions(torch.ones(2, 50, 8))[1] - 1
    for p, i in itertools.product((0, 1, 7, 49), range(4)):
        angle = p / 10_000 ** (2 * i / 8)
        assert abs(pe[p, 2 * i] - math.sin(angle)) < 1e-5
        assert abs(pe[p, 2 * i + 1] - math.cos(angle)) < 1e-5


def check_a_new_model_starts_as_described(at):
    model = at.make_model(1000, 900, N=2, d_model=64, d_ff=256, h=4, dropout=0.3)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.99 * bound < module.weight.abs().max() <= bound
            assert module.bias.eq(0).all()
        if isinstance(module, nn.Embedding):
            assert abs(module.weight.std() * 8 - 1) < 0.02  # 8 = √64
        if isinstance(module, nn.Dropout):
            assert module.p == 0.3
    first, second = model.encoder.layers
    assert not torch.equal(first.self_attn.linears[0].weight, second.self_attn.linears[0].weight)


def check_padding_changes_no_real_output(at):
    model = at.tiny_model()
    src = torch.randint(11, (1, 5))
    tgt = torch.randint(13, (1, 3))
    alone = model(src, tgt, None, at.subsequent_mask(3))
    src_mask = torch.arange(9) < 5
    tgt_mask = at.subsequent_mask(5) & (torch.arange(5) < 3)
    padded_src = nn.functional.pad(src, (0, 4), value=7)
    padded_tgt = nn.functional.pad(tgt, (0, 2), value=7)
    padded = model(padded_src, padded_tgt, src_mask.view(1, 1, 9), tgt_mask)
    assert_close(padded[:, :3], alone)


def check_without_positions_the_encoder_is_permutation_equivariant(at):
    model = at.tiny_model()
    src = torch.randint(11, (2, 5))
    order = torch.tensor([3, 0, 4, 1, 2])
    words_only = model.src_embed[0]
    permuted = model.encoder(words_only(src[:, order]), None)
    assert_close(permuted, model.encoder(words_only(src), None)[:, order])
    with_order = model.encode(src[:, order], None)
    assert not torch.allclose(with_order, model.encode(src, None)[:, order])


def check_the_parameters_are_those_of_the_formulas(at):
    attention_maps = 4 * (16 * 16 + 16)  # D = 16
    feed_forward = (16 * 40 + 40) + (40 * 16 + 16)  # F = 40
    norm = 2 * 16
    encoder_layer = attention_maps + feed_forward + 2 * norm
    decoder_layer = 2 * attention_maps + feed_forward + 3 * norm
    stacks = 3 * (encoder_layer + decoder_layer) + 2 * norm  # N = 3
    three = at.make_model(11, 13, 3, 16, 40, 4)
    assert at.count_parameters(three) == stacks + (11 + 13 + 13) * 16 + 13
    one = at.make_model(11, 11, 3, 16, 40, 4, share_embeddings=True)
    assert at.count_parameters(one) == stacks + 11 * 16 + 11  # V = 11


def check_rotate_multiplies_complex_numbers(at):
    x = torch.randn(9, 8)
    places = torch.arange(9)
    angle = places.unsqueeze(1) / 10_000 ** (torch.arange(0, 8, 2) / 8)
    turn = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    assert_close(at.rotate(x, places), torch.view_as_real(pairs * turn).flatten(-2))


def check_turned_keys_are_shared(at):
    attn = at.RotaryGroupedAttention(4, 16, dropout=0.0)
    query = torch.randn(2, 4, 1, 4)
    memory = torch.randn(2, 2, 5, 4)  # keys and values
    places = torch.arange(5)
    mask = places[None] > 0
    expected = nn.functional.scaled_dot_product_attention(
        at.rotate(query, places[4:]), at.rotate(memory, places), memory, mask, enable_gqa=True
    )
    assert_close(attn.attend(query, memory, memory, mask)[0], expected)


# Dropout ----------------------------------------------------------------------------------------


def check_swiglu_is_the_formula(at):
    x = torch.randn(2, 5, 8)
    net = at.SwiGLU(8, 12, dropout=0.0)
    gate = x @ net.gate.weight.T
    swish = gate / (1 + torch.exp(-gate))
    assert_close(net(x), (swish * (x @ net.widen.weight.T)) @ net.narrow.weight.T)


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
        distribution = at.smoothed_target(criterion, target.flatten()).double()
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
        assert math.isclose(at.linear_rate(step, 64, 1.0, warmup=50, total=249), share * peak)
    assert at.linear_rate(1, 64, 2.0, 1, 1) == at.rate(1, 64, 2.0, 1), "one update is not lost"


def check_the_masks_of_a_batch(at):
    src = torch.tensor([[5, 6, at.END], [7, at.END, at.PAD]])
    batch = at.Batch(src, at.pad_ids([[at.START, 8, 9, at.END], [at.START, at.END]]))
    assert batch.src_mask.int().tolist() == [[[1, 1, 1]], [[1, 1, 0]]]
    for sentence, query, key in itertools.product(range(2), range(3), range(3)):
        real = batch.tgt[sentence, key] != at.PAD
        assert batch.tgt_mask[sentence, query, key] == (real and key <= query)
    assert batch.ntokens == 4
    assert batch.tgt_y[1].tolist() == [at.END, at.PAD, at.PAD]


def check_label_smoothing_beside_the_option_of_cross_entropy(at):
    logits = torch.randn(6, 9, dtype=torch.double)
    target = torch.tensor([4, 8, at.PAD, 0, 3, 3])
    logits[:, at.PAD] = -torch.inf
    real = target != at.PAD
    criterion = at.LabelSmoothing(9, at.PAD, 0.3)
    ours = criterion(logits.log_softmax(-1), target) + 5 * criterion.entropy  # of five words
    others = torch.arange(9) != at.PAD
    trimmed = logits[real][:, others]
    shifted = target[real] - (target[real] > at.PAD).long()
    for smoothing, equal in ((0.3 * 8 / 7, True), (0.3, False)):
        theirs = nn.functional.cross_entropy(
            trimmed, shifted, label_smoothing=smoothing, reduction="sum"
        )
        assert torch.isclose(ours, theirs, rtol=1e-6) == equal


def check_the_rate_peaks_at_the_end_of_warm_up(at):
    rates = [at.rate(step, 512, 3.0, 4000) for step in range(1, 20_001)]
    assert max(rates) == rates[3999]  # of step 4,000
    assert math.isclose(max(rates), 3 / math.sqrt(512 * 4000))


def check_two_updates_are_those_of_the_formula(at):
    model = at.tiny_model()
    bias = model.generator.proj.bias
    expected = bias.detach().clone()
    optimizer, scheduler = at.make_optimizer(model, 2.0, 10)
    mean = 0.0
    square = 0.0
    for step, gradient in ((1, 3e-9), (2, -1e-9)):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        unbiased = mean / (1 - 0.9**step)
        size = math.sqrt(square / (1 - 0.98**step))
        expected -= at.rate(step, 16, 2.0, 10) * unbiased / (size + 1e-9)
        bias.grad = torch.full_like(bias, gradient)
        optimizer.step()
        scheduler.step()
        assert_close(bias.detach(), expected)


def check_accumulation_equals_one_large_batch(at):
    sentences = at.pad_ids([[at.START, *range(4, 5 + n % 6), at.END] for n in range(12)])
    start = at.tiny_model(dropout=0.0).double()
    after = {}
    for size in (6, 2):
        model = copy.deepcopy(start)
        compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD, 0.1))
        adam, schedule = at.make_optimizer(model, 1.0, 10)
        batches = [at.Batch(part, part) for part in sentences.split(size)]
        _, state = at.run_epoch(batches, model, compute, adam, schedule, accum_iter=6 // size)
        assert state == at.TrainState(step=2, samples=12, tokens=54)
        assert schedule.last_epoch == 2
        assert model.generator.proj.weight.grad is None  # nothing left for the next update
        after[size] = [p for name, p in model.named_parameters() if "linears.1.bias" not in name]
    assert_close(after[2], after[6], rtol=0, atol=1e-9)


def check_a_model_without_opinion_is_as_good_as_chance(at):
    model = at.tiny_model()
    ids = at.pad_ids([[at.START, 6, 7, at.END], [at.START, at.END]])
    batch = at.Batch(ids, ids)
    nn.init.zeros_(model.generator.proj.weight)
    nn.init.zeros_(model.generator.proj.bias)
    scores = at.evaluate_loss(model, [batch, batch])
    assert math.isclose(scores["nll"], math.log(13), rel_tol=1e-5)
    assert math.isclose(scores["perplexity"], 13, rel_tol=1e-5)


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
    for parts in ({}, {"attention": at.RotaryAttention, "positions": at.NoPositions}):
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


def check_greedy_decoding_in_a_batch_equals_one_by_one(at):
    model = at.draw_weights(at.tiny_model())
    model.generator.proj.bias.data[at.END] = 1.0  # so that one ends early
    batch = at.Batch(at.pad_ids([[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]))
    limits = torch.tensor([12, 12, 4])
    together = at.greedy_decode(model, batch.src, batch.src_mask, limits, at.START)
    for n, row in enumerate(together.tolist()):
        alone = at.greedy_decode(
            model, batch.src[n : n + 1], batch.src_mask[n : n + 1], 12, at.START
        )
        alone = alone[0, : limits[n]].tolist()
        assert row == alone + [at.PAD] * (len(row) - len(alone))


def check_a_beam_never_beats_exhaustive_search_and_a_full_one_equals_it(at):
    """In random languages of three tokens and an end, whose 40 targets can all be scored."""
    end = at.END

    def score_of(log_probs_after: Callable, written: tuple, alpha: float) -> float:
        places = range(1, len(written))
        logp = sum(log_probs_after(written[:n])[written[n]].item() for n in places)
        return logp / at.length_penalty(len(written) - 1, alpha)

    triples = itertools.product(range(4), repeat=3)
    targets = {triple[: [*triple, end].index(end) + 1] for triple in triples}
    assert len(targets) == 40
    for alpha in (0.0, 0.6, 3.0) * 10:
        rows = collections.defaultdict(lambda: torch.randn(4).log_softmax(dim=0))

        def log_probs_after(written, rows=rows):
            return rows[tuple(written)]

        best = max(score_of(log_probs_after, (at.START, *each), alpha) for each in targets)
        for beam in (1, 2, 4**3):
            found = tuple(at.search_one(log_probs_after, 3, beam, alpha))
            assert score_of(log_probs_after, found, alpha) <= best
        assert score_of(log_probs_after, found, alpha) == best


def check_the_length_penalty_at_two_lengths(at):
    assert at.length_penalty(1, 0.6) == 1.0  # whatever α is
    assert math.isclose(at.length_penalty(13, 0.6), 3**0.6)  # 5 + 13 = 18 = 3 · 6


def check_sampling_follows_top_p(at):
    """The model's next token depends on nothing."""
    model = at.make_language_model(7, N=1, d_model=16, d_ff=32, h=4).eval()
    nn.init.zeros_(model.generator.proj.weight)
    model.generator.proj.bias.data = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.2, 0.3, 0.5]).log()

    def drawn(**settings):
        return at.sample(model, [at.START], 200, **settings)[1:]

    assert set(drawn(top_p=0.1)) == set(drawn(top_p=0.45)) == {6}
    two = drawn(top_p=0.6)
    assert set(two) == {5, 6}
    assert abs(two.count(6) / 199 - 0.5 / 0.8) < 0.1  # what is left adds up to one again
    assert set(drawn(top_p=0.85)) == set(drawn(top_p=1.0)) == {4, 5, 6}
    assert set(drawn(top_p=0.6, temperature=0.5)) == {6}  # after the temperature: 0.66 for it alone
    assert set(drawn(top_p=0.6, top_k=2)) == {6}  # and after top-k: 0.625


# Looking inside ---------------------------------------------------------------------------------


def check_the_logit_lens_ends_with_what_the_model_predicts(at):
    """The first row is what the final norm and the generator make of the embedding."""
    for norm_first in (True, False):
        model = at.tiny_model(norm_first=norm_first)
        batch = at.Batch(torch.randint(4, 11, (2, 5)), torch.randint(4, 13, (2, 4)))
        found = at.logit_lens(model, batch)
        assert found.shape == (3, 2, 3, 13)
        states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        assert_close(found[-1], model.generator(states))
        embedded = model.decoder.norm(model.tgt_embed(batch.tgt))
        assert_close(found[0], model.generator(embedded))


def check_a_swap_changes_the_vectors_at_its_places_only(at):
    first, second = torch.randn(2, 1, 5, 16)
    mixed = at.swapped(first, second, [1, 3])
    assert_close(mixed[:, [1, 3]], second[:, [1, 3]])
    assert_close(mixed[:, [0, 2, 4]], first[:, [0, 2, 4]])


def check_the_log_probability_of_a_target_is_that_of_its_tokens_one_by_one(at):
    model = at.tiny_model()
    memory = torch.randn(1, 5, 16)
    written = [at.START, 4, 5, at.END]
    expected = 0.0
    for n in range(1, len(written)):
        states = model.decode(memory, None, torch.tensor([written[:n]]), at.subsequent_mask(n))
        expected += model.generator(states)[0, -1, written[n]].item()
    found = at.log_probabilities(model, memory, torch.tensor([written])).sum().item()
    assert_close(found, expected, atol=1e-4, rtol=0)


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


def check_batches_hold_every_sentence_once_and_keep_the_budget(at):
    lengths = [(random.randint(1, 30), random.randint(1, 30)) for _ in range(200)]
    batches = at.token_batches(lengths, 100, random.Random(1))
    assert sorted(itertools.chain(*batches)) == list(range(200))
    sizes = [len(batch) * max(max(lengths[number]) for number in batch) for batch in batches]
    assert max(sizes) <= 100
    assert sum(sizes) > 80 * len(batches), "most are nearly full"
    assert sum(sizes) < 1.1 * sum(map(max, lengths)), "less than a tenth is padding"


def check_batches_come_in_random_order(at):
    batches = at.token_batches([(n, n) for n in range(1, 60)], 100, random.Random(1))
    longest = [max(batch) for batch in batches]
    assert longest != sorted(longest)


def check_translations_keep_the_order_of_the_sentences(at):
    translator = toy_translator(at)
    sentences = ["Ein Mann mit einem Hund lacht.", "Hund.", "Eine Frau rennt."]
    for ids in at.source_ids(translator, sentences):
        assert ids[-1] == at.END
    alone = [at.translate(translator, [sentence])[0] for sentence in sentences]
    assert len(set(alone)) == 3
    assert at.translate(translator, sentences) == alone


def check_case_counts_and_an_unknown_word_is_one(at):
    right = "A little dog runs through the park."
    perfect, _ = at.corpus_bleu([right], [right])
    lower, _ = at.corpus_bleu([right.lower()], [right])
    unknown, _ = at.corpus_bleu([right.replace("dog", "<unk>")], [right])
    wrong, _ = at.corpus_bleu([right.replace("dog", "horse")], [right])
    assert perfect > 99.9 > lower
    assert unknown == wrong


def check_bleu_cuts_punctuation_off(at):
    assert at.corpus_bleu(["A small dog runs ."], ["A small dog runs."])[0] > 99


CHECKS: dict[str, Callable[[ModuleType], None]] = {
    name: check for name, check in vars().items() if name.startswith("check_")
}
