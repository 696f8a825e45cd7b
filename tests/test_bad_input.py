"""Input that a reader may hand in and that cannot be used: it ends in an error that helps."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import itertools
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from conftest import NOWHERE, PROJECT, write_pairs

import the_annotated_transformer as tutorial

SCRIPT = PROJECT / "the_annotated_transformer.py"


def one_line(text: str) -> str:
    """The only line of standard error; nothing of a traceback."""
    assert "Traceback" not in text
    lines = text.rstrip("\n").split("\n")
    assert len(lines) == 1 and lines[0].startswith("error: "), text
    return lines[0]


# Checkpoints ------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(small_run, tmp_path) -> Path:
    """A copy of a good checkpoint, to spoil."""
    (tmp_path / "run").mkdir()
    return Path(shutil.copy(small_run / "best.pt", tmp_path / "run" / "best.pt"))


class Malice:
    """What a pickle does when it is loaded: it calls whatever it names."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def signed(payload: bytes) -> bytes:
    """A payload behind a header whose checksum is right."""
    checksum = hashlib.sha256(payload).hexdigest().encode()
    return tutorial.CHECKPOINT_MAGIC + checksum + b"\n" + payload


def change(checkpoint: Path, **entries) -> None:
    tutorial.save_checkpoint(checkpoint, tutorial.load_checkpoint(checkpoint) | entries)


def test_a_good_checkpoint_is_loaded(checkpoint):
    translator = tutorial.load_trained_model(checkpoint.parent)
    assert not translator.model.training and translator.name == "run"
    assert tutorial.translate(translator, ["Ein Hund schläft."])[0] != ""


def test_a_missing_checkpoint(tmp_path):
    for path in (tmp_path, tmp_path / "none.pt", tmp_path / "none" / "best.pt"):
        with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*make train"):
            tutorial.load_trained_model(path)


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.5, 0.9999])
def test_a_half_written_checkpoint(checkpoint, share):
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=r"best\.pt (is damaged|is not a checkpoint)"):
        tutorial.load_trained_model(checkpoint)


def test_no_flipped_bit_goes_unnoticed(checkpoint):
    content, rng = bytearray(checkpoint.read_bytes()), random.Random(0)
    header = tutorial.CHECKPOINT_MAGIC
    places = [0, len(header) - 1, len(header), len(header) + 63, len(header) + 64]
    for place in places + [rng.randrange(len(content)) for _ in range(100)]:
        bit = 1 << rng.randrange(8)
        content[place] ^= bit
        checkpoint.write_bytes(content)
        with pytest.raises(ValueError, match=r"best\.pt"):
            tutorial.load_checkpoint(checkpoint)
        content[place] ^= bit
    checkpoint.write_bytes(content)
    tutorial.load_checkpoint(checkpoint)


def test_a_crash_while_saving_leaves_the_old_checkpoint(checkpoint, monkeypatch):
    old = checkpoint.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        tutorial.save_checkpoint(checkpoint, {"step": 1})
    assert checkpoint.read_bytes() == old
    assert [path.name for path in checkpoint.parent.iterdir()] == ["best.pt"]


def test_a_checkpoint_of_other_sizes(checkpoint):
    config = tutorial.load_checkpoint(checkpoint)["config"]
    change(checkpoint, config=config | {"d_ff": 64})
    with pytest.raises(ValueError, match=r"best\.pt: weights do not fit"):
        tutorial.load_trained_model(checkpoint)


def test_a_checkpoint_with_another_vocabulary(checkpoint):
    source, target = tutorial.load_checkpoint(checkpoint)["vocabularies"]
    change(checkpoint, vocabularies=[source, [*target, "unheard"]])
    with pytest.raises(ValueError, match=r"best\.pt: weights do not fit"):
        tutorial.load_trained_model(checkpoint)


def test_a_checkpoint_that_holds_something_else(checkpoint):
    tutorial.save_checkpoint(checkpoint, {"weights": torch.zeros(3)})
    with pytest.raises(ValueError, match="lacks config, corpus, model, vocabularies"):
        tutorial.load_trained_model(checkpoint)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("save", [pickle.dump, torch.save], ids=["pickle", "torch.save"])
@pytest.mark.parametrize("pack", [bytes, signed], ids=["bare", "behind a right checksum"])
def test_a_malicious_pickle_is_refused_and_never_executed(checkpoint, tmp_path, save, pack):
    trace, buffer = tmp_path / "executed", io.BytesIO()
    save({"model": Malice(trace)}, buffer)
    checkpoint.write_bytes(pack(buffer.getvalue()))
    with pytest.raises(ValueError, match=r"best\.pt"):
        tutorial.load_trained_model(checkpoint)
    assert not trace.exists()


def test_the_malice_would_work(tmp_path):
    """Otherwise the test above would prove nothing."""
    pickle.loads(pickle.dumps(Malice(tmp_path / "executed")))
    assert (tmp_path / "executed").is_dir()


# Corpora ----------------------------------------------------------------------------------------

PAIRS = [("Ein Hund.", "A dog."), ("Zwei Kühe.", "Two cows.")]


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A folder with a tiny corpus, to spoil."""
    return write_pairs(tmp_path / "texts", ("de", "en"), train=PAIRS, val=PAIRS, test=PAIRS)


def zip_file(path: Path) -> Path:
    zipped = path.with_name(f"{path.name}.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return zipped


def test_a_good_corpus_is_read_plain_or_zipped(corpus):
    zip_file(corpus / "train.de")
    read = tutorial.read_corpus(corpus, ("de", "en"))
    assert read.splits == {"train": PAIRS, "val": PAIRS, "test": PAIRS} and read.name == "texts"


def test_a_missing_folder(tmp_path):
    with pytest.raises(tutorial.CorpusError, match=r"no folder .*nowhere.*train\.de"):
        tutorial.read_corpus(tmp_path / "nowhere", ("de", "en"))


@pytest.mark.parametrize("name", ["train.de", "val.en", "test.en"])
def test_a_missing_file(corpus, name):
    (corpus / name).unlink()
    with pytest.raises(tutorial.CorpusError, match=rf"{name} is missing"):
        tutorial.read_corpus(corpus, ("de", "en"))


def test_no_test_file_at_all(corpus):
    for path in corpus.glob("test*"):
        path.unlink()
    with pytest.raises(tutorial.CorpusError, match=r"test\.de is missing"):
        tutorial.read_corpus(corpus, ("de", "en"))


@pytest.mark.parametrize("keep", [0, 5, 20, -9, -1])
def test_a_truncated_gzip_file(corpus, keep):
    path = zip_file(corpus / "train.en")
    path.write_bytes(path.read_bytes()[:keep])
    fault = r"train\.en\.gz cannot be read.*fetch it again" if keep else r"1 lines in train\.en"
    with pytest.raises(tutorial.CorpusError, match=fault):
        tutorial.read_corpus(corpus, ("de", "en"))


def test_a_damaged_gzip_file(corpus):
    path, noticed = zip_file(corpus / "train.en"), 0
    content = bytearray(path.read_bytes())
    for place, bit in itertools.product(range(len(content)), range(8)):
        content[place] ^= 1 << bit
        path.write_bytes(content)
        try:  # a few bits mean nothing, such as the time in the header
            assert tutorial.read_corpus(corpus, ("de", "en")).splits["train"] == PAIRS
        except tutorial.CorpusError as error:
            assert "train.en.gz" in str(error)
            noticed += 1
        content[place] ^= 1 << bit
    assert noticed > 4 * len(content)


def test_an_empty_split(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"test.{language}.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(tutorial.CorpusError, match="split test is empty"):
        tutorial.read_split(tmp_path, "test", ("de", "en"))


def test_misaligned_files(corpus):
    (corpus / "val.en").write_text("A dog.\nTwo cows.\nThree owls.\n")
    with pytest.raises(tutorial.CorpusError, match=r"2 lines in val\.de and 3 lines in val\.en"):
        tutorial.read_corpus(corpus, ("de", "en"))


def test_a_file_that_is_not_utf8(corpus):
    (corpus / "train.de").write_bytes("Ein Hund.\nZwei Kühe.\n".encode("latin-1"))
    with pytest.raises(tutorial.CorpusError, match=r"train\.de, line 2: not UTF-8"):
        tutorial.read_corpus(corpus, ("de", "en"))


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_rare_line_ends_do_not_end_a_line(corpus, mark):
    (corpus / "train.de").write_bytes(f"Ein{mark}Hund.\nZwei Kühe.\n".encode())
    assert tutorial.read_corpus(corpus, ("de", "en")).splits["train"] == [
        (f"Ein{mark}Hund.", "A dog."), PAIRS[1],
    ]  # fmt: skip


def test_lines_that_end_as_on_windows(corpus):
    (corpus / "train.de").write_bytes(b"Ein Hund.\r\nZwei K\xc3\xbche.\r\n")
    assert tutorial.read_corpus(corpus, ("de", "en")).splits["train"] == PAIRS


def test_an_unknown_language_code(corpus, tmp_path):
    with pytest.raises(ValueError, match="spaCy cannot tokenize language 'qq'"):
        tutorial.load_tokenizer("qq")
    write_pairs(corpus, ("qq", "en"), train=PAIRS, val=PAIRS, test=PAIRS)
    config = dataclasses.replace(tutorial.PRESETS["smoke"], corpus=str(corpus))
    config = dataclasses.replace(config, languages=("qq", "en"))
    with pytest.raises(ValueError, match="'qq'"):
        tutorial.train_model(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pairs_that_cannot_be_learnt_from_are_left_out(tmp_path, capsys, fresh_corpora):
    long, empty = ("Hund " * 20, "dog " * 20), ("", "A dog.")
    splits = {"train": [*PAIRS, long, empty], "val": PAIRS, "test": [empty, long]}
    folder = write_pairs(tmp_path / "texts", ("de", "en"), **splits)
    encoded = tutorial.encode_corpus(str(folder), ("de", "en"), min_freq=1, max_len=10)
    assert len(encoded.splits["train"]) == 2 and encoded.corpus.splits["train"] == PAIRS
    assert "train: 2 pairs are empty or too long" in capsys.readouterr().err
    assert len(encoded.corpus.splits["test"]) == 2, "a test split is never made easier"
    with pytest.raises(ValueError, match="not one pair of train can be used"):
        tutorial.encode_corpus(str(folder), ("de", "en"), min_freq=1, max_len=2)


# Multi30k, of which we make a small one with checksums of its own -------------------------------


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """A folder as a server publishes it, whose checksums are the ones expected."""
    splits = dict.fromkeys(tutorial.MULTI30K_SPLITS, PAIRS)
    folder = write_pairs(tmp_path / "published", ("de", "en"), **splits)
    files = sorted(folder.iterdir())
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert set(sums) == set(tutorial.MULTI30K_SUMS)
    in_order = {name: sums[name] for name in tutorial.MULTI30K_SUMS}
    monkeypatch.setattr(tutorial, "MULTI30K_SUMS", in_order)
    for path in files:
        zip_file(path)
    return folder


class Server(http.server.ThreadingHTTPServer):
    """Files of a folder on loopback. `faults` says what happens to a request, in order."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.faults, self.requests = folder, [], []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
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
        if fault != "no length":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        broken = fault in ("broken off", "no length")
        self.wfile.write(content[: len(content) // 2] if broken else content)
        self.close_connection = True

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(published):
    with Server(published) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_good_download_is_accepted_and_not_repeated(server, tmp_path):
    cache = tmp_path / "cache"
    tutorial.download_multi30k(cache, server.url, pause=0)
    assert files(cache) == sorted(f"{name}.gz" for name in tutorial.MULTI30K_SUMS)
    assert tutorial.read_multi30k(cache).splits["train"] == PAIRS
    tutorial.download_multi30k(cache, server.url, pause=0)
    assert len(server.requests) == len(tutorial.MULTI30K_SUMS)


@pytest.mark.parametrize("fault", ["404", "broken off"])
def test_a_failing_download_is_tried_three_times(server, tmp_path, fault):
    server.faults = [fault] * 9
    with pytest.raises(tutorial.CorpusError, match=r"/train\.de\.gz .*3 attempts") as caught:
        tutorial.download_multi30k(tmp_path / "cache", server.url, pause=0)
    assert server.url in str(caught.value)
    assert "404" in str(caught.value) or fault != "404"
    assert server.requests == ["train.de.gz"] * 3
    assert files(tmp_path / "cache") == []


@pytest.mark.parametrize("fault", ["404", "broken off"])
def test_a_download_may_succeed_at_the_third_attempt(server, tmp_path, fault):
    server.faults = [fault, fault]
    tutorial.download_multi30k(tmp_path / "cache", server.url, pause=0)
    assert server.requests[:4] == ["train.de.gz"] * 3 + ["train.en.gz"]
    assert len(files(tmp_path / "cache")) == len(tutorial.MULTI30K_SUMS)


@pytest.mark.parametrize("fault", ["wrong content", "no length"])
def test_a_download_of_something_else_is_removed(server, tmp_path, fault):
    server.faults = [None, fault]
    with pytest.raises(tutorial.CorpusError, match=r"train\.en\.gz .*fetch it again"):
        tutorial.download_multi30k(tmp_path / "cache", server.url, pause=0)
    assert files(tmp_path / "cache") == ["train.de.gz"], "only what is whole stays"


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(tutorial.CorpusError, match=r"could not be fetched in 3 attempts.*refused"):
        tutorial.fetch(f"{NOWHERE}/train.de.gz", tmp_path / "train.de.gz", pause=0)
    assert files(tmp_path) == []


def test_attempts_are_paused_between_and_not_after(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(tutorial.time, "sleep", pauses.append)
    with pytest.raises(tutorial.CorpusError, match="4 attempts"):
        tutorial.fetch(NOWHERE, tmp_path / "x", attempts=4, pause=2.0)
    assert len(pauses) == 3 and pauses == sorted(pauses) and pauses[0] >= 2


@pytest.mark.parametrize("name", ["train.de", "test_2017_flickr.en"])
def test_a_tampered_file_of_multi30k(published, monkeypatch, fresh_corpora, name):
    zipped = published / f"{name}.gz"
    text = gzip.decompress(zipped.read_bytes()).replace(b"dog", b"cat").replace(b"Hund", b"Rind")
    zipped.write_bytes(gzip.compress(text))
    with pytest.raises(tutorial.CorpusError, match=rf"{name}\.gz is not the published file"):
        tutorial.read_multi30k(published)
    monkeypatch.setenv("MULTI30K_DIR", str(published))
    for asked in ("multi30k", "auto"):  # whoever names a folder never gets another corpus instead
        with pytest.raises(tutorial.CorpusError, match=name):
            tutorial.find_corpus(asked)


@pytest.fixture
def out_of_reach(monkeypatch, tmp_path, fresh_corpora) -> Path:
    """An empty present folder, no network, no pauses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tutorial.time, "sleep", lambda seconds: None)
    return tmp_path


def test_multi30k_by_name_says_what_to_do(out_of_reach):
    with pytest.raises(tutorial.CorpusError) as caught:
        tutorial.find_corpus("multi30k")
    message = str(caught.value)
    assert tutorial.MULTI30K_URL in message and "MULTI30K_DIR" in message
    assert ".data" in message, "the folder that was looked into"
    assert all(split in message for split in tutorial.MULTI30K_SPLITS)
    assert files(out_of_reach) in ([], [".data"])


def test_a_choice_left_open_ends_in_the_built_in_captions_and_says_so(out_of_reach, capsys):
    corpus = tutorial.find_corpus("auto")
    assert corpus.name == tutorial.BUILTIN
    said = capsys.readouterr().err
    assert "Multi30k is out of reach" in said and f"The {tutorial.BUILTIN} are used" in said
    assert tutorial.find_corpus("auto") is corpus and capsys.readouterr().err == ""


def test_the_cache_is_found(server, out_of_reach, monkeypatch):
    tutorial.download_multi30k(Path(".data/multi30k"), server.url, pause=0)
    assert tutorial.find_corpus("auto").splits["val"] == PAIRS


def test_the_pinned_sums_are_those_of_multi30k(multi30k):
    corpus = tutorial.read_multi30k(Path(multi30k))
    assert {s: len(p) for s, p in corpus.splits.items()} == {
        "train": 29_000, "val": 1014, "test_2016_flickr": 1000, "test_2017_flickr": 1000,
    }  # fmt: skip


def test_the_built_in_captions_know_two_languages():
    with pytest.raises(tutorial.CorpusError, match="German and English, not fr and en"):
        tutorial.find_corpus("builtin", ("fr", "en"))
    there, back = (tutorial.read_builtin(way).splits["val"] for way in (("de", "en"), ("en", "de")))
    assert back == [(english, german) for german, english in there]


# Sentences --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator(small_run):
    """A model with 16 positions that has learnt next to nothing."""
    return tutorial.load_trained_model(small_run)


ODD = {
    "empty": "",
    "blank": " \t ",
    "unknown words": "Xylophonisten blubbern quergestreift",
    "emoji": "Ein 🐕\u200d🦺 rennt 👩🏽\u200d🚀.",
    "control characters": "Ein\x00 Hund\x07\x1b[31m rennt\x7f.",
    "lone surrogate": "Ein \udcff Hund \ud83d rennt.",
    "right to left": "\u202eEin Hund\u202c שלום",
    "line separators": "Ein\u2028Hund\x85rennt\r.",
    "marks of ours": "‿ <s> </s> <blank> <unk> ‿‿Hund",
    "combining": "Ein Ma\u0308dchen" + "\u0301" * 300,
    "only punctuation": "…!?—()[]",
}


@pytest.mark.parametrize("sentence", ODD.values(), ids=ODD)
def test_odd_sentences_are_translated_to_one_line(translator, sentence):
    (written,) = tutorial.translate(translator, [sentence])
    assert "\n" not in written
    written.encode("utf-8")  # no surrogate comes out
    tokens = tutorial.tokenize(sentence, tutorial.load_tokenizer("de"))
    assert (written == "") == (not tokens)


def test_special_symbols_in_a_text_are_ordinary_words(translator):
    ids = translator.vocabularies[0].ids("<s> </s> <blank> <unk> Hund".split())
    assert ids[:4] == [tutorial.UNKNOWN] * 4


def test_ten_thousand_words(translator):
    words = " ".join(["Ein", "Hund", "rennt", "und"] * 2500)
    with pytest.warns(UserWarning, match=r"line 2 has 10000 tokens, more than 15: cut into 667"):
        written = tutorial.translate(translator, ["Ein Hund.", words, "Eine Katze."])
    assert len(written) == 3 and "\n" not in written[1]
    pieces = tutorial.translate(
        translator, [" ".join(words.split()[at : at + 15]) for at in (0, 15)]
    )
    assert written[1].startswith(" ".join(pieces))
    assert written[::2] == tutorial.translate(translator, ["Ein Hund.", "Eine Katze."])


def test_the_longest_line_that_fits_is_not_cut(translator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(tutorial.translate(translator, ["Hund " * 15])) == 1
        with pytest.raises(UserWarning, match="16 tokens, more than 15"):
            tutorial.translate(translator, ["Hund " * 16])


@pytest.mark.filterwarnings(r"ignore:line \d+ has 40 tokens")
def test_order_and_number_are_kept(translator):
    sentences = [german for german, _ in tutorial.builtin_corpus()["val"][:30]]
    sentences += [*ODD.values(), "Hund " * 40, ""]
    alone = [tutorial.translate(translator, [sentence])[0] for sentence in sentences]
    for size in (1, 7, 50):
        assert tutorial.translate(translator, sentences, batch_size=size) == alone
    assert len(set(alone)) >= 3, "a model that always says the same would prove nothing"
    assert tutorial.translate(translator, []) == []


def test_attention_maps_want_one_sentence_that_fits(translator):
    for sentence in ("", " ", "Hund " * 40):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(ValueError, match="one sentence that fits"):
                tutorial.attention_maps(translator, sentence)


def run_script(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=250, **options)


def test_standard_input_line_by_line(translator, small_run):
    lines = [b"Ein Hund rennt.", b"", b"Ein Hund\r", b"Ein\rHund", b"Ein \xff\xfe Hund", b"  ",
             "Ein\u2028Hund".encode(), b"<s>", b"Zwei Frauen"]  # fmt: skip
    done = run_script("translate", "--model", small_run, "--beam", "1", input=b"\n".join(lines))
    assert done.returncode == 0 and done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"model small, trained on "), "which model, and nothing else"
    expected = tutorial.translate(translator, [x.decode(errors="replace") for x in lines])
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)
    assert expected[1] == expected[5] == ""


def test_a_warning_names_the_line_of_the_input(small_run, monkeypatch, capsys):
    """Lines are handed to the model in groups; the reader counts them from the first."""
    lines = io.TextIOWrapper(io.BytesIO(b"Hund\n" * 299 + b"Hund " * 16 + b"\n"))
    monkeypatch.setattr(sys, "stdin", lines)
    with pytest.warns(UserWarning, match="line 300 has 16 tokens"):
        assert tutorial.main(["translate", "--model", str(small_run)]) == 0
    assert capsys.readouterr().out.count("\n") == 300


# The command line -------------------------------------------------------------------------------


def tutorial_fails(capsys, *arguments: object) -> str:
    """Run the program inside this process; the line that it ends with."""
    assert tutorial.main(list(map(str, arguments))) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return one_line(captured.err)


def test_an_error_ends_with_one_line_and_status_1(tmp_path):
    done = run_script("translate", "--model", tmp_path / "none", "Hund")
    assert done.returncode == 1 and done.stdout == b""
    assert "no checkpoint at" in one_line(done.stderr.decode())


def test_no_finished_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(tutorial, "PRETRAINED", tmp_path / "no-pretrained")
    for command in (["translate", "Hund"], ["evaluate"]):
        line = tutorial_fails(capsys, *command)
        assert "no finished run in" in line and "make train" in line and "--model" in line


def test_a_damaged_model(capsys, checkpoint):
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    for command in ("translate", "evaluate"):
        assert "damaged" in tutorial_fails(capsys, command, "--model", checkpoint)


@pytest.mark.parametrize("pack", [bytes, signed], ids=["bare", "behind a right checksum"])
def test_a_pickle_as_model(capsys, checkpoint, tmp_path, pack):
    buffer = io.BytesIO()
    torch.save(Malice(tmp_path / "executed"), buffer)
    checkpoint.write_bytes(pack(buffer.getvalue()))
    assert "best.pt" in tutorial_fails(capsys, "translate", "--model", checkpoint)
    assert not (tmp_path / "executed").exists()


def test_train_without_its_corpus(capsys, tmp_path, fresh_corpora):
    line = tutorial_fails(capsys, "train", "--data", tmp_path / "none")
    assert "no folder" in line and "train.de" in line


BAD_SETTINGS = {
    "--languages de": "de-en",
    "--languages de-": "de-en",
    "--languages de-en-fr": "de-en",
    "--dropout 1": "dropout",
    "--dropout nan": "dropout",
    "--N -1": "-1",
    "--h 3": "3",
    "--d-model 0": "0",
    "--d-ff 0": "d_ff",
    "--accumulate 0": "accumulate",
    "--batch-tokens 0": "0",
    "--warmup 0": "warmup",
    "--smoothing 1": "smoothing",
    "--max-len 2": "not one pair",
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_setting_out_of_range(capsys, small_corpus, tmp_path, setting):
    given = ["--data", small_corpus, "--folder", tmp_path / "run", *setting.split()]
    assert tutorial.main(list(map(str, ["train", "--preset", "smoke", *given]))) == 1
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert BAD_SETTINGS[setting] in one_line(line)
    assert not (tmp_path / "run" / "last.pt").exists()


def test_a_run_folder_that_is_a_file(capsys, small_corpus, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        given = ["--preset", "smoke", "--data", small_corpus, "--folder", folder]
        assert "file" in tutorial_fails(capsys, "train", *given)


def test_a_damaged_run_is_not_overwritten(capsys, small_corpus, small_run, tmp_path):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    (run / "last.pt").write_bytes((run / "last.pt").read_bytes()[:1000])
    given = ["--preset", "smoke", "--data", small_corpus, "--folder", run]
    assert "last.pt is damaged" in tutorial_fails(capsys, "train", *given)
    assert len((run / "last.pt").read_bytes()) == 1000
    assert (run / "best.pt").read_bytes() == (small_run / "best.pt").read_bytes()


@pytest.mark.parametrize(
    "words", [["train", "--preset", "huge"], ["train", "--N", "two"], ["fly"], []]
)
def test_a_command_line_that_cannot_be_read(capsys, words):
    with pytest.raises(SystemExit) as caught:
        tutorial.main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["train"], ["translate"], ["evaluate"]])
def test_help_is_there(capsys, command):
    with pytest.raises(SystemExit) as caught:
        tutorial.main([*command, "--help"])
    assert caught.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:line .* cut into")
def test_toy_scores_are_no_results(capsys, small_run, tmp_path):
    given = ["--model", small_run, "--data", "builtin", "--results", tmp_path / "toy.json"]
    assert tutorial.main(list(map(str, ["evaluate", *given]))) == 1
    assert "not kept as results" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "toy.json").exists()


def test_results_of_a_checkpoint_file(capsys, small_run, tmp_path):
    """A run may be named by its folder or by its checkpoint: the summary lies beside it."""
    given = ["--model", small_run / "best.pt", "--results", tmp_path / "scores.json"]
    assert tutorial.main(list(map(str, ["evaluate", *given]))) == 0
    assert json.loads((tmp_path / "scores.json").read_text())["training"]["epochs"] == 1


# A reader's own corpus --------------------------------------------------------------------------

SUBJECTS = {"le chien": "the dog", "la fille": "the girl", "l'homme": "the man",
            "un chat": "a cat", "une femme": "a woman"}  # fmt: skip
VERBS = {"dort": "sleeps", "mange": "eats", "chante": "sings", "court": "runs", "rit": "laughs",
         "attend": "waits", "danse": "dances", "joue": "plays"}  # fmt: skip


def test_a_readers_own_french_corpus(tmp_path, capsys):
    pairs = [
        (f"{a.capitalize()} {v}.", f"{b.capitalize()} {w}.")
        for a, b in SUBJECTS.items()
        for v, w in VERBS.items()
    ]
    random.Random(0).shuffle(pairs)
    splits = {"train": pairs[:30], "val": pairs[30:35], "test": pairs[35:]}
    data = write_pairs(tmp_path / "phrases", ("fr", "en"), **splits)
    run = tmp_path / "run"
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --min-freq 1 --epochs 1 --batch-tokens 64"
    sizes += " --seed 3 --warmup 1 --preset words"
    given = ["--data", data, "--languages", "fr-en", "--folder", run, *sizes.split()]
    assert tutorial.main(list(map(str, ["train", *given]))) == 0
    assert "finished" in capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert summary["updates"] > 1 and summary["corpus"] == "phrases"
    assert summary["languages"] == ["fr", "en"]

    start = tutorial.Training(
        tutorial.load_trained_model(run).config,
        tutorial.encode_corpus(str(data), ("fr", "en"), 1, 256),
        tutorial.Worker(0, 1, torch.device("cpu"), None),
        tmp_path,
    ).model.state_dict()
    trained = tutorial.load_checkpoint(run / "last.pt")["model"]
    assert all(not torch.equal(start[name], trained[name]) for name in ("generator.proj.weight",))

    assert tutorial.main(["translate", "--model", str(run), "L'homme dort.", ""]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert tutorial.main(["evaluate", "--model", str(run)]) == 0
    assert "test: BLEU" in (said := capsys.readouterr().out) and "nrefs:1" in said
    assert tutorial.main(["evaluate", "--model", str(run), "--split", "val"]) == 0
    assert "val: BLEU" in (said := capsys.readouterr().out) and "test" not in said
    assert tutorial.main(["evaluate", "--model", str(run), "--split", "dev"]) == 1
    assert "no split 'dev', only train, val, test" in one_line(capsys.readouterr().err)
    assert "l'" in tutorial.tokenize("l'homme", tutorial.load_tokenizer("fr"))


def test_evaluation_in_a_language_that_the_model_does_not_know(capsys, small_run, tmp_path):
    data = write_pairs(tmp_path / "phrases", ("fr", "en"), train=PAIRS, val=PAIRS, test=PAIRS)
    line = tutorial_fails(capsys, "evaluate", "--model", small_run, "--data", data)
    assert "train.de is missing" in line
