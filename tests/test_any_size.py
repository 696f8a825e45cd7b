"""A corpus on disk: encoded once, anew where it must be, and read by a process of constant size."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, write_pairs

import the_annotated_transformer as tutorial

DE_EN = ("de", "en")


@pytest.fixture
def text(small_corpus, tmp_path, monkeypatch) -> Path:
    """A corpus of one's own, and a place for ids that is still empty."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return Path(shutil.copytree(small_corpus, tmp_path / "text"))


def encode(text: Path, **changes) -> tutorial.Data:
    config = tutorial.Config(**{"vocab_size": 100} | changes)
    return tutorial.encode_corpus(tutorial.read_corpus(text, DE_EN), config)


def ids_of(data: tutorial.Data) -> list:
    return [
        (a.tolist(), b.tolist()) for a, b in map(data.train.__getitem__, range(len(data.train)))
    ]


def test_ids_are_those_of_the_text_and_are_made_once(text, monkeypatch):
    data = encode(text)
    pairs = list(data.corpus.splits["train"])
    expected = tutorial.encode_pairs(pairs, data.vocabularies, DE_EN)
    assert ids_of(data) == expected
    assert data.train.ids.dtype == torch.int32
    monkeypatch.setattr(tutorial, "write_ids", None)
    again = encode(text)
    assert ids_of(again) == ids_of(data)
    assert again.sums == data.sums


CHANGES = {
    "another text": lambda text, ids: (text / "train.en").write_text(
        (text / "train.en").read_text().replace("A ", "The ")
    ),
    "a flipped bit": lambda text, ids: flip(ids / "train.ids"),
    "a shorter file": lambda text, ids: os.truncate(ids / "train.lengths", 80),
    "no vocabulary": lambda text, ids: (ids / "tokenizer.json").unlink(),
    "a damaged list": lambda text, ids: (ids / "corpus.json").write_text("{}"),
}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_has_changed_is_encoded_anew(text, tmp_path, change):
    before = ids_of(encode(text))
    [folder] = (tmp_path / "runs" / "ids").iterdir()
    CHANGES[change](text, folder)
    data = encode(text)
    pairs = list(data.corpus.splits["train"])
    expected = tutorial.encode_pairs(pairs, data.vocabularies, DE_EN)
    assert ids_of(data) == expected
    other = change == "another text"
    assert (ids_of(data) != before) == other
    assert len(list((tmp_path / "runs" / "ids").iterdir())) == 1 + other


def test_edited_code_has_other_ids(text, monkeypatch):
    before = encode(text)
    plain = tutorial.Subwords.encode
    monkeypatch.setattr(
        tutorial.Subwords,
        "encode",
        lambda self, texts, _: [ids[::-1] for ids in plain(self, texts)],
    )
    assert ids_of(encode(text)) != ids_of(before)


def test_edited_code_that_counts_words_has_another_list(text, monkeypatch):
    before = encode(text, vocab_size=0, share_embeddings=False)
    plain = tutorial.build_vocabulary
    monkeypatch.setattr(tutorial, "build_vocabulary", lambda texts, _: plain(texts, 10**6))
    after = encode(text, vocab_size=0, share_embeddings=False)
    assert len(after.vocabularies[0]) < len(before.vocabularies[0])


def test_a_text_that_has_grown_is_read_as_it_is_now(text):
    before = tutorial.find_corpus(text, DE_EN)
    for language in DE_EN:
        path = text / f"train.{language}"
        path.write_text(path.read_text("utf-8") * 2, "utf-8")
    after = tutorial.find_corpus(text, DE_EN)
    assert len(after.splits["train"]) == 2 * len(before.splits["train"])


def test_other_texts_have_other_sums():
    cuts = [[("a", "b"), ("c", "d")], [("a", "bc"), ("", "d")], [("a", "b\nc"), ("d", "")]]
    corpora = [tutorial.Corpus("", DE_EN, {"train": pairs, "val": []}) for pairs in cuts]
    assert len({*map(tutorial.sum_of_text, corpora)}) == len(cuts)


def test_other_settings_have_other_ids(text):
    assert len(encode(text, max_len=40).train) < len(encode(text).train) == 120


def test_the_splits_of_a_folder_are_sequences_on_disk(text):
    pairs = tutorial.read_split(text, "train", DE_EN)
    every = list(pairs)
    assert len(pairs) == len(every) == 120
    assert list(pairs) == every
    assert pairs[7] == every[7]
    assert pairs[-1] == every[-1]
    assert pairs[3:90:7] == every[3:90:7]
    (text / "train.de.gz").write_bytes(tutorial.gzip.compress((text / "train.de").read_bytes()))
    (text / "train.de").unlink()
    assert list(tutorial.read_split(text, "train", DE_EN)) == every


def invented(folder: Path, count: int) -> Path:
    """So many pairs of thirty invented words or so, by the same words."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnopr", k=5)) for _ in range(3000)]
    weights = [1 / (n + 5) for n in range(len(words))]

    def pairs(number: int) -> list[tuple[str, str]]:
        sides = []
        for _ in range(2):
            lengths = [generator.randint(10, 30) for _ in range(number)]
            stream = iter(generator.choices(words, weights, k=sum(lengths)))
            sides.append([" ".join(next(stream) for _ in range(n)) for n in lengths])
        return list(zip(*sides, strict=True))

    return write_pairs(folder, ("xx", "yy"), train=pairs(count), val=pairs(20))


FIRST_UPDATE = """
import sys
import the_annotated_transformer as at

config = at.Config(data=sys.argv[1], languages="xx-yy", N=1, d_model=64, d_ff=64, h=2)
at.train_model(config, sys.argv[2], minutes=0)
[anonymous] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
print("anonymous", anonymous.split()[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_two_hundred_thousand_pairs_need_no_more_memory(tmp_path):
    """Up to the first update; and the second time nothing is encoded."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "RUNS_DIR": str(tmp_path / "runs")}
    mebibytes = {}
    seconds = {}
    for count in (29_000, 200_000):
        text = invented(tmp_path / f"of {count}", count)
        for start in ("first", "second"):
            begin = time.perf_counter()
            command = [sys.executable, "-c", FIRST_UPDATE, str(text), f"{tmp_path}/run-{count}"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            seconds[count, start] = time.perf_counter() - begin
            assert done.returncode == 0, done.stderr
            mebibytes[count, start] = int(re.search(r"anonymous (\d+)", done.stdout)[1]) / 1024
    for start in ("first", "second"):
        assert mebibytes[200_000, start] < mebibytes[29_000, start] + 512, mebibytes
    assert seconds[200_000, "second"] < seconds[200_000, "first"] / 2, seconds
