"""Input that a reader may hand in and that cannot be used: it ends in an error that helps."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import itertools
import json
import math
import re
import shutil
import sys
import threading
import types
from pathlib import Path

import pytest
from conftest import contents, write_pairs

import the_annotated_transformer as tutorial
from the_annotated_transformer import CorpusError

DE_EN = ("de", "en")


def last_line(text: str) -> str:
    """The last line of standard error, behind notes and warnings; nothing of a traceback."""
    assert "Traceback" not in text
    line = text.rstrip("\n").rpartition("\n")[2]
    assert line.startswith("error: "), text
    return line


def run_main(*arguments: object) -> int:
    """The program inside this process; its exit status."""
    try:
        return tutorial.main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code


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
    read = tutorial.read_corpus(corpus, DE_EN)
    pairs = {split: list(text) for split, text in read.splits.items()}
    assert pairs == {"train": PAIRS, "val": PAIRS, "test": PAIRS}
    assert read.name == "texts"
    for other in ("test_notes.txt", "tests.py", "test.de~"):
        (corpus / other).write_text("No split of a corpus.\n")
    result = tutorial.read_corpus(corpus, DE_EN).tests()
    assert result == ["test"]
    (corpus / "test.de").unlink()
    with pytest.raises(CorpusError, match=r"test\.de is missing"):
        tutorial.read_corpus(corpus, DE_EN)
    (corpus / "test.en").unlink()
    assert tutorial.read_corpus(corpus, DE_EN).tests() == []
    (corpus / "val.en").unlink()
    with pytest.raises(CorpusError, match=r"val\.en is missing"):
        tutorial.read_corpus(corpus, DE_EN)


def test_a_gzip_file_that_was_cut_short_or_damaged(corpus):
    path = zip_file(corpus / "train.en")
    content = path.read_bytes()
    damaged = bytes([*content[:-8], content[-8] ^ 1, *content[-7:]])  # its checksum
    for bad in (damaged, *(content[:length] for length in range(len(content)))):
        path.write_bytes(bad)
        with pytest.raises(CorpusError, match=r"train\.en\.gz"):
            tutorial.read_corpus(corpus, DE_EN)


def test_files_that_do_not_match_or_are_not_utf8(corpus):
    (corpus / "val.en").write_text("A dog.\nTwo cows.\nThree owls.\n")
    with pytest.raises(CorpusError, match=r"2 lines in val\.de and 3 in val\.en"):
        tutorial.read_corpus(corpus, DE_EN)
    (corpus / "train.de").write_bytes("Ein Hund.\nZwei Kühe.\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"train\.de, behind line 0: not UTF-8"):
        tutorial.read_corpus(corpus, DE_EN)


def test_rare_line_ends_do_not_end_a_line(corpus):
    """And a line may end as on Windows."""
    for mark in "\u2028\u2029\x85\x0b\x0c\x1c\r":
        (corpus / "train.de").write_bytes(f"Ein{mark}Hund.\r\nZwei Kühe.\r\n".encode())
        train = tutorial.read_corpus(corpus, DE_EN).splits["train"]
        expected = [(f"Ein{mark}Hund.", "A dog."), PAIRS[1]]
        assert list(train) == expected


def test_an_unknown_language_code():
    with pytest.raises(ValueError, match="spaCy cannot tokenize language 'qq'"):
        tutorial.load_tokenizer("qq")


def test_pairs_that_cannot_be_learnt_from_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    fitting = ("Hund " * 9, "dog " * 8)
    bad = [("Hund " * 10, "dog"), ("Hund", "dog " * 9), ("", "A dog."), ("Ein Hund.", "")]
    good = [*PAIRS, fitting]
    corpus = tutorial.Corpus("toy", DE_EN, {"train": [bad[0], *good, *bad[1:]], "val": PAIRS})
    config = tutorial.Config(vocab_size=0, share_embeddings=False, min_freq=1, max_len=10)
    data = tutorial.encode_corpus(corpus, config)
    encoded = tutorial.encode_pairs(good, data.vocabularies, DE_EN)
    result = [(a.tolist(), b.tolist()) for a, b in map(data.train.__getitem__, range(3))]
    assert result == encoded
    assert len(data.train) == 3


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
    with pytest.raises(CorpusError, match="could not be fetched") as caught:
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
        with pytest.raises(CorpusError, match=r"train\.de\.gz is not the published file"):
            ask()


def test_out_of_reach(out_of_reach, capsys, monkeypatch):
    """An error that says what to do; only a page or notebook takes the captions by itself."""
    with pytest.raises(CorpusError) as caught:
        tutorial.find_corpus("multi30k")
    message = str(caught.value)
    assert tutorial.MULTI30K_URL in message
    assert "MULTI30K_DIR" in message
    assert ".data" in message
    assert all(name in message for name in tutorial.MULTI30K_SUMS)
    assert "\n" not in message
    assert files(out_of_reach) in ([], [".data"])
    capsys.readouterr()
    assert run_main("train", "--folder", out_of_reach / "run") == 1
    said = last_line(capsys.readouterr().err)
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


# The command line -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["translate Hund", "evaluate"])
def test_a_model_that_cannot_be_used(capsys, small_run, tmp_path, command):
    model = Path(shutil.copytree(small_run / "epoch-001", tmp_path / "model"))
    (model / "words.json").write_bytes((model / "words.json").read_bytes()[:-1])
    (tmp_path / "other.pt").write_bytes(b"PK")
    for place in (model, model / "model.safetensors", tmp_path / "other.pt", tmp_path / "none"):
        assert run_main(*command.split(), "--model", place) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err == f"{last_line(said.err)}\n", "one line"
        assert str(place) in said.err


BAD_SETTINGS = {
    "--h 3": r"d_model \(16\) must be divisible by h \(3\)",
    "--vocab-size 0": "one matrix needs one vocabulary",
    "--attention Mine": "Mine is no part of this text",
    "--data none": r"none/train\.de is missing: name the folder of the text by --data",
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_setting_out_of_range(capsys, small_corpus, tmp_path, setting):
    """The error names the option and its limit; nothing that looks like a run is left."""
    given = ["--data", small_corpus, "--folder", tmp_path / "run", "--d-model", 16, "--h", 2]
    result = run_main("train", *given, "--vocab-size", 50, *setting.split())
    assert result == 1
    assert re.search(BAD_SETTINGS[setting], last_line(capsys.readouterr().err))
    assert not (tmp_path / "run").exists()


def test_every_setting_has_its_limit():
    bad = [(name, 0) for name in tutorial.POSITIVE]
    bad += itertools.product(["factor", "clip"], [-1.0, math.nan])
    bad += itertools.product(["languages"], ["de", "-en", "de-en-fr", "zh-Hans:", "a:b:c"])
    for name, value in bad:
        with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} .*got '?{value}"):
            dataclasses.replace(tutorial.Config(), **{name: value})


def test_a_command_line_that_cannot_be_read(capsys):
    for words in ("train --preset huge", "translate --bema 2", "train --vocab-size=-1", ""):
        assert run_main(*words.split()) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "--help" in said.err
        assert "Traceback" not in said.err


def test_a_terminal_that_knows_ascii_only(monkeypatch, small_corpus, tmp_path):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    given = ["--data", small_corpus, "--folder", tmp_path / "run", "--d-model", 6]
    assert run_main("train", *given, "--minutes", 0) == 0, "the arrow of its first line"


# A reader's own corpus --------------------------------------------------------------------------


def test_a_language_of_three_parts_without_spaces(tmp_path, capsys, monkeypatch):
    """From its files to the score: words of Chinese are counted by a rule of its own."""
    pairs = [(f"{a} {b}", f"{a}和{b}。") for a in "一二三四五六七八" for b in "猫狗鸟鱼马牛羊猪"]
    data = write_pairs(tmp_path / "animals", ("en", "zh-Hans"), train=pairs, val=pairs[:5])
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    given = "--N 1 --d-model 16 --d-ff 32 --h 2 --vocab-size 0 --no-share-embeddings --epochs 1"
    given = ["train", "--data", data, "--languages", "en:zh-Hans", *given.split()]
    assert run_main(*given) == 0
    said = capsys.readouterr().out
    assert "animals (en:zh-Hans): 64 of 64 pairs fit, " in said
    assert "BLEU counts words by zh\n" in said
    assert "BLEU is below 1 everywhere: this epoch was chosen by perplexity" in said
    run = tmp_path / "runs" / "recipe-en-zh-Hans"
    assert f"--model {run}\n" in said
    assert run_main("evaluate", "--model", run) == 0
    assert "|tok:zh|" in capsys.readouterr().out
    assert run_main(*given, "--epochs", 1) == 0, "the same run"


@pytest.mark.parametrize(
    "language, rule",
    [("zh", "zh"), ("zh-Hant", "zh"), ("ja", "char"), ("th", "char"), ("en", "13a"), ("x", "13a")],
)
def test_bleu_counts_what_words_are_in_a_language(language, rule):
    perfect, signature = tutorial.corpus_bleu(["猫在睡觉。"], ["猫在睡觉。"], language)
    wrong, _ = tutorial.corpus_bleu(["猫在吃鱼。"], ["猫在睡觉。"], language)
    unknown, _ = tutorial.corpus_bleu(["猫<unk>睡觉。"], ["猫在睡觉。"], language)
    other, _ = tutorial.corpus_bleu(["猫不睡觉。"], ["猫在睡觉。"], language)
    assert f"|tok:{rule}|" in signature
    assert perfect > 99.9
    assert (wrong > 20) == (rule != "13a")
    assert unknown == other  # one wrong character


@pytest.mark.parametrize("given", [("a", "b"), ([], []), (["a"], ["a", "b"])])
def test_bleu_of_unequal_numbers(given):
    with pytest.raises(ValueError, match="a list of translations, and a reference for each"):
        tutorial.corpus_bleu(*given)


def test_a_toy_says_that_it_is_one(tmp_path, capsys):
    sizes = "--N 1 --d-model 8 --d-ff 16 --h 1 --vocab-size 0 --no-share-embeddings --epochs 1"
    assert run_main("train", "--data", "builtin", "--folder", tmp_path / "toy", *sizes.split()) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"\na toy: it knows the {tutorial.BUILTIN}, and nothing else\n")


def test_a_readers_own_corpus_of_other_languages(tmp_path, capsys, monkeypatch):
    """With options of all kinds; the folder of the run is named by its languages."""
    pairs = tutorial.builtin_corpus()["train"]
    splits = {"train": pairs[:30], "val": pairs[30:35], "test": pairs[35:45]}
    data = write_pairs(tmp_path / "phrases", ("fr", "en"), **splits)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    given = "--N 2 --d-model 16 --d-ff 32 --h 2 --max-len 24 --min-freq 1 --epochs 2 --seed 3"
    given += " --batch-tokens 64 --vocab-size 0 --no-share-embeddings --no-norm-first --keep 1"
    given = [
        "train",
        "--data",
        data,
        "--languages",
        "fr-en",
        "--schedule",
        "inverse_sqrt",
        *given.split(),
    ]
    assert run_main(*given, "--minutes", 0) == 0
    said = capsys.readouterr().out
    assert re.search(r"^epoch 1 is not saved; its updates take [\d,]+ seconds$", said, re.M)
    assert "stopped: the same command goes on, with the unf" in said
    assert run_main(*given) == 0
    said = capsys.readouterr().out
    run = tmp_path / "runs" / "recipe-fr-en"
    assert "phrases (fr-en): 30 of 30 pairs fit, " in said
    assert f"--model {run}\n" in said
    summary = json.loads((run / "run.json").read_text())
    wanted = {"N": 2, "norm_first": False, "share_embeddings": False, "seed": 3, "dropout": 0.25}
    assert wanted.items() <= summary["settings"].items()
    assert summary["corpus"] == "phrases"
    assert not tutorial.load_trained_model(run).model.arguments["norm_first"]

    result = run_main("translate", "--model", run, "--beam", 2, "Un chat dort.", "")
    assert result == 0
    assert (said := capsys.readouterr()).out.count("\n") == 2
    assert "(fr → en)" in said.err
    assert run_main("evaluate", "--model", run) == 0, "it knows what it was trained on"
    said = capsys.readouterr().out
    number = r"\d+\.\d\d"
    numbers = rf"^test: BLEU {number} \(nrefs:1\|.*\), chrF2 {number}, perplexity {number}$"
    assert re.search(numbers, said, re.M)
    given = ["evaluate", "--model", run / "epoch-002", "--data", data, "--alpha", 1, "--split"]
    assert run_main(*given, "val") == 0
    assert "val: BLEU" in (said := capsys.readouterr().out)
    assert "alpha 1" in said
    assert run_main(*given, "dev") == 1
    assert "no pairs in 'dev', of train, val, test: name others" in last_line(
        capsys.readouterr().err
    )


def test_a_model_is_scored_on_what_it_was_trained_on(
    small_config, small_corpus, tmp_path, capsys, monkeypatch
):
    """It knows the place and the sum of its text, and never takes a name for a place."""
    text = shutil.copytree(small_corpus, tmp_path / "text")
    config = dataclasses.replace(small_config, data=str(text), epochs=1)
    tutorial.train_model(config, tmp_path / "run")
    model = shutil.copytree(tmp_path / "run" / "epoch-001", tmp_path / "model")
    monkeypatch.chdir(write_pairs(tmp_path / "here" / "text", DE_EN, train=PAIRS, val=PAIRS).parent)
    assert run_main("evaluate", "--model", model) == 0
    capsys.readouterr()
    text = text.rename(tmp_path / "moved")
    assert run_main("evaluate", "--model", model) == 1
    said = last_line(capsys.readouterr().err)
    assert f"{tmp_path}/text/train.de is missing: name the folder of the text by --data" in said
    assert run_main("evaluate", "--model", model, "--data", text) == 0
    text = text.rename(tmp_path / "text")
    (text / "val.en").write_text((text / "val.en").read_text().replace("A ", "The "))
    assert run_main("evaluate", "--model", model) == 1
    said = last_line(capsys.readouterr().err)
    assert "text has changed since the training: name a text by --data" in said


def test_a_run_whose_text_came_from_python_asks_for_it(tmp_path, capsys, monkeypatch, small_config):
    """A folder, or a corpus of ours, that bears the same name is another text."""
    monkeypatch.chdir(write_pairs(tmp_path / "builtin", DE_EN, train=PAIRS, val=PAIRS).parent)
    corpus = tutorial.Corpus("builtin", DE_EN, {"train": PAIRS * 9, "val": PAIRS})
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), "run", corpus=corpus)
    assert run_main("evaluate", "--model", "run") == 1
    assert "where is the text of builtin? Name it by --data" in last_line(capsys.readouterr().err)


def test_a_run_without_anything_to_judge_does_not_begin(tmp_path, small_config):
    corpus = tutorial.Corpus("mine", DE_EN, {"train": PAIRS * 9, "val": [("", "")]})
    with pytest.raises(ValueError, match="mine: not one pair of val can be used"):
        tutorial.train_model(small_config, tmp_path / "run", corpus=corpus)
    corpus = tutorial.Corpus("mine", DE_EN, {"train": [("", "")], "val": PAIRS})
    with pytest.raises(ValueError, match="mine: all pairs are empty or longer than 16 tokens"):
        tutorial.train_model(small_config, tmp_path / "run", corpus=corpus)
    assert not (tmp_path / "run").exists()


DAMAGED = [
    ('"seed"', '"seeds"'),
    ('"seed": 1', '"seed": 2'),
    ('"d_model": 16', '"d_model": "big"'),
    ('"sha256"', '"sums"'),
    ("{", "["),
    ("{", ""),
    ("corpus", "\x00"),
]


@pytest.mark.parametrize("old, new", DAMAGED)
def test_a_changed_run_json_is_named_and_never_overwritten(
    small_config, small_run, tmp_path, capsys, old, new
):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    path = run / "run.json"
    path.write_text(path.read_text().replace(old, new, 1))
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"run\.json is damaged or (was changed|of another program)"
    ):
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), run)
    assert run_main("evaluate", "--model", run) == 1
    assert "run.json" in last_line(capsys.readouterr().err)
    assert path.read_bytes() == before


OF_ANOTHER_EDITION = {
    "settings.patience: Unexpected": lambda run: run["settings"].update(patience=3),
    "settings.seeds: Unexpected": lambda run: run["settings"].update(
        seeds=run["settings"].pop("seed")
    ),
    "without seed": lambda run: run["settings"].pop("seed"),
    "settings.d_model: Input should be a valid integer": lambda run: run["settings"].update(
        d_model="big"
    ),
    "settings.N: Input should be a valid integer": lambda run: run["settings"].update(N=1.5),
    "settings.seed: Input should be a valid integer": lambda run: run["settings"].update(seed=None),
    "settings.data: Input should be a valid string": lambda run: run["settings"].update(data=3),
    "settings.schedule: Input should be 'linear' or": lambda run: run["settings"].update(
        schedule="cosine"
    ),
    "settings: .*--h must be positive": lambda run: run["settings"].update(h=0),
    "history.0.bleu: Input should be a valid number": lambda run: run["history"][0].update(
        bleu=None
    ),
    "machine: Field required": lambda run: run.pop("machine"),
    "best: Unexpected": lambda run: run.update(best="../other"),
}


@pytest.mark.parametrize("fault", OF_ANOTHER_EDITION)
def test_a_run_of_another_edition(small_config, small_run, tmp_path, capsys, fault):
    """File, field and type are named; the model of an epoch is still one."""
    change = OF_ANOTHER_EDITION[fault]
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    content, sums = tutorial.read_summed(run / "run.json")
    change(content)
    tutorial.write_summed(run / "run.json", content, sums)
    before = contents(run)
    said = rf"run\.json is of another edition, {fault}.*; train anew in another folder"
    with pytest.raises(ValueError, match=said):
        tutorial.train_model(small_config, run)
    assert run_main("translate", "--model", run, "Hund") == 1
    assert re.search(said, last_line(capsys.readouterr().err))
    assert contents(run) == before
    assert run_main("translate", "--model", run / "epoch-001", "Hund") == 0


def test_evaluation_where_there_is_nothing_to_score(capsys, small_run, tmp_path):
    without = write_pairs(tmp_path / "without", DE_EN, train=PAIRS, val=PAIRS)
    empty = write_pairs(tmp_path / "empty", DE_EN, train=PAIRS, val=PAIRS, test=[("", "")])
    assert run_main("evaluate", "--model", small_run, "--data", without) == 0
    assert "\nval: BLEU " in capsys.readouterr().out, "there is no test split"
    assert run_main("evaluate", "--model", small_run, "--data", empty) == 1
    assert "nothing to evaluate" in last_line(capsys.readouterr().err)
    nothing = write_pairs(tmp_path / "nothing", DE_EN, train=PAIRS, val=PAIRS)
    for language in DE_EN:
        (nothing / f"test.{language}").write_text("")
    assert run_main("evaluate", "--model", small_run, "--data", nothing) == 1
    assert "no pairs in 'test'" in last_line(capsys.readouterr().err)
