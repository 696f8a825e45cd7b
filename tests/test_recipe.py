"""Part 7: the beam with its cache. And the faster forms, and sampling."""

import functools
import itertools
import math

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, beam_search, pad_ids

# The beam ---------------------------------------------------------------------------------------


def biased(at, seed: int):
    """A small model that ends sentences now and then."""
    torch.manual_seed(seed)
    model = at.make_model(9, 9, N=1, d_model=16, d_ff=32, h=4).eval()
    model.generator.proj.weight.data *= 3
    model.generator.proj.bias.data[PAD] = -1e4  # no trained model writes it
    return model


def slow_search(model, src, max_len: int, beam: int, alpha: float) -> tuple[float, list[int]]:
    """The same search for one sentence, from its description: no cache, no batch, no early end."""
    mask = Batch(src).src_mask
    beams = [(0.0, [START])]
    memory = model.encode(src, mask)
    for _ in range(max_len - 1):
        ended = [one for one in beams if one[1][-1] == END]
        grown = []
        for logp, written in (one for one in beams if one[1][-1] != END):
            tgt = torch.tensor([written])
            states = model.decode(memory, mask, tgt, tutorial.subsequent_mask(len(written)))
            following = model.generator(states)[0, -1]
            grown += [(logp + p.item(), [*written, n]) for n, p in enumerate(following)]
        grown.sort(key=lambda one: -one[0])
        beams = ended + grown[: beam - len(ended)]
    scored = [(logp / ((4 + len(w)) / 6) ** alpha, w) for logp, w in beams]
    return max(scored)


def test_the_search_is_the_one_described(at, monkeypatch):
    """In a batch too; and where it ends early, which costs nothing and must happen here."""
    record = []
    expand = at.expand
    monkeypatch.setattr(at, "expand", lambda *given: record.append(expand(*given)) or record[-1])
    for alpha, beam in itertools.product((0.0, 0.6, 1.5), (2, 5)):
        saved = 0
        for seed in range(5):
            model = biased(at, seed)
            record.clear()
            model.generator.proj.bias.data[END] += seed % 3
            batch = at.Batch(pad_ids([[4, 5, 6, 7, END], [7, 8, END]]))
            rows = at.beam_search(model, batch.src, batch.src_mask, 12, START, beam, alpha)
            for src, found in zip((batch.src[:1], batch.src[1:, :3]), rows, strict=True):
                with torch.no_grad():
                    score, written = slow_search(model, src, 12, beam, alpha)
                following = at.log_probs_of(model, src, at.Batch(src).src_mask)
                result = at.score_of(following, found[found != PAD].tolist(), alpha)
                expected = pytest.approx(score, abs=1e-4)
                assert result == expected
                assert found[found != PAD].tolist() == written
            saved += len(record) < 11 and not record[-1][0].ended.all().item()
        assert saved


def test_the_limits_of_a_search():
    model = tutorial.tiny_model()
    src = torch.tensor([[4, 5], [6, 7]])
    result = beam_search(model, src, Batch(src).src_mask, 1).tolist()
    expected = [[START], [START]]
    assert result == expected
    for bad in ({"beam": 0}, {"alpha": -0.1}, {"alpha": math.nan}, {"alpha": 11}):
        [(name, value)] = bad.items()
        with pytest.raises(ValueError, match=rf"{name} (must be|from).* {value}\b"):
            beam_search(model, src, Batch(src).src_mask, 5, **bad)


# Faster forms -----------------------------------------------------------------------------------


def test_an_average_is_the_mean_of_every_weight(at):
    models = [at.tiny_model() for _ in range(3)]
    mean = at.tiny_model()
    at.average(mean, iter(models))
    for weight, *others in zip(*(each.parameters() for each in (mean, *models)), strict=True):
        torch.testing.assert_close(weight, torch.stack(others).mean(dim=0))


def test_the_line_rises_to_the_peak_of_the_curve_and_ends_at_zero(at):
    peak = at.rate(50, 64, 1.0, 50)
    for step, share in ((25, 0.5), (50, 1.0), (150, 0.5), (250, 0.0)):
        there = at.linear_rate(step, 64, 1.0, warmup=50, total=250)
        assert math.isclose(there, share * peak)


def test_fast_forms_drop_nothing_once_a_model_is_in_use(at):
    torch.manual_seed(0)
    model = at.make_fast(at.tiny_model(dropout=0.5))
    inputs = torch.ones(1, 3).long(), torch.ones(1, 3).long(), None, at.subsequent_mask(3)
    torch.testing.assert_close(model(*inputs), model(*inputs))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(rate):
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    dropped = tutorial.FastDropout(rate)(x)
    result = (dropped == 0).float().mean().item()
    expected = pytest.approx(rate, abs=0.006)
    assert result == expected
    left = dropped[dropped != 0].unique()
    assert len(left) == 1
    expected = pytest.approx(2 / (1 - rate), rel=0.02)
    assert left.item() == expected
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
        result = (kept[lag:] * kept[:-lag]).mean().item()
        expected = pytest.approx(0.25, abs=0.01)
        assert result == expected


# The schedule -----------------------------------------------------------------------------------


def test_the_rate_rises_in_a_line_and_falls_with_the_root(at):
    peak = at.rate(4000, 512, 3.0, 4000)
    for step in (2000, 16_000):
        assert at.rate(step, 512, 3.0, 4000) == pytest.approx(peak / 2)
    assert at.rate(0, 512, 3.0, 4000) == at.rate(1, 512, 3.0, 4000)


# Sampling ----------------------------------------------------------------------------------------


def test_temperature_and_top_k(at):
    """By a model whose next token depends on nothing."""
    torch.manual_seed(0)
    model = at.LanguageModel(7, N=1, d_model=16, d_ff=32, h=4).eval()
    torch.nn.init.zeros_(model.generator.proj.weight)
    model.generator.proj.bias.data = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.2, 0.3, 0.5]).log()
    drawn = at.sample(model, [START], 400, temperature=0.5)
    assert abs(drawn.count(6) / 400 - 0.25 / 0.38) < 0.08  # 0.38 = 0.04 + 0.09 + 0.25
    assert set(at.sample(model, [START], 100, top_k=2)) == {START, 5, 6}


def test_parts_of_today_are_cached(at):
    """All together: step by step with a cache as all at once, with a source and without."""
    attention = functools.partial(at.RotaryGroupedAttention, groups=2)
    parts = {"attention": attention, "feed_forward": at.SwiGLU, "norm": at.RMSNorm}
    parts |= {"positions": at.NoPositions, "bias": False}
    at.assert_cache_agrees(at.tiny_model(**parts))
    model = at.LanguageModel(13, N=2, d_model=16, d_ff=32, h=4, **parts).eval()
    tgt = torch.randint(13, (2, 6))
    plain = model.generator(model.decode(None, None, tgt, at.subsequent_mask(6)))
    torch.testing.assert_close(at.in_steps(model, None, None, tgt), plain)
