"""Decoding: greedy, by beam against brute force, with a cache, in batches, by sampling."""

import collections
import itertools

import pytest
import torch
from torch.testing import assert_close

import the_annotated_transformer as at
from the_annotated_transformer import END, PAD, START, Batch, pad_ids

DECODERS = [at.greedy_decode, at.beam_search]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_greedy_decoding_in_a_batch_or_with_a_cache_equals_one_by_one():
    """And each token is the most probable one after those before it."""
    model = at.draw_weights(at.tiny_model())
    model.generator.proj.bias.data[END] = 1.0  # so that one ends early
    batch = Batch(pad_ids([[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]))
    limits = torch.tensor([12, 12, 4])
    together = at.greedy_decode(model, batch.src, batch.src_mask, limits, START)
    for n, row in enumerate(together.tolist()):
        one = batch.src[n : n + 1], batch.src_mask[n : n + 1]
        log_probs_after = at.log_probs_of(model, *one)
        written = [START]
        while written[-1] != END and len(written) < limits[n]:
            written.append(log_probs_after(written).argmax().item())
        assert row == written + [PAD] * (len(row) - len(written))
        src = batch.src[n : n + 1, : int(batch.src_mask[n].sum())]
        assert at.greedy_with_cache(model, src, int(limits[n])) == written


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_a_beam_never_beats_exhaustive_search_and_a_full_one_equals_it(alpha):
    """In random languages of three tokens and an end, whose 40 targets can all be scored."""

    def score(written: tuple) -> float:
        places = range(1, len(written))
        logp = sum(rows[written[:n]][written[n]].item() for n in places)
        return logp / ((5 + len(written) - 1) / 6) ** alpha

    triples = itertools.product(range(4), repeat=3)
    targets = {(START, *triple[: [*triple, END].index(END) + 1]) for triple in triples}
    assert len(targets) == 40
    for _ in range(10):
        rows = collections.defaultdict(lambda: torch.randn(4).log_softmax(dim=0))
        best = max(map(score, targets))
        for beam in (1, 2, 4**3):
            found = at.search_one(lambda written: rows[tuple(written)], 3, beam, alpha)  # noqa: B023
            assert score(tuple(found)) <= best + 1e-9
        assert score(tuple(found)) == pytest.approx(best)


@pytest.mark.parametrize("beam", [3, 4])
def test_a_search_in_a_batch_ends_early_and_finds_what_one_that_does_not_finds(beam):
    saved = 0
    for seed in range(5):
        torch.manual_seed(seed)
        model = at.make_model(9, 9, N=1, d_model=16, d_ff=32, h=4).eval()
        model.generator.proj.weight.data *= 3
        model.generator.proj.bias.data[END] = seed - 1.0
        model.generator.proj.bias.data[PAD] = -1e4  # so that padding is only at the end
        steps = []
        hook = model.generator.register_forward_hook(lambda *_, steps=steps: steps.append(1))
        batch = Batch(pad_ids([[4, 5, 6, 7, END], [7, 8, END]]))
        rows = at.beam_search(model, batch.src, batch.src_mask, 12, START, beam, 1.5)
        hook.remove()
        saved += 11 - len(steps)
        for src, found in zip((batch.src[:1], batch.src[1:, :3]), rows, strict=True):
            with at.evaluating(model):
                log_probs_after = at.log_probs_of(model, src, Batch(src).src_mask)
                best = at.search_one(log_probs_after, 11, beam, 1.5)
            assert found[found != PAD].tolist() == best
    assert saved


@pytest.mark.parametrize("beam, alpha", [*itertools.product((1, 2, 4), (0.0, 0.6, 3.0))])
def test_each_sentence_of_a_batch_is_searched_as_if_alone(beam, alpha):
    """With its own length and limit; and a beam of one is greedy."""
    batch = Batch(pad_ids([[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]))
    limits = torch.tensor([12, 8, 5])
    for seed in range(4):
        torch.manual_seed(seed)
        model = at.tiny_model()
        model.generator.proj.bias.data[END] = seed - 1.0  # sentences end, early and late
        given = (model, batch.src, batch.src_mask, limits, START)
        together = at.beam_search(*given, beam, alpha)
        for n, row in enumerate(together.tolist()):
            with at.evaluating(model):
                one = slice(n, n + 1)
                log_probs_after = at.log_probs_of(model, batch.src[one], batch.src_mask[one])
                best = at.search_one(log_probs_after, limits[n] - 1, beam, alpha)
            assert row == best + [PAD] * (len(row) - len(best))
        assert beam > 1 or torch.equal(together, at.greedy_decode(*given))


@pytest.mark.parametrize("norm_first", [True, False])
def test_states_are_the_same_with_a_cache(norm_first):
    assert at.cache_agrees(at.tiny_model(norm_first=norm_first))


@pytest.mark.parametrize("decode", DECODERS)
def test_decoding_keeps_to_its_limits_and_leaves_no_trace(decode):
    model = at.tiny_model(dropout=0.5)
    model.generator.proj.bias.data[END] = -99.0  # it never ends by itself
    batch = Batch(torch.tensor([[4, 5], [6, 7]]))
    given = model, batch.src, batch.src_mask
    limits = torch.tensor([2, 6])
    rows = decode(*given, limits, START)
    assert rows.shape == (2, 6)
    assert rows[:, 0].eq(START).all()
    assert rows[0, 2:].tolist() == 4 * [PAD]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert torch.equal(decode(model.train(), *given[1:], limits, START), rows), "no dropout"
    assert model.training
    assert not rows.requires_grad
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("decode", DECODERS)
def test_a_mask_of_the_source_may_be_left_out_or_of_numbers(decode):
    src = torch.randint(4, 11, (3, 6))
    everything = torch.ones(3, 1, 6, dtype=torch.bool)
    part = torch.arange(6) < torch.tensor([6, 4, 2]).view(3, 1, 1)
    for seed in range(3):
        torch.manual_seed(seed)
        model = at.tiny_model()
        for one, other in ((None, everything), (part.float(), part), (part.long(), part)):
            rows = [decode(model, src, mask, 12, START) for mask in (one, other)]
            assert torch.equal(*rows)


def test_a_search_works_between_the_steps_of_training():
    """The kept weights hold no graph: a model with one could not be copied."""
    model = at.tiny_model()
    batch = Batch(*2 * [pad_ids([[4, 5, 6, END], [7, END]])])
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)  # with a graph
    rows = at.beam_search(model, batch.src, batch.src_mask, 9, beam=1)
    assert torch.equal(rows, at.greedy_decode(model, batch.src, batch.src_mask, 9, START))
    cached = at.with_cache(model.decoder, model.encode(batch.src, batch.src_mask))
    for ours, shared in zip(model.decoder.parameters(), cached.parameters(), strict=True):
        assert ours.data_ptr() == shared.data_ptr(), "weights are not copied"
    states.sum().backward()


@pytest.mark.parametrize("attention", [at.MultiHeadedAttention, at.RotaryAttention])
def test_the_cache_serves_a_language_model(attention):
    model = at.make_language_model(13, 2, 16, 32, 4)
    at.exchange(model, "attention", lambda: attention(4, 16))
    at.draw_weights(model).eval()
    ids = torch.randint(13, (2, 12))
    with torch.no_grad():
        whole = model(None, ids, None, at.subsequent_mask(12))
        decoder = at.with_cache(model.decoder)
        for length in range(1, 13):
            x = model.tgt_embed(ids[:, :length])[:, -1:]  # (B, 1, D)
            states = decoder(x, None).squeeze(1)
            assert_close(states, whole[:, length - 1], rtol=1e-4, atol=1e-4)


# Sampling ---------------------------------------------------------------------------------------


def test_sampling_follows_temperature_top_k_and_top_p():
    """Probabilities of the last three tokens are 0.2, 0.3 and 0.5; the second row has no choice."""
    log_probs = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.2, 0.3, 0.5], [0, 1, 0, 0, 0, 0, 0]]).log()

    def drawn(**settings) -> list[int]:
        both = torch.stack([at.draw(log_probs, **settings) for _ in range(199)])
        assert both[:, 1].eq(1).all()
        return both[:, 0].tolist()

    assert drawn(temperature=0.5).count(6) / 199 == pytest.approx(0.25 / 0.38, abs=0.09)
    assert set(drawn(top_k=2)) == {5, 6}
    assert set(drawn(top_p=0.1)) == set(drawn(top_p=0.45)) == {6}
    two = drawn(top_p=0.6)
    assert set(two) == {5, 6}
    assert two.count(6) / 199 == pytest.approx(0.5 / 0.8, abs=0.1)  # they add up to one again
    assert set(drawn(top_p=0.85)) == set(drawn(top_p=1.0)) == {4, 5, 6}
    assert set(drawn(top_p=0.6, temperature=0.5)) == {6}  # after the temperature: 0.66
    assert set(drawn(top_p=0.6, top_k=2)) == {6}  # and after top-k: 0.625
    for wrong in ({"temperature": 0.0}, {"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(ValueError, match="above zero"):
            at.draw(log_probs, **wrong)


def test_a_text_goes_on_to_its_end_or_limit():
    model = at.make_language_model(13, N=2, d_model=16, d_ff=32, h=4)
    prompts = [[START, 5], [START, 5, 6]]
    assert at.generate(model, prompts, 0, at.draw) == [[], []]
    model.generator.proj.bias.data[END] = -torch.inf
    again = [
        torch.manual_seed(seed) and at.generate(model, prompts, 18, at.draw) for seed in (3, 3, 4)
    ]
    assert again[0] == again[1] != again[2]
    assert list(map(len, again[0])) == [18, 18]
    model.generator.proj.bias.data[END] = 1e4
    assert at.generate(model, prompts, 20, at.draw) == [[END], [END]]
