"""Input that a reader may hand in and that cannot be used: it ends in an error that helps.

Each is one line on standard error, with the place, the fault and the way out.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from conftest import PROJECT, contents, train_one_epoch, write_pairs
from safetensors.torch import save

import the_annotated_transformer as tutorial
from the_annotated_transformer import UserError

DE_EN = ("de", "en")
PROGRAM = [sys.executable, str(PROJECT / tutorial.SCRIPT)]
SMALL = "--N 1 --d-model 16 --d-ff 32 --h 2 --vocab-size 0 --min-freq 1 --epochs 1".split()


def run_main(*arguments: object) -> int:
    """The program inside this process; its exit status."""
    try:
        return tutorial.main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code


def told(capsys, *arguments: object, before: str = "") -> str:
    """The one line of an error that the command line ends in, after `before` it may say more."""
    capsys.readouterr()
    status = run_main(*arguments)
    said = capsys.readouterr().err.removeprefix(before)
    assert status == 1, said
    assert re.fullmatch(r"error: .*\n", said), said
    return said.removesuffix("\n")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


# Corpora ----------------------------------------------------------------------------------------

PAIRS = [("Ein Hund.", "A dog."), ("Zwei Kühe.", "Two cows.")]


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A folder with a tiny corpus, to spoil."""
    return write_pairs(tmp_path / "texts", DE_EN, train=PAIRS, val=PAIRS, test=PAIRS)


def zip_file(path: Path) -> Path:
    zipped = path.with_name(f"{path.name}.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return zipped


def test_a_good_corpus_is_read_plain_or_zipped_with_test_splits_or_without(corpus):
    zip_file(corpus / "train.de")
    for other in ("test_notes.txt", "tests.py", "test.de~"):
        (corpus / other).write_text("No split of a corpus.\n")
    read = tutorial.read_corpus(corpus, DE_EN)
    pairs = {split: list(text) for split, text in read.splits.items()}
    assert pairs == {"train": PAIRS, "val": PAIRS, "test": PAIRS}
    assert read.name == "texts"
    assert read.tests() == ["test"]
    (corpus / "test.de").unlink()
    (corpus / "test.en").unlink()
    assert tutorial.read_corpus(corpus, DE_EN).tests() == []


SPOILT = {
    "unequal files": (lambda corpus: append(corpus / "train.en"), "2 lines in train.de and 3 in"),
    "an unequal val": (lambda corpus: append(corpus / "val.de"), "3 lines in val.de and 2 in"),
    "an empty train": (lambda corpus: empty(corpus, "train"), "no pairs in train.de and train.en"),
    "an empty val": (lambda corpus: empty(corpus, "val"), "no pairs in val.de and val.en"),
    "blank lines": (lambda corpus: empty(corpus, "train", "\n \n"), "all pairs are empty"),
    "a val of blank lines": (lambda corpus: empty(corpus, "val", "\n\n"), "not one pair of val"),
    "no train": (lambda corpus: remove(corpus, "train.*"), "no pairs in train.de and train.en"),
    "one language of train": (lambda corpus: remove(corpus, "train.en"), "train.en is missing"),
    "one language of val": (lambda corpus: remove(corpus, "val.de"), "val.de is missing"),
    "no text at all": (lambda corpus: remove(corpus, "*"), "it has nothing"),
    "no folder": (shutil.rmtree, "texts is no folder: name one with train.de"),
    "latin-1": (
        lambda corpus: (corpus / "train.de").write_bytes("Eins\nKühe\n".encode("latin-1")),
        "train.de, after line ",
    ),
    "utf-16": (
        lambda corpus: (corpus / "val.en").write_bytes("A\nB\n".encode("utf-16")),
        "val.en, after line 0: not UTF-8; convert it first",
    ),
    "a damaged gzip": (
        lambda corpus: zip_file(corpus / "train.de").write_bytes(b"\x1f\x8b\x08 no gzip"),
        "train.de.gz cannot be read",
    ),
    "no gzip at all": (
        lambda corpus: zip_file(corpus / "val.de").write_bytes(b"<html>"),
        "val.de.gz cannot be read",
    ),
    "a folder for a file": (
        lambda corpus: [(corpus / "val.de").unlink(), (corpus / "val.de").mkdir()],
        "val.de cannot be read",
    ),
}


def append(path: Path) -> None:
    path.write_text(path.read_text("utf-8") + "Noch einer.\n", "utf-8")


def empty(corpus: Path, split: str, text: str = "") -> None:
    for language in DE_EN:
        (corpus / f"{split}.{language}").write_text(text)


def remove(corpus: Path, pattern: str) -> None:
    for path in corpus.glob(pattern):
        path.unlink()


@pytest.mark.parametrize("fault", SPOILT)
def test_a_corpus_that_cannot_be_trained_on(corpus, tmp_path, capsys, fault):
    """Nothing that looks like a run is left."""
    spoil, message = SPOILT[fault]
    spoil(corpus)
    said = told(capsys, "train", "--data", corpus, "--folder", tmp_path / "run", *SMALL)
    assert message in said
    assert "texts" in said, "the place"
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_gzip_file_that_was_cut_short_or_damaged_anywhere(corpus):
    path = zip_file(corpus / "train.en")
    content = path.read_bytes()
    damaged = bytes([*content[:-8], content[-8] ^ 1, *content[-7:]])  # its checksum
    for bad in (damaged, *(content[:length] for length in range(1, len(content)))):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=r"train\.en\.gz"):
            list(tutorial.read_corpus(corpus, DE_EN).splits["train"])


def test_rare_line_ends_do_not_end_a_line(corpus):
    """And a line may end as on Windows; a byte order mark is no text."""
    for mark in "\u2028\u2029\x85\x0b\x0c\x1c\r":
        text = f"\ufeffEin{mark}Hund.\r\nZwei Kühe.\r\n"
        (corpus / "train.de").write_bytes(text.encode())
        train = tutorial.read_corpus(corpus, DE_EN).splits["train"]
        expected = [(f"Ein{mark}Hund.", "A dog."), PAIRS[1]]
        assert list(train) == expected


def test_pairs_that_cannot_be_learnt_from_are_left_out(tmp_path):
    fitting = ("Hund " * 9, "dog " * 8)
    bad = [("Hund " * 10, "dog"), ("Hund", "dog " * 9), ("", "A dog."), ("Ein Hund.", "")]
    good = [*PAIRS, fitting]
    corpus = tutorial.Corpus("toy", DE_EN, {"train": [bad[0], *good, *bad[1:]], "val": PAIRS})
    vocabularies = tutorial.learn_words(corpus, min_freq=1)
    tutorial.write_ids(tmp_path, corpus, vocabularies, max_len=10)
    assert len(tutorial.IdPairs(tmp_path)) == len(good)


@pytest.mark.parametrize("pairs", [["Ein Hund."], [("a", "b", "c")], [["a", None]], [(1, 2)]])
def test_what_is_no_pair_of_two_texts(pairs):
    with pytest.raises(UserError, match=r"mine, val: .* is no pair of two texts"):
        tutorial.Corpus("mine", DE_EN, {"train": PAIRS, "val": pairs})


# Multi30k, of which we make a small one with checksums of its own -------------------------------


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """A folder as a server publishes it, whose checksums are the ones expected."""
    splits = {name.split(".")[0]: PAIRS for name in tutorial.MULTI30K_SUMS}
    folder = write_pairs(tmp_path / "published", DE_EN, **splits)
    sums = {}
    for path in map(zip_file, sorted(folder.iterdir())):
        sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sums.keys() == tutorial.MULTI30K_SUMS.keys()
    monkeypatch.setattr(tutorial, "MULTI30K_SUMS", sums)
    return folder


class Handler(http.server.BaseHTTPRequestHandler):
    """Files of the server's folder. Its `faults` say what happens to a request, in order."""

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.requests.append(name)
        fault = self.server.faults.pop(0) if self.server.faults else None
        content = (self.server.folder / name).read_bytes()
        if fault == "404":
            return self.send_error(404)
        if fault == "wrong content":
            content = gzip.compress(b"<html>Please log in.</html>\n")
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "broken off" else content)
        self.close_connection = True

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def patience(monkeypatch) -> list:
    """How long a server is waited for, call by call; between two trials nobody waits."""
    import pooch

    waits = []
    plain = pooch.HTTPDownloader
    monkeypatch.setattr(pooch.core, "time", types.SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(
        pooch, "HTTPDownloader", lambda timeout: waits.append(timeout) or plain(timeout=timeout)
    )
    return waits


@pytest.fixture
def server(published, monkeypatch, patience):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.folder = published
        server.faults = []
        server.requests = []
        monkeypatch.setattr(tutorial, "MULTI30K_URL", f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def out_of_reach(monkeypatch, tmp_path, fresh_corpora, patience) -> Path:
    """An empty present folder, no network, no pauses."""
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(tutorial, "WORK", tmp_path / "empty")
    return tmp_path / "empty"


def test_a_good_download_is_found_and_not_repeated(server, out_of_reach):
    for name in ("multi30k", "Multi30k"):
        corpus = tutorial.find_corpus(name)
        assert corpus.name == "Multi30k"
        result = set(map(tuple, corpus.splits["val"]))
        assert result == set(PAIRS)
    assert files(out_of_reach / ".data" / "multi30k") == sorted(tutorial.MULTI30K_SUMS)
    assert len(server.requests) == len(tutorial.MULTI30K_SUMS)


@pytest.mark.parametrize("fault", ["404", "broken off", "wrong content"])
def test_a_failing_download_is_tried_three_times(server, patience, tmp_path, fault):
    first, second, *_ = tutorial.MULTI30K_SUMS
    server.faults = [None] + [fault] * 3
    with pytest.raises(UserError, match="could not be fetched") as caught:
        tutorial.download_multi30k(tmp_path / "cache")
    message = str(caught.value)
    assert tutorial.MULTI30K_URL in message
    assert "\n" not in message
    assert "404" in message or fault != "404"
    assert server.requests == [first, second, second, second]
    assert files(tmp_path / "cache") == [first], "only what is whole stays"
    server.faults = [fault] * 2
    tutorial.download_multi30k(tmp_path / "cache")
    result = list(tutorial.read_multi30k(tmp_path / "cache").splits["val"])
    assert result == PAIRS
    assert set(patience) == {(3, 6)}, "seconds to connect, and for a server that is silent"


def test_a_tampered_file_of_multi30k(published, monkeypatch, fresh_corpora):
    """Whoever names a folder never gets another text, or another corpus, instead."""
    zipped = published / "train.de.gz"
    text = gzip.decompress(zipped.read_bytes()).replace(b"Hund", b"Rind")
    (published / "train.de").write_bytes(text)  # unpacked beside the archive, and edited
    result = list(tutorial.read_multi30k(published).splits["train"])
    assert result == PAIRS
    zipped.write_bytes(gzip.compress(text))
    monkeypatch.setenv("MULTI30K_DIR", str(published))
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    for ask in (lambda: tutorial.find_corpus("multi30k"), tutorial.corpus_at_hand):
        with pytest.raises(UserError, match=r"train\.de\.gz is not the published file"):
            ask()


def test_out_of_reach(out_of_reach, capsys, monkeypatch):
    """An error that says what to do; only a page or notebook takes the captions by itself."""
    with pytest.raises(UserError) as caught:
        tutorial.find_corpus("multi30k")
    message = str(caught.value)
    assert tutorial.MULTI30K_URL in message
    assert "MULTI30K_DIR" in message
    assert ".data" in message
    assert all(name in message for name in tutorial.MULTI30K_SUMS)
    assert "\n" not in message
    assert files(out_of_reach) in ([], [".data"])
    capsys.readouterr()
    said = told(capsys, "train", "--folder", out_of_reach / "run")
    assert said.startswith("error: Multi30k is out of reach")
    assert "--data builtin" in said
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    corpus = tutorial.corpus_at_hand()
    said = capsys.readouterr().err
    assert corpus.name == tutorial.BUILTIN
    assert "Multi30k is out of reach" in said
    assert f"The {tutorial.BUILTIN} are used" in said
    assert tutorial.corpus_at_hand() is corpus
    assert capsys.readouterr().err == ""


def test_the_pinned_sums_are_those_of_multi30k(multi30k):
    splits = tutorial.read_multi30k(Path(multi30k)).splits
    sizes = {"train": 29_000, "val": 1014, "test_2016_flickr": 1000, "test_2017_flickr": 1000}
    result = {split: len(pairs) for split, pairs in splits.items()}
    assert result == sizes


# Settings ---------------------------------------------------------------------------------------

BAD_SETTINGS = {
    "--dropout nan": "--dropout must be at least 0 and below 1, got nan",
    "--dropout 1": "--dropout must be at least 0 and below 1, got 1.0",
    "--factor nan": "--factor must be above 0, got nan",
    "--weight-decay=-0.1": "--weight-decay must be at least 0, got -0.1",
    "--h 3": "--h must be a divisor of --d-model 16, got 3",
    "--N 0": "--N must be at least 1, got 0",
    "--languages de": "--languages must be two codes",
    "--languages de-2b": "2b",
    "--vocab-size 0 --share-embeddings True": "--share-embeddings needs subwords",
    "--shares 100": "--shares 100 of 60 pairs: ask for fewer",
    "--attention rotary --d-model 6": "rotary heads need an even width, got d_model 6 over h 2",
    "--attention mine": "'mine' is not among plain, .* by --parts FILE.py",
    "--vocab-size 4000": r"--vocab-size 4000: this text makes \d+ subwords",
    "--vocab-size 5": r"--vocab-size 5: this text makes \d+ subwords",
    "--max-len 3": "all pairs are empty or longer than 3 tokens",
    "--minutes nan": "--minutes must be above 0, got nan",
    "--minutes=-1": "--minutes must be above 0, got -1",
    "--data none": "none is no folder: name one with train.de",
    "--data builtin --languages fr-en": "are German and English, not fr and en",
    "--init-from none": "none/config.json cannot be read",
    "--parts none.py": "none.py is missing: --parts names a Python file",
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_setting_that_cannot_work(capsys, tmp_path, setting):
    """The error names the option and its limit; nothing that looks like a run is left."""
    pairs = tutorial.builtin_corpus()["train"][:70]
    text = write_pairs(tmp_path / "text", DE_EN, train=pairs[:60], val=pairs[60:])
    run = tmp_path / "run"
    said = told(capsys, "train", "--data", text, "--folder", run, *SMALL, *setting.split())
    assert re.search(BAD_SETTINGS[setting], said)
    assert not (run / "config.json").exists()


def test_every_setting_has_its_limit():
    whole_numbers = "N d_model d_ff h max_len min_freq batch_tokens accum_iter warmup epochs shares"
    bad = itertools.product([*whole_numbers.split(), "log_every"], (0, -1))
    bad = [*bad, *itertools.product(["vocab_size", "average"], [-1])]
    bad += itertools.product(["factor", "clip"], [0.0, -1.0, math.nan])
    bad += itertools.product(["weight_decay"], [-1.0, math.nan])
    bad += itertools.product(["dropout", "attention_dropout", "smoothing"], [-0.1, 1.0, math.nan])
    bad += itertools.product(["languages"], ["de", "-en", "de-en-fr", "zh-Hans:", "a:b:c"])
    for name, value in bad:
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} .*got '?{value}"):
            dataclasses.replace(tutorial.Config(), **{name: value})


@pytest.mark.parametrize("options", ["--beam 0", "--alpha=-1", "--alpha nan", "--alpha inf"])
def test_a_search_that_cannot_work(capsys, options):
    said = told(capsys, "translate", "Hund", *options.split())
    assert "--beam must be at least 1, --alpha at least 0, got" in said


def test_a_command_line_that_cannot_be_read(capsys):
    for words in ("train --preset huge", "translate --bema 2", "train --N many", "tarin", ""):
        assert run_main(*words.split()) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "--help" in said.err
        assert "Traceback" not in said.err


# Models and runs --------------------------------------------------------------------------------


@pytest.fixture
def run(small_run, tmp_path) -> Path:
    """A copy of a finished run, to spoil."""
    return Path(shutil.copytree(small_run, tmp_path / "a run"))


MODEL_FILES = "config.json", "words.json", "model.safetensors"


@pytest.mark.parametrize("name", MODEL_FILES)
@pytest.mark.parametrize("command", ["translate Hund", "evaluate"])
def test_a_model_that_cannot_be_read(capsys, run, name, command):
    """Missing, cut anywhere, or another file in its place."""
    path = run / name
    good = path.read_bytes()
    for content in (None, b"", b"[]", b"{}", b"\xff\xfe", good[: len(good) // 2], good[:-9]):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        said = told(capsys, *command.split(), "--model", run)
        assert str(run) in said
        path.write_bytes(good)
    assert run_main("translate", "Hund", "--model", run) == 0
    assert str(run / "none") in told(capsys, *command.split(), "--model", run / "none")


def test_files_of_different_models(capsys, run, small_run):
    """Other words, other weights, weights of other names."""
    words = json.loads((run / "words.json").read_bytes())
    weights = tutorial.load_trained_model(small_run).model.named_parameters()
    weights = {name: value.detach() for name, value in weights}
    name = "encoder.layers.0.feed_forward.widen.weight"
    less = {key: value for key, value in weights.items() if key != name}
    other = {
        "words.json": [
            json.dumps(words | {side: [*words[side], "unheard"]}).encode() for side in words
        ],
        "model.safetensors": [
            save(less),
            save(weights | {"encoder.norm.more": weights["encoder.norm.bias"].clone()}),
            save(weights | {name: weights[name][:1].clone()}),
        ],
    }
    for file, spoilt in other.items():
        good = (run / file).read_bytes()
        for content in spoilt:
            (run / file).write_bytes(content)
            said = told(capsys, "translate", "Hund", "--model", run)
            assert f"{run} holds files of different models" in said
        (run / file).write_bytes(good)


def changed(path: Path, name: str, value: object) -> None:
    """Change a value of a JSON object; a name with a dot is that of one inside another object."""
    about = json.loads(path.read_bytes())
    *outer, last = name.split(".")
    inside = about[outer[0]] if outer else about
    inside[last] = value
    if value is GONE:
        del inside[last]
    path.write_text(json.dumps(about, indent=1, ensure_ascii=False))


GONE = object()
EDITS = {
    "model.d_model": ["big", 32, -1, None, GONE],
    "model.h": [0, 3],
    "model.N": [2, "two"],
    "model.attention": ["mine", 3],
    "model.mistyped": [1],
    "languages": [GONE, 3],
    "corpus": [GONE],
}


@pytest.mark.parametrize("name", EDITS)
def test_a_config_that_makes_no_model(capsys, run, name):
    path = run / "config.json"
    good = path.read_bytes()
    for value in EDITS[name]:
        changed(path, name, value)
        said = told(capsys, "translate", "Hund", "--model", run)
        assert str(run) in said
        path.write_bytes(good)


SETTINGS = {
    "settings": [GONE, [], None, {}],
    "settings.d_model": ["big", 32, 0, None, GONE],
    "settings.h": [0, 3],
    "settings.mistyped": [1],
    "settings.attention": ["mine"],
    "settings.schedule": ["cosine"],
    "settings.epochs": [None, 0, "many"],
    "settings.shares": [None, 0],
    "settings.batch_tokens": [None],
    "settings.warmup": [None],
    "settings.seed": [None],
    "languages": [GONE, 3, ["de"]],
    "corpus": [GONE],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_config_that_makes_no_run(capsys, run, name):
    """And nothing is changed."""
    path = run / "config.json"
    good = path.read_bytes()
    for value in SETTINGS[name]:
        changed(path, name, value)
        before = contents(run)
        said = told(capsys, "resume", run)
        assert "a run" in said or "--" in said, "the place or the option"
        assert contents(run) == before
        path.write_bytes(good)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"model"', "{}", "\x00"])
def test_a_config_that_is_none(capsys, run, text):
    (run / "config.json").write_text(text)
    before = contents(run)
    options = "--data", "builtin", "--folder", run
    for command in (["translate", "Hund", "--model", run], ["resume", run], ["train", *options]):
        assert "a run" in told(capsys, *command)
    assert contents(run) == before


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04"])
def test_a_checkpoint_that_is_none(capsys, run, content):
    (run / "last.pt").write_bytes(content)
    assert str(run / "last.pt") in told(capsys, "resume", run)
    assert run_main("translate", "Hund", "--model", run) == 0, "it is still a model"


def test_a_folder_with_other_things(capsys, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    said = told(capsys, "train", "--data", "builtin", "--folder", tmp_path, *SMALL)
    assert f"{tmp_path} holds thesis.tex" in said
    assert "name an empty folder" in said
    assert contents(tmp_path) == {"thesis.tex": b"mine"}
    assert str(tmp_path) in told(capsys, "resume", tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_a_text_that_has_moved(capsys, small_config, small_corpus, tmp_path):
    """The error says where it was looked for, and how to go on."""
    text = Path(shutil.copytree(small_corpus, tmp_path / "text"))
    config = dataclasses.replace(small_config, data=str(text), epochs=2)
    run = tmp_path / "run"
    train_one_epoch(config, run)
    moved = text.rename(tmp_path / "moved")
    said = told(capsys, "train", "--data", text, "--folder", run, *SMALL[2:])
    assert str(text) in said and "resume" in said
    model = tutorial.load_trained_model(run)
    said = told(capsys, "evaluate", "--model", run, before=f"{model}\n")
    assert str(text) in said
    assert run_main("evaluate", "--model", run, "--data", moved) == 0


def test_what_there_is_to_score_is_named(capsys, small_run, tmp_path):
    """Only the splits that are scored are asked for."""
    said = {}
    model = f"{tutorial.load_trained_model(small_run)}\n"
    for name, splits in {
        "only a test": {"test": PAIRS},
        "only a val": {"val": PAIRS},
        "only a dev": {"dev": PAIRS},
        "only blank lines": {"test": [("", "")]},
    }.items():
        folder = write_pairs(tmp_path / name, DE_EN, **splits)
        evaluate = ["evaluate", "--model", small_run, "--data", folder]
        if name in ("only a test", "only a val"):
            assert run_main(*evaluate) == 0
            assert re.search(rf"(?m)^{name[7:]}: BLEU .* 2 of 2 pairs$", capsys.readouterr().out)
        else:
            said[name] = told(capsys, *evaluate, before=model)
    assert "no pairs in val.de and val.en; it has dev.de, dev.en" in said["only a dev"]
    assert "no pair has text on both sides" in said["only blank lines"]
    evaluate = ["evaluate", "--model", small_run, "--split", "test_2017", "--data"]
    said = told(capsys, *evaluate, tmp_path / "only a test", before=model)
    assert "no pairs in test_2017.de and test_2017.en; it has test.de, test.en" in said


def test_a_run_whose_text_came_from_python_asks_for_it(tmp_path, capsys, monkeypatch, small_config):
    """A folder, or a corpus of ours, that bears the same name is another text."""
    monkeypatch.chdir(write_pairs(tmp_path / "mine", DE_EN, train=PAIRS, val=PAIRS).parent)
    corpus = tutorial.Corpus("mine", DE_EN, {"train": PAIRS * 9, "val": PAIRS})
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), "run", corpus=corpus)
    model = f"{tutorial.load_trained_model('run')}\n"
    said = told(capsys, "evaluate", "--model", "run", before=model)
    assert "where is the text of mine? Name it by --data" in said


@pytest.mark.parametrize("command", ["train", "resume"])
def test_no_space_on_the_disk(capsys, monkeypatch, small_config, small_corpus, tmp_path, command):
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    before = contents(run)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    given = ["resume", run, "--epochs", 2]
    if command == "train":
        given = ["train", "--data", small_corpus, "--folder", tmp_path / "new", *SMALL]
    said = told(capsys, *given)
    assert "was not written (No space left on device): free some space" in said
    assert contents(run) == before
    assert not list(tmp_path.rglob("*.part"))


# Streams ----------------------------------------------------------------------------------------


def test_a_closed_pipe_ends_quietly(small_run):
    """As `| head` closes it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, "translate", "--model", small_run, "Hund"]
    done = subprocess.run(list(map(str, command)), stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 141
    assert re.fullmatch("model small .*\n", done.stderr)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(small_run, closed):
    """What would be said there is not said."""
    command = [*PROGRAM, "translate", "--model", str(small_run), *(["Hund"] * ("<" not in closed))]
    done = subprocess.run(
        f"{shlex.join(command)} {closed}", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == (closed == "2>&-")


def test_a_terminal_that_knows_ascii_only(monkeypatch, small_run):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(tutorial, "translate", lambda *given, **options: ["Käse → cheese"])
    assert run_main("translate", "--model", small_run, "Käse") == 0
    assert written.getvalue() == b"K?se ? cheese\n"


def test_the_program_inside_another_one(small_run, small_config, tmp_path):
    """Under `redirect_stdout`, as in a notebook, and in a thread."""
    said = io.StringIO()
    statuses = []

    def both() -> None:
        statuses.append(run_main("translate", "--model", small_run, "Hund"))
        statuses.append(tutorial.train_model(small_config, tmp_path / "run"))

    with contextlib.redirect_stdout(said):
        thread = threading.Thread(target=both)
        thread.start()
        thread.join()
        assert run_main("evaluate", "--model", small_run) == 0
    assert statuses == [0, "finished"]
    assert "test: BLEU" in said.getvalue()


def test_lines_from_what_has_taken_the_place_of_standard_input(monkeypatch, capsys, small_run):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hund\n\nFrau"))
    assert run_main("translate", "--model", small_run) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and said[1] == ""


# Faults of ours ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [ValueError, KeyError, RuntimeError, MemoryError, OSError])
def test_what_no_user_can_mend_keeps_its_traceback(monkeypatch, capsys, small_run, fault):
    def fail(*given, **options):
        raise fault("of ours")

    monkeypatch.setattr(tutorial, "translate", fail)
    with pytest.raises(fault, match="of ours"):
        tutorial.main(["translate", "--model", str(small_run), "Hund"])
    assert "error:" not in capsys.readouterr().err


def test_ctrl_c_ends_in_one_word(monkeypatch, capsys, small_run):
    def stop(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tutorial, "translate", stop)
    assert run_main("translate", "--model", small_run, "Hund") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
