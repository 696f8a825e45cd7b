"""Text on its way through a translator: the built-in captions, subwords, odd sentences, text
of all of Unicode, and standard input. As many lines come out as went in."""

import collections
import functools
import hashlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import warnings

import psutil
import pytest
from conftest import PROJECT

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, PAD, START, builtin_corpus

# The built-in captions --------------------------------------------------------------------------

SUM = "e673effe7ce6a62df4903a47995463f4aceed6c2c739dcc1a15fc214d0d64071"


def test_the_captions_and_their_splits():
    """Whoever changes a word must look at articles and endings again, and put the new sum here."""
    state = random.getstate()
    captions = builtin_corpus.__wrapped__()
    assert random.getstate() == state
    sizes = {split: len(pairs) for split, pairs in captions.items()}
    assert sizes == {"train": 2700, "val": 200, "test": 200}
    every = list(itertools.chain(*captions.values()))
    assert len(set(every)) == 3100, "nothing occurs twice"
    assert hashlib.sha256(json.dumps(captions).encode()).hexdigest() == SUM


def test_captions_are_read_in_both_directions():
    forth = tutorial.read_builtin(("de", "en"))
    back = tutorial.read_builtin(("en", "de"))
    assert [pair[::-1] for pair in back.splits["val"]] == forth.splits["val"]
    with pytest.raises(tutorial.UserError, match="German and English, not de and fr"):
        tutorial.find_corpus("builtin", ("de", "fr"))


# Subwords ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def subwords() -> tutorial.Subwords:
    return tutorial.learn_subwords(tutorial.read_builtin(), 400)[0]


def test_one_list_of_subwords_is_learnt_from_the_training_split():
    corpus = tutorial.read_builtin()
    source, target = tutorial.learn_subwords(corpus, 300)
    assert source is target
    assert len(source) == 300
    assert source.words[: len(tutorial.SPECIALS)] == tutorial.SPECIALS
    corpus.splits["val"] = [("Qq", "Qq")] * 500
    assert tutorial.learn_subwords(corpus, 300)[0].words == source.words


def test_the_first_merges_by_hand_are_those_of_the_library():
    """Later ones may differ where two pairs are equally frequent."""
    train = tutorial.read_builtin().splits["train"][:500]
    corpus = tutorial.Corpus("few", ("de", "en"), {"train": train})
    library = tutorial.learn_subwords(corpus, 300)[0].tokenizer
    cut = map(library.pre_tokenizer.pre_tokenize_str, itertools.chain(*train))
    words = collections.Counter(tuple(word) for parts in cut for word, _ in parts)
    merges = json.loads(library.to_str())["model"]["merges"][:12]
    assert tutorial.first_merges(words, 12) == [tuple(pair) for pair in merges]


def test_what_is_special_in_subwords(subwords):
    for word in subwords.words[4:]:
        assert len(word) == 1 or not set(word) & set(".,"), "never a word joined with a comma"
    [ids] = subwords.encode(["<s> </s> <blank> Hund"])
    assert not {START, END, PAD} & set(ids)
    [ids] = subwords.encode(["Hund 漢"])
    assert ids.count(tutorial.UNKNOWN) == 1
    assert "<unk>" in subwords.decode(ids)
    assert subwords.encode(["", " \t ", "\x00"]) == [[], [], []]


# One form of text -------------------------------------------------------------------------------

FORMS = [
    "Ein kleines Mädchen hält im Park ein neues Buch.",
    "Ein kleines Ma\u0308dchen ha\u0308lt im Park ein neues Buch.",
    "Ein\u00a0kleines  Mädchen\thält im\u2003Park ein neues Buch.\r",
    "\ufeff Ein kleines Mädchen\x00hält im Park ein neues Buch.\x1f".replace("\ufeff", ""),
]


@pytest.mark.parametrize("text", FORMS, ids=ascii)
def test_all_forms_of_a_text_are_one(text, subwords):
    """For words, for subwords, and on both sides of a comparison."""
    assert tutorial.clean(text) == FORMS[0]
    assert subwords.encode([text]) == subwords.encode([FORMS[0]])
    tokenizer = tutorial.load_tokenizer("de")
    assert tutorial.tokenize(text, tokenizer) == tutorial.tokenize(FORMS[0], tokenizer)
    for pair in ((text, FORMS[0]), (FORMS[0], text)):
        bleu, _ = tutorial.corpus_bleu([pair[0]], [pair[1]])
        assert bleu == pytest.approx(100)


def test_subwords_are_learnt_from_the_text_that_they_cut():
    """No subword is lost to spaces that do not break, or to letters in two parts."""
    train = tutorial.read_builtin().splits["train"]
    odd = [tuple(x.replace(" ", "\u00a0").replace("ä", "a\u0308") for x in pair) for pair in train]
    learnt = [
        tutorial.learn_subwords(tutorial.Corpus("odd", ("de", "en"), {"train": pairs}), 300)[0]
        for pairs in (train, odd)
    ]
    assert learnt[0].words == learnt[1].words


# Sentences of a line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Ein Hund rennt. | Eine Frau liest! | Wer ist das? | Niemand.",
        "Er kam am 3. Mai mit Dr. Weiß. | Es regnete.",
        "Sie sagte: „Ein Hund.“ | Dann ging sie.",
        "Er rief: Halt! und lief weg. | Sie blieb.",
        "Das kostet 3.50 Euro. | Gut.",
        "A. B. Meier u.a. lachten … | Sie auch.",
        "犬が走る。|猫が寝る。",
        "Erste Zeile | \nZweite Zeile",
        "Ein Hund",
    ],
)
def test_a_line_is_split_where_a_sentence_ends(line):
    wanted = [part.strip() for part in line.split("|")]
    found = tutorial.split_sentences(line.replace("|", ""))
    assert [part.strip() for part in found] == wanted


def test_nothing_of_a_line_is_lost(translator):
    """Each sentence is translated as if it stood alone; `split=False` takes the line as it is."""
    one, two = "Ein Hund rennt.", "Eine Frau liest."
    alone = tutorial.translate(translator, [one, two])
    assert tutorial.translate(translator, [f"{one} {two}"]) == [" ".join(alone).strip()]
    [whole] = tutorial.source_parts(translator, [f"{one} {two}"], split=False)
    assert len(whole[1]) == 9, "four tokens each, and one end"


# Odd sentences ----------------------------------------------------------------------------------

ODD = [
    "",
    " \t ",
    "Xylophonisten blubbern quergestreift",
    "Ein 🐕\u200d🦺 rennt 👩🏽\u200d🚀.",
    "Ein\x00 Hund\x07\x1b[31m rennt\x7f.",
    "Ein \udcff Hund \ud83d rennt.",  # half of a character
    "\u202eEin Hund\u202c שלום",  # from right to left
    "Ein\u2028Hund\x85rennt\x0c\x0b\r\n.",
    "‿ <s> </s> <blank> <unk> ‿‿Hund",  # marks of ours
    "Ein Ma\u0308dchen" + "\u0301" * 300,
    "…!?—()[]",
]


@pytest.fixture(scope="module")
def translator(small_run) -> tutorial.Translator:
    """A model with 16 positions that has learnt next to nothing."""
    return tutorial.load_trained_model(small_run)


def test_a_single_string_is_no_list_of_sentences(translator):
    with pytest.raises(TypeError, match="a list of sentences is needed"):
        tutorial.translate(translator, "Ein Hund")
    with pytest.raises(TypeError, match=r"not \[\['Ein Hund'\]\]"):
        tutorial.translate(translator, [["Ein Hund"]])


def test_a_sentence_is_cut_where_it_does_not_fit_and_nowhere_else(translator):
    """Between words. It warns of what is longer than all that the model was trained on."""
    longest = translator.longest
    assert 8 <= longest <= 15
    line = " ".join(["Ein", "Hund", "rennt", "und"] * 500)
    match = f"line 2 has a sentence of 2000 tokens, training had {longest} at most"
    with pytest.warns(UserWarning, match=match):
        written = tutorial.translate(translator, ["Ein Hund.", line, "Eine Katze."])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [" ".join(line.split()[at : at + 15]) for at in (0, 15)]
        assert written[1].startswith(" ".join(tutorial.translate(translator, parts)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written[::2] == tutorial.translate(translator, ["Ein Hund.", "Eine Katze."])
        tutorial.translate(translator, ["Hund " * longest])
        with pytest.raises(UserWarning, match=f"line 1 has a sentence of {longest + 1} tokens"):
            tutorial.translate(translator, ["Hund " * (longest + 1)])


def test_a_cut_falls_before_a_word(subwords):
    words = subwords.words
    [ids] = subwords.encode(["Zwei kleine Kinder mit ungewöhnlichen Hüten lachen im Park." * 5])
    found = list(tutorial.pieces(ids, 20, words))
    assert list(itertools.chain(*found)) == ids
    assert max(map(len, found)) <= 20
    assert all(words[piece[0]].startswith("▁") for piece in found)


@pytest.mark.filterwarnings(r"ignore:line \d+ has a sentence of")
def test_order_and_number_are_kept(translator):
    sentences = [german for german, _ in builtin_corpus()["val"][:15]]
    sentences += [*ODD, "Hund " * 40, ""]
    alone = [tutorial.translate(translator, [sentence])[0] for sentence in sentences]
    for size in (7, 50):
        assert tutorial.translate(translator, sentences, batch_size=size) == alone
    assert tutorial.translate(translator, iter(sentences)) == alone
    assert len(set(alone)) >= 3, "a model that always says the same would prove nothing"
    assert tutorial.translate(translator, []) == []


# All of Unicode ---------------------------------------------------------------------------------


def random_text(rng: random.Random) -> str:
    """Up to 5,000 characters from all of Unicode, or from a few corners of it."""
    length = min(5000, int(2 ** rng.uniform(-1, 12.5)))
    corners = [
        range(0x110000), range(0x20, 0x250), range(0x20), range(0x2000, 0x2070),
        range(0x300, 0x370), range(0x1F300, 0x1F700), [ord("\u203f"), 0x2581, 0x20, 0x61],
    ]  # fmt: skip
    corner = corners[0] if rng.random() < 0.3 else rng.choice(corners)
    return "".join(chr(rng.choice(corner)) for _ in range(length))


@pytest.mark.parametrize("number", [30, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("learn, size", [(tutorial.learn_words, 1), (tutorial.learn_subwords, 300)])
def test_random_texts_are_translated_line_by_line(learn, size, number):
    rng = random.Random(number)
    corpus = tutorial.read_builtin()
    texts = ["\n", *ODD, *(random_text(rng) for _ in range(number))]
    vocabularies = learn(corpus, size)
    model = tutorial.make_model(*map(len, vocabularies), 1, 16, 32, 2, max_len=64).eval()
    toy = tutorial.Translator("toy", model, "none", corpus.languages, vocabularies)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # long lines are cut, and that is said
        greedy = functools.partial(tutorial.beam_search, beam=1)
        written = tutorial.translate(toy, texts, decode=greedy)
    for text, answer in zip(texts, written, strict=True):
        assert len(answer.splitlines()) <= 1, "a line stays a line"
        answer.encode("utf-8")  # no surrogate comes out
        assert not answer or tutorial.clean(text), "nothing comes of nothing"


@pytest.mark.parametrize("number", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_random_texts_come_back(subwords, number):
    """Training reads them too: what is tokenized is text again, whatever the characters."""
    rng = random.Random(number)
    texts = [random_text(rng) for _ in range(number)]
    for text, ids in zip(texts, subwords.encode(texts), strict=True):
        assert all(0 <= token < len(subwords) for token in ids)
        assert tutorial.UNKNOWN in ids or subwords.decode(ids) == tutorial.clean(text)
    tokenizer = tutorial.load_tokenizer("de")
    for text in texts:
        assert tutorial.detokenize(tutorial.tokenize(text, tokenizer)) == tutorial.clean(text)


# Standard input ---------------------------------------------------------------------------------

PIPES = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}


def command(model, *options: str) -> list[str]:
    script = PROJECT / "the_annotated_transformer.py"
    return [sys.executable, str(script), "translate", "--model", str(model), *options]


def test_standard_input_line_by_line_from_another_folder(translator, small_run, tmp_path):
    lines = [b"Ein Hund rennt.", b"", b"Ein Hund\r", b"Ein\rHund", b"Ein \xff\xfe Hund", b"  ",
             "Ein\u2028Hund".encode(), b"<s>", b"Ein\x0cHund\x0b", b"$(touch x); `touch y` \\n",
             *[b"Zwei Frauen"] * 240, b"Hund " * 300]  # fmt: skip
    options = {"input": b"\n".join(lines), "cwd": tmp_path, "env": os.environ | {"LC_ALL": "C"}}
    done = subprocess.run(command(small_run, "--beam", "1"), capture_output=True, **options)
    assert done.returncode == 0, done.stderr
    first, second, third, rest = done.stderr.decode().split("\n")
    assert first.startswith("model small (de ") and rest == "", "which model, and nothing else"
    assert second == "warning: line 5 is not UTF-8: bytes are replaced"
    assert third.startswith("warning: line 251 has a sentence of 300 tokens")
    with pytest.warns(UserWarning, match="line 251 has a sentence of 300 tokens"):
        expected = tutorial.translate(translator, [x.decode(errors="replace") for x in lines])
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)
    assert len(expected) == 251
    assert expected[1] == expected[5] == ""
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_translation_with_130(small_run, monkeypatch, capsys):
    monkeypatch.setattr(tutorial, "translate", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert tutorial.main(["translate", "--model", str(small_run), "Ein Hund."]) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"model small .*\ninterrupted\n", said.err)


def test_a_closed_pipe_ends_it_quietly(small_run):
    with subprocess.Popen(command(small_run, "--beam", "1"), **PIPES) as process:
        process.stdin.write(b"Ein Hund.\n" * 200)
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"Ein Hund.\n" * 200)
        process.stdin.close()
        assert process.wait(timeout=60) == 141
        assert re.fullmatch(rb"model small .*\n", process.stderr.read())


@pytest.mark.slow
def test_four_thousand_lines_in_constant_memory(small_run):
    sources = itertools.cycle(german for german, _ in builtin_corpus()["train"])
    memory = []
    with subprocess.Popen(command(small_run, "--beam", "1"), text=True, **PIPES) as process:
        for _ in range(20):  # a full group is answered before the next is sent
            process.stdin.write("".join(f"{next(sources)}\n" for _ in range(200)))
            process.stdin.flush()
            assert all(process.stdout.readline().endswith("\n") for _ in range(200))
            memory.append(psutil.Process(process.pid).memory_info().rss)
        assert process.communicate(timeout=60)[0] == ""
        assert process.returncode == 0
    assert max(memory[8:]) - memory[4] < 12e6, "memory does not grow with the input"
