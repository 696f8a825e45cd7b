"""Looking inside: maps of the weights that were computed, heads switched off, swapped vectors."""

import dataclasses
import html
import itertools
import re

import pytest
import torch
import vl_convert
from torch.testing import assert_close

import the_annotated_transformer as at
from the_annotated_transformer import END, PAD, START, Batch

SENTENCE = "Ein kleines Mädchen hebt einen roten Ball auf."


@pytest.fixture(scope="module")
def translator() -> at.Translator:
    """A model of subwords that has learnt nothing, of two layers with three heads."""
    torch.manual_seed(0)
    corpus = at.read_builtin()
    vocabularies = at.learn_subwords(corpus, 300)
    model = at.make_model(300, 300, 2, 12, 16, 3, 0.5, max_len=128).eval()
    model.generator.proj.bias.data[PAD] = -1e4  # no trained model writes it
    return at.Translator("toy", model, corpus.name, corpus.languages, vocabularies)


def test_a_sentence_comes_with_the_translation_that_the_model_would_give(translator):
    batch = at.with_own_translation(translator, SENTENCE)
    assert batch.src.tolist() == [[*translator.vocabularies[0].encode([SENTENCE], "de")[0], END]]
    [written] = at.translate(translator, [SENTENCE], decode=at.beam_search)
    assert translator.vocabularies[1].decode(batch.tgt_y[0].tolist()) == written
    assert PAD not in batch.tgt_y
    assert batch.tgt[0, 0] == START
    with pytest.raises(ValueError, match="128"):
        at.attention_maps(translator, "Hund " * 200)


def test_rows_of_a_map_are_queries_and_bear_the_word_about_to_be_written(translator, monkeypatch):
    words = at.Vocabulary((*at.SPECIALS, "▁Hund", "‿bar", "rot"))
    batch = Batch(torch.tensor([[4, 6, 4, END]]), torch.tensor([[START, 5, 6, END]]))
    monkeypatch.setattr(at, "with_own_translation", lambda *_: batch)
    named = dataclasses.replace(translator, vocabularies=(words, words))
    maps = at.attention_maps(named, "Ein Satz.")
    source = ["1 Hund", "2 rot", "3 Hund", "4 </s>"]
    written = ["1 bar", "2 rot", "3 </s>"]
    has_read = ["1 <s>", "2 bar", "3 rot"]
    recorded = at.attention_weights(translator.model, batch)
    sides = [(source, source), (has_read, has_read), (written, source)]
    for kind, (queries, keys) in zip(recorded, sides, strict=True):
        rows = maps[maps["attention"] == kind]
        assert len(rows) == 2 * 4  # layers; three heads and their mean
        for _, row in rows.iterrows():
            weights = recorded[kind][0, int(row["layer"]) - 1]  # (3, T, S)
            weight = weights.mean(0) if row["head"] == "mean" else weights[int(row["head"]) - 1]
            assert (row["queries"], row["keys"]) == (queries, keys)
            assert row["weights"] == pytest.approx((100 * weight.flatten()).tolist(), abs=0.51)


def test_the_explorer_shows_the_right_weight_at_every_cell(translator):
    """Of what Vega draws: keys along x, queries along y, of what is chosen at first."""
    maps = at.attention_maps(translator, SENTENCE)
    maps = maps[(maps["layer"] == "2") & (maps["head"] == "3")]  # of each kind
    svg = vl_convert.vegalite_to_svg(at.attention_explorer(maps).to_dict())
    marks = re.findall(r'aria-label="(key: [^"]*)"[^>]*aria-roledescription="(\w+) mark"', svg)
    cells = [html.unescape(label).split("; ") for label, mark in marks if mark != "rule"]
    cells = [dict(part.split(": ", 1) for part in cell) for cell in cells]
    shown = {(cell["query"], cell["key"]): float(cell["weight"]) for cell in cells}
    chosen = maps.iloc[-1]  # at first: cross-attention
    cells = itertools.product(chosen["queries"], chosen["keys"])
    assert shown == dict(zip(cells, chosen["weights"], strict=True))


def test_a_head_switched_off_is_a_head_whose_output_is_zero():
    """Inside the block only, also after an error."""
    attn = at.MultiHeadedAttention(3, 12, 0.0)
    x = torch.randn(2, 5, 12)
    heads, _ = at.attention(*(attn.split(linear(x)) for linear in attn.linears[:3]))
    before = attn(x, x, x)
    for head in range(3):
        left = heads.clone()
        left[:, head] = 0
        with pytest.raises(KeyError), at.without_head(attn, head):
            assert_close(attn(x, x, x), attn.linears[3](left.transpose(1, 2).flatten(2)))
            raise KeyError
        assert torch.equal(attn(x, x, x), before)


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_logit_lens_ends_with_what_the_model_predicts(norm_first):
    """The first row is what the final norm and the generator make of the embedding."""
    model = at.tiny_model(norm_first=norm_first)
    batch = Batch(torch.randint(4, 11, (2, 5)), torch.randint(4, 13, (2, 4)))
    found = at.logit_lens(model, batch)
    assert found.shape == (3, 2, 3, 13)
    states = model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
    assert_close(found[-1], model.generator(states))
    embedded = model.decoder.norm(model.tgt_embed(batch.tgt))
    assert_close(found[0], model.generator(embedded))


def test_a_swap_changes_the_vector_at_its_place_only():
    first, second = torch.randn(2, 1, 5, 16)
    mixed = at.with_one_vector(first, second)
    for place, memory in enumerate(mixed):
        expected = first[0].clone()
        expected[place] = second[0, place]
        assert_close(memory, expected)


def test_the_log_probability_of_a_target_is_that_of_its_tokens_one_by_one():
    model = at.tiny_model()
    memories = torch.randn(2, 5, 16)
    written = [START, 4, 5, END]
    found = at.log_probabilities(model, memories, torch.tensor([written]))
    for memory, row in zip(memories.split(1), found, strict=True):
        for n in range(1, len(written)):
            states = model.decode(memory, None, torch.tensor([written[:n]]), at.subsequent_mask(n))
            assert_close(row[n - 1], model.generator(states)[0, -1, written[n]])


def test_a_road_is_as_likely_as_its_tokens_together(translator):
    *found, written = at.roads_and_end(translator, SENTENCE, beam=2)
    batch = at.source_batch(translator, [SENTENCE])
    memory = translator.model.encode(batch.src, batch.src_mask)
    begun, *encoded = translator.vocabularies[1].encode(
        ["A little girl", *(f"A little girl {road}" for road in at.ROADS)]
    )
    for p, ids in zip(found, encoded, strict=True):
        log_p = at.log_probabilities(translator.model, memory, torch.tensor([[START, *ids]]))
        assert p == pytest.approx(log_p[0, len(begun) :].sum().exp().item(), rel=1e-3)
    assert isinstance(written, str)


def test_memories_of_a_pair_lead_from_the_first_sentence_to_the_second(translator):
    pair = "Ein Hund und ein Kind.", "Ein Kind und ein Hund."
    target, memories, names = at.memories_of_pair(translator, *pair)
    a, b = (at.source_batch(translator, [sentence]) for sentence in pair)
    assert_close(memories[:1], translator.model.encode(a.src, a.src_mask))
    assert_close(memories[-1:], translator.model.encode(b.src, b.src_mask))
    assert len(memories) == len(names) + 2 == b.src.size(1) + 2
    [written] = at.translate(translator, pair[1:], decode=at.beam_search)
    assert translator.vocabularies[1].decode(target[0].tolist()) == written


def test_sentences_with_different_numbers_of_tokens_are_refused(translator):
    with pytest.raises(ValueError, match="'Ein Hund' and 'Ein Hund im Park' have"):
        at.memories_of_pair(translator, "Ein Hund", "Ein Hund im Park")
