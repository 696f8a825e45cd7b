"""Part 7: pieces of words, the cache, the beam, the mean of checkpoints. And the faster forms."""

import copy
import dataclasses
import functools
import itertools
import math
import random
import weakref

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, beam_search, greedy_decode, pad_ids

TEXTS = [
    "Ein Hund rennt durch den Schnee.",
    "A dog runs through the snow.",
    "„Zwei“ Kinder (links) spielen – ohne Ball!",
    "don't",
    "Grüße aus Łódź: 5,5 km",
]


@pytest.fixture(scope="module")
def pieces() -> tutorial.Pieces:
    return tutorial.learn_pieces(tutorial.read_builtin(), 400)[0]


def learnt_from(texts: list[str], size: int) -> tutorial.Pieces:
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": [(text, text) for text in texts]})
    return tutorial.learn_pieces(corpus, size)[0]


# Pieces -----------------------------------------------------------------------------------------


def test_both_languages_share_one_list():
    source, target = tutorial.learn_pieces(tutorial.read_builtin(), 300)
    assert source is target and len(source) == 300
    assert source.words[: len(tutorial.SPECIALS)] == tutorial.SPECIALS


def test_pieces_know_the_training_split_only():
    corpus = tutorial.read_builtin()
    other = dataclasses.replace(corpus, splits=corpus.splits | {"val": [("Qq", "Qq")] * 500})
    learnt = [tutorial.learn_pieces(one, 300)[0] for one in (corpus, other)]
    assert learnt[0] == learnt[1]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back(text):
    pieces = learnt_from(TEXTS, 120)
    [ids] = pieces.encode([text])
    assert pieces.decode([START, *ids, END, *ids]) == text
    assert all(4 <= number < len(pieces) for number in ids)


def test_a_piece_never_joins_a_word_with_a_comma(pieces):
    for word in pieces.words[4:]:
        assert len(word) == 1 or not set(word) & set(".,"), word


def test_what_is_special_in_a_text(pieces):
    [ids] = pieces.encode(["<s> </s> <blank> Hund"])
    assert not {START, END, PAD} & set(ids)
    [ids] = pieces.encode(["Hund 漢"])
    assert ids.count(tutorial.UNKNOWN) == 1 and "<unk>" in pieces.decode(ids)
    assert pieces.encode(["", " \t ", "\x00"]) == [[], [], []]


def test_random_text_is_cut_and_never_lost(pieces):
    rng = random.Random(0)
    known = sorted(set("".join(pieces.words[4:])) - {"▁"})
    for _ in range(200):
        words = ["".join(rng.choices(known, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 6))]
        text = " ".join(words)
        assert pieces.decode(pieces.encode([text])[0]) == text
        wild = "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(40))
        assert all(0 <= n < len(pieces) for n in pieces.encode([wild])[0])


def test_merges_by_hand():
    words = {("a", "b", "a", "b"): 3, ("b", "a"): 1}
    assert tutorial.most_frequent_pair(words) == ("a", "b")
    assert tutorial.merge_pair(("a", "b", "a", "b", "a"), ("a", "b")) == ("ab", "ab", "a")
    assert tutorial.merge_pair(("a", "a", "a"), ("a", "a")) == ("aa", "a")
    assert tutorial.first_merges(words, 2) == [("a", "b"), ("ab", "ab")]


# The cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_cache_changes_no_token(seed, norm_first):
    torch.manual_seed(seed)
    model = tutorial.tiny_model(norm_first=norm_first, N=1 + seed % 3)
    sentences = [torch.randint(4, 11, (n,)).tolist() for n in (1, 7, 3, 7)]
    batch = Batch(pad_ids(sentences))
    plain = greedy_decode(model, batch.src, batch.src_mask, 15, START)
    assert torch.equal(tutorial.greedy_search(model, batch.src, batch.src_mask, 15, START), plain)


def test_hypotheses_can_be_repeated_and_sentences_dropped():
    model, batch = tutorial.tiny_model(), Batch(pad_ids([[4, 5, 6], [9, 4], [10, 7, 8]]))
    with torch.no_grad():
        memory, mask = model.encode(batch.src, batch.src_mask), batch.src_mask
        decoder = tutorial.CachedDecoder(model, memory, mask, longest=4)
        written = torch.full((3, 2, 1), START)
        for symbols, sentences, origin in (
            ([[7, 8], [9, 5], [4, 6]], [0, 1, 2], [[1, 1], [0, 1], [1, 0]]),
            ([[5, 9], [9, 9]], [2, 0], [[0, 0], [1, 0]]),
            ([[10, 11]], [1], [[1, 0]]),
        ):
            decoder.step(written[:, :, -1])
            sentences, origin = torch.tensor(sentences), torch.tensor(origin)
            decoder.keep(sentences, origin)
            memory, mask = memory[sentences], mask[sentences]
            grown = torch.stack([written[n, o] for n, o in zip(sentences, origin, strict=True)])
            written = torch.cat([grown, torch.tensor(symbols).unsqueeze(-1)], dim=-1)
        after = decoder.step(written[:, :, -1])
        for row, hypotheses in enumerate(written):
            for place, tgt in enumerate(hypotheses):
                one, causal = slice(row, row + 1), tutorial.subsequent_mask(len(tgt))
                states = model.decode(memory[one], mask[one], tgt.unsqueeze(0), causal)
                torch.testing.assert_close(after[row, place], model.generator(states)[0, -1])


def test_a_stack_without_memory_goes_on_with_what_is_kept():
    """An encoder behind a causal mask, its sentences repeated and dropped."""
    model = tutorial.tiny_model()
    alone = tutorial.EncoderDecoder(None, model.encoder, None, model.tgt_embed, model.generator)
    tgt = torch.randint(4, 13, (3, 5))
    with torch.no_grad():
        decoder = tutorial.CachedDecoder(alone, None, None, longest=5)
        for place in range(4):
            decoder.step(tgt[:, place : place + 1])
            if place == 1:
                decoder.keep(torch.tensor([2, 0]), torch.zeros(2, 1).long())
                tgt = tgt[[2, 0]]
        last = decoder.step(tgt[:, 4:])[:, 0]
        states = model.encoder(model.tgt_embed(tgt), tutorial.subsequent_mask(5))
        torch.testing.assert_close(last, model.generator(states)[:, -1])


def test_no_target_goes_beyond_the_positions():
    model, src = tutorial.tiny_model(max_len=6), torch.tensor([[4, 5]])
    mask = Batch(src).src_mask
    for room, taken in ((6, 7), (9, 7)):  # beyond the room, and beyond the positions
        decoder = tutorial.CachedDecoder(model, model.encode(src, mask), mask, longest=room)
        with pytest.raises(IndexError), torch.no_grad():
            for _ in range(taken):
                decoder.step(torch.tensor([[5]]))


# The beam ---------------------------------------------------------------------------------------


def biased(seed: int, V: int = 9, **changes):
    """A small model that ends sentences now and then."""
    torch.manual_seed(seed)
    model = tutorial.make_model(
        V, V, **{"N": 1, "d_model": 16, "d_ff": 32, "h": 4} | changes
    ).eval()
    model.generator.proj.weight.data *= 3
    model.generator.proj.bias.data[PAD] = -1e4  # no trained model writes it
    return model


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_a_batch_gives_each_sentence_what_it_gets_alone(beam):
    sentences = [[4, 5, 6, 7, END], [8, END], [7, 7, 4, END]]
    search = functools.partial(beam_search, max_len=12, beam=beam)
    for seed in range(4):
        model, batch = biased(seed), Batch(pad_ids(sentences))
        together = search(model, batch.src, batch.src_mask)
        for row, sentence in zip(together, sentences, strict=True):
            single = Batch(torch.tensor([sentence]))
            alone = search(model, single.src, single.src_mask)[0]
            assert torch.equal(row[: len(alone)], alone) and row[len(alone) :].eq(PAD).all()


def slow_search(model, src, max_len: int, beam: int, alpha: float) -> tuple[float, list[int]]:
    """The same search for one sentence, from its description: no cache, no batch, no early end."""
    mask, beams = Batch(src).src_mask, [(0.0, [START])]
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


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam", [2, 3, 6])
def test_the_search_is_the_one_described(alpha, beam):
    with torch.no_grad():
        for seed in range(6):
            model, src = biased(seed), torch.randint(4, 9, (1, 5))
            score, written = slow_search(model, src, 8, beam, alpha)
            found = beam_search(model, src, Batch(src).src_mask, 8, START, beam, alpha)[0]
            assert tutorial.score_of(model, src, found, alpha) == pytest.approx(score, abs=1e-4)
            assert found[found != PAD].tolist() == written


def test_an_early_end_saves_steps_and_costs_nothing():
    """The bound must end some searches before the cap, or it is not tried here."""
    saved = 0
    for seed in range(10):
        model, src = biased(seed), torch.randint(4, 9, (1, 4))
        model.generator.proj.bias.data[END] += 2
        record: list = []
        found = beam_search(model, src, Batch(src).src_mask, 14, START, 4, 0.6, record)[0]
        with torch.no_grad():
            score, _ = slow_search(model, src, 14, 4, 0.6)
        assert tutorial.score_of(model, src, found, 0.6) == pytest.approx(score, abs=1e-4)
        saved += len(record) < 13 and not record[-1][0].ended.all().item()
    assert saved


@pytest.mark.parametrize("beam", [2, 3, 8])
def test_no_hypothesis_stands_twice_in_a_beam(beam):
    """Not even where some symbols are impossible, so that a beam cannot be filled."""
    for seed in range(60):
        torch.manual_seed(seed)
        V = 4 + seed % 3
        found = tutorial.first_hypotheses(torch.zeros(2, 3).long(), beam, START)
        for _ in range(5):
            scores = torch.randn(2, beam, V).masked_fill(torch.rand(2, beam, V) < 0.4, -torch.inf)
            scores[:, :, PAD] = -torch.inf  # no model writes it
            found, _ = tutorial.grow(found, scores - 1.0)
            for row in range(2):
                live = found.logp[row].isfinite()
                texts = [
                    tuple(w for w in written if w != PAD or not ended)
                    for written, ended in zip(
                        found.written[row][live].tolist(), found.ended[row][live], strict=True
                    )
                ]
                assert len(texts) == len(set(texts)), (seed, texts)


def beams(logp: list[float], ended: list[bool], length: int = 2) -> tutorial.Hypotheses:
    """One sentence with hypotheses of one length, each with a text of its own."""
    written = torch.tensor([[[START, 4 + n, END if end else 8] for n, end in enumerate(ended)]])
    lengths = torch.full((1, len(ended)), length)
    return tutorial.Hypotheses(written, torch.tensor([logp]), lengths, torch.tensor([ended]))


def test_an_ended_hypothesis_keeps_its_place():
    now, log_probs = beams([-1.0, -9.0, -2.0], [False, True, False]), torch.full((1, 3, 9), -5.0)
    log_probs[0, 0, [6, 7]] = torch.tensor([-0.1, -0.2])  # two that are better by far
    log_probs[0, 2, 8] = -0.3
    grown, origin = tutorial.grow(now, log_probs)
    order = grown.logp[0].argsort(descending=True)
    assert grown.written[0, order].tolist() == [[0, 4, 8, 6], [0, 4, 8, 7], [0, 5, END, PAD]]
    assert origin[0, order].tolist() == [0, 0, 1] and grown.length[0, order].tolist() == [3, 3, 2]
    assert grown.logp[0, order].tolist() == pytest.approx([-1.1, -1.2, -9.0])


def test_the_bound_is_that_of_the_longest_length():
    """An ended score of -3 / lp(2) against -4, which may become as good as -4 / lp(longest)."""
    for alpha, longest, over in (
        (0.0, 50, True),
        (1.0, 4, True),
        (1.0, 5, False),
        (1.0, 50, False),
    ):
        now = beams([-3.0, -4.0, -90.0], [True, False, False])
        assert tutorial.decided(now, alpha, longest).tolist() == [over]
    assert not tutorial.decided(beams([-1.0, -9.0], [False, False]), 0.0, 9).any()
    assert tutorial.decided(beams([-1.0, -9.0], [True, True]), 0.0, 9).all()


def test_the_length_penalty_is_the_paper_s():
    assert tutorial.length_penalty(1, 0.6) == 1.0
    assert tutorial.length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert tutorial.length_penalty(30, 0.0) == 1.0


def test_a_cap_of_one_leaves_the_start_alone():
    model, src = biased(0), torch.tensor([[4, 5], [6, 7]])
    assert beam_search(model, src, Batch(src).src_mask, 1).tolist() == [[START], [START]]


def test_a_beam_wider_than_the_vocabulary_works():
    model, src = biased(0, V=5), torch.tensor([[4, 4]])
    found = beam_search(model, src, Batch(src).src_mask, 4, beam=30)
    assert found.shape[0] == 1 and tutorial.score_of(model, src, found[0], 0.6) > -math.inf


@pytest.mark.parametrize(
    "bad", [{"beam": 0}, {"beam": -1}, {"alpha": -0.1}, {"alpha": math.nan}, {"alpha": 11}]
)
def test_a_search_for_nothing_is_refused(bad):
    [(name, value)], src = bad.items(), torch.tensor([[4, 5]])
    with pytest.raises(ValueError, match=rf"{name} (must be|from).* {value}\b"):
        beam_search(biased(0), src, Batch(src).src_mask, 5, **bad)


def test_the_search_leaves_the_mode_of_the_model_alone():
    model, src = biased(0, dropout=0.5).train(), torch.tensor([[4, 5, 6]])
    found = {tuple(beam_search(model, src, Batch(src).src_mask, 9)[0].tolist()) for _ in range(5)}
    assert model.training and len(found) == 1


# The mean ---------------------------------------------------------------------------------------


def test_models_are_averaged_as_a_stream():
    """However many there are, the one before the next is the only other that is alive."""
    alive: list = []

    def stream():
        for number in range(5):
            assert sum(reference() is not None for reference in alive) <= 1
            model = tutorial.tiny_model()
            torch.nn.init.constant_(model.generator.proj.bias, number)
            alive.append(weakref.ref(model))
            yield model
            del model

    mean = tutorial.tiny_model()
    tutorial.average(mean, stream())
    torch.testing.assert_close(mean.generator.proj.bias, torch.full((13,), 2.0))
    assert len(alive) == 5


def test_the_mean_of_shared_weights_is_shared():
    make = functools.partial(tutorial.make_model, 11, 11, 1, 8, 16, 2, share_embeddings=True)
    first, second, mean = make(), make(), make()
    tutorial.average(mean, [first, second])
    expected = (first.generator.proj.weight + second.generator.proj.weight) / 2
    torch.testing.assert_close(mean.src_embed[0].lut.weight, expected)
    assert mean.src_embed[0].lut.weight is mean.generator.proj.weight


def test_models_of_other_layers_have_no_mean():
    """Nor does an empty list, or a model of other sizes; the weights stay what they were."""
    mean = tutorial.tiny_model()
    before = copy.deepcopy(mean.state_dict())
    for models in ([], [tutorial.tiny_model(), tutorial.tiny_model(N=1)],
                   [tutorial.tiny_model(), tutorial.tiny_model(d_model=32)]):  # fmt: skip
        with pytest.raises((ValueError, RuntimeError)):
            tutorial.average(mean, models)
    for name, value in mean.state_dict().items():
        assert torch.equal(value, before[name])


def test_linear_rate():
    rates = [tutorial.linear_rate(step, 256, 1.5, 100, 1000) for step in range(1, 1001)]
    assert rates.index(max(rates)) + 1 == 100
    assert max(rates) == pytest.approx(tutorial.rate(100, 256, 1.5, 100))
    halves = [rates[49], rates[549]]
    assert halves == pytest.approx([max(rates) / 2] * 2)
    assert rates[-1] == 0.0 and tutorial.linear_rate(1200, 256, 1.5, 100, 1000) == 0.0
    falls = [a - b for a, b in itertools.pairwise(rates[99:])]
    assert max(falls) == pytest.approx(min(falls))


# Faster forms -----------------------------------------------------------------------------------


def test_the_kernel_takes_bf16_through_fp32():
    """Nearer to the exact result than products of bf16 would be, in output and gradient."""
    query, key, value = (torch.randn(2, 3, n, 4) for n in (5, 6, 6))
    mask = torch.rand(2, 1, 5, 6) < 0.7
    mask[..., 0] = True
    short = [x.bfloat16().requires_grad_() for x in (query, key, value)]
    fast = tutorial.make_fast(tutorial.MultiHeadedAttention(3, 12, 0.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = fast.attend(*short, mask)
    exact = [x.detach().float().requires_grad_() for x in short]
    expected, _ = tutorial.attention(*exact, mask)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.bfloat16())
    output.float().square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(short, exact, strict=True):
        torch.testing.assert_close(ours.grad.float(), theirs.grad, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(rate):
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    dropped = tutorial.FastDropout(rate)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=0.006)
    left = dropped[dropped != 0].unique()
    assert len(left) == 1 and left.item() == pytest.approx(2 / (1 - rate), rel=0.02)
    dropped.sum().backward()
    assert torch.equal(x.grad != 0, dropped.detach() != 0)


def test_dropout_of_neighbours_is_independent():
    torch.manual_seed(0)
    kept = (tutorial.FastDropout(0.5)(torch.ones(1000, 160)) != 0).float()
    for lag in (1, 7, 8, 16, 160):
        flat = kept.flatten()
        assert (flat[lag:] * flat[:-lag]).mean().item() == pytest.approx(0.25, abs=0.01)


def test_dropout_follows_the_seed_and_the_mode():
    drop, x = tutorial.FastDropout(0.4), torch.randn(5, 7)
    first, second = (torch.manual_seed(3) and drop(x) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(drop.eval()(x), x)
    assert torch.equal(tutorial.FastDropout(0.0)(x), x)


@pytest.mark.parametrize("tokens, V", [(0, 3001), (1, 3001), (3, 3001), (700, 3001), (300, 20_001)])
def test_the_loss_in_chunks_for_any_number_of_tokens(tokens, V):
    torch.manual_seed(0)
    criterion, proj = tutorial.LabelSmoothing(V, PAD, 0.1), torch.nn.Linear(6, V).double()
    states = torch.randn(tokens, 6).double().requires_grad_()
    target = torch.randint(3, V, (tokens,))
    inputs = states, proj.weight, proj.bias
    run = tutorial.ChunkedLoss.apply(*inputs, target, criterion, torch.double)
    read = criterion(proj(states).log_softmax(-1), target)
    torch.testing.assert_close(run, read)
    ours, theirs = (torch.autograd.grad(3 * loss, inputs) for loss in (run, read))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
