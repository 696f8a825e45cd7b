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
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path

import pytest
import torch
from conftest import PROJECT, write_pairs

import the_annotated_transformer as tutorial
from the_annotated_transformer import CorpusError

SCRIPT = PROJECT / "the_annotated_transformer.py"
DE_EN = ("de", "en")


def last_line(text: str) -> str:
    """The last line of standard error, behind notes and warnings; nothing of a traceback."""
    assert "Traceback" not in text
    line = text.rstrip("\n").rpartition("\n")[2]
    assert line.startswith("error: "), text
    return line


def one_line(text: str) -> str:
    """The only line of standard error."""
    assert last_line(text) == text.rstrip("\n")
    return text


def run_main(*arguments: object) -> int:
    """The program inside this process; its exit status."""
    try:
        return tutorial.main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


# Pickles ----------------------------------------------------------------------------------------


class Malice:
    """What a pickle does when it is loaded: it calls whatever it names."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def first_edition(payload: bytes) -> bytes:
    """A payload behind the header of the first edition's checkpoints, its checksum right."""
    checksum = hashlib.sha256(payload).hexdigest().encode()
    return b"annotated-transformer-1 " + checksum + b"\n" + payload


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("save", [pickle.dump, torch.save], ids=["pickle", "torch.save"])
@pytest.mark.parametrize("pack", [bytes, first_edition], ids=["bare", "signed"])
def test_a_malicious_pickle_is_refused_and_never_executed(small_run, tmp_path, save, pack):
    trace, buffer, run = tmp_path / "executed", io.BytesIO(), tmp_path / "run"
    save({"model": Malice(trace)}, buffer)
    shutil.copytree(small_run, run)
    (run / "last.pt").write_bytes(pack(buffer.getvalue()))
    config = tutorial.Config(**tutorial.read_summary(run)["settings"])
    with pytest.raises(ValueError, match=r"last\.pt"):
        tutorial.train_model(config, run)
    (run / "epoch-001" / "model.safetensors").write_bytes(pack(buffer.getvalue()))
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        tutorial.load_trained_model(run)
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
    return write_pairs(tmp_path / "texts", DE_EN, train=PAIRS, val=PAIRS, test=PAIRS)


def zip_file(path: Path) -> Path:
    zipped = path.with_name(f"{path.name}.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return zipped


def test_a_good_corpus_is_read_plain_or_zipped_with_test_splits_or_without(corpus):
    zip_file(corpus / "train.de")
    read = tutorial.read_corpus(corpus, DE_EN)
    assert read.splits == {"train": PAIRS, "val": PAIRS, "test": PAIRS} and read.name == "texts"
    for other in ("test_notes.txt", "tests.py", "test.de~"):
        (corpus / other).write_text("No split of a corpus.\n")
    assert tutorial.read_corpus(corpus, DE_EN).tests() == ["test"]
    (corpus / "test.de").unlink()
    with pytest.raises(CorpusError, match=r"test\.de is missing"):
        tutorial.read_corpus(corpus, DE_EN)
    (corpus / "test.en").unlink()
    assert tutorial.read_corpus(corpus, DE_EN).tests() == []
    (corpus / "val.en").unlink()
    with pytest.raises(CorpusError, match=r"val\.en is missing"):
        tutorial.read_corpus(corpus, DE_EN)


@pytest.mark.parametrize("keep", [0, 5, 20, -9, -1])
def test_a_truncated_gzip_file(corpus, keep):
    path = zip_file(corpus / "train.en")
    path.write_bytes(path.read_bytes()[:keep])
    fault = " cannot be read.*fetch it again" if keep else ""
    with pytest.raises(CorpusError, match=rf"train\.en\.gz{fault}"):
        tutorial.read_corpus(corpus, DE_EN)


def test_a_damaged_gzip_file(corpus):
    path, noticed = zip_file(corpus / "train.en"), 0
    content = bytearray(path.read_bytes())
    for place, bit in itertools.product(range(len(content)), range(8)):
        content[place] ^= 1 << bit
        path.write_bytes(content)
        try:  # a few bits mean nothing, such as the time in the header
            assert tutorial.read_corpus(corpus, DE_EN).splits["train"] == PAIRS
        except CorpusError as error:
            assert "train.en.gz" in str(error)
            noticed += 1
        content[place] ^= 1 << bit
    assert noticed > 4 * len(content)


def test_files_that_do_not_match_or_are_not_utf8(corpus):
    (corpus / "val.en").write_text("A dog.\nTwo cows.\nThree owls.\n")
    with pytest.raises(CorpusError, match=r"2 lines in val\.de and 3 in val\.en"):
        tutorial.read_corpus(corpus, DE_EN)
    (corpus / "train.de").write_bytes("Ein Hund.\nZwei Kühe.\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"train\.de, line 2: not UTF-8"):
        tutorial.read_corpus(corpus, DE_EN)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_rare_line_ends_do_not_end_a_line(corpus, mark):
    """And a line may end as on Windows."""
    (corpus / "train.de").write_bytes(f"Ein{mark}Hund.\r\nZwei Kühe.\r\n".encode())
    train = tutorial.read_corpus(corpus, DE_EN).splits["train"]
    assert train == [(f"Ein{mark}Hund.", "A dog."), PAIRS[1]]


def test_an_unknown_language_code(tmp_path):
    corpus = write_pairs(tmp_path / "texts", ("qq", "en"), train=PAIRS, val=PAIRS)
    config = dataclasses.replace(tutorial.PRESETS["smoke"], data=str(corpus), languages="qq-en")
    with pytest.raises(ValueError, match="spaCy cannot tokenize language 'qq'"):
        tutorial.train_model(config, tmp_path / "run")
    with pytest.raises(CorpusError, match="German and English, not fr and en"):
        tutorial.find_corpus("builtin", ("fr", "en"))


def test_pairs_that_cannot_be_learnt_from_are_left_out(capsys):
    long, empty = ("Hund " * 20, "dog " * 20), ("", "A dog.")
    corpus = tutorial.Corpus("toy", DE_EN, {"train": [*PAIRS, long, empty]})
    words = tutorial.learn_words(corpus, 1)
    encoded, texts = tutorial.usable_pairs(corpus, "train", words, max_len=10)
    assert texts == PAIRS and encoded == tutorial.encode_pairs(PAIRS, words, DE_EN)
    assert "train: 2 pairs are empty or too long" in capsys.readouterr().err
    with pytest.raises(ValueError, match="not one pair of train can be used"):
        tutorial.usable_pairs(corpus, "train", words, max_len=2)


# Multi30k, of which we make a small one with checksums of its own -------------------------------


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """A folder as a server publishes it, whose checksums are the ones expected."""
    splits = {name.split(".")[0]: PAIRS for name in tutorial.MULTI30K_SUMS}
    folder, sums = write_pairs(tmp_path / "published", DE_EN, **splits), {}
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
        if fault == "silent":
            time.sleep(1)
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
def no_pauses(monkeypatch):
    import pooch

    monkeypatch.setattr(pooch.core, "time", types.SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def server(published, monkeypatch, no_pauses):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.folder, server.faults, server.requests = published, [], []
        monkeypatch.setattr(tutorial, "MULTI30K_URL", f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def out_of_reach(monkeypatch, tmp_path, fresh_corpora, no_pauses) -> Path:
    """An empty present folder, no network, no pauses."""
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "empty"


def test_a_good_download_is_found_and_not_repeated(server, out_of_reach):
    for name in ("auto", "Multi30k"):
        corpus = tutorial.find_corpus(name)
        assert corpus.name == "Multi30k" and set(map(tuple, corpus.splits["val"])) == set(PAIRS)
    assert files(out_of_reach / ".data" / "multi30k") == sorted(tutorial.MULTI30K_SUMS)
    assert len(server.requests) == len(tutorial.MULTI30K_SUMS)


@pytest.mark.parametrize("fault", ["404", "broken off", "wrong content", "no length"])
@pytest.mark.parametrize("times", [2, 3])
def test_a_failing_download_is_tried_three_times(server, tmp_path, fault, times):
    first, second, *_ = tutorial.MULTI30K_SUMS
    server.faults = [None] + [fault] * times
    if times == 2:
        tutorial.download_multi30k(tmp_path / "cache")
        assert tutorial.read_multi30k(tmp_path / "cache").splits["val"] == PAIRS
        return
    with pytest.raises(CorpusError, match="could not be fetched") as caught:
        tutorial.download_multi30k(tmp_path / "cache")
    assert tutorial.MULTI30K_URL in str(caught.value) and "\n" not in str(caught.value)
    assert "404" in str(caught.value) or fault != "404"
    assert server.requests == [first, second, second, second]
    assert files(tmp_path / "cache") == [first], "only what is whole stays"


def test_a_silent_server_is_given_up(server, tmp_path, monkeypatch):
    import pooch

    plain, waits = pooch.HTTPDownloader, []

    def impatient(**options):
        waits.append(options.pop("timeout"))
        return plain(timeout=0.1, **options)

    monkeypatch.setattr(pooch, "HTTPDownloader", impatient)
    server.faults = ["silent"] * 3
    with pytest.raises(CorpusError, match=r"could not be fetched.*timed out"):
        tutorial.download_multi30k(tmp_path / "cache")
    assert set(waits) == {(3, 6)} and files(tmp_path / "cache") == []


@pytest.mark.parametrize("name", ["train.de", "test_2017_flickr.en"])
def test_a_tampered_file_of_multi30k(published, monkeypatch, fresh_corpora, name):
    """Whoever names a folder never gets another text, or another corpus, instead."""
    zipped, split = published / f"{name}.gz", name.split(".")[0]
    text = gzip.decompress(zipped.read_bytes()).replace(b"dog", b"cat").replace(b"Hund", b"Rind")
    (published / name).write_bytes(text)  # unpacked beside the archive, and edited
    assert tutorial.read_multi30k(published).splits[split] == PAIRS
    zipped.write_bytes(gzip.compress(text))
    monkeypatch.setenv("MULTI30K_DIR", str(published))
    for asked in ("multi30k", "auto"):
        with pytest.raises(CorpusError, match=rf"{name}\.gz is not the published file"):
            tutorial.find_corpus(asked)


def test_out_of_reach(out_of_reach, capsys):
    """By name it is an error that says what to do; a choice left open ends in the captions."""
    with pytest.raises(CorpusError) as caught:
        tutorial.find_corpus("multi30k")
    message = str(caught.value)
    assert tutorial.MULTI30K_URL in message and "MULTI30K_DIR" in message and ".data" in message
    assert all(name in message for name in tutorial.MULTI30K_SUMS) and "\n" not in message
    assert files(out_of_reach) in ([], [".data"])
    capsys.readouterr()
    corpus, said = tutorial.find_corpus("auto"), capsys.readouterr().err
    assert corpus.name == tutorial.BUILTIN
    assert "Multi30k is out of reach" in said and f"The {tutorial.BUILTIN} are used" in said
    assert tutorial.find_corpus("auto") is corpus and capsys.readouterr().err == ""


def test_the_pinned_sums_are_those_of_multi30k(multi30k):
    splits = tutorial.read_multi30k(Path(multi30k)).splits
    sizes = {"train": 29_000, "val": 1014, "test_2016_flickr": 1000, "test_2017_flickr": 1000}
    assert {split: len(pairs) for split, pairs in splits.items()} == sizes


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
    "line separators": "Ein\u2028Hund\x85rennt\x0c\x0b\r\n.",
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
    [ids] = translator.vocabularies[0].encode([sentence], "de")
    assert not {tutorial.START, tutorial.END, tutorial.PAD} & set(ids), "text is never special"


def test_a_single_string_is_no_list_of_sentences(translator):
    with pytest.raises(TypeError, match=r"translate\(translator, \['Ein Hund'\]\)"):
        tutorial.translate(translator, "Ein Hund")


def test_a_line_is_cut_where_it_does_not_fit_and_nowhere_else(translator):
    words = " ".join(["Ein", "Hund", "rennt", "und"] * 2500)
    with pytest.warns(UserWarning, match=r"line 2 has 10000 tokens, more than 15: cut into 667"):
        written = tutorial.translate(translator, ["Ein Hund.", words, "Eine Katze."])
    parts = [" ".join(words.split()[at : at + 15]) for at in (0, 15)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written[1].startswith(" ".join(tutorial.translate(translator, parts)))
        assert written[::2] == tutorial.translate(translator, ["Ein Hund.", "Eine Katze."])
        with pytest.raises(UserWarning, match="line 1 has 16 tokens, more than 15"):
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


# Standard input ---------------------------------------------------------------------------------


def run_script(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=250, **options)


def test_standard_input_line_by_line_from_another_folder(translator, small_run, tmp_path):
    lines = [b"Ein Hund rennt.", b"", b"Ein Hund\r", b"Ein\rHund", b"Ein \xff\xfe Hund", b"  ",
             "Ein\u2028Hund".encode(), b"<s>", b"Ein\x0cHund\x0b", b"$(touch x); `touch y` \\n",
             b"Hund " * 3000, *[b"Zwei Frauen"] * 490]  # fmt: skip
    options = {"input": b"\n".join(lines), "cwd": tmp_path, "env": os.environ | {"LC_ALL": "C"}}
    done = run_script("translate", "--model", small_run, "--beam", "1", **options)
    assert done.returncode == 0, done.stderr
    first, second, rest = done.stderr.decode().split("\n")
    assert first.startswith("model small (de ") and rest == "", "which model, and nothing else"
    assert second == "warning: line 11 has 3000 tokens, more than 15: cut into 200 parts"
    with pytest.warns(UserWarning, match="line 11 has 3000 tokens"):
        expected = tutorial.translate(translator, [x.decode(errors="replace") for x in lines])
    assert done.stdout.decode() == "".join(f"{line}\n" for line in expected)
    assert len(expected) == 501 and expected[1] == expected[5] == "" and files(tmp_path) == []


def test_a_warning_names_the_line_of_the_input(small_run, monkeypatch, capsys):
    """Lines are handed to the model in groups; the reader counts them from the first."""
    lines = io.TextIOWrapper(io.BytesIO(b"Hund\n" * 299 + b"Hund " * 16 + b"\n"))
    monkeypatch.setattr(sys, "stdin", lines)
    with pytest.warns(UserWarning, match="line 300 has 16 tokens"):
        assert run_main("translate", "--model", small_run) == 0
    assert capsys.readouterr().out.count("\n") == 300


def test_ctrl_c_ends_a_translation_with_130(small_run):
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    command = [sys.executable, str(SCRIPT), "translate", "--model", str(small_run)]
    with subprocess.Popen(command, **pipes) as process:
        assert process.stderr.readline().startswith(b"model small"), "it waits for lines"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130 and process.stderr.read() == b"interrupted\n"


def test_a_terminal_that_knows_ascii_only(monkeypatch, small_corpus, tmp_path):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    given = ["--data", small_corpus, "--folder", tmp_path / "run", "--minutes", 0]
    assert run_main("train", *given) == 0, "the arrow of its first line cannot be shown"


# The command line -------------------------------------------------------------------------------


def test_an_error_ends_with_one_line_and_status_1(tmp_path):
    done = run_script("translate", "--model", tmp_path / "none", "Hund")
    assert done.returncode == 1 and done.stdout == b""
    assert "none/config.json is missing" in one_line(done.stderr.decode())


@pytest.mark.parametrize("command", ["translate Hund", "evaluate"])
def test_a_model_that_cannot_be_used(capsys, small_run, tmp_path, command):
    model = Path(shutil.copytree(small_run / "epoch-001", tmp_path / "model"))
    (model / "words.json").write_bytes((model / "words.json").read_bytes()[:-1])
    for place in (model, model / "model.safetensors", small_run / "last.pt"):
        assert run_main(*command.split(), "--model", place) == 1
        assert str(place) in one_line(capsys.readouterr().err)


POSITIVE = "N d-ff h accumulate batch-tokens warmup epochs patience keep".split()
BAD_SETTINGS = {f"--{name} 0": f"--{name} must be at least 1, got 0" for name in POSITIVE} | {
    "--languages de": "--languages needs two codes, such as de-en, got 'de'",
    "--languages de-": "--languages needs two codes, such as de-en, got 'de-'",
    "--languages de-en-fr": "--languages needs two codes, such as de-en, got 'de-en-fr'",
    "--dropout 1": "dropout .*1.*got 1",
    "--dropout nan": "dropout .*got nan",
    "--attention-dropout -0.1": "dropout .*0.*got -0.1",
    "--factor 0": "--factor must be positive, got 0",
    "--factor -1": "--factor must be positive, got -1",
    "--factor nan": "--factor must be positive, got nan",
    "--smoothing 1": r"smoothing must be in \[0, .*, got 1",
    "--h 3": r"d_model \(16\) must be divisible by h \(3\)",
    "--d-model 0": "d.model must be .*, got 0",
    "--d-model 15 --h 3": "d.model must be .*, got 15",
    "--minutes -1": "--minutes must .*, got -1",
    "--max-len 2": "not one pair of train can be used",
    "--share-embeddings": "share.embeddings needs|one matrix needs one vocabulary",
    "--data none": r"no folder none: .*train\.de",
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_setting_out_of_range(capsys, small_corpus, tmp_path, setting):
    """The error names the option and its limit; nothing that looks like a run is left."""
    given = ["--data", small_corpus, "--folder", tmp_path / "run", "--d-model", 16, "--h", 2]
    assert run_main("train", "--preset", "smoke", *given, *setting.split()) == 1
    assert re.search(BAD_SETTINGS[setting], last_line(capsys.readouterr().err))
    assert set(files(tmp_path / "run")) <= {".lock"}


@pytest.mark.parametrize(
    "options", ["--beam 0", "--beam -1", "--alpha -1", "--alpha nan", "--alpha 400"]
)
@pytest.mark.parametrize("command", ["translate Hund", "evaluate --data builtin"])
def test_bad_options_of_the_search(small_run, capsys, command, options):
    name, value = options.removeprefix("--").split()
    assert run_main(*command.split(), "--model", small_run, *options.split()) == 1
    assert re.search(rf"{name}.* {value}\b", last_line(capsys.readouterr().err))


def test_a_run_folder_that_is_a_file_or_somebody_s(capsys, small_corpus, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", tmp_path):
        given = ["--preset", "smoke", "--data", small_corpus, "--folder", folder]
        assert run_main("train", *given) == 1
        assert "file" in one_line(capsys.readouterr().err)
    assert (tmp_path / "file").read_text() == "mine" and set(files(tmp_path)) <= {".lock", "file"}


def test_a_damaged_run_is_not_overwritten(capsys, small_corpus, small_run, tmp_path):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    (run / "last.pt").write_bytes((run / "last.pt").read_bytes()[:1000])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert run_main("train", "--preset", "smoke", "--data", small_corpus, "--folder", run) == 1
    assert "last.pt is damaged" in one_line(capsys.readouterr().err)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


UNREADABLE = "train --preset huge|train --preset words|train --N two|translate --bema 2|export|fly|"


@pytest.mark.parametrize("words", UNREADABLE.split("|"))
def test_a_command_line_that_cannot_be_read(capsys, words):
    assert run_main(*words.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and "--help" in said.err and "Traceback" not in said.err


def test_help_names_every_option(capsys):
    options = {field.name.replace("_", "-") for field in dataclasses.fields(tutorial.Config)}
    options = {"train": options | {"preset", "folder", "minutes", "until"}, "": set()}
    options |= {"translate": {"model", "beam", "alpha"}}
    options |= {"evaluate": {"model", "data", "split", "beam", "alpha"}}
    for command, names in options.items():
        assert run_main(*command.split(), "--help") == 0
        said = set(re.findall(r"--([A-Za-z][A-Za-z-]*)", capsys.readouterr().out))
        assert said - {"help", "no-norm-first", "no-share-embeddings"} == names


# A reader's own corpus --------------------------------------------------------------------------

SUBJECTS = {"le chien": "the dog", "la fille": "the girl", "l'homme": "the man",
            "un chat": "a cat", "une femme": "a woman"}  # fmt: skip
VERBS = {"dort": "sleeps", "mange": "eats", "chante": "sings", "court": "runs", "rit": "laughs",
         "attend": "waits", "danse": "dances", "joue": "plays"}  # fmt: skip


def test_a_readers_own_french_corpus(tmp_path, capsys, monkeypatch):
    """With options of all kinds; the folder of the run is named by preset and languages."""
    subjects, verbs = ([*each.items()] for each in (SUBJECTS, VERBS))
    pairs = [
        (f"{a.capitalize()} {v}.", f"{b.capitalize()} {w}.")
        for (a, b), (v, w) in itertools.product(subjects, verbs)
    ]
    random.Random(0).shuffle(pairs)
    splits = {"train": pairs[:30], "val": pairs[30:35], "test": pairs[35:]}
    data = write_pairs(tmp_path / "phrases", ("fr", "en"), **splits)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    given = "--N 2 --d-model 16 --d-ff 32 --h 2 --min-freq 1 --epochs 2 --batch-tokens 64 --seed 3"
    given += " --pieces 0 --no-share-embeddings --no-norm-first --schedule root --keep 1"
    given = ["train", "--data", data, "--languages", "fr-en", *given.split()]
    assert run_main(*given, "--minutes", 0) == 0
    assert "the same command makes the unfinished epoch again" in capsys.readouterr().out
    assert run_main(*given, "--until", 200) == 0
    said, run = capsys.readouterr().out, tmp_path / "runs" / "recipe-fr-en"
    assert "phrases, fr → en, 30 pairs" in said and "finished: BLEU" in said and str(run) in said
    summary = json.loads((run / "summary.json").read_text())
    wanted = {"N": 2, "norm_first": False, "share_embeddings": False, "seed": 3, "dropout": 0.25}
    assert wanted.items() <= summary["settings"].items() and summary["corpus"] == "phrases"
    assert not tutorial.load_trained_model(run).model.arguments["norm_first"]

    assert run_main("translate", "--model", run, "--beam", 2, "L'homme dort.", "") == 0
    assert (said := capsys.readouterr()).out.count("\n") == 2 and "(fr → en)" in said.err
    assert run_main("evaluate", "--model", run) == 0, "it knows what it was trained on"
    assert "test: BLEU" in (said := capsys.readouterr().out) and "nrefs:1" in said
    given = ["evaluate", "--model", run / "epoch-002", "--data", data, "--alpha", 1, "--split"]
    assert run_main(*given, "val") == 0
    assert "val: BLEU" in (said := capsys.readouterr().out) and "alpha 1" in said
    assert run_main(*given, "dev") == 1
    assert "no split 'dev', only train, val, test" in last_line(capsys.readouterr().err)


def test_the_recipe_fits_a_corpus_of_any_size(small_corpus, tmp_path, capsys):
    """Its warm-up of 1,000 updates and its 5,000 pieces are not to be had here."""
    given = ["--data", small_corpus, "--folder", tmp_path / "run", "--until", 0]
    assert run_main("train", *given) == 0
    said = capsys.readouterr().out
    warmup = re.search(r"120 pairs, \d+ and \d+ symbols, .*; warm-up (\d+) updates", said)
    assert 1 <= int(warmup[1]) < 100, said


def test_an_error_of_one_rank_is_told_by_that_rank(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert run_main("train", "--data", "none", "--folder", tmp_path / "run") == 1
    assert capsys.readouterr().err.startswith("error of rank 1: no folder none")


def test_a_run_is_scored_on_what_it_was_trained_on(small_run, tmp_path, monkeypatch, capsys):
    """Whatever `auto` would find today."""
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    settings = json.loads((run / "settings.json").read_text())
    (run / "settings.json").write_text(json.dumps(settings | {"data": "auto"}))
    assert run_main("evaluate", "--model", run) == 1
    corpus = Path(settings["data"]).name
    assert f"no folder {corpus}" in last_line(capsys.readouterr().err)


@pytest.mark.parametrize("lacking", ["files", "text", "language"])
def test_evaluation_where_there_is_nothing_to_score(capsys, small_run, tmp_path, lacking):
    codes = ("fr", "en") if lacking == "language" else DE_EN
    data = write_pairs(tmp_path / "texts", codes, train=PAIRS, val=PAIRS)
    if lacking == "text":
        write_pairs(data, DE_EN, test=[("", "")])
    assert run_main("evaluate", "--model", small_run, "--data", data) == 1
    fault = r"train\.de is missing" if lacking == "language" else "test|nothing to evaluate"
    assert re.search(fault, last_line(capsys.readouterr().err))
