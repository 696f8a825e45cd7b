"""The model and its training beyond what the checks of the text show: limits, formats, edges.

Tests that take the module `at` and nothing else are used by test_faults.py too.
"""

import copy
import itertools
import random
import types

import pytest
import torch
from torch import nn

SIZES = {"N": 1, "d_model": 8, "d_ff": 16, "h": 2}


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


def small_inputs(at, B: int = 2, S: int = 5, T: int = 4) -> tuple[torch.Tensor, ...]:
    """Source, target, and their masks, one of the sources padded."""
    src, tgt = torch.randint(11, (B, S)), torch.randint(13, (B, T))
    src_mask = torch.ones(B, 1, S, dtype=torch.bool)
    src_mask[-1, 0, S - 2 :] = False
    return src, tgt, src_mask, at.subsequent_mask(T)


# Limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        ({"d_model": 8, "h": 3}, "8 3 divisible"),
        ({"d_model": 7, "h": 1}, "7"),  # sines and cosines come in pairs
        ({"N": 0}, "N 0"),
        ({"share_embeddings": True}, "11 13 one vocabulary"),
        ({"max_len": 4}, "5 4"),  # five words in the source
    ],
    ids=str,
)
def test_a_size_that_cannot_work_is_named(at, change, words):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        at.make_model(**{"src_vocab": 11, "tgt_vocab": 13} | SIZES | change)(*small_inputs(at))
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)


def test_a_wrong_word_is_never_wanted_more_than_the_right_one(at):
    for size in (4, 9):
        limit = (size - 2) / (size - 1)
        for smoothing in (limit, 1.0, -0.1, float("nan")):
            with pytest.raises(ValueError, match=rf"\[0, {limit:.3g}\), got {smoothing}"):
                at.LabelSmoothing(size, at.PAD, smoothing)
        wanted = at.LabelSmoothing(size, at.PAD, limit - 0.01).distribution(torch.tensor([3]))[0]
        assert wanted[3] > wanted[0] and wanted[at.PAD] == 0
        assert wanted.sum().item() == pytest.approx(1)


def test_symbols_that_leave_nothing_to_copy(at):
    with pytest.raises((ValueError, RuntimeError), match="4"):
        next(at.data_gen(4, 1, 1))
    assert next(at.data_gen(5, 2, 1)).src.unique().tolist() == [4]


def test_an_update_without_a_target_token(at):
    model, src = at.tiny_model(), torch.full((1, 3), 4)
    loss_compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(13, at.PAD))
    empty = at.Batch(src, torch.full((1, 3), at.PAD))
    with pytest.raises(ValueError, match="without a single target token"):
        at.run_epoch([empty], model, loss_compute, *at.make_optimizer(model, 1.0, 10))


# Shape and structure ----------------------------------------------------------------------------


def test_the_output_is_normalised_in_both_orders(at):
    for norm_first in (True, False):
        model = at.make_model(11, 13, **SIZES, norm_first=norm_first).eval()
        states = model(*small_inputs(at))
        torch.testing.assert_close(states.mean(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)
        variance = states.var(-1, unbiased=False)
        torch.testing.assert_close(variance, torch.ones(2, 4), atol=1e-2, rtol=0)
        norms = sum(isinstance(module, at.LayerNorm) for module in model.modules())
        assert norms == 2 + 3 + 2 * norm_first, "a final norm belongs to the norm first"


def test_the_norm_of_a_vector_that_hardly_varies(at):
    x = torch.randn(2, 5, 8) / 1000  # so that epsilon counts, and where it stands
    torch.testing.assert_close(at.LayerNorm(8)(x), nn.LayerNorm(8, eps=1e-6)(x))


def test_the_norm_stands_where_its_order_says(at):
    x, seen = torch.randn(2, 3, 8), []
    for norm_first in (True, False):
        connection = at.SublayerConnection(8, 0.0, norm_first)
        nn.init.normal_(connection.norm.shift)
        given = connection(x, lambda x: seen.append(x) or 2 * x)
        norm = connection.norm
        torch.testing.assert_close(seen.pop(), norm(x) if norm_first else x)
        torch.testing.assert_close(given, x + 2 * norm(x) if norm_first else norm(3 * x))


def test_parameters_of_the_base_and_the_big_model(at):
    for D, F, h, count in ((512, 2048, 8, 63_121_544), (1024, 4096, 16, 214_286_472)):
        with torch.device("meta"):
            model = at.make_model(37_000, 37_000, 6, D, F, h, share_embeddings=True)
        attention, feed, norm = 4 * (D * D + D), 2 * D * F + D + F, 2 * D
        layers = 6 * (3 * attention + 2 * feed + 5 * norm) + 2 * norm
        by_hand = layers + 37_000 * D + 37_000  # a bias for each word of the generator
        assert at.count_parameters(model) == by_hand == count


def test_a_batch_knows_padding_by_the_number_that_it_is_given(at):
    src = torch.tensor([[5, 6, 1, 2], [5, 1, 2, 2]])
    tgt = torch.tensor([[0, 7, 8, 1], [0, 7, 1, 2]])
    batch = at.Batch(src, tgt, pad=7)
    assert batch.src_mask.all() and batch.src_mask.shape == (2, 1, 4) and batch.ntokens == 4
    assert batch.tgt_mask[0].int().tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    assert at.Batch(src, pad=6).src_mask[0].int().tolist() == [[1, 0, 1, 1]]
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, name).device.type for name in ("src", "tgt_y", "tgt_mask")} == {"meta"}
    assert batch.src.device.type == "cpu" and moved.ntokens == 4


def test_masks_of_ones_and_zeros_mean_what_they_say(at):
    """Of any number format, as code of 2018 and 2022 has them."""
    model, (src, tgt, src_mask, tgt_mask) = at.tiny_model(), small_inputs(at)
    states, search = model(src, tgt, src_mask, tgt_mask), at.beam_search
    greedy, beams = (d(model, src, src_mask, 9, at.START) for d in (at.greedy_decode, search))
    for dtype in (torch.uint8, torch.long, torch.float):
        mask = src_mask.to(dtype)
        torch.testing.assert_close(model(src, tgt, mask, tgt_mask.to(dtype)), states)
        assert torch.equal(at.greedy_decode(model, src, mask, 9, at.START), greedy)
        assert torch.equal(search(model, src, mask, 9, at.START), beams), dtype


# State, gradients, randomness -------------------------------------------------------------------


def test_recorded_or_not_the_output_is_the_same(at):
    for norm_first in (True, False):
        model, inputs = at.tiny_model(norm_first=norm_first), small_inputs(at)
        attentions = [m for m in model.modules() if isinstance(m, at.MultiHeadedAttention)]
        assert all(attn.record is None for attn in attentions)
        expected, record = model(*inputs), []
        for attn in attentions:
            attn.record = record
        torch.testing.assert_close(model(*inputs), expected)
        shapes = [(2, 4, 5, 5)] * 2 + [(2, 4, 4, 4), (2, 4, 4, 5)] * 2
        assert [tuple(weights.shape) for weights in record] == shapes
        assert not any(weights.requires_grad for weights in record)
        assert all(weights[-1, :, :, 3:].eq(0).all() for weights in [*record[:2], *record[3::2]])


def test_where_everything_is_dropped_nothing_is_left(at):
    """At a rate of one a dropout that is missing lets something through."""
    model = at.tiny_model(dropout=1.0).train()
    assert model(*small_inputs(at)).eq(0).all(), "after an embedding, or after a sub-layer"
    x, feed = torch.randn(2, 5, 8), at.PositionwiseFeedForward(8, 16, 1.0)
    torch.testing.assert_close(feed(x), feed.narrow.bias.expand(2, 5, 8))
    attn = at.MultiHeadedAttention(2, 8, 1.0)
    for attn.record in (None, []):
        torch.testing.assert_close(attn(x, x, x), attn.linears[3].bias.expand(2, 5, 8))
    torch.testing.assert_close(attn.record[0].sum(-1), torch.ones(2, 2, 5))  # as before dropout


def test_dropout_of_attention_weights_is_that_of_the_model_unless_given(at):
    for changes, rate in (
        ({"dropout": 0.3}, 0.3),
        ({"dropout": 0.3, "attention_dropout": 0.0}, 0.0),
    ):
        modules = at.tiny_model(**changes).modules()
        assert {m.dropout.p for m in modules if isinstance(m, at.MultiHeadedAttention)} == {rate}


def test_a_loss_is_judged_and_a_text_decoded_without_dropout(at):
    src = at.pad_ids([[4, 5, 6, at.END], [7, at.END]])
    model, batch = at.tiny_model(dropout=0.5), at.Batch(src, src)
    judged = at.evaluate_loss(model, [batch])
    written = at.greedy_decode(model, batch.src, batch.src_mask, 9, at.START)
    model.train()
    assert at.evaluate_loss(model, [batch]) == judged
    assert torch.equal(at.greedy_decode(model, batch.src, batch.src_mask, 9, at.START), written)
    searched = at.greedy_search(model, batch.src, batch.src_mask, 9, at.START)
    assert torch.equal(searched, written) and model.training and not written.requires_grad


def test_fresh_models_differ_and_seeded_ones_agree(at):
    def weights(seed):
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(at.tiny_model().parameters())

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    model = at.tiny_model()
    for first, second in (model.encoder.layers, model.decoder.layers):
        pairs = zip(first.named_parameters(), second.parameters(), strict=True)
        alike = [name for (name, ours), theirs in pairs if torch.equal(ours, theirs)]
        assert all(".norm." in name for name in alike), "norms start at one and zero"


# Training ---------------------------------------------------------------------------------------

LOSSES = {  # by the order of the norm: three epochs of two updates, then without smoothing
    True: [2.244884683, 1.648831513, 0.961011075, 0.967336747],
    False: [2.404707665, 1.784215066, 1.667894730, 2.142908930],
}


def test_a_few_updates_give_the_losses_that_they_always_gave(at):
    """In double precision; whatever changes the computation in silence changes these numbers."""
    sentences = [[at.START, *range(4, 5 + n), at.END] for n in range(7)]
    parts = map(at.pad_ids, at.grouped(sentences, 2))
    batches, criterion = [at.Batch(ids, ids) for ids in parts], at.LabelSmoothing(13, at.PAD, 0.1)
    for norm_first, expected in LOSSES.items():
        torch.manual_seed(0)
        model = at.tiny_model(dropout=0.0, norm_first=norm_first).double()
        optimizer, losses = at.make_optimizer(model, 0.5, 4), []
        loss_compute = at.SimpleLossCompute(model.generator, criterion)
        for _ in range(3):
            losses.append(at.run_epoch(batches, model, loss_compute, *optimizer, accum_iter=3)[0])
        losses.append(at.evaluate_loss(model, batches)["nll"])
        assert losses == pytest.approx(expected, abs=1e-6), norm_first


def test_an_update_follows_the_gradient_of_the_mean_over_all_tokens(at):
    """By plain gradient descent: Adam, which divides by the gradient, hides a wrong factor."""
    batches = [at.Batch(*[at.pad_ids(ids)] * 2) for ids in ([[0, 4, 1], [0, 5, 6, 1]], [[0, 7, 1]])]
    start, criterion = at.tiny_model(dropout=0.0).double(), at.LabelSmoothing(13, at.PAD, 0.1)
    vector, updated = nn.utils.parameters_to_vector, []
    for way in ("by hand", "plain", "fast"):
        model = copy.deepcopy(start)
        loss_compute = at.SimpleLossCompute(model.generator, criterion)
        descent = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(descent, lambda _: 1.0)
        if way == "by hand":
            for b in batches:
                states = model(b.src, b.tgt, b.src_mask, b.tgt_mask)
                (criterion(model.generator(states), b.tgt_y) / 7).backward()
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
            descent.step()
        elif way == "plain":
            at.run_epoch(batches, model, loss_compute, descent, schedule, accum_iter=2)
        else:
            step = at.train_step(at.ModelWithLoss(model, criterion), batches, descent, schedule)
            assert step["grad_norm"] == pytest.approx(norm) and step["tokens"] == 7
        updated.append(vector(model.parameters()))
    torch.testing.assert_close(updated[1], updated[0])
    torch.testing.assert_close(updated[2], updated[0], rtol=1e-6, atol=1e-7)
    assert norm > 0.1 and not torch.equal(updated[0], vector(start.parameters()))


def test_copies_are_counted_to_their_end(at):
    """Of four copies one has a wrong symbol, one does not end, and one ends too early."""
    batch = next(at.data_gen(9, 4, 1))
    written = torch.cat([batch.tgt, batch.tgt_y[:, -1:]], dim=1)
    written[1, 10], written[2, 11], written[3, 10:] = 3, 4, torch.tensor([at.END, at.PAD])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at, "greedy_decode", lambda *arguments: written[:, : arguments[3]])
        assert at.copied_exactly(None, batch) == 1


def test_a_full_beam_finds_the_best_of_all_where_sentences_may_end_early(at):
    """As the check of the text does, with an end so likely that lengths compete."""
    triples = [[at.START, *symbols] for symbols in itertools.product((at.END, 4, 5, 6), repeat=3)]
    sentences = [s[: [*s, at.END].index(at.END) + 1] for s in triples]
    for seed, alpha in itertools.product(range(3), (0.0, 0.6, 2.0)):
        torch.manual_seed(seed)
        model, src = at.make_model(7, 7, 1, 16, 32, 4).eval(), torch.tensor([[4, 6, 5, at.END]])
        model.generator.proj.bias.data[:4] = torch.tensor([-torch.inf, 1.5, -torch.inf, -torch.inf])
        best = max(at.score_of(model, src, torch.tensor(each), alpha) for each in sentences)
        row = at.beam_search(model, src, src.unsqueeze(1) > 0, 4, at.START, 343, alpha)[0]
        assert at.score_of(model, src, row, alpha) == pytest.approx(best, abs=1e-5)


# Number formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_an_empty_row_in_every_format(at, dtype):
    *inputs, mask = at.random_attention_inputs()
    for kind in (None, at.MultiHeadedAttention, at.FastAttention):
        given = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        attend = kind(4, 32, 0.0).attend if kind else lambda *given: at.attention(*given)[0]
        output = attend(*given, mask)
        output.float().square().sum().backward()
        assert output.dtype == dtype and output.isfinite().all()
        assert output[0, :, 1].eq(0).all() and output[0, :, 0].ne(0).any()
        assert all(tensor.grad.isfinite().all() for tensor in given)
        assert given[0].grad[0, :, 1].eq(0).all()


def test_a_sentence_with_nothing_to_attend_to_harms_no_neighbour(at):
    model, (src, tgt, src_mask, tgt_mask) = at.tiny_model(), small_inputs(at)
    alone = model(src[:1], tgt[:1], src_mask[:1], tgt_mask)
    src_mask[1] = False
    together = model(src, tgt, src_mask, tgt_mask)
    torch.testing.assert_close(together[:1], alone)
    together.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_log_probabilities_and_loss_stay_in_fp32_under_bf16(at):
    model, (src, tgt, src_mask, tgt_mask) = at.tiny_model(), small_inputs(at)
    wanted, losses = torch.randint(4, 13, (2, 4)), []
    batch = types.SimpleNamespace(
        src=src, tgt=tgt, src_mask=src_mask, tgt_mask=tgt_mask, tgt_y=wanted
    )
    for dtype in (None, torch.bfloat16):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            x, attn = torch.randn(1, 3, 16), model.encoder.layers[0].self_attn
            assert attn(x, x, x).dtype == (dtype or torch.float32), "the format is really used"
            log_probs = model.generator(model(src, tgt, src_mask, tgt_mask))
        assert log_probs.dtype == torch.float32
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 4))
        loss_model = at.ModelWithLoss(model, at.LabelSmoothing(13, at.PAD, 0.1), dtype)
        losses.append(loss_model(batch))
        assert losses[-1].dtype == torch.float32
    assert losses[0] != losses[1] and losses[0].item() == pytest.approx(losses[1].item(), rel=0.05)


def test_whole_models_in_other_formats(at):
    inputs, single = small_inputs(at), at.tiny_model()
    for dtype, precise in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        model = copy.deepcopy(single).to(dtype)
        states, tolerance = model(*inputs), 1e-5 if dtype == precise else 0.2
        assert states.dtype == dtype and model.generator(states).dtype == precise
        torch.testing.assert_close(states.float(), single(*inputs), atol=tolerance, rtol=0)


# Words and text ---------------------------------------------------------------------------------


def test_a_vocabulary_counts_and_sorts(at):
    sentences = [["a", "b", "a"], ["a", "b", "c", "<s>", "<s>"]]
    vocabulary = at.build_vocabulary(sentences, min_freq=2)
    assert vocabulary.words == (*at.SPECIALS, "a", "b") and len(vocabulary) == 6
    ids = [4, at.UNKNOWN, 5, at.UNKNOWN]
    assert vocabulary.encode(["a c b zebra"], "de") == [ids] and len(vocabulary) == 6
    assert vocabulary.decode([at.START, 4, 5, at.PAD, at.END, 4]) == "a b"


def test_vocabularies_know_the_training_split_only(at):
    train, rest = [("Hund Hund", "dog dog")], [("Katze Katze", "cat cat")]
    corpus = at.Corpus("toy", ("de", "en"), {"train": train, "val": rest, "test": rest})
    vocabularies = at.learn_words(corpus, min_freq=1)
    assert [vocabulary.words[4:] for vocabulary in vocabularies] == [("Hund",), ("dog",)]
    [pair] = at.encode_pairs(train, vocabularies, corpus.languages)
    assert pair == ([4, 4, at.END], [at.START, 4, 4, at.END])
    [pair] = at.encode_pairs(rest, vocabularies, corpus.languages)
    assert pair[0] == [at.UNKNOWN, at.UNKNOWN, at.END]


def test_a_pair_that_is_empty_or_too_long_cannot_be_used(at):
    for source, target in ((4, 3), (4, 4), (5, 3), (0, 3), (4, 0)):
        pair = ([*[5] * source, at.END], [at.START, *[5] * target, at.END])
        assert at.usable(pair, 5) == (source == 4 and target == 3), (source, target)


def test_text_is_put_together_as_it_was(at):
    rng, german = random.Random(0), at.load_tokenizer("de")
    pieces = "Hund z.B. (laut) „so“ ! … 3,5 Meier-Lenz a/b 's ä #".split()
    for _ in range(200):
        text = "".join(rng.choice(pieces) + rng.choice(["", " ", "  "]) for _ in range(8)).strip()
        assert at.detokenize(at.tokenize(text, german)) == " ".join(text.split())
