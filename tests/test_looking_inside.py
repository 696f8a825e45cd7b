"""Attention maps show the weights that were computed; and heads switched off."""

import html
import itertools
import re

import pytest
import torch
import vl_convert

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, beam_search

ENCODER, DECODER, CROSS = KINDS = list(tutorial.attentions_of(tutorial.tiny_model()))
SENTENCE = "Ein kleines Mädchen hebt einen roten Ball auf."


@pytest.fixture(scope="module")
def translator() -> tutorial.Translator:
    """A model of subwords that has learnt nothing, of two layers with three heads."""
    torch.manual_seed(0)
    corpus = tutorial.read_builtin()
    vocabularies = tutorial.learn_subwords(corpus, 300)
    model = tutorial.make_model(300, 300, 2, 12, 16, 3, 0.5, max_len=128).eval()
    model.generator.proj.bias.data[PAD] = -1e4  # no trained model writes it
    return tutorial.Translator("toy", model, corpus.name, corpus.languages, vocabularies)


# Maps of a sentence -----------------------------------------------------------------------------


def test_a_sentence_comes_with_the_translation_that_the_model_would_give(translator):
    batch = tutorial.with_own_translation(translator, SENTENCE)
    assert batch.src.tolist() == [[*translator.vocabularies[0].encode([SENTENCE], "de")[0], END]]
    [written] = tutorial.translate(translator, [SENTENCE], decode=beam_search)
    assert translator.vocabularies[1].decode(batch.tgt_y[0].tolist()) == written
    assert PAD not in batch.tgt_y
    assert batch.tgt[0, 0] == START


def test_maps_refuse_a_sentence_that_does_not_fit(translator):
    with pytest.raises(tutorial.UserError, match="split it"):
        tutorial.attention_maps(translator, "Hund " * 200)


def test_rows_of_a_map_are_queries_and_bear_the_word_about_to_be_written(translator, monkeypatch):
    words = tutorial.Vocabulary((*tutorial.SPECIALS, "▁Hund", "‿bar", "rot"))
    batch = Batch(torch.tensor([[4, 6, 4, END]]), torch.tensor([[START, 5, 6, END]]))
    monkeypatch.setattr(tutorial, "with_own_translation", lambda *_: batch)
    named = tutorial.dataclasses.replace(translator, vocabularies=(words, words))
    maps = tutorial.attention_maps(named, "Ein Satz.")
    source = ["1 Hund", "2 rot", "3 Hund", "4 </s>"]
    written = ["1 bar", "2 rot", "3 </s>"]
    has_read = ["1 <s>", "2 bar", "3 rot"]
    sides = {ENCODER: (source, source), DECODER: (has_read, has_read), CROSS: (written, source)}
    recorded = tutorial.attention_weights(translator.model, batch)
    heads = "1 2 3 mean".split()
    places = list(itertools.product(KINDS, "12", heads))
    assert list(zip(maps["attention"], maps["layer"], maps["head"], strict=True)) == places
    for place, (_, row) in zip(places, maps.iterrows(), strict=True):
        kind, layer, head = place
        weights = recorded[kind][0, int(layer) - 1]  # (3, T, S)
        weight = weights.mean(0) if head == "mean" else weights[int(head) - 1]
        assert (row["queries"], row["keys"]) == sides[kind]
        assert weight.shape == (len(row["queries"]), len(row["keys"]))
        assert row["weights"] == pytest.approx((100 * weight.flatten()).tolist(), abs=0.51)


def test_the_explorer_shows_the_right_weight_at_every_cell(translator):
    """Of what Vega draws: keys along x, queries along y, the chosen layer and head."""
    maps = [tutorial.attention_maps(translator, text) for text in (SENTENCE, "Ein Hund rennt.")]
    svg = vl_convert.vegalite_to_svg(tutorial.attention_explorer(maps).to_dict())
    marks = re.findall(r'aria-label="(key: [^"]*)"[^>]*aria-roledescription="(\w+) mark"', svg)
    cells = [html.unescape(label).split("; ") for label, mark in marks if mark != "rule"]
    cells = [dict(part.split(": ", 1) for part in cell) for cell in cells]
    shown = {(cell["query"], cell["key"]): float(cell["weight"]) for cell in cells}
    chosen = maps[0].iloc[-1]  # at first: last layer, mean of heads
    assert tuple(chosen.iloc[:4]) == (SENTENCE, CROSS, "2", "mean")
    cells = itertools.product(chosen["queries"], chosen["keys"])
    assert shown == dict(zip(cells, chosen["weights"], strict=True))


# Heads switched off -----------------------------------------------------------------------------


def test_a_head_switched_off_is_a_head_whose_output_is_zero(at):
    """Inside the block only, also after an error."""
    attn = at.MultiHeadedAttention(3, 12, 0.0)
    x = torch.randn(2, 5, 12)
    heads, _ = at.attention(*(attn.split(linear(x)) for linear in attn.linears[:3]))
    before = attn(x, x, x)
    for head in range(3):
        left = heads.clone()
        left[:, head] = 0
        with pytest.raises(KeyError), at.without_head(attn, head):
            torch.testing.assert_close(
                attn(x, x, x), attn.linears[3](left.transpose(1, 2).flatten(2))
            )
            raise KeyError
        assert torch.equal(attn(x, x, x), before)


# Swapped vectors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "particles", "fault"),
    [
        ("sieht", ("zu", "zu"), "zu and zu: both have the same translation"),
        ("sieht", ("zu", "ganz genau zu"), "one has more subwords"),
        ("hebt", ("zu", "an"), "they do not contain 'hebt'"),
        ("zwei Zwillinge", ("zu", "an"), "they do not contain"),  # only its first piece
    ],
)
def test_sentences_that_cannot_be_compared_are_refused(at, shipped, verb, particles, fault):
    frame = "Ein Mann sieht zwei Frauen {}."
    at.memories_of_pair(shipped, "sieht", frame, ("zu", "an"))
    with pytest.raises(ValueError, match=fault):
        at.memories_of_pair(shipped, verb, frame, particles)
