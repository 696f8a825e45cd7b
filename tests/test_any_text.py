"""Whatever text comes in, as many lines come out, in bounded time and memory."""

import random
import subprocess
import sys
import time
import unicodedata
import warnings

import psutil
import pytest
from conftest import PROJECT

import the_annotated_transformer as tutorial

SCRIPT = PROJECT / "the_annotated_transformer.py"


def random_text(rng: random.Random) -> str:
    """Up to 5,000 characters from all of Unicode, or from a few corners of it."""
    length = min(5000, int(2 ** rng.uniform(-1, 12.5)))
    corners = [
        range(0x110000), range(0x20, 0x250), range(0x20), range(0x2000, 0x2070),
        range(0x300, 0x370), range(0x1F300, 0x1F700), [ord("\u203f"), 0x2581, 0x20, 0x61],
    ]  # fmt: skip
    corner = corners[0] if rng.random() < 0.3 else rng.choice(corners)
    return "".join(chr(rng.choice(corner)) for _ in range(length))


def translator_of(kind: str) -> tutorial.Translator:
    """A small model with random weights, of words or of pieces."""
    corpus = tutorial.read_builtin()
    learn, size = (tutorial.learn_pieces, 300) if kind == "pieces" else (tutorial.learn_words, 1)
    vocabularies = learn(corpus, size)
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 64}
    model = tutorial.make_model(*map(len, vocabularies), **sizes).eval()
    return tutorial.Translator(kind, model, "none", ("de", "en"), vocabularies)


def translate_many(kind: str, number: int) -> float:
    """Translate so many random texts; returns seconds."""
    rng, translator = random.Random(number), translator_of(kind)
    texts = ["", " ", "\n", *(random_text(rng) for _ in range(number - 3))]
    assert max(map(len, texts)) > 1000
    memory, begin = psutil.Process().memory_info().rss, time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # long lines are cut, and that is said
        written = tutorial.translate(translator, texts, decode=tutorial.greedy_search)
    assert len(written) == len(texts)
    for text, answer in zip(texts, written, strict=True):
        assert len(answer.splitlines()) <= 1, "a line stays a line"
        blank = not tutorial.NOT_TEXT.sub(" ", text).split()
        assert bool(answer) <= (not blank), "nothing comes of nothing"
    assert psutil.Process().memory_info().rss - memory < 500e6
    return time.monotonic() - begin


@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_random_texts(kind):
    translate_many(kind, 100)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["words", "pieces"])
def test_two_thousand_random_texts(kind):
    assert translate_many(kind, 2000) < 300


@pytest.mark.parametrize("number", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_texts_become_batches_and_come_back(number):
    """Training reads them too: what is tokenized is text again, whatever the characters."""
    rng = random.Random(7)
    texts = [random_text(rng) for _ in range(number)]
    pieces = translator_of("pieces").vocabularies[0]
    for text, ids in zip(texts, pieces.encode(texts), strict=True):
        assert all(0 <= number < len(pieces) for number in ids)
        assert (tutorial.UNKNOWN in ids) or pieces.decode(ids).split() == normal(text).split()
    start, end = [tutorial.START], [tutorial.END]
    pairs = [([*ids, *end], [*start, *ids, *end]) for ids in pieces.encode(texts)]
    for group in tutorial.grouped(sorted(pairs, key=lambda pair: len(pair[0])), 4):
        assert tutorial.collate(group).ntokens == sum(len(target) - 1 for _, target in group)
    tokenizer = tutorial.load_tokenizer("de")
    for text in texts:
        again = tutorial.detokenize(tutorial.tokenize(text, tokenizer))
        assert again.split() == tutorial.NOT_TEXT.sub(" ", text).split()


def normal(text: str) -> str:
    """Text as pieces know it: in one form of Unicode, their mark of a space taken for a space."""
    return unicodedata.normalize("NFC", tutorial.NOT_TEXT.sub(" ", text)).replace("\u2581", " ")


# Standard input -----------------------------------------------------------------------------------


def start(model, *options: str) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), "translate", "--model", str(model), *options]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    return subprocess.Popen(command, cwd=PROJECT, text=True, encoding="utf-8", **pipes)


@pytest.mark.slow
def test_ten_thousand_lines_in_constant_memory(small_run):
    sources = [source for source, _ in tutorial.builtin_corpus()["train"]]
    lines = [sources[n % len(sources)] for n in range(10_000)]
    process, memory, out = start(small_run, "--beam", "1"), [], []
    for group in tutorial.grouped(lines, 200):  # a full group is answered before the next is sent
        process.stdin.write("".join(f"{line}\n" for line in group))
        process.stdin.flush()
        out += [process.stdout.readline() for _ in group]
        memory.append(psutil.Process(process.pid).memory_info().rss)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 0 and rest == "", err[-2000:]
    assert len(out) == 10_000 and all(line.endswith("\n") for line in out)
    assert max(memory[10:]) - memory[5] < 30e6, "memory does not grow with the input"


def test_a_closed_pipe_ends_it_quietly(small_run):
    process = start(small_run, "--beam", "1")
    try:
        process.stdin.write("Ein Hund schläft.\n" * 200)
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write("Ein Hund schläft.\n" * 200)
        process.stdin.close()
        process.wait(timeout=60)
    finally:
        process.kill()
    err = process.stderr.read()
    process.stderr.close()
    assert process.returncode == 141 and err.startswith("model small")
    assert len(err.splitlines()) == 1, err
