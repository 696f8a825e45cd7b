"""Text on its way through a translator: vocabularies, odd text, long lines, batches, scores."""

import collections
import copy
import dataclasses
import functools
import itertools
import json
import pickle
import random
import re
import unicodedata
import warnings
from pathlib import Path

import pytest
import torch

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, UNKNOWN, Corpus, builtin_corpus

DE_EN = ("de", "en")


@pytest.fixture(scope="module")
def small(small_run) -> tutorial.Translator:
    """A model of words with 16 positions that has learnt next to nothing."""
    return tutorial.load_trained_model(small_run)


@pytest.fixture(scope="module")
def subwords() -> tutorial.Subwords:
    return tutorial.learn_subwords(tutorial.read_builtin(), 400)[0]


# Vocabularies -----------------------------------------------------------------------------------


def test_a_vocabulary_keeps_frequent_words_and_decodes_to_the_end():
    sentences = [["a", "b", "a"], ["a", "b", "c", "<s>", "<s>"]]
    vocabulary = tutorial.build_vocabulary(sentences, min_freq=2)
    assert vocabulary.words == (*tutorial.SPECIALS, "a", "b")
    assert vocabulary.encode(["a c b zebra"], "de") == [[4, UNKNOWN, 5, UNKNOWN]]
    assert vocabulary.decode([START, 4, 5, PAD, END, 4]) == "a b"


def test_words_of_the_test_are_unknown_and_ids_have_their_ends():
    train = [("Ein Hund rennt.", "A dog runs."), ("Ein Hund bellt.", "A dog barks.")]
    test = [("Ein Hund schläft.", "A dog sleeps.")]
    splits = {"train": train, "val": test, "test": 2 * test}  # twice: a leak would pass min_freq
    words = tutorial.learn_words(Corpus("four captions", DE_EN, splits))
    [(source, target)] = tutorial.encode_pairs(test, words, DE_EN)
    assert source[-1] == target[-1] == END
    assert target[0] == START
    assert words[0].decode(source) == "Ein Hund <unk>."
    assert words[1].decode(target) == "A dog <unk>."


def test_subwords_are_learnt_from_the_training_split_only():
    corpus = tutorial.read_builtin()
    source, _ = tutorial.learn_subwords(corpus, 300)
    assert len(source) == 300
    corpus.splits["val"] = [("Qq", "Qq")] * 500
    assert tutorial.learn_subwords(corpus, 300)[0].words == source.words


def test_the_first_merges_by_hand_are_those_of_the_library():
    """Later ones may differ where two pairs are equally frequent."""
    train = builtin_corpus()["train"][:500]
    library = tutorial.learn_subwords(Corpus("few", DE_EN, {"train": train}), 300)[0].tokenizer
    cut = map(library.pre_tokenizer.pre_tokenize_str, itertools.chain(*train))
    words = collections.Counter(tuple(word) for parts in cut for word, _ in parts)
    merges = json.loads(library.to_str())["model"]["merges"][:12]
    assert tutorial.first_merges(words, 12) == [tuple(pair) for pair in merges]


def test_text_never_becomes_a_special_token(subwords):
    for word in subwords.words[4:]:
        assert len(word) == 1 or not set(word) & set(".,"), "a word joined with a comma"
    [ids] = subwords.encode(["<s> </s> <blank> Hund"])
    assert not {START, END, PAD} & set(ids)
    [ids] = subwords.encode(["Hund 漢"])
    assert ids.count(UNKNOWN) == 1
    assert "<unk>" in subwords.decode(ids)
    assert subwords.encode(["", " \t ", "\x00"]) == [[], [], []]


FORMS = [
    "Ein kleines Mädchen hält im Park ein neues Buch.",
    "Ein kleines Ma\u0308dchen ha\u0308lt im Park ein neues Buch.",
    "Ein\u00a0kleines  Mädchen\thält im\u2003Park ein neues Buch.\r",
    " Ein kleines Mädchen\x00hält im Park ein neues Buch.\x1f",
    "Ein klei\xadnes Ma\xad\u0308d\xadchen hält im Park ein neues Buch\xad.",
    "\ufeffEin klei\u2060nes \u2066Mädchen\u2069 hält im\u200e Park ein neues Buch.\u202c",
    "Ein\u200bkleines Mädchen hält im \u200bPark ein neues\u200b\u200bBuch.",
]


@pytest.mark.parametrize("text", FORMS, ids=ascii)
def test_all_forms_of_a_text_are_one(text, subwords):
    """For words, for subwords, and on both sides of a comparison."""
    assert tutorial.clean(text) == FORMS[0]
    assert subwords.encode([text]) == subwords.encode([FORMS[0]])
    tokenizer = tutorial.load_tokenizer("de")
    assert tutorial.tokenize(text, tokenizer) == tutorial.tokenize(FORMS[0], tokenizer)
    for hypothesis, reference in ((text, FORMS[0]), (FORMS[0], text)):
        assert tutorial.corpus_bleu([hypothesis], [reference])[0] == pytest.approx(100)


@pytest.mark.parametrize("text", ["\U0001f469\u200d\U0001f680", "می\u200cخواهم", "क्\u200dष"])
def test_joiners_are_letters(text):
    """They tell words apart: a woman and a rocket are no astronaut."""
    assert tutorial.clean(f" {text}\xad ") == text


def test_odd_text_makes_the_vocabulary_of_plain_text():
    """With other spaces, control characters, our own marks, soft hyphens, letters in two parts."""
    plain = builtin_corpus()["train"][:300]
    odd = [
        tuple(
            "\xad".join(unicodedata.normalize("NFD", text)).replace(" ", "\u00a0\t\x07▁‿\u200b")
            for text in pair
        )
        for pair in plain
    ]
    learnt = []
    for pairs in (plain, odd):
        corpus = Corpus("toy", DE_EN, {"train": pairs})
        subwords, _ = tutorial.learn_subwords(corpus, 300)
        learnt.append((subwords.words, tutorial.learn_words(corpus)))
    assert learnt[0] == learnt[1]


# Sentences of a line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Ein Hund",
        "Ein Hund rennt durch den Park.|Eine Frau liest!|Wer ist dort?|Niemand.",
        "Ein Mann hebt den Ball hoch.|Er wirft ihn ab.",
        "Das kostet 5 Mio. Euro.|Dr. med. Huber trinkt z. B. Tee, Kaffee usw. und liest.",
        "Am 3. Mai um 5.30 Uhr kam Bus Nr. 12 an.",
        "Bist du es?|Ja, ich bin es!|Geh!|Er kommt evtl. morgen.",
        "真的吗？！|我不知道。",
        "他说：“我来了。”她笑了。",
        "Prof. Dr. Meier und ca. 20 Kinder bzw. Eltern lachen.|Alle tanzen.",
        "犬が走る。|猫が寝る。",
        "개가 달린다.|고양이가 잔다!|누가 있나?|없다.",
        "कुत्ता दौड़ता है।|बिल्ली सोती है।",
        "هل ينام؟|لا.",
        "Ein Hund|Eine Frau|Ein Mann",
    ],
)
def test_a_line_is_split_where_a_sentence_ends(shipped, line):
    """Not after an abbreviation, nor after a number."""
    joined = line.replace("。|", "。").replace(".|", ".  ").replace("!|", "! ").replace("?|", "? ")
    found = tutorial.cut(shipped, joined.replace("|", "\n")).split("\n")
    assert [*filter(None, found)] == line.split("|")


def test_a_line_is_a_sentence_unless_it_is_split(shipped):
    """Its parts are translated as if they stood alone; and so are the lines of a text."""
    sentences = [german for german, _ in builtin_corpus()["test"][:2]]
    alone = tutorial.translate(shipped, sentences)
    texts = ["\n".join(sentences), "", f"{sentences[0]}\n \n{sentences[1]}\n"]
    expected = ["\n".join(alone), "", f"{alone[0]}\n\n{alone[1]}\n"]
    assert tutorial.translate(shipped, texts) == expected
    decode = tutorial.greedy_decode
    lines = ["", f" {'  '.join(sentences)} "]
    split = tutorial.translate_lines(shipped, lines, decode, split=True)
    assert split == ["", " ".join(alone)]
    for code, space in (("zh-Hans", ""), ("ja", ""), ("ko", " "), ("jav_Latn", " ")):
        other = dataclasses.replace(shipped, languages=("de", code))
        split = tutorial.translate_lines(other, lines, decode, split=True)
        assert split == ["", space.join(alone)], code
    whole = tutorial.translate_lines(shipped, [*lines, texts[-1]], decode)
    assert whole.pop() == " ".join(alone[:2])
    assert whole == tutorial.translate(shipped, lines) != ["", " ".join(alone)]


def test_a_sentence_longer_than_the_model_is_halved_between_words(small, shipped):
    """Nothing of it is lost; words, subwords, and one word of a thousand letters."""
    for translator, word in ((small, "Kind"), (shipped, "Hund"), (shipped, "Xylophonspieler")):
        line = " ".join([word] * 400)
        with pytest.raises(tutorial.UserError, match=f"{word}.*--split"):
            tutorial.translate_lines(translator, ["Hund", line], tutorial.greedy_decode)
        parts = tutorial.pieces_that_fit(translator, line)
        assert len(parts) > 1
        assert "".join(parts) == line
        assert {*"".join(f"{part} " for part in parts).split()} == {word}
        encoded = translator.vocabularies[0].encode(parts, "de")
        assert max(map(len, encoded)) < translator.max_len
    letters = "ab" * 1000
    assert "".join(tutorial.pieces_that_fit(shipped, letters)) == letters


@pytest.mark.parametrize(
    "text", ["Собака бежит по парку.", "犬が公園を走る。", "Ένας σκύλος τρέχει."]
)
def test_text_that_a_model_does_not_know_is_warned_of(shipped, text, recwarn):
    lines = ["Ein Hund 犬 rennt.", "", "\u200b"]
    tutorial.translate_lines(shipped, lines, tutorial.greedy_decode)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=text):
        tutorial.translate_lines(shipped, [f"Ein Hund.\n{text}"], tutorial.greedy_decode)


def test_a_sentence_longer_than_all_in_training_is_translated_with_a_warning(small):
    word = small.vocabularies[0].words[6]
    fits, longer = (" ".join([word] * n) for n in (small.longest, small.longest + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tutorial.translate_lines(small, [fits], tutorial.greedy_decode)
        with pytest.raises(UserWarning, match=word):
            tutorial.translate_lines(small, [longer], tutorial.greedy_decode)


# Batches ----------------------------------------------------------------------------------------


def test_a_translation_does_not_depend_on_its_neighbours(small):
    """Of nonsense, which runs on to the limit of its length."""
    torch.manual_seed(1)
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 80}
    model = tutorial.make_model(*map(len, small.vocabularies), **sizes).eval().double()
    model.generator.proj.bias.data[END] = -1
    translator = dataclasses.replace(small, model=model, longest=20)
    words = small.vocabularies[0].words[4:]
    lines = ["", *(" ".join(words[n : n + 1 + n % 9]) for n in range(0, 24, 4))]
    together = tutorial.translate(translator, lines)
    assert together[0] == ""
    assert len({*together}) == len(lines), "equal translations would prove nothing"
    assert tutorial.translate(translator, iter(lines)) == together
    assert [tutorial.translate(translator, [line])[0] for line in lines] == together
    assert tutorial.translate(translator, lines[::-1]) == together[::-1]
    batch = tutorial.source_batch(translator, lines)
    assert batch.src.eq(END).sum(1).tolist() == [1] * len(lines)


def test_all_that_decoding_takes_is_on_the_device_of_the_model(small):
    elsewhere = dataclasses.replace(small, model=copy.deepcopy(small.model).to("meta"))

    def decode(model, src, src_mask, limits, start_symbol) -> torch.Tensor:
        assert {x.device.type for x in (src, src_mask, limits)} == {"meta"}
        return torch.full((len(src), 1), start_symbol)

    assert tutorial.translate(elsewhere, ["Ein Hund.", "Eine Frau."], decode) == ["", ""]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("beam", [1, 3])
def test_a_thousand_translations_depend_on_no_order_and_no_batch(shipped, multi30k, beam):
    """In double precision: in single, rounding in another batch may break ties otherwise."""
    corpus = tutorial.read_corpus(Path(multi30k), DE_EN)
    sentences = [source for source, _ in corpus.pairs("test_2016_flickr")]
    model = copy.deepcopy(shipped.model).double()
    translator = dataclasses.replace(shipped, model=model)
    search = functools.partial(tutorial.beam_search, beam=beam)
    written = tutorial.translate(translator, sentences, search)
    order = random.Random(1).sample(range(1000), 1000)
    shuffled = [sentences[n] for n in order]
    again = [
        text
        for some in tutorial.grouped(shuffled, 300)
        for text in tutorial.translate(translator, some, search)
    ]
    assert again == [written[n] for n in order]


def test_a_single_string_is_not_a_list_of_sentences(small):
    with pytest.raises(TypeError, match="a list of sentences"):
        tutorial.translate(small, "Ein Hund")
    assert tutorial.translate(small, []) == []


def test_a_translator_can_be_pickled_and_copied(shipped):
    """Also one that has just translated."""
    written = tutorial.translate(shipped, ["Ein Kind lacht."], tutorial.beam_search)
    for made in (pickle.loads(pickle.dumps(shipped)), copy.deepcopy(shipped)):
        assert tutorial.translate(made, ["Ein Kind lacht."], tutorial.beam_search) == written


def test_bleu_and_perplexity_count_the_same_pairs(shipped):
    """Pairs that are too long, or empty on one side, are left out of both."""
    pairs = builtin_corpus()["val"][:4]
    odd = [("Hund " * 6000, "A dog."), ("Ein Hund.", "dog " * 300), (" ", "A dog."), ("Hund", "\t")]
    written, scores = tutorial.score(shipped, pairs)
    assert scores["pairs"] == len(written) == 4
    assert tutorial.score(shipped, [*pairs[:2], *odd, *pairs[2:]]) == (written, scores)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ("A <unk> runs through the park.", "A ☃ runs through the park."),  # one wrong word
        ("<unk> <unk> runs.", "☃ ☃ runs."),
        ("A small\xad dog runs\u200bthrough the park.", "A small dog runs through the park."),
        ("A cafe\u0301.", "A café."),
    ],
)
def test_all_scores_see_the_same_text(shipped, monkeypatch, ours, theirs):
    found = []
    for written, reference in ((ours, "ca\xadfe\u0301"), (theirs, "café")):
        monkeypatch.setattr(tutorial, "translate", lambda *_, written=written: [written])
        pairs = [("Ein Hund.", f"A small dog runs through the {reference}.")]
        _, scores = tutorial.score(shipped, pairs)
        found.append((scores["BLEU"], scores["chrF"]))
    assert found[0] == found[1]


# All of Unicode ---------------------------------------------------------------------------------

ODD = [
    "",
    " \t ",
    "\n",
    "Xylophonisten blubbern quergestreift",
    "Ein 🐕\u200d🦺 rennt 👩🏽\u200d🚀.",
    "Ein\x00 Hund\x07\x1b[31m rennt\x7f.",
    "Ein \udcff Hund \ud83d rennt.",  # half of a character
    "\u202eEin Hund\u202c שלום",  # from right to left
    "Ein\u2028Hund\x85rennt\x0c\x0b\r\n.",
    "‿ <s> </s> <blank> <unk> ‿‿Hund",  # our own marks
    "Ein Ma\u0308dchen" + "\u0301" * 300,
    "…!?—()[]",
]
CORNERS = [
    range(0x110000), range(0x20, 0x250), range(0x20), range(0x2000, 0x2070),
    range(0x300, 0x370), range(0x1F300, 0x1F700), [ord("\u203f"), 0x2581, 0x20, 0x61],
]  # fmt: skip


def random_texts(number: int) -> list[str]:
    """Odd text, and up to 5,000 characters from all of Unicode or a corner of it."""
    rng = random.Random(1)
    lengths = [min(5000, int(2 ** rng.uniform(-1, 12.5))) for _ in range(number)]
    corners = [CORNERS[n % len(CORNERS)] for n in range(number)]
    drawn = [rng.choices(each, k=k) for each, k in zip(corners, lengths, strict=True)]
    return [*ODD, *("".join(map(chr, numbers)) for numbers in drawn)]


@pytest.mark.filterwarnings("ignore:most of")  # is unknown
@pytest.mark.parametrize("learn, size", [(tutorial.learn_words, 1), (tutorial.learn_subwords, 300)])
def test_any_text_is_translated_and_comes_back_from_its_tokens(learn, size):
    texts = random_texts(28)
    vocabularies = learn(tutorial.read_builtin(), size)
    model = tutorial.make_model(*map(len, vocabularies), 1, 16, 32, 2, max_len=64).eval()
    toy = tutorial.Translator("toy", model, "none", DE_EN, vocabularies, max_len=64)
    greedy = functools.partial(tutorial.beam_search, beam=1)
    written = tutorial.translate_lines(toy, texts, greedy, split=True)
    for text, answer in zip(texts, written, strict=True):
        assert not re.search(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", answer)
        answer.encode("utf-8")  # no surrogate comes out
        assert not answer or tutorial.clean(text), "nothing comes of nothing"
    for text, ids in zip(texts, vocabularies[0].encode(texts, "de"), strict=True):
        assert all(0 <= token < len(vocabularies[0]) for token in ids)
        assert UNKNOWN in ids or vocabularies[0].decode(ids) == tutorial.clean(text)
