"""Part 7 and after: beam search, averages, schedules, dropout from bytes, sampling."""

import itertools
import math

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, beam_search, pad_ids

# Beam search ------------------------------------------------------------------------------------


def test_a_search_ends_early_and_loses_nothing_by_it(at):
    """The early end must happen here, and the result is that of a search to the limit."""
    for alpha, beam in itertools.product((0.0, 0.6, 1.5), (2, 5)):
        saved = 0
        for seed in range(5):
            torch.manual_seed(seed)
            model = at.make_model(9, 9, N=1, d_model=16, d_ff=32, h=4).eval()
            model.generator.proj.weight.data *= 3
            model.generator.proj.bias.data[END] = seed % 3
            model.generator.proj.bias.data[PAD] = -1e4  # so that padding is only at the end
            calls = []
            hook = model.generator.register_forward_hook(
                lambda *given, calls=calls: calls.append(1)
            )
            batch = at.Batch(pad_ids([[4, 5, 6, 7, END], [7, 8, END]]))
            rows = at.beam_search(model, batch.src, batch.src_mask, 12, START, beam, alpha)
            hook.remove()
            for src, found in zip((batch.src[:1], batch.src[1:, :3]), rows, strict=True):
                with at.evaluating(model):
                    log_probs_after = at.log_probs_of(model, src, Batch(src).src_mask)
                    best = at.search_one(log_probs_after, 11, beam, alpha)
                assert found[found != PAD].tolist() == best
            saved += 11 - len(calls)
        assert saved


def test_the_limits_of_a_search():
    model = tutorial.tiny_model()
    src = torch.tensor([[4, 5], [6, 7]])
    mask = Batch(src).src_mask
    assert beam_search(model, src, mask, 1).tolist() == [[START], [START]]
    for decode in (tutorial.greedy_decode, beam_search):
        rows = decode(model, src, mask, torch.tensor([2, 6]), START, end_symbol=None)
        assert rows[0, 2:].tolist() == 4 * [PAD]
        assert rows.shape == (2, 6), "without an end token it goes on to the limit"
        assert decode(model.train(), src, mask, 6, START).size(1) <= 6
        model.eval()


def test_a_beam_wider_than_the_vocabulary_is_exhaustive_in_its_first_steps():
    torch.manual_seed(0)
    model = tutorial.draw_weights(tutorial.tiny_model())
    src = torch.tensor([[4, 5, 6]])
    mask = Batch(src).src_mask
    with tutorial.evaluating(model):
        log_probs_after = tutorial.log_probs_of(model, src, mask)
        best = tutorial.search_one(log_probs_after, 2, 200, 0.6)
    found = beam_search(model, src, mask, 3, START, beam=200)[0]
    assert found[: len(best)].tolist() == best


def test_a_search_works_after_a_step_of_training(at):
    """What attention keeps holds no graph: a model with one could not be copied."""
    torch.manual_seed(0)
    model = at.tiny_model()
    src = pad_ids([[4, 5, 6, END], [7, END]])
    batch = Batch(src, src)
    compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, PAD, 0.1))
    at.run_epoch([batch], model, compute, *at.make_optimizer(model, 1.0, 10))
    assert model.training
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)  # with a graph
    rows = at.beam_search(model, batch.src, batch.src_mask, 9, beam=1)
    assert torch.equal(rows, at.greedy_decode(model, batch.src, batch.src_mask, 9, START))
    assert at.cache_agrees(model)
    states.sum().backward()


def test_a_search_does_not_change_the_model(at):
    model = at.tiny_model()
    kinds = list(map(type, model.modules()))
    batch = Batch(pad_ids([[4, 5, 6, END], [7, END]]))
    at.beam_search(model, batch.src, batch.src_mask, 9)
    assert list(map(type, model.modules())) == kinds
    weights = [weight.data_ptr() for weight in model.decoder.parameters()]
    cached = at.with_cache(model.decoder, model.encode(batch.src, batch.src_mask))
    assert [weight.data_ptr() for weight in cached.parameters()] == weights, "they are shared"


# Averages and schedules -------------------------------------------------------------------------


def test_an_average_is_the_mean_of_every_weight(at):
    models = [at.tiny_model() for _ in range(3)]
    mean = at.tiny_model()
    at.average(mean, iter(models))
    for weight, *others in zip(*(each.parameters() for each in (mean, *models)), strict=True):
        torch.testing.assert_close(weight, torch.stack(others).mean(dim=0))


def test_the_rate_rises_in_a_line_and_falls_with_the_root(at):
    peak = at.rate(4000, 512, 3.0, 4000)
    for step in (2000, 16_000):
        assert at.rate(step, 512, 3.0, 4000) == pytest.approx(peak / 2)
    assert at.rate(0, 512, 3.0, 4000) == at.rate(1, 512, 3.0, 4000)


def test_the_line_rises_to_the_peak_of_the_curve_and_ends_at_zero(at):
    peak = at.rate(50, 64, 1.0, 50)
    for step, share in ((25, 0.5), (50, 1.0), (150, 0.5), (250, 0.0), (300, 0.0)):
        there = at.linear_rate(step, 64, 1.0, warmup=50, total=250)
        assert math.isclose(there, share * peak)
    assert at.linear_rate(1, 64, 2.0, 1, 1) == 0


# Dropout from bytes -----------------------------------------------------------------------------


def test_fast_dropout_drops_nothing_once_a_model_is_in_use(at):
    torch.manual_seed(0)
    model = at.tiny_model(dropout=0.5)
    at.use_fast_dropout(model)
    model.eval()
    inputs = torch.ones(1, 3).long(), torch.ones(1, 3).long(), None, at.subsequent_mask(3)
    torch.testing.assert_close(model(*inputs), model(*inputs))
    model.train()
    assert not torch.allclose(model(*inputs), model(*inputs))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(rate):
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    dropped = tutorial.FastDropout(rate)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=0.006)
    left = dropped[dropped != 0].unique()
    assert len(left) == 1
    assert left.item() == pytest.approx(2 / (1 - rate), rel=0.02)
    dropped.sum().backward()
    assert torch.equal(x.grad != 0, dropped.detach() != 0)


def test_dropout_of_neighbours_is_independent_and_follows_the_seed():
    dropout = tutorial.FastDropout(0.5)
    x = torch.ones(1000, 160)
    first, second = (torch.manual_seed(3) and dropout(x) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(dropout.eval()(x), x)
    kept = (first != 0).float().flatten()
    for lag in (1, 7, 8, 16, 160):
        assert (kept[lag:] * kept[:-lag]).mean().item() == pytest.approx(0.25, abs=0.01)


# Sampling ---------------------------------------------------------------------------------------


def test_temperature_and_top_k(at):
    """By a model whose next token depends on nothing."""
    torch.manual_seed(0)
    model = at.make_language_model(7, N=1, d_model=16, d_ff=32, h=4).eval()
    torch.nn.init.zeros_(model.generator.proj.weight)
    model.generator.proj.bias.data = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.2, 0.3, 0.5]).log()
    drawn = at.sample(model, [START], 400, temperature=0.5)
    assert abs(drawn.count(6) / 400 - 0.25 / 0.38) < 0.08  # 0.38 = 0.04 + 0.09 + 0.25
    assert set(at.sample(model, [START], 100, top_k=2)) == {START, 5, 6}
