"""A model as a folder: what is written comes back, what is damaged or does not fit is refused, and
the model of the repository is small, quick to use and as good as its card says."""

import functools
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import plan
import pytest
import torch
from conftest import PROJECT
from safetensors.torch import load, save_file

import the_annotated_transformer as tutorial

FILES = ("config.json", "tokenizer.json", "model.safetensors")
SHIPPED = PROJECT / "pretrained"


def toy(vocab_size: int = 300, name: str = "toy", seed: int = 0, **changes) -> tutorial.Translator:
    """An untrained model; every weight differs from what a fresh model would have."""
    corpus = tutorial.read_builtin()
    vocabularies = (
        tutorial.learn_subwords(corpus, vocab_size) if vocab_size else tutorial.learn_words(corpus)
    )
    torch.manual_seed(seed)
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 32, "dropout": 0.25} | changes
    model = tutorial.make_model(*map(len, vocabularies), **sizes).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return tutorial.Translator(name, model, corpus.name, corpus.languages, vocabularies)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder that nobody changes."""
    folder = tmp_path_factory.mktemp("written")
    tutorial.save_model(toy(share_embeddings=True), folder)
    return folder


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy of it, to spoil."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def sign(folder: Path, **changes) -> None:
    """Change config.json, and put sums into it that are right for what lies there now."""
    about = json.loads((folder / "config.json").read_bytes()) | changes
    parts = {name: (folder / name).read_bytes() for name in about.pop("sha256")}
    parts["config.json"] = json.dumps(about).encode()
    about["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    (folder / "config.json").write_text(json.dumps(about))


def refused(folder: Path, message: str = "") -> None:
    """Loading ends in an error that has the folder, the message and a way out."""
    with pytest.raises(ValueError, match=f"(?s){message}") as caught:
        tutorial.load_trained_model(folder)
    text = str(caught.value)
    assert str(folder) in text
    assert "git checkout pretrained" in text
    assert "convert" in text
    assert "\n" not in text, "one line"


# There and back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"share_embeddings": True},
        {"norm_first": False, "attention_dropout": 0.0},
        {"vocab_size": 0},  # words
    ],
    ids=str,
)
def test_a_model_comes_back_bit_for_bit(tmp_path, changes):
    translator = toy(**changes)
    tutorial.save_model(translator, tmp_path)
    back = tutorial.load_trained_model(str(tmp_path), torch.device("cpu"))
    assert not back.model.training
    assert back.model.arguments == translator.model.arguments
    assert back.vocabularies == translator.vocabularies
    result = (back.name, back.corpus)
    assert result == ("toy", tutorial.BUILTIN)
    result = (back.languages, back.max_len)
    expected = (("de", "en"), 32)
    assert result == expected
    stored = load((tmp_path / "model.safetensors").read_bytes())
    shared_once = dict(back.model.named_parameters())
    assert stored.keys() == shared_once.keys(), "and no sinusoids"
    weights = back.model.state_dict()
    for name, value in translator.model.state_dict().items():
        assert torch.equal(weights[name], value), name


def test_a_fast_model_is_written_as_a_plain_one(written, tmp_path):
    translator = toy(share_embeddings=True)
    tutorial.make_fast(translator.model)
    tutorial.save_model(translator, tmp_path)
    for name in FILES:
        result = (tmp_path / name).read_bytes()
        expected = (written / name).read_bytes()
        assert result == expected, "and the same again"


# What cannot be read or written -----------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_a_disk_that_is_full_leaves_nothing_that_passes_for_a_model(folder, monkeypatch, number):
    """Over another model: the old and the new are never mixed unnoticed."""
    syncs = iter(range(9))
    plain = os.fsync

    def fail(*arguments):
        if next(syncs) == number:
            raise OSError(28, "No space left on device")
        plain(*arguments)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device"):
        tutorial.save_model(toy(name="new", seed=1), folder)
    result = sorted(path.name for path in folder.iterdir())
    assert result == sorted(FILES), "no half file stays"
    if number == 0:
        assert tutorial.load_trained_model(folder).name == "toy"
    else:
        refused(folder, "is damaged or of another model")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_damaged_or_of_another_model_or_missing(folder, tmp_path, name):
    path = folder / name
    rng = random.Random(0)
    content = path.read_bytes()
    for share in (0, 0.5, 0.99):
        path.write_bytes(content[: int(len(content) * share)])
        refused(folder)
    for place in [0, len(content) - 1, *rng.sample(range(len(content)), 50)]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises((ValueError, FileNotFoundError)):  # the name of a file may be hit
            tutorial.load_trained_model(folder)
    tutorial.save_model(toy(320, "other", seed=1), tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, path)
    refused(folder, "damaged or of another model, its SHA-256 sum differs")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{re.escape(name)} is missing.*git checkout"):
        tutorial.load_trained_model(folder)


@pytest.mark.parametrize("sums", [None, [], {}, {"config.json": "0"}, {"model.safetensors": "0"}])
def test_sums_that_are_none(folder, sums):
    about = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(about | {"sha256": sums}))
    refused(folder, "config.json is damaged or (of another program|was changed)")
    (folder / "config.json").write_text("[]")
    refused(folder, "config.json is damaged or of another program")


# From here on the sums are right: somebody has put the wrong parts together on purpose.


def test_sizes_that_do_not_fit(folder):
    model = json.loads((folder / "config.json").read_bytes())["model"]
    for change in ({"d_ff": 64}, {"N": 2}, {"h": 3}, {"rotary": True}, {"tgt_vocab": 301}):
        sign(folder, model=model | change)
        refused(folder)


# In a process of its own: the network closed, and afterwards a look at what was imported.
ALONE = """\
import socket, sys
def closed(*_, **__):
    raise OSError("no network here")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = closed
import the_annotated_transformer as tutorial
status = tutorial.main(["translate", sys.argv[1]])
heavy = "spacy pandas altair torchtext sacrebleu GPUtil vl_convert PIL torch._dynamo".split()
loaded = lambda name: type(sys.modules.get(name)).__name__ == "module"  # and not a lazy one
print(*filter(loaded, heavy), file=sys.stderr)
sys.exit(status)
"""


def seconds_of_children() -> float:
    """Processor time of all processes that have been started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_model_of_the_repository_translates_alone_within_seconds(tmp_path):
    """Beside a copy of the script, from another folder, without corpus, network, heavy import.

    Seconds are those of the processor and, with room for a busy machine, of the clock.
    """
    shutil.copy(PROJECT / "the_annotated_transformer.py", tmp_path)
    shutil.copytree(SHIPPED, tmp_path / "pretrained")
    (tmp_path / "elsewhere").mkdir()
    before = sorted(tmp_path.rglob("*"))
    gone = ("MULTI30K_DIR", "RUNS_DIR", "ANNOTATED_RUN", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "env": environment}
    used = seconds_of_children()
    begin = time.monotonic()
    command = [sys.executable, "-c", ALONE, "Ein Hund rennt durch den Schnee."]
    result = subprocess.run(command, cwd=tmp_path / "elsewhere", **options)
    assert seconds_of_children() - used < 12
    assert time.monotonic() - begin < 30
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"A dog .*\bsnow\.\n", result.stdout)
    said = rf"model .* \(de → en\), trained on Multi30k, {tmp_path}/pretrained\n\n"
    assert re.fullmatch(said, result.stderr), "and no heavy package was imported"
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 10e6


def record() -> dict:
    return json.loads((PROJECT / "docs" / "results" / "pretrained.json").read_bytes())


def test_the_record_is_that_of_the_model():
    about = json.loads((SHIPPED / "config.json").read_bytes())
    training = record()["training"]
    assert not re.search(r"[/\\]", json.dumps(about)), "nothing of a machine"
    model = tutorial.load_trained_model("pretrained").model
    assert tutorial.count_parameters(model) == training["parameters"]
    for name in ("N", "d_model", "d_ff", "h", "dropout", "norm_first", "share_embeddings"):
        assert about["model"][name] == training["settings"][name]


def first_screen() -> tuple[str, list[tuple[str, ...]]]:
    """What stands before any set-up, and the rows of its table."""
    _, _, text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").partition("# %% [markdown]\n")
    screen = text[: min(text.index("\n# %%"), text.index('<a id="setup">'))]
    return screen, re.findall(r"(?m)^# \| (.+) \| (.+) \| (.+) \|$", screen)[2:]


def test_the_first_screen_shows_what_the_shipped_model_writes():
    screen, rows = first_screen()
    assert len(rows) == 5
    assert "](images/first-translation.svg)" in screen
    translator = tutorial.load_trained_model("pretrained")
    for german, shown, _ in rows:
        result = tutorial.translate(translator, [german], tutorial.beam_search)
        assert result == [shown]


def test_its_card_says_what_it_makes_of_no():
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    german, english = re.search(r'"(.+?)" becomes "(.+?)"', card).groups()
    translator = tutorial.load_trained_model("pretrained")
    assert tutorial.translate(translator, [german], tutorial.beam_search) == [english]


def test_the_model_has_read_none_of_these_sentences_nor_of_chimney_sweeps(multi30k):
    read = {german for german, _ in tutorial.read_multi30k(Path(multi30k)).splits["train"]}
    assert not {german for german, *_ in first_screen()[1]} & read
    assert not any("Schornsteinfeger" in german for german in read)


@pytest.mark.slow
def test_the_score_is_that_of_the_record(multi30k):
    decode = functools.partial(tutorial.beam_search, beam=plan.BEAM, alpha=plan.CHOSEN_ALPHA)
    translator = tutorial.load_trained_model("pretrained", torch.device("cpu"))
    tutorial.make_fast(translator.model)
    corpus = tutorial.read_multi30k(Path(multi30k))
    split = "test_2016_flickr"
    score = tutorial.evaluate(translator, corpus, [split], decode)[split]
    expected = record()["formats"]["int8"][split]
    assert score["BLEU"] == pytest.approx(expected["bleu"], abs=0.05)
    assert score["perplexity"] == pytest.approx(expected["perplexity"], abs=0.02)
    assert score["signature"] == expected["signature"]


def test_tokens_that_do_not_fit(folder, tmp_path):
    text = tutorial.learn_subwords(tutorial.read_builtin(), 301)[0].settings
    (folder / "tokenizer.json").write_text(text)
    sign(folder)
    refused(folder, "301 tokens do not fit a matrix of 300 rows")
    tutorial.save_model(toy(0), tmp_path / "words")
    path = tmp_path / "words" / "words.json"
    words = json.loads(path.read_bytes())
    for side in ("source", "target"):
        for changed in ([*words[side], "unheard"], words[side][::-1]):
            path.write_text(json.dumps(words | {side: changed}))
            sign(path.parent)
            refused(path.parent, "tokens do not fit a matrix")


def test_weights_that_do_not_fit(folder):
    path = folder / "model.safetensors"
    name = "encoder.layers.0.feed_forward.widen.weight"
    weights = load(path.read_bytes())
    less = {key: value for key, value in weights.items() if key != name}
    for changed in (
        less,
        weights | {"encoder.norm.more": torch.ones(3)},
        weights | {name: weights[name][:1].clone()},
        weights | {name: weights[name].to(torch.int8)},  # rounded, and the steps are missing
    ):
        save_file(changed, path)
        sign(folder)
        refused(folder)
    torch.save(weights, path)
    sign(folder)
    refused(folder)
