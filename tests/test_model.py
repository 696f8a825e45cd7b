"""The model beyond what its examples show: limits, formats, state, edges."""

import itertools
import math
import random

import pytest
import torch
from torch import nn

import the_annotated_transformer as tutorial

SIZES = {"N": 1, "d_model": 8, "d_ff": 16, "h": 2}


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


def small_inputs(B: int = 2, S: int = 5, T: int = 4) -> tuple[torch.Tensor, ...]:
    """Source, target, and their masks, one of the sources padded."""
    src, tgt = torch.randint(11, (B, S)), torch.randint(13, (B, T))
    src_mask = torch.ones(B, 1, S, dtype=torch.bool)
    src_mask[-1, 0, S - 2 :] = False
    return src, tgt, src_mask, tutorial.subsequent_mask(T)


# Limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        ({"d_model": 9, "h": 3}, ["even", "9"]),
        ({"d_model": 7, "h": 1}, ["even", "7"]),
        ({"d_model": 8, "h": 3}, ["8", "3", "divisible"]),
        ({"d_model": 0}, ["positive", "0"]),
        ({"d_model": -8}, ["positive", "-8"]),
        ({"h": 0}, ["positive", "0"]),
        ({"h": -2}, ["positive", "-2"]),
        ({"N": -1}, ["0 or more", "-1"]),
        ({"d_ff": 0}, ["positive", "0"]),
        ({"d_ff": -4}, ["positive", "-4"]),
        ({"dropout": 1.0}, ["[0, 1)", "1.0"]),
        ({"dropout": -0.1}, ["[0, 1)", "-0.1"]),
        ({"dropout": math.nan}, ["[0, 1)", "nan"]),
        ({"attention_dropout": 1.5}, ["[0, 1)", "1.5"]),
        ({"max_len": 0}, ["positive", "0"]),
        ({"src_vocab": 0}, ["positive", "0"]),
        ({"share_embeddings": True}, ["11", "13"]),
    ],
    ids=str,
)
def test_a_size_out_of_range_is_named_with_its_limit(change, words):
    with pytest.raises(ValueError) as caught:
        tutorial.make_model(**{"src_vocab": 11, "tgt_vocab": 13} | SIZES | change)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_sequence_longer_than_the_positions():
    model = tutorial.make_model(11, 13, **SIZES, max_len=6).eval()
    src, tgt, src_mask, tgt_mask = small_inputs(S=6, T=6)
    assert model(src, tgt, src_mask, tgt_mask).shape == (2, 6, 8)
    for too_long in ({"S": 7}, {"T": 7}):
        with pytest.raises(ValueError, match="7 tokens does not fit 6"):
            model(*small_inputs(**too_long))


@pytest.mark.parametrize(
    "refused, words",
    [
        (lambda: tutorial.LabelSmoothing(2, 0), ["2"]),
        (lambda: tutorial.LabelSmoothing(9, 9, 0.1), ["[0, 9)", "got 9"]),
        (lambda: tutorial.LabelSmoothing(9, -1, 0.1), ["[0, 9)", "-1"]),
        (lambda: tutorial.LabelSmoothing(9, 2, -0.1), ["[0, 0.875)", "-0.1"]),
        (lambda: tutorial.LabelSmoothing(9, 2, 0.875), ["[0, 0.875)", "0.875"]),
        (lambda: tutorial.LabelSmoothing(9, 2, math.nan), ["nan"]),
        (lambda: tutorial.make_optimizer(nn.Linear(1, 1), 8, 1.0, 0), ["warmup", "0"]),
        (lambda: tutorial.make_optimizer(nn.Linear(1, 1), 8, 1.0, -5), ["warmup", "-5"]),
        (lambda: next(tutorial.data_gen(5, 1, 1)), ["6", "5"]),
        (lambda: tutorial.TokenBudget([(3, 3)], 0), ["budget", "0"]),
        (lambda: tutorial.TokenBudget([(3, 3)], -1), ["budget", "-1"]),
        (lambda: tutorial.LayerNorm(0), ["0"]),
    ],
)
def test_an_argument_out_of_range_is_named_with_its_limit(refused, words):
    with pytest.raises(ValueError) as caught:
        refused()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("accumulate", [0, -1])
def test_accumulation_over_no_batches(accumulate):
    with pytest.raises(ValueError, match=f"accumulate must be at least 1, got {accumulate}"):
        tutorial.run_epoch([], nn.Linear(1, 1), None, None, tutorial.TrainState(), accumulate)


@pytest.mark.parametrize("max_len", [0, -1])
def test_decoding_to_no_length(max_len):
    src, _, src_mask, _ = small_inputs()
    with pytest.raises(ValueError, match=f"max_len must be at least 1, got {max_len}"):
        tutorial.greedy_decode(tutorial.tiny_model(), src, src_mask, max_len, tutorial.START)


# Shape and structure ----------------------------------------------------------------------------


def test_a_final_norm_belongs_to_the_norm_before_the_sub_layer():
    first, last = (tutorial.make_model(11, 13, **SIZES, norm_first=way) for way in (True, False))
    for stack in (first.encoder, first.decoder):
        assert isinstance(stack.norm, tutorial.LayerNorm)
    norms = [
        sum(isinstance(m, tutorial.LayerNorm) for m in model.modules()) for model in (first, last)
    ]
    assert norms == [2 + 3 + 2, 2 + 3]
    assert not list(last.encoder.norm.parameters()) + list(last.decoder.norm.parameters())


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_output_is_normalised_in_both_orders(norm_first):
    model = tutorial.make_model(11, 13, **SIZES, norm_first=norm_first).eval()
    states = model(*small_inputs())
    torch.testing.assert_close(states.mean(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(states.var(-1, unbiased=False), torch.ones(2, 4), atol=1e-2, rtol=0)


def test_the_norm_stands_where_its_order_says():
    x = torch.randn(2, 3, 8)
    for first in (True, False):
        connection = tutorial.SublayerConnection(8, 0.0, first)
        nn.init.normal_(connection.norm.shift)
        seen = []

        def twice(x, seen=seen):
            seen.append(x)
            return 2 * x

        norm, given = connection.norm, connection(x, twice)
        torch.testing.assert_close(seen[0], norm(x) if first else x)
        torch.testing.assert_close(given, x + 2 * norm(x) if first else norm(3 * x))


def test_no_layers_at_all():
    model = tutorial.make_model(11, 13, **SIZES | {"N": 0}).eval()
    src, tgt, src_mask, tgt_mask = small_inputs()
    assert torch.equal(model.encode(src, src_mask), model.encoder.norm(model.src_embed(src)))
    model.generator(model(src, tgt, src_mask, tgt_mask)).sum().backward()


@pytest.mark.parametrize(
    "sizes, count", [({}, 63_121_544), ({"d_model": 1024, "d_ff": 4096, "h": 16}, 214_286_472)]
)
def test_parameters_of_the_base_and_the_big_model(sizes, count):
    with torch.device("meta"):
        model = tutorial.make_model(37_000, 37_000, share_embeddings=True, **sizes)
    D, F, V = sizes.get("d_model", 512), sizes.get("d_ff", 2048), 37_000
    attention, feed, norm = 4 * (D * D + D), 2 * D * F + D + F, 2 * D
    encoder = attention + feed + 2 * norm
    decoder = 2 * attention + feed + 3 * norm
    by_hand = 6 * (encoder + decoder) + 2 * norm + V * D + V  # the bias of the generator is V
    assert tutorial.count_parameters(model) == by_hand == count


def test_a_mask_of_the_future_is_boolean_and_lower_triangular():
    for size in (1, 2, 7):
        mask = tutorial.subsequent_mask(size)
        assert mask.dtype == torch.bool and mask.shape == (1, size, size)
        assert all(mask[0, t, s] == (s <= t) for t, s in itertools.product(range(size), repeat=2))


def test_masks_of_a_batch():
    src = torch.tensor([[5, 6, 1, 2], [5, 1, 2, 2]])
    tgt = torch.tensor([[0, 7, 8, 1], [0, 7, 1, 2]])
    batch = tutorial.Batch(src, tgt, pad=2)
    assert batch.src_mask.shape == (2, 1, 4) and batch.tgt_mask.shape == (2, 3, 3)
    assert batch.src_mask.squeeze(1).tolist() == [
        [True, True, True, False],
        [True, True, False, False],
    ]
    assert batch.tgt.tolist() == [[0, 7, 8], [0, 7, 1]]
    assert batch.tgt_y.tolist() == [[7, 8, 1], [7, 1, 2]]
    assert batch.ntokens == 5
    other = tutorial.Batch(src, tgt, pad=7)  # another padding symbol, in the middle of a row
    assert other.tgt_mask[0].tolist() == [
        [True, False, False],
        [True, False, False],
        [True, False, True],
    ]
    assert other.ntokens == 4
    assert tutorial.Batch(src, pad=6).src_mask[0].tolist() == [[True, False, True, True]]
    assert tutorial.Batch(src).tgt is None and tutorial.Batch(src).ntokens == 0


# State, gradients, randomness -------------------------------------------------------------------


def inner_state(model: nn.Module) -> dict:
    """Everything that the modules hold, by module: names and identities."""
    return {
        name: {key: id(value) for key, value in vars(module).items()}
        | {f"part {key}": id(value) for key, value in module._parameters.items()}
        | {f"part {key}": id(value) for key, value in module._buffers.items()}
        for name, module in model.named_modules()
    }


def test_no_state_stays_in_the_modules():
    model, record, inputs = tutorial.tiny_model(), [], small_inputs()
    before = inner_state(model)
    src, tgt, src_mask, tgt_mask = inputs
    memory = model.encode(src, src_mask, record)
    model.decode(memory, src_mask, tgt, tgt_mask, record)
    model(*inputs)
    assert inner_state(model) == before
    assert [tuple(w.shape) for w in record] == [(2, 4, 5, 5)] * 2 + [(2, 4, 4, 4), (2, 4, 4, 5)] * 2
    assert not any(weights.requires_grad for weights in record)


@pytest.mark.parametrize("norm_first", [True, False])
def test_recorded_or_not_the_output_is_the_same(norm_first):
    model, (src, tgt, src_mask, tgt_mask) = (
        tutorial.tiny_model(norm_first=norm_first),
        small_inputs(),
    )
    memory = model.encode(src, src_mask, record := [])
    torch.testing.assert_close(memory, model.encode(src, src_mask))
    states = model.decode(memory, src_mask, tgt, tgt_mask, record)
    torch.testing.assert_close(states, model.decode(memory, src_mask, tgt, tgt_mask))
    assert all(weights[-1, :, :, 3:].eq(0).all() for weights in [*record[:2], *record[3::2]])


def test_without_dropout_training_mode_is_deterministic():
    for changes, same in (({"dropout": 0.0}, True), ({"dropout": 0.5}, False),
                          ({"dropout": 0.0, "attention_dropout": 0.5}, False)):  # fmt: skip
        model, inputs = tutorial.tiny_model(**changes).train(), small_inputs()
        first, second = model(*inputs), model(*inputs)
        assert torch.equal(first, second) is same
        model.eval()
        assert torch.equal(model(*inputs), model(*inputs))


def test_dropout_of_attention_weights_follows_dropout_unless_given():
    for changes, rate in (
        ({"dropout": 0.3}, 0.3),
        ({"dropout": 0.3, "attention_dropout": 0.0}, 0.0),
    ):
        model = tutorial.tiny_model(**changes)
        kind = tutorial.MultiHeadedAttention
        rates = {m.dropout.p for m in model.modules() if isinstance(m, kind)}
        assert rates == {rate}


def test_dropout_of_weights_acts_in_both_forms():
    attend, x = tutorial.MultiHeadedAttention(2, 8, dropout=0.5), torch.randn(2, 5, 8)
    for record in (None, []):
        assert not torch.equal(attend(x, x, x, record=record), attend(x, x, x, record=record))
    recorded = []
    attend(x, x, x, record=recorded)
    torch.testing.assert_close(recorded[0].sum(-1), torch.ones(2, 2, 5))  # as they were before it


def test_the_gradient_of_a_shared_matrix_is_the_sum_of_its_three_uses():
    def gradients(model):
        src, tgt, src_mask, tgt_mask = inputs
        log_probs = model.generator(model(src, tgt, src_mask, tgt_mask))
        log_probs.gather(-1, wanted.unsqueeze(-1)).sum().backward()
        three = model.src_embed[0].lut.weight, model.tgt_embed[0].lut.weight
        return [weight.grad for weight in (*three, model.generator.proj.weight)]

    sizes = SIZES | {"dropout": 0.0}
    shared = tutorial.make_model(11, 11, **sizes, share_embeddings=True).double()
    separate = tutorial.make_model(11, 11, **sizes).double()
    separate.load_state_dict(shared.state_dict())
    src, tgt, src_mask, tgt_mask = small_inputs()
    inputs, wanted = (src, tgt.clamp(max=10), src_mask, tgt_mask), torch.randint(11, (2, 4))
    parts = gradients(separate)
    assert all(part.ne(0).any() for part in parts)
    together = gradients(shared)
    assert together[0] is together[1] is together[2]
    torch.testing.assert_close(together[0], sum(parts))


def test_fresh_models_differ_and_seeded_ones_agree():
    def weights(seed):
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(tutorial.tiny_model().parameters())

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    first, second = tutorial.tiny_model().encoder.layers
    pairs = zip(first.named_parameters(), second.parameters(), strict=True)
    alike = [name for (name, ours), theirs in pairs if torch.equal(ours, theirs)]
    assert all(".norm." in name for name in alike), (
        "norms start at one and zero, nothing else alike"
    )
    attention = first.self_attn.linears
    assert len({tuple(linear.bias.tolist()) for linear in attention}) == 4


# Number formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("form", ["to read", "fast"])
def test_an_empty_row_in_every_format(dtype, form):
    query, key, value, mask = tutorial.random_attention_inputs()
    inputs = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
    attend = tutorial.fast_attention if form == "fast" else lambda *x: tutorial.attention(*x)[0]
    output = attend(*inputs, mask)
    output.float().square().sum().backward()
    assert output.dtype == dtype and output.isfinite().all()
    assert output[0, :, 1].eq(0).all() and output[0, :, 0].ne(0).any()
    for tensor in inputs:
        assert tensor.grad.isfinite().all()
    assert inputs[0].grad[0, :, 1].eq(0).all()


def test_a_batch_with_nothing_to_attend_to_harms_no_neighbour():
    model, (src, tgt, src_mask, tgt_mask) = tutorial.tiny_model(dropout=0.0), small_inputs()
    alone = model(src[:1], tgt[:1], src_mask[:1], tgt_mask)
    src_mask[1] = False
    together = model(src, tgt, src_mask, tgt_mask)
    torch.testing.assert_close(together[:1], alone)
    together.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_log_probabilities_and_loss_stay_in_fp32_under_bf16():
    model, (src, tgt, src_mask, tgt_mask) = tutorial.tiny_model(dropout=0.0), small_inputs()
    wanted = torch.randint(4, 13, (2, 4))
    criterion = tutorial.LabelSmoothing(13, tutorial.PAD, 0.1)
    losses = {}
    for dtype in (None, torch.bfloat16):
        with tutorial.mixed_precision(torch.device("cpu"), dtype):
            attend = model.encoder.layers[0].self_attn
            x = torch.randn(1, 3, 16)
            assert attend(x, x, x).dtype == (dtype or torch.float32)  # the format is really used
            log_probs = model.generator(model(src, tgt, src_mask, tgt_mask))
        assert log_probs.dtype == torch.float32
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 4))
        loss = tutorial.SummedLoss(model, criterion, dtype)(src, tgt, src_mask, tgt_mask, wanted)
        assert loss.dtype == torch.float32
        losses[dtype] = loss.item()
    assert losses[None] != losses[torch.bfloat16]
    assert losses[None] == pytest.approx(losses[torch.bfloat16], rel=0.05)


def test_attention_keeps_sixteen_bits_for_the_backward_pass_only_under_bf16(monkeypatch):
    hooks, kept = torch.autograd.graph.saved_tensors_hooks, []

    def watched(pack, unpack):
        return hooks(lambda x: kept.append(pack(x)) or kept[-1], unpack)

    monkeypatch.setattr(torch.autograd.graph, "saved_tensors_hooks", watched)
    *inputs, mask = tutorial.random_attention_inputs()
    inputs = [x.requires_grad_() for x in inputs]
    plain = torch.autograd.grad(tutorial.fast_attention(*inputs, mask).sum(), inputs)
    assert not kept, "without mixed precision nothing is rounded"
    with tutorial.mixed_precision(torch.device("cpu"), torch.bfloat16):
        output = tutorial.fast_attention(*inputs, mask)
    assert output.dtype == torch.float32
    vectors = [x.dtype for x in kept if x.dim() == 4]
    assert len(vectors) >= 4 and set(vectors) == {torch.bfloat16}
    assert torch.float32 in {x.dtype for x in kept if x.dim() == 3}, "the sum of a row is not cut"
    rounded = torch.autograd.grad(output.sum(), inputs)
    torch.testing.assert_close(rounded, plain, atol=0.05, rtol=0.05)


def test_double_precision_stays_double():
    model, inputs = tutorial.tiny_model().double(), small_inputs()
    states = model(*inputs)
    assert states.dtype == torch.float64 and model.generator(states).dtype == torch.float64
    single = tutorial.tiny_model()
    single.load_state_dict(model.state_dict())
    torch.testing.assert_close(single(*inputs).double(), states, atol=1e-5, rtol=1e-4)


def test_sixteen_bits_throughout():
    model = tutorial.tiny_model().bfloat16()
    states = model(*small_inputs())
    assert states.dtype == torch.bfloat16 and model.generator(states).dtype == torch.float32


# Words and text ---------------------------------------------------------------------------------


def test_a_vocabulary_counts_and_sorts():
    sentences = [["a", "b", "a"], ["a", "b", "c", "<s>", "<s>"]]
    vocabulary = tutorial.build_vocabulary(sentences, min_freq=2)
    assert vocabulary.words == (*tutorial.SPECIALS, "a", "b") and len(vocabulary) == 6
    assert vocabulary.ids(["a", "c", "b", "zebra"]) == [4, tutorial.UNKNOWN, 5, tutorial.UNKNOWN]
    assert vocabulary.ids(["zebra"]) == [tutorial.UNKNOWN] and len(vocabulary) == 6
    assert vocabulary.fingerprint() != tutorial.build_vocabulary(sentences, 1).fingerprint()


def test_vocabularies_know_the_training_split_only(small_corpus, fresh_corpora, tmp_path):
    from conftest import write_pairs

    train, rest = [("Hund Hund", "dog dog")], [("Katze Katze", "cat cat")]
    folder = write_pairs(tmp_path / "texts", ("de", "en"), train=train, val=rest, test=rest)
    encoded = tutorial.encode_corpus(str(folder), ("de", "en"), min_freq=1, max_len=10)
    assert [v.words[4:] for v in encoded.vocabularies] == [("Hund",), ("dog",)]
    assert encoded.splits["train"] == [([4, 4, tutorial.END], [tutorial.START, 4, 4, tutorial.END])]
    assert encoded.splits["val"][0][0] == [tutorial.UNKNOWN] * 2 + [tutorial.END]


def test_text_is_put_together_as_it_was():
    rng, german = random.Random(0), tutorial.load_tokenizer("de")
    pieces = [
        "Hund",
        "z.B.",
        "(laut)",
        "„so“",
        "!",
        "…",
        "3,5",
        "Meier-Lenz",
        "a/b",
        "'s",
        "ä",
        "#",
    ]
    for _ in range(200):
        text = "".join(rng.choice(pieces) + rng.choice(["", " ", "  "]) for _ in range(8)).strip()
        joined = tutorial.detokenize(tutorial.tokenize(text, german))
        assert joined == " ".join(text.split())
