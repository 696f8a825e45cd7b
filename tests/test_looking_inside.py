"""Part 9: a sentence followed all the way, its attention maps, what single heads look at, and heads
switched off."""

import itertools
import re

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, Batch, beam_search, pad_ids

KINDS = ENCODER, DECODER, CROSS = (
    "encoder self-attention",
    "decoder self-attention",
    "cross-attention",
)
SENTENCE = "Ein kleines Mädchen hebt einen roten Ball auf."


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=["words", "pieces"])
def translator(request) -> tutorial.Translator:
    """A model that has learnt nothing, of whole words or of pieces of words."""
    corpus, pieces = tutorial.read_builtin(), request.param == "pieces"
    vocabularies = tutorial.learn_pieces(corpus, 300) if pieces else tutorial.learn_words(corpus, 1)
    model = tutorial.make_model(*map(len, vocabularies), 2, 12, 16, 3, 0.5, max_len=128).eval()
    model.generator.proj.bias.data[PAD] = -1e4  # no trained model writes it
    return tutorial.Translator("toy", model, corpus.name, corpus.languages, vocabularies)


@pytest.fixture
def at_hand(translator, monkeypatch) -> tutorial.Translator:
    """The examples look into this model."""
    tutorial.validation_batch.cache_clear()
    monkeypatch.setattr(tutorial, "translator_at_hand", lambda: translator)
    yield translator
    tutorial.validation_batch.cache_clear()


def toy_batch() -> Batch:
    """Two sentences of unequal lengths, with targets of unequal lengths."""
    src = pad_ids([[4, 5, 6, END], [8, END]])
    return Batch(src, pad_ids([[START, 4, 5, END], [START, 6, 7, 8, 9, END]]))


# One sentence -----------------------------------------------------------------------------------


def test_a_sentence_comes_with_the_translation_that_the_model_would_give(translator):
    batch = tutorial.with_own_translation(translator, SENTENCE)
    assert batch.src.tolist() == [[*translator.vocabularies[0].encode([SENTENCE], "de")[0], END]]
    written = tutorial.translate(translator, [SENTENCE], decode=beam_search)
    assert [translator.vocabularies[1].decode(batch.tgt_y[0].tolist())] == written
    assert PAD not in batch.tgt_y and batch.tgt[0, 0] == START


@pytest.mark.filterwarnings("ignore:line 1 has .* cut into")
@pytest.mark.parametrize("sentence", ["", " ", "Hund " * 200])
def test_maps_want_one_sentence_that_fits(translator, sentence):
    with pytest.raises(ValueError, match="one sentence that fits"):
        tutorial.attention_maps(translator, sentence)


# Recording --------------------------------------------------------------------------------------


def test_weights_are_those_of_the_formula_layer_by_layer(translator):
    """From what each attention received, by the plain function of Part 1."""
    model, batch, received = translator.model.train(), toy_batch(), {}
    attentions = [attn for layers in tutorial.attentions_of(model).values() for attn in layers]
    hooks = [
        attn.register_forward_pre_hook(lambda attn, inputs: received.update({attn: inputs}))
        for attn in attentions
    ]
    weights = tutorial.recorded_attention(model, batch)
    for hook in hooks:
        hook.remove()
    assert model.training and all(attn.record is None for attn in attentions)
    shapes = {ENCODER: (2, 2, 3, 4, 4), DECODER: (2, 2, 3, 5, 5), CROSS: (2, 2, 3, 5, 4)}
    assert {kind: tuple(each.shape) for kind, each in weights.items()} == shapes
    model.eval()
    for kind, layers in tutorial.attentions_of(model).items():
        for number, attn in enumerate(layers):
            query, key, value, mask = received[attn]
            inputs = zip(attn.linears, (query, key, value), strict=False)
            query, key, value = (attn.split(linear(x)) for linear, x in inputs)
            _, expected = tutorial.attention(query, key, value, mask.unsqueeze(1))
            torch.testing.assert_close(weights[kind][:, number], expected)
    stacks = model.encoder.layers, model.decoder.layers, model.decoder.layers
    places = zip(KINDS, stacks, ("self_attn", "self_attn", "src_attn"), strict=True)
    for kind, layers, name in places:
        assert tutorial.attentions_of(model)[kind] == [getattr(each, name) for each in layers]


def test_lists_are_taken_back_after_an_error(translator, monkeypatch):
    model = translator.model.train()
    monkeypatch.setattr(model.decoder.norm, "forward", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tutorial.recorded_attention(model, toy_batch())
    attentions = [m for m in model.modules() if isinstance(m, tutorial.MultiHeadedAttention)]
    assert len(attentions) == 6 and all(attn.record is None for attn in attentions)
    assert model.training
    model.eval()


def test_rows_of_a_map_are_queries_and_bear_the_word_about_to_be_written(translator, monkeypatch):
    words = [vocabulary.words for vocabulary in translator.vocabularies]
    ids, target = [7, 9, 7, END], [START, 10, 11, END]
    batch = Batch(torch.tensor([ids]), torch.tensor([target]))
    monkeypatch.setattr(tutorial, "with_own_translation", lambda *_: batch)
    maps = tutorial.attention_maps(translator, "Ein Satz.")
    for kind, side, numbers, side2, keys in (
        (ENCODER, 0, ids, 0, ids),
        (DECODER, 1, target[:-1], 1, target[:-1]),
        (CROSS, 1, target[1:], 0, ids),
    ):
        labels = [
            [f"{n} {words[s][each].strip('▁‿')}" for n, each in enumerate(sentence, 1)]
            for s, sentence in ((side, numbers), (side2, keys))
        ]
        assert maps.labels[kind] == tuple(labels)
        assert maps.weights[kind].shape == (2, 3, len(numbers), len(keys))
        assert all(len(set(names)) == len(names) for names in labels), "a name serves once"


def test_a_map_comes_back_from_its_string(translator):
    maps, rows = tutorial.attention_maps(translator, SENTENCE), {}
    for row in tutorial.map_table(maps).to_dict("records"):
        rows[row["attention"], row["layer"], row["head"]] = row
    assert len(rows) == 3 * 2 * 4  # kinds, layers, heads and their mean
    for kind, layer, head in itertools.product(KINDS, range(2), range(-1, 3)):
        name = "mean of heads" if head < 0 else f"head {head + 1}"
        row, heads = rows[kind, f"layer {layer + 1}", name], maps.weights[kind][layer]
        values = torch.tensor([int(x) / 1000 for x in row["numbers"].split()])
        expected = heads.mean(0) if head < 0 else heads[head]
        torch.testing.assert_close(values.view(-1, row["width"]), expected, atol=6e-4, rtol=0)
        assert (row["queries"].split("\t"), row["keys"].split("\t")) == maps.labels[kind]


# Habits -----------------------------------------------------------------------------------------


def test_marked_cells_are_those_of_the_words(translator):
    """Each habit of the table, told again in words, cell by cell."""
    batch, marks = toy_batch(), {}
    for kind, habit, marked in tutorial.habits(batch):
        marks[kind, habit] = marked
    source, target, asked = batch.src.tolist(), batch.tgt.tolist(), batch.tgt_y.tolist()
    offsets = {"the symbol before": -1, "itself": 0, "the next symbol": 1}
    for (kind, habit), marked in marks.items():
        keys = target if kind == DECODER else source
        queries = source if kind == ENCODER else asked
        for b, q, k in itertools.product(*map(range, marked.shape)):
            real = queries[b][q] != PAD
            if habit in offsets:
                expected = real and (queries if kind == DECODER else keys)[b][k] != PAD
                expected = expected and k - q == offsets[habit]
            elif habit == "the last symbol":
                expected = real and k + 1 < len(keys[b]) and keys[b][k + 1] == END
            else:
                symbol = {"the end of the sentence": END, "the start of the sentence": START}[habit]
                expected = real and keys[b][k] == symbol
            assert marked[b, q, k] == expected, (kind, habit, b, q, k)
    assert {kind for kind, _ in marks} == set(KINDS) and len(marks) == 9


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_head_with_one_habit_scores_exactly_one(offset):
    T, real = 6, torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    habit = torch.zeros(T, T)
    habit.diagonal(offset).fill_(1)
    weights = torch.stack([habit, torch.full((T, T), 1 / 8)]).expand(2, 1, 2, T, T).clone()
    weights[1, :, :, 4:] = 7  # queries that are padding do not count
    if offset == 1:
        weights[1, :, :, 3, 4] = 7  # nor does the token after the last
    for other in (-1, 0, 1):
        scores = tutorial.mean_weight(weights, tutorial.neighbours(real, other))
        assert scores.tolist() == [[float(other == offset), 1 / 8]]


def test_every_query_has_the_same_say():
    """Not every sentence: three pairs of neighbours in the first, one in the second."""
    weights = torch.zeros(2, 1, 1, 4, 4)
    weights[0].diagonal(-1, -2, -1).fill_(1)
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    assert tutorial.mean_weight(weights, tutorial.neighbours(real, -1)).item() == 3 / 4


def test_the_head_that_has_most_of_a_habit_is_named(at_hand, monkeypatch):
    """A head that only looks at the end of the sentence, planted in layer 2."""
    plain, rows = tutorial.recorded_attention, []

    def planted(model, batch):
        weights = plain(model, batch)
        weights[ENCODER][:, 1, 2] = (batch.src == END)[:, None].float()
        return weights

    monkeypatch.setattr(tutorial, "recorded_attention", planted)
    monkeypatch.setattr(tutorial, "table", lambda *given: rows.extend(given[0]))
    tutorial.EXAMPLES["heads_by_their_habits"]()
    [row] = [row for row in rows if row[:2] == (ENCODER, "the end of the sentence")]
    batch = tutorial.validation_batch()
    assert row[2:4] == ("layer 2, head 3", 1.0)
    assert row[5] == pytest.approx(50 / (batch.src != PAD).sum().item(), rel=1e-4)
    [row] = [row for row in rows if row[:2] == (DECODER, "itself")]
    lengths = (batch.tgt_y != PAD).sum(1).tolist()
    equal = sum(1 / t for length in lengths for t in range(1, length + 1)) / sum(lengths)
    assert row[5] == pytest.approx(equal, rel=1e-4), "each sees what is open to it"
    assert row[3] >= row[4]


# Heads switched off -----------------------------------------------------------------------------


@pytest.mark.parametrize("head", range(3))
def test_a_head_switched_off_is_a_head_whose_output_is_zero(head):
    attn = tutorial.MultiHeadedAttention(3, 12, 0.0)
    query, memory = torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    with torch.no_grad():
        before = attn(query, memory, memory)
        with tutorial.without_head(attn, head):
            without = attn(query, memory, memory)
        inputs = zip(attn.linears[:3], (query, memory, memory), strict=True)
        heads, _ = tutorial.attention(*(attn.split(linear(x)) for linear, x in inputs))
        heads[:, head] = 0
        expected = attn.linears[3](heads.transpose(1, 2).reshape(2, 4, 12))
        torch.testing.assert_close(without, expected)
        assert not torch.allclose(without, before)
        assert torch.equal(attn(query, memory, memory), before)


def test_weights_come_back_after_an_error():
    attn = tutorial.MultiHeadedAttention(3, 12)
    before = {name: value.clone() for name, value in attn.state_dict().items()}
    with pytest.raises(KeyError), tutorial.without_head(attn, 1):
        changed = [n for n, value in attn.state_dict().items() if not torch.equal(value, before[n])]
        assert changed == ["linears.3.weight"]
        raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in attn.state_dict().items())


def test_decoding_with_a_cache_misses_the_head_as_well(translator):
    batch, layer = toy_batch(), translator.model.decoder.layers[0]
    for attn in (layer.self_attn, layer.src_attn):
        with tutorial.without_head(attn, 1):
            settings = translator.model, batch.src, batch.src_mask, 9, START
            plain, cached = tutorial.greedy_decode(*settings), tutorial.greedy_search(*settings)
            assert torch.equal(plain, cached)


def test_each_head_is_off_once_and_alone(at_hand, monkeypatch):
    seen, shown = [], []

    def heads_off(model, batches) -> dict:
        """(kind, layer, head) of all heads whose columns are zero, found one by one."""
        assert batches == [tutorial.validation_batch()]
        seen.append(
            [
                (kind, layer, head)
                for kind, modules in tutorial.attentions_of(model).items()
                for layer, attn in enumerate(modules, 1)
                for head in range(3)
                if not attn.linears[3].weight[:, 4 * head : 4 * head + 4].any()
            ]
        )
        return {"perplexity": 10.0 + (len(seen) - 1) ** 2}

    monkeypatch.setattr(tutorial, "evaluate_loss", heads_off)
    monkeypatch.setattr(tutorial, "table", lambda *given: shown.append(given))
    tutorial.EXAMPLES["perplexity_without_each_head"]()
    [(rows, columns, caption)] = shown
    assert seen == [[], *([place] for place in itertools.product(KINDS, (1, 2), range(3)))]
    assert [row[:2] for row in rows] == list(itertools.product(KINDS, (1, 2)))
    changes = [change for row in rows for change in row[2:]]
    assert changes == [n**2 for n in range(1, 19)], "each belongs to its own head"
    assert columns[2:] == [f"without head {n}" for n in (1, 2, 3)]
    assert re.search(r"10\.00 with all heads: \+324\.00 at worst, \+1\.00 at best", caption)
