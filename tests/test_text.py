"""Text on its way through a translator: the built-in captions, subwords, odd sentences, text
of all of Unicode, and standard input. As many lines come out as went in."""

import collections
import hashlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import unicodedata
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
    result = hashlib.sha256(json.dumps(captions).encode()).hexdigest()
    assert result == SUM


def test_captions_are_read_in_both_directions():
    forth = tutorial.read_builtin(("de", "en"))
    back = tutorial.read_builtin(("en", "de"))
    result = [pair[::-1] for pair in back.splits["val"]]
    assert result == forth.splits["val"]
    with pytest.raises(tutorial.CorpusError, match="German and English, not de and fr"):
        tutorial.find_corpus("builtin", ("de", "fr"))


# Pieces -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def subwords() -> tutorial.Subwords:
    return tutorial.learn_subwords(tutorial.read_builtin(), 400)[0]


def test_one_list_of_subwords_is_learnt_from_the_training_split():
    corpus = tutorial.read_builtin()
    source, target = tutorial.learn_subwords(corpus, 300)
    assert source is target
    assert len(source) == 300
    result = source.words[: len(tutorial.SPECIALS)]
    assert result == tutorial.SPECIALS
    corpus.splits["val"] = [("Qq", "Qq")] * 500
    assert tutorial.learn_subwords(corpus, 300)[0] == source


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
    result = subwords.encode(["", " \t ", "\x00"])
    expected = [[], [], []]
    assert result == expected


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


def test_a_line_is_cut_where_it_does_not_fit_and_nowhere_else(translator):
    line = " ".join(["Ein", "Hund", "rennt", "und"] * 500)
    with pytest.warns(UserWarning, match=r"line 2 has 2000 tokens, more than 15: cut"):
        written = tutorial.translate(translator, ["Ein Hund.", line, "Eine Katze."])
    parts = [" ".join(line.split()[at : at + 15]) for at in (0, 15)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written[1].startswith(" ".join(tutorial.translate(translator, parts)))
        expected = tutorial.translate(translator, ["Ein Hund.", "Eine Katze."])
        assert written[::2] == expected
        with pytest.raises(UserWarning, match="line 1 has 16 tokens, more than 15"):
            tutorial.translate(translator, ["Hund " * 16])


@pytest.mark.filterwarnings(r"ignore:line \d+ has 40 tokens")
def test_order_and_number_are_kept(translator):
    sentences = [german for german, _ in builtin_corpus()["val"][:15]]
    sentences += [*ODD, "Hund " * 40, ""]
    alone = [tutorial.translate(translator, [sentence])[0] for sentence in sentences]
    for size in (7, 50):
        assert tutorial.translate(translator, sentences, batch_size=size) == alone
    assert tutorial.translate(translator, iter(sentences)) == alone
    with pytest.raises(ValueError, match="at least one, got 0"):
        tutorial.translate(translator, sentences, batch_size=0)
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
        written = tutorial.translate(toy, texts, decode=tutorial.greedy_search)
    for text, answer in zip(texts, written, strict=True):
        assert len(answer.splitlines()) <= 1, "a line stays a line"
        answer.encode("utf-8")  # no surrogate comes out
        blank = not tutorial.NOT_TEXT.sub(" ", text).split()
        assert bool(answer) <= (not blank), "nothing comes of nothing"


@pytest.mark.parametrize("number", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_random_texts_come_back(subwords, number):
    """Training reads them too: what is tokenized is text again, whatever the characters."""
    rng = random.Random(number)
    texts = [random_text(rng) for _ in range(number)]
    for text, ids in zip(texts, subwords.encode(texts), strict=True):
        # as subwords know it: in one form of Unicode, their mark of a space taken for a space
        known = unicodedata.normalize("NFC", tutorial.NOT_TEXT.sub(" ", text)).replace("▁", " ")
        assert all(0 <= symbol < len(subwords) for symbol in ids)
        assert tutorial.UNKNOWN in ids or subwords.decode(ids).split() == known.split()
    tokenizer = tutorial.load_tokenizer("de")
    for text in texts:
        again = tutorial.detokenize(tutorial.tokenize(text, tokenizer))
        expected = tutorial.NOT_TEXT.sub(" ", text).split()
        assert again.split() == expected


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
    assert third == "warning: line 251 has 300 tokens, more than 15: cut"
    with pytest.warns(UserWarning, match="line 251 has 300 tokens"):
        expected = tutorial.translate(translator, [x.decode(errors="replace") for x in lines])
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)
    assert len(expected) == 251
    assert expected[1] == expected[5] == ""
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_translation_with_130(small_run, monkeypatch, capsys):
    monkeypatch.setattr(tutorial, "translate", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    result = tutorial.main(["translate", "--model", str(small_run), "Ein Hund."])
    assert result == 130
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
