"""What Part 10 does with a language model: speculation, preferences, blocks of keys, long texts."""

import collections
import copy
import itertools

import pytest
import torch
from torch.testing import assert_close

import the_annotated_transformer as at


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_speculation_leaves_the_distribution_as_it_is(ahead):
    torch.manual_seed(1)
    large, small = torch.randn(2, 3, 3).softmax(dim=-1)  # what follows each letter
    number = 4000
    counts = collections.Counter()
    for _ in range(number):
        text = [0]
        while len(text) < 4:
            text += at.speculate(
                lambda text: large[text], lambda text: small[text[-1]], text, ahead
            )
        counts[tuple(text[1:4])] += 1
    for letters in itertools.product(range(3), repeat=3):
        steps = itertools.pairwise((0, *letters))
        exact = torch.stack([large[a, b] for a, b in steps]).prod().item()
        chance = 4.5 * (exact * (1 - exact) / number) ** 0.5
        assert counts[letters] / number == pytest.approx(exact, abs=chance)


def test_a_draft_that_agrees_is_accepted_whole_and_one_that_never_does_costs_nothing():
    certain = torch.eye(4)
    forward = certain.roll(1, dims=1)  # 0, 1, 2, 3, 0, ...
    backward = certain.roll(-1, dims=1)

    def model(text: list[int]) -> torch.Tensor:
        return forward[torch.tensor(text)]

    assert at.speculate(model, lambda text: forward[text[-1]], [0], 5) == [1, 2, 3, 0, 1, 2]
    assert at.speculate(model, lambda text: backward[text[-1]], [0], 5) == [1]


def small_model() -> at.LanguageModel:
    torch.manual_seed(0)
    return at.draw_weights(at.make_language_model(13, N=2, d_model=16, d_ff=32, h=4)).eval()


def test_a_caption_is_as_likely_in_a_batch_as_token_by_token():
    model = small_model()
    captions = [[at.START, 5, 6, 7, at.END], [at.START, 8, at.END]]
    found = at.log_probs_of_captions(model, captions)
    for caption, whole in zip(captions, found, strict=True):
        alone = 0.0
        for length in range(1, len(caption)):
            text = torch.tensor([caption[:length]])
            states = model(None, text, None, at.subsequent_mask(length))
            alone += model.generator(states[0, -1])[caption[length]].item()
        assert whole.item() == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("start", [copy.deepcopy, lambda model: at.with_low_rank(model, 2)])
def test_preferred_captions_gain_on_the_others_and_the_model_before_stays(start):
    before = small_model()
    weights = [weight.clone() for weight in before.parameters()]
    better = [[at.START, 5, at.END], [at.START, 5, 6, at.END]]
    worse = [[at.START, 9, at.END], [at.START, 10, 6, at.END]]
    model = start(before)
    assert_close(at.gain(model, before, better), torch.zeros(2))  # nothing is learnt yet
    after = at.prefer(model, before, better, worse, updates=20, rate=1e-2)
    gains = [at.gain(after, before, each).mean() for each in (better, worse)]
    assert gains[0] > gains[1] + 0.1
    for old, weight in zip(weights, before.parameters(), strict=True):
        assert torch.equal(old, weight)
        assert weight.grad is None


def test_low_rank_training_changes_narrow_matrices_only():
    before = small_model()
    model = at.with_low_rank(before, 2)
    at.prefer(model, before, [[at.START, 5, at.END]], [[at.START, 9, at.END]], updates=3)
    kept = [part.linear for part in model.modules() if isinstance(part, at.LowRank)]
    linears = [part for part in before.decoder.modules() if isinstance(part, torch.nn.Linear)]
    for one, other in zip(kept, linears, strict=True):  # each linear map of the layers has a pair
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)
    assert torch.equal(model.generator.proj.weight, before.generator.proj.weight)


@pytest.mark.parametrize("block", [1, 7, 50, 80])
def test_attention_in_blocks_needs_no_luck_with_large_scores_or_sizes(block):
    query = 100 * torch.randn(2, 3, 5, 8)
    key = torch.randn(2, 3, 50, 8)
    value = torch.randn(2, 3, 50, 6)
    whole, _ = at.attention(query, key, value)
    assert_close(at.attention_in_blocks(query, key, value, block), whole, rtol=1e-4, atol=1e-5)


def scores(attn: at.RotaryAttention, x: torch.Tensor) -> torch.Tensor:
    q, k, _ = attn.project(x, x, x)
    return q @ k.mT


def test_rotary_angles_are_divided_alike_or_by_a_larger_base():
    attn = at.draw_weights(at.RotaryAttention(2, 16))
    x = torch.randn(1, 9, 16)
    q, k, _ = at.MultiHeadedAttention.project(attn, x, x, x)
    places = torch.arange(9)
    attn.slower = 4.0
    closer = at.rotate(q, places / 4) @ at.rotate(k, places / 4).mT
    assert_close(scores(attn, x), closer)
    attn.slower = 4.0 ** torch.linspace(0, 1, 4)
    base = 10_000.0 * 4 ** (8 / 6)  # so that the last of four pairs turns by a quarter
    angle = places.unsqueeze(1) * base ** (-torch.arange(0, 8, 2) / 8)
    turned = []
    for states in (q, k):
        pairs = torch.view_as_complex(states.unflatten(-1, (4, 2)).contiguous())
        turned.append(pairs * torch.exp(1j * angle))
    expected = (turned[0].unsqueeze(3) * turned[1].conj().unsqueeze(2)).real.sum(-1)
    assert_close(scores(attn, x), expected, rtol=1e-4, atol=1e-4)
