"""A model as a folder: what is written comes back, what is damaged or does not fit is refused, and
the model of the repository is small, quick to use and as good as its card says."""

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

import average
import pytest
import torch
from conftest import NOWHERE, PROJECT
from safetensors import safe_open
from safetensors.torch import load, save_file

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, START, Batch, pad_ids

FILES = ("config.json", "tokenizer.json", "model.safetensors")
SENTENCE = "Ein Hund rennt durch den Schnee."
SHIPPED = PROJECT / "pretrained"
needs_model = pytest.mark.skipif(
    not (SHIPPED / "model.safetensors").is_file(), reason="pretrained/ holds no model yet"
)


def toy(pieces: int = 300, name: str = "toy", seed: int = 0, **changes) -> tutorial.Translator:
    """An untrained model; every weight differs from what a fresh model would have."""
    corpus = tutorial.read_builtin()
    vocabularies = tutorial.learn_pieces(corpus, pieces) if pieces else tutorial.learn_words(corpus)
    torch.manual_seed(seed)
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 32, "dropout": 0.25} | changes
    model = tutorial.make_model(*map(len, vocabularies), **sizes).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return tutorial.Translator(name, model, corpus.name, corpus.languages, vocabularies)


MODELS = {
    "one matrix": {"share_embeddings": True},
    "three matrices": {"norm_first": False, "attention_dropout": 0.0},
    "words": {"pieces": 0},
}


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def translator(request) -> tutorial.Translator:
    return toy(**request.param)


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
    assert str(folder) in text and "git checkout pretrained" in text and "convert.py" in text
    assert "\n" not in text, "one line"


# There and back ---------------------------------------------------------------------------------


def log_probabilities(translator: tutorial.Translator) -> torch.Tensor:
    ids = translator.vocabularies[0].encode([SENTENCE, "Zwei Kinder lachen."], "de")
    batch = Batch(pad_ids([[*one, END] for one in ids]), pad_ids([[START, *one] for one in ids]))
    with torch.no_grad():
        states = translator.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        return translator.model.generator(states)


def test_a_model_comes_back_bit_for_bit(translator, tmp_path):
    tutorial.save_model(translator, tmp_path)
    for name in (tmp_path, str(tmp_path)):
        back = tutorial.load_trained_model(name, torch.device("cpu"))
        assert not back.model.training and back.model.arguments == translator.model.arguments
        assert back.vocabularies == translator.vocabularies
        assert (back.name, back.corpus) == ("toy", tutorial.BUILTIN)
        assert (back.languages, back.max_len) == (("de", "en"), 32)
        assert torch.equal(log_probabilities(translator), log_probabilities(back))


def test_a_fast_model_is_written_as_a_plain_one(written, tmp_path):
    translator = toy(share_embeddings=True)
    tutorial.make_fast(translator.model)
    tutorial.save_model(translator, tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes(), "and the same again"


def test_a_shared_matrix_is_stored_once_and_sinusoids_not_at_all(written):
    with safe_open(written / "model.safetensors", "pt") as file:
        names = set(file.keys())
    matrices = {"src_embed.0.lut.weight", "tgt_embed.0.lut.weight", "generator.proj.weight"}
    assert len(names & matrices) == 1 and not any(name.endswith(".pe") for name in names)
    model = tutorial.load_trained_model(written).model
    shared = model.src_embed[0].lut.weight
    assert model.tgt_embed[0].lut.weight is shared and model.generator.proj.weight is shared


def test_rounded_rows_are_read_with_their_steps(folder):
    path, name = folder / "model.safetensors", "encoder.layers.0.feed_forward.widen.weight"
    numbers = torch.randint(-127, 128, (32, 16), dtype=torch.int8)
    steps = torch.rand(32)
    save_file(load(path.read_bytes()) | {name: numbers, f"{name}.steps": steps}, path)
    sign(folder)
    weight = tutorial.load_trained_model(folder).model.state_dict()[name]
    assert weight.dtype == torch.float32
    for row, step, values in zip(numbers.tolist(), steps.tolist(), weight.tolist(), strict=True):
        assert values == pytest.approx([number * step for number in row])


def test_a_run_gives_its_best_epoch(tmp_path):
    for epoch in (1, 2):
        tutorial.save_model(toy(name=f"epoch {epoch}", seed=epoch), tmp_path / f"epoch-00{epoch}")
    (tmp_path / "summary.json").write_text(json.dumps({"best": "epoch-002"}))
    assert tutorial.load_trained_model(tmp_path).name == "epoch 2"
    assert tutorial.load_trained_model(str(tmp_path / "epoch-001")).name == "epoch 1"
    (tmp_path / "summary.json").write_text(json.dumps({"best": "epoch-003"}))
    with pytest.raises(FileNotFoundError, match=r"epoch-003.config\.json is missing"):
        tutorial.load_trained_model(tmp_path)


# What cannot be written -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "diary.txt", ".bashrc"])
def test_a_folder_of_other_things_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="holds other things than a model"):
        tutorial.save_model(toy(), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("number", range(3))
def test_a_disk_that_is_full_leaves_nothing_that_passes_for_a_model(folder, monkeypatch, number):
    """Over another model: the old and the new are never mixed unnoticed."""
    syncs, plain = iter(range(9)), os.fsync

    def fail(*arguments):
        if next(syncs) == number:
            raise OSError(28, "No space left on device")
        plain(*arguments)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device"):
        tutorial.save_model(toy(name="new", seed=1), folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES), "no half file stays"
    if number == 0:
        assert tutorial.load_trained_model(folder).name == "toy"
    else:
        refused(folder, "is damaged or of another model")


# What cannot be read ----------------------------------------------------------------------------


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.config\.json is missing.*git checkout"):
        tutorial.load_trained_model(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{re.escape(name)} is missing.*git checkout"):
        tutorial.load_trained_model(folder)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_short(folder, name, share):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    refused(folder)


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_goes_unnoticed(folder, name):
    content, rng = bytearray((folder / name).read_bytes()), random.Random(0)
    for place in [0, len(content) - 1] + [rng.randrange(len(content)) for _ in range(100)]:
        bit = 1 << rng.randrange(8)
        content[place] ^= bit
        (folder / name).write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError)):  # the name of a file may be hit
            tutorial.load_trained_model(folder)
        content[place] ^= bit
    (folder / name).write_bytes(content)
    tutorial.load_trained_model(folder)


@pytest.mark.parametrize("name", FILES)
def test_files_of_two_models(folder, tmp_path, name):
    tutorial.save_model(toy(320, "other", seed=1), tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, folder / name)
    refused(folder, "damaged or of another model, its SHA-256 sum differs")


def test_a_setting_that_was_changed_by_hand(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"h": 2', '"h": 4'))
    refused(folder, r"config\.json is damaged")


@pytest.mark.parametrize("text", ["", "[]", "7", "null", '"x"', "{}", '{"sha256": 5}', "{"])
def test_a_config_that_holds_something_else(folder, text):
    (folder / "config.json").write_text(text)
    refused(folder)


# From here on the sums are right: somebody has put the wrong parts together on purpose.


def test_a_good_model_may_be_signed_again(folder):
    sign(folder, name="signed")
    assert tutorial.load_trained_model(folder).name == "signed"


@pytest.mark.parametrize("text", ["", "{}", "Ein Hund", 299, 301])
def test_a_tokenizer_that_does_not_fit(folder, text):
    if isinstance(text, int):
        text = tutorial.learn_pieces(tutorial.read_builtin(), text)[0].settings
    (folder / "tokenizer.json").write_text(text)
    sign(folder)
    refused(folder, "symbols do not fit a matrix of 300 rows" if len(text) > 99 else "")


@pytest.mark.parametrize("side", ["source", "target"])
def test_words_that_do_not_fit(tmp_path, side):
    tutorial.save_model(toy(0), tmp_path)
    words = json.loads((tmp_path / "words.json").read_bytes())
    for changed in ([*words[side], "unheard"], words[side][::-1], words[side][4:]):
        (tmp_path / "words.json").write_text(json.dumps(words | {side: changed}))
        sign(tmp_path)
        refused(tmp_path, "symbols do not fit a matrix")


CHANGES = [{"d_ff": 64}, {"N": 2}, {"d_model": 32}, {"h": 3}, {"N": 0}, {"max_len": -1}]
CHANGES += [{"rotary": True}, {"tgt_vocab": 301}, {"d_model": "16"}]


@pytest.mark.parametrize("change", CHANGES)
def test_sizes_that_do_not_fit(folder, change):
    model = json.loads((folder / "config.json").read_bytes())["model"]
    sign(folder, model=model | change)
    refused(folder)


@pytest.mark.parametrize("change", ["less", "more", "no steps", "one step", "shape", "format"])
def test_weights_that_do_not_fit(folder, change):
    path, name = folder / "model.safetensors", "encoder.layers.0.feed_forward.widen.weight"
    weights = load(path.read_bytes())
    if change == "less":
        del weights["encoder.norm.scale"]
    elif change == "more":
        weights["encoder.norm.more"] = torch.ones(3)
    elif change == "shape":
        weights[name] = weights[name][:1].clone()
    elif change != "format":
        weights[name] = weights[name].to(torch.int8)
        weights |= {f"{name}.steps": torch.ones(1)} if change == "one step" else {}
    save = torch.save if change == "format" else save_file
    save(weights, path)
    sign(folder)
    refused(folder)


# Averaging, by tools/average.py -------------------------------------------------------------------


def test_the_mean_of_models_is_a_model(tmp_path, capsys):
    models, names = [toy(seed=seed, share_embeddings=True) for seed in (1, 2, 3)], []
    for number, model in enumerate(models, 1):
        names.append(str(tmp_path / f"epoch-00{number}"))
        tutorial.save_model(model, names[-1])
    assert average.main(names) == 0
    assert "average: the mean of 3 models" in capsys.readouterr().out
    mean = tutorial.load_trained_model(tmp_path / "average")
    assert mean.name == "toy, 3 averaged" and mean.vocabularies == models[0].vocabularies
    states = [model.model.state_dict() for model in models]
    for name, value in mean.model.state_dict().items():
        torch.testing.assert_close(value, sum(state[name] for state in states) / 3)
    assert mean.model.src_embed[0].lut.weight is mean.model.generator.proj.weight


@pytest.mark.parametrize("other", [{"h": 4}, {"d_ff": 64}, {"pieces": 301}, {"norm_first": False}])
def test_models_that_do_not_match_have_no_mean(written, tmp_path, capsys, other):
    tutorial.save_model(toy(**{"share_embeddings": True} | other), tmp_path / "other")
    names = [str(written), str(tmp_path / "other"), "--output", str(tmp_path / "mean")]
    assert average.main(names) == 1
    assert re.fullmatch(r"error: .*other has other .*\n", capsys.readouterr().err)
    assert not (tmp_path / "mean").exists()


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


def translate_alone(tmp_path: Path, pretrained: Path) -> subprocess.CompletedProcess:
    """Translate beside a copy of the script, in another folder, without corpus and network."""
    shutil.copy(PROJECT / "the_annotated_transformer.py", tmp_path)
    shutil.copytree(pretrained, tmp_path / "pretrained")
    (tmp_path / "elsewhere").mkdir()
    gone = ("MULTI30K_DIR", "RUNS_DIR", "ANNOTATED_RUN", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["https_proxy"] = NOWHERE
    command = [sys.executable, "-c", ALONE, SENTENCE]
    options = {"capture_output": True, "text": True, "encoding": "utf-8"}
    return subprocess.run(command, cwd=tmp_path / "elsewhere", env=environment, **options)


def test_translating_needs_no_corpus_no_network_and_no_heavy_import(written, tmp_path):
    result = translate_alone(tmp_path, written)
    assert result.returncode == 0, result.stderr
    expected = f"model toy (de → en), trained on {tutorial.BUILTIN}\n\n"
    assert result.stderr == expected and result.stdout.count("\n") == 1
    found = {path.name for path in tmp_path.rglob("*")}
    ours = {"the_annotated_transformer.py", "pretrained", "elsewhere", *FILES}
    assert found == ours, "nothing else was written"


# The model of the repository --------------------------------------------------------------------


def seconds_of_children() -> float:
    """Processor time of all processes that have been started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@needs_model
def test_the_model_of_the_repository_translates_within_five_seconds(tmp_path):
    """Of the processor, and, with room for a busy machine, by the clock."""
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 10e6
    before, begin = seconds_of_children(), time.monotonic()
    result = translate_alone(tmp_path, SHIPPED)
    assert result.returncode == 0, result.stderr
    assert seconds_of_children() - before < 5 and time.monotonic() - begin < 30
    assert re.fullmatch(r"A dog .*\bsnow\.\n", result.stdout)
    assert "(de → en), trained on Multi30k" in result.stderr


@needs_model
def test_card_record_and_files_are_of_one_model():
    about = json.loads((SHIPPED / "config.json").read_bytes())
    assert not re.search(r"[/\\]", json.dumps(about)), "nothing of a machine"
    record = json.loads((PROJECT / "docs" / "results" / "pretrained.json").read_bytes())
    for name in FILES[1:]:
        assert record["sha256"][name] == about["sha256"][name]
    sizes, card = about["model"], (SHIPPED / "README.md").read_text(encoding="utf-8")
    model = tutorial.load_trained_model("pretrained").model
    assert f"{sizes['N']} layers, width {sizes['d_model']}, {sizes['h']} heads" in card
    assert f"{sizes['src_vocab']:,} byte-pair pieces" in card and "German-English" in card
    assert f"{tutorial.count_parameters(model):,} |" in card
    assert about["corpus"] == "Multi30k" and about["languages"] == ["de", "en"]


@needs_model
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_scores_are_those_of_the_record(multi30k):
    record = json.loads((PROJECT / "docs" / "results" / "pretrained.json").read_bytes())
    beam, alpha = re.fullmatch(r"beam (\d+), alpha ([\d.]+)", record["decoding"]).groups()

    def decode(*arguments):
        return tutorial.beam_search(*arguments, beam=int(beam), alpha=float(alpha))

    translator = tutorial.load_trained_model("pretrained", torch.device("cpu"))
    tutorial.make_fast(translator.model)
    scores = tutorial.evaluate(translator, tutorial.read_multi30k(Path(multi30k)), decode=decode)
    assert list(scores) == ["test_2016_flickr", "test_2017_flickr"]
    for split, score in scores.items():
        expected = record["formats"]["int8"][split]
        assert score["BLEU"] == pytest.approx(expected["bleu"], abs=0.05)
        assert score["perplexity"] == pytest.approx(expected["perplexity"], abs=0.02)
        assert score["signature"] == record["signature"]
