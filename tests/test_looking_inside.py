"""Part 8: alignment by hand, what single heads look at, and heads switched off."""

import itertools

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, KINDS, PAD, START, Batch, pad_ids

SIZES = {"N": 2, "d_model": 12, "d_ff": 16, "h": 3}


@pytest.fixture(autouse=True)
def fresh():
    """Random numbers from a seed; nothing cached from another test's model."""
    cached = tutorial.aligned_maps, tutorial.head_scores
    torch.manual_seed(0)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture(scope="module", params=["words", "pieces"])
def translator(request) -> tutorial.Translator:
    """A model that has learnt nothing, of whole words or of pieces of words."""
    corpus, size = tutorial.read_builtin(), 300 if request.param == "pieces" else 0
    vocabularies = (
        tutorial.learn_pieces(corpus, size) if size else tutorial.learn_words(corpus, min_freq=1)
    )
    config = tutorial.Config(corpus="built-in", max_len=128, pieces=size, **SIZES)
    model = tutorial.make_model(*map(len, vocabularies), **SIZES, dropout=0.5, max_len=128)
    device = torch.device("cpu")
    return tutorial.Translator("toy", model.eval(), config, corpus.name, vocabularies, device)


def toy_batch() -> Batch:
    """Two sentences of unequal lengths, with targets of unequal lengths."""
    src = pad_ids([[4, 5, 6, END], [8, END]])
    return Batch(src, pad_ids([[START, 4, 5, END], [START, 6, 7, 8, 9, END]]))


# Alignments written by hand ---------------------------------------------------------------------


def test_a_line_becomes_words_and_links():
    line = "Er hebt ihn , ja , auf | He picks it up , you see | 1 2,7 3 2,7 - - 5"
    source, target, links = tutorial.parse_aligned(line)
    assert source == "Er hebt ihn , ja , auf .".split()
    assert target == "He picks it up , you see .".split()
    pairs = [(target[t], source[s]) for t, s in links.nonzero().tolist()]
    expected = "He Er, picks hebt, picks auf, it ihn, up hebt, up auf, see ja"
    assert pairs == [tuple(pair.split()) for pair in expected.split(", ")]
    assert links.shape == (8, 8) and links.dtype == torch.bool


@pytest.mark.parametrize(
    "line, words",
    [
        ("Ein Hund | A dog", ["source | target"]),
        ("Ein Hund | A dog | 1 2 | 3", ["source | target"]),
        ("Ein Hund | A dog | 1", ["each target word"]),
        ("Ein Hund | A dog | 1 2 2", ["each target word"]),
        ("Ein Hund | A dog | 0 2", ["'0'", "words 1 to 2"]),
        ("Ein Hund | A dog | 1 3", ["'3'", "words 1 to 2"]),
        ("Ein Hund | A dog | 1 -1", ["'-1'"]),
        ("Ein Hund | A dog | 1 2,", ["''"]),
        ("Ein Hund | A dog | 1 1,x", ["'x'"]),
        ("Ein Hund | A dog | 1 ²", ["'²'"]),
    ],
)
def test_a_bad_line_is_named(line, words):
    with pytest.raises(ValueError) as caught:
        tutorial.parse_aligned(line)
    assert all(word in str(caught.value) for word in [*words, repr(line)]), str(caught.value)


def test_twenty_sentences_are_aligned():
    lines = tutorial.ALIGNED.splitlines()
    assert len(lines) == len(set(lines)) == 20 and max(map(len, lines)) <= 98
    links = [links for _, _, links in map(tutorial.parse_aligned, lines)]
    linked = sum(int(one.any(1).sum()) for one in links)
    assert linked > 0.95 * sum(len(one) - 1 for one in links)  # the full stop has none
    assert not any(one[-1].any() or one[:, -1].any() for one in links)
    crossing = [one.float().argmax(1)[one.any(1)].diff().lt(0).any() for one in links]
    assert sum(map(bool, crossing)) >= 10  # in so many the order of words differs


# From tokens to words ---------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
def test_each_token_belongs_to_the_word_that_it_is_in(translator, side):
    vocabulary, language = translator.vocabularies[side], translator.config.languages[side]
    for line in tutorial.ALIGNED.splitlines():
        words = tutorial.parse_aligned(line)[side]
        ids, owners = tutorial.tokens_of_words(words, vocabulary, language)
        text = " ".join(words).replace(" ,", ",").replace(" .", ".")
        assert [ids] == vocabulary.encode([text], language)
        assert owners.shape == (len(words), len(ids))
        assert (owners.sum(0) == 1).all() and (owners.sum(1) >= 1).all()
        for word, own in zip(words, owners, strict=True):
            tokens = [vocabulary.words[ids[n]] for n in own.nonzero().flatten()]
            spelt = "".join(tokens).replace("▁", "").replace(tutorial.JOIN, "")
            assert spelt == word or "<unk>" in spelt


def test_the_prefixes_of_a_sentence_are_cut_as_the_sentence_is(translator):
    sides = list(zip(translator.vocabularies, translator.config.languages, strict=True))
    for line, side in itertools.product(tutorial.ALIGNED.splitlines(), (0, 1)):
        words, (vocabulary, language) = tutorial.parse_aligned(line)[side], sides[side]
        whole, _ = tutorial.tokens_of_words(words, vocabulary, language)
        for size in range(1, len(words)):
            part, _ = tutorial.tokens_of_words(words[:size], vocabulary, language)
            assert part == whole[: len(part)]


def test_the_two_places_of_a_query(translator, monkeypatch):
    """A map made by hand: the token at place n looks at key n, shared equally with key 0."""
    source, target, _ = tutorial.parse_aligned("Ein Hund rennt | A dog runs | 1 2 3")
    sides = zip((source, target), translator.vocabularies, ("de", "en"), strict=True)
    (src, keys), (tgt, queries) = (tutorial.tokens_of_words(*side) for side in sides)
    weights = torch.zeros(1, 1, len(tgt) + 1, len(src) + 1)
    for query in range(len(tgt) + 1):
        weights[..., query, min(query, len(src))] += 0.5
        weights[..., query, 0] += 0.5

    def recorded(_, batch):
        assert batch.src.tolist() == [[*src, END]] and batch.tgt.tolist() == [[START, *tgt]]
        return {KINDS[2]: weights}

    monkeypatch.setattr(tutorial, "recorded_attention", recorded)
    maps = tutorial.word_attention(translator, source, target)
    for place, later in ((tutorial.WRITING, 0), (tutorial.READ, 1)):
        expected = torch.zeros(len(target), len(source))
        for t, s in itertools.product(range(len(target)), range(len(source))):
            own, received = queries[t].nonzero().flatten(), keys[s].nonzero().flatten()
            values = [weights[0, 0, q + later, k] for q in own for k in received]
            expected[t, s] = sum(values) / len(own)
        assert maps[place].shape == (1, *expected.shape)
        torch.testing.assert_close(maps[place][0], expected)
    assert not torch.equal(maps[tutorial.WRITING], maps[tutorial.READ])


# Recording --------------------------------------------------------------------------------------


def test_heads_are_recorded_layer_by_layer(translator):
    batch, model = toy_batch(), translator.model.train()
    weights = tutorial.recorded_attention(translator, batch)
    assert model.training
    again = tutorial.recorded_attention(translator, batch)
    shapes = {KINDS[0]: (2, 7, 4, 4), KINDS[1]: (2, 7, 5, 5), KINDS[2]: (2, 7, 5, 4)}
    assert {kind: tuple(each.shape) for kind, each in weights.items()} == shapes
    model.eval()
    inside, crossing = [], []
    memory = model.encode(batch.src, batch.src_mask, inside)
    model.decode(memory, batch.src_mask, batch.tgt, batch.tgt_mask, crossing)
    for kind, layers in zip(KINDS, (inside, crossing[::2], crossing[1::2]), strict=True):
        assert torch.equal(weights[kind], again[kind])  # dropout is off
        for layer, head in itertools.product(range(2), range(3)):
            torch.testing.assert_close(weights[kind][:, 3 * layer + head], layers[layer][:, head])


def test_the_last_head_spreads_its_weight_equally(translator):
    batch = toy_batch()
    weights = tutorial.recorded_attention(translator, batch)
    for kind in (KINDS[0], KINDS[2]):
        assert weights[kind][0, -1].eq(1 / 4).all()
        assert weights[kind][1, -1, :, :2].eq(1 / 2).all() and not weights[kind][1, -1, :, 2:].any()
    causal = torch.ones(5, 5).tril()
    expected = causal / causal.sum(1, keepdim=True)
    torch.testing.assert_close(weights[KINDS[1]][1, -1], expected)


# Scores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "offset, role", [(-1, "previous token"), (0, "same token"), (1, "next token")]
)
def test_a_head_with_one_habit_scores_exactly_one(offset, role):
    T, real = 6, torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    habit = torch.zeros(T, T)
    habit.diagonal(offset).fill_(1)
    weights = torch.stack([habit, torch.full((T, T), 1 / 8)]).expand(2, 2, T, T).clone()
    weights[1, :, 4:] = 7  # queries that are padding do not count
    if offset == 1:
        weights[1, :, 3, 4] = 7  # nor does the token after the last
    scores = tutorial.neighbour_scores(weights, real)
    assert list(scores) == ["previous token", "same token", "next token"]
    for name, values in scores.items():
        assert values.tolist() == [float(name == role), 1 / 8]


def test_every_token_has_the_same_say():
    """Not every sentence: three pairs of neighbours in the first, one in the second."""
    weights = torch.zeros(2, 1, 4, 4)
    weights[0].diagonal(-1, -2, -1).fill_(1)
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    assert tutorial.neighbour_scores(weights, real)["previous token"].item() == 3 / 4


def test_the_alignment_error_of_maps_made_by_hand():
    links = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    perfect = links.float()
    half = torch.eye(4)[[0, 3, 1, 2]]  # two of three; the last word has no link
    wrong = torch.eye(4)[[3, 2, 1, 0]]
    error = tutorial.alignment_error([torch.stack([perfect, half, wrong])], [links])
    torch.testing.assert_close(error, 1 - 2 * torch.tensor([3.0, 2.0, 0.0]) / (3 + 4))
    one = torch.tensor([[True]])
    both = tutorial.alignment_error([half[None], torch.ones(1, 1, 1)], [links, one])
    assert both.item() == pytest.approx(1 - 2 * (2 + 1) / (3 + 4 + 1 + 1))


def at_hand(monkeypatch, translator, **others) -> None:
    monkeypatch.setattr(tutorial, "translator_at_hand", lambda: translator)
    monkeypatch.setattr(tutorial, "corpus_at_hand", tutorial.read_builtin)
    for name, function in others.items():
        monkeypatch.setattr(tutorial, name, function)


def test_the_table_of_alignments(translator, monkeypatch):
    at_hand(monkeypatch, translator)
    by_place, links = tutorial.aligned_maps()
    assert all(len(maps) == len(links) == 20 for maps in by_place.values())
    for maps, right in zip(by_place[tutorial.WRITING], links, strict=True):
        maps[:-1] *= 1e-3
        maps[4] = right.float()  # the second head of the second layer knows it all
    frame = tutorial.EXAMPLES["alignment_of_each_head"]().data
    assert len(frame) == 6 + 2 + 2
    writing, read = frame[tutorial.WRITING], frame[tutorial.READ]
    found = writing["layer 2, head 2"], writing["layer 2, mean of heads"]
    assert found == (writing["right once"],) * 2 and 0 < found[0] < 0.05
    assert (writing.drop(["layer 2, head 2", "layer 2, mean of heads"])[:-1] > 0.1).all()
    assert (read["layer 2, head 2"], read["diagonal"]) == (read.iloc[4], writing["diagonal"])
    assert read["layer 2, head 2"] > 0.1


def test_the_diagonal_of_a_sentence_without_jumps(translator, monkeypatch):
    *_, links = tutorial.parse_aligned("Ein Hund rennt | A dog runs | 1 2 3")
    maps = torch.rand(7, *links.shape)
    hand = {tutorial.WRITING: [maps], tutorial.READ: [maps]}, [links]
    at_hand(monkeypatch, translator, aligned_maps=lambda: hand)
    frame = tutorial.EXAMPLES["alignment_of_each_head"]().data
    assert frame.loc["diagonal"].eq(0).all() and frame.loc["right once"].eq(0).all()


def test_scores_of_all_heads(translator, monkeypatch):
    tokens, plain = [], tutorial.neighbour_scores

    def observed(weights, real):
        tokens.append(real.sum(1).tolist())
        return plain(weights, real)

    at_hand(monkeypatch, translator, neighbour_scores=observed)
    scores = tutorial.head_scores()
    val = tutorial.encode_pairs(tutorial.read_builtin(), "val", translator.vocabularies)[:200]
    assert tokens == [[len(src) for src, _ in val], [len(tgt) - 1 for _, tgt in val]]
    roles = "previous token", "same token", "next token"
    expected = [(kind, role) for kind in KINDS[:2] for role in roles] + [(KINDS[2], "alignment")]
    assert list(scores) == expected
    for values in scores.values():
        assert values.shape == (7,) and (values >= 0).all() and (values <= 1).all()
    assert not scores[KINDS[1], "next token"].any()  # the future is hidden
    maps, links = tutorial.aligned_maps()
    shares = []
    for one, right in zip(maps[tutorial.WRITING], links, strict=True):
        for word in right.any(1).nonzero().flatten():
            shares.append(one[2, word][right[word]].sum())
    torch.testing.assert_close(scores[KINDS[2], "alignment"][2], sum(shares) / len(shares))


def test_the_best_heads_are_named_by_layer_and_head(translator, monkeypatch):
    values = {
        (KINDS[0], "previous token"): [0.1, 0.2, 0.3, 0.4, 0.9, 0.05, 0.07],
        (KINDS[1], "next token"): [0.0] * 7,
        (KINDS[2], "alignment"): [0.1, 0.2, 0.8, 0.4, 0.3, 0.05, 0.99],
    }
    scores = {key: torch.tensor(each) for key, each in values.items()}
    at_hand(monkeypatch, translator, head_scores=lambda: scores)
    rows = tutorial.EXAMPLES["heads_by_what_they_do"]().data.values.tolist()
    assert rows == [
        [KINDS[0], 2, 2, "previous token", "0.90", "0.07"],
        [KINDS[0], 2, 1, "previous token", "0.40", "0.07"],
        [KINDS[2], 1, 3, "alignment", "0.80", "0.99"],
        [KINDS[2], 2, 1, "alignment", "0.40", "0.99"],
    ]


# Heads switched off -----------------------------------------------------------------------------


@pytest.mark.parametrize("head", range(3))
def test_a_head_switched_off_is_a_head_whose_output_is_zero(head):
    attn = tutorial.MultiHeadedAttention(3, 12, 0.0)
    query, memory = torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    with torch.no_grad():
        before = attn(query, memory, memory)
        with tutorial.without_head(attn, head):
            without = attn(query, memory, memory)
        q, k, v = (
            layer(x).view(2, -1, 3, 4).transpose(1, 2)
            for layer, x in zip(attn.linears[:3], (query, memory, memory), strict=True)
        )
        heads, _ = tutorial.attention(q, k, v)
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


@pytest.mark.parametrize("head", [-1, 3])
def test_a_head_that_does_not_exist_is_refused(head):
    attn = tutorial.MultiHeadedAttention(3, 12)
    refused = pytest.raises(ValueError, match=f"heads 0 to 2, got {head}")
    with refused, tutorial.without_head(attn, head):
        pass


def test_decoding_with_a_cache_misses_the_head_as_well(translator):
    batch, layer = toy_batch(), translator.model.decoder.layers[0]
    for attn in (layer.self_attn, layer.src_attn):
        with tutorial.without_head(attn, 1):
            settings = translator.model, batch.src, batch.src_mask, 9, START
            plain, cached = tutorial.greedy_decode(*settings), tutorial.greedy_search(*settings)
            assert torch.equal(plain, cached[:, : plain.size(1)])
            assert cached[:, plain.size(1) :].eq(PAD).all()


def heads_off(model) -> list[tuple[str, int, int]]:
    """(kind, layer, head) of all heads whose columns are zero, found one by one."""
    kinds = (
        [layer.self_attn for layer in model.encoder.layers],
        [layer.self_attn for layer in model.decoder.layers],
        [layer.src_attn for layer in model.decoder.layers],
    )
    return [
        (kind, layer, head + 1)
        for kind, modules in zip(KINDS, kinds, strict=True)
        for layer, attn in enumerate(modules, 1)
        for head in range(3)
        if not attn.linears[3].weight[:, 4 * head : 4 * head + 4].any()
    ]


def test_each_head_is_off_once_and_alone(translator, monkeypatch):
    seen = []

    def decode(model, src, *_):
        seen.append(heads_off(model))
        return torch.full((len(src), 2), END)

    monkeypatch.setattr(tutorial, "corpus_bleu", lambda *_: (float(len(seen)), ""))
    pairs = [("Ein Hund rennt.", "A dog runs."), ("Ein Kind lacht.", "A child laughs.")]
    whole, rows = tutorial.bleu_without_heads(translator, pairs, decode)
    assert whole == 1 and seen[0] == [] and len(rows) == 18
    assert seen[1:] == [[tuple(place)] for *place, _ in rows]
    assert [bleu for *_, bleu in rows] == list(range(2, 20))  # each belongs to its own head
    assert heads_off(translator.model) == []


def test_the_figure_is_centred_at_no_change(translator, monkeypatch):
    places = itertools.product(KINDS, (1, 2), (1, 2, 3))
    rows = [(*place, 20.0) for place in places]
    rows[4], rows[9] = (*rows[4][:3], 16.5), (*rows[9][:3], 21.0)
    asked = []

    def measured(_, pairs):
        asked.append(len(pairs))
        return 20.0, rows

    at_hand(monkeypatch, translator, bleu_without_heads=measured)
    chart = tutorial.EXAMPLES["heads_switched_off_figure"]().to_dict()
    encoding, [data] = chart["encoding"], chart["datasets"].values()
    assert asked == [20]  # at level smoke
    assert encoding["color"]["scale"]["domain"] == [-3.5, 3.5]
    assert encoding["column"]["sort"] == list(KINDS)
    assert [row["change"] for row in data if row["change"]] == [-3.5, 1.0]
    assert {tip["field"] for tip in encoding["tooltip"]} == set(data[0])
    assert "BLEU" in chart["description"] and "20.0" in chart["title"]
