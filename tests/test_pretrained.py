"""A model to take away: what is written comes back, what does not fit is refused, and the model of
the repository is small, quick to use and as good as its card says."""

import dataclasses
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

import pytest
import torch
from conftest import NOWHERE, PROJECT
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import the_annotated_transformer as tutorial
from the_annotated_transformer import END, START, Batch, pad_ids

FILES = ("config.json", "tokenizer.json", "model.safetensors")
SENTENCE = "Ein Hund rennt durch den Schnee."
SHIPPED, CARD = PROJECT / "pretrained", PROJECT / "pretrained" / "README.md"
needs_model = pytest.mark.skipif(
    not (SHIPPED / "model.safetensors").is_file(), reason="pretrained/ holds no model yet"
)


def toy(pieces: int = 300, name: str = "toy", seed: int = 0, **settings) -> tutorial.Translator:
    """An untrained model of pieces; every weight differs from what a fresh model would have."""
    settings = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "share_embeddings": True} | settings
    config = tutorial.Config(corpus="builtin", max_len=32, pieces=pieces, **settings)
    vocabularies = tutorial.learn_pieces(tutorial.read_builtin(), pieces)
    torch.manual_seed(seed)
    model = tutorial.model_from(config, vocabularies).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    cpu = torch.device("cpu")
    return tutorial.Translator(name, model, config, tutorial.BUILTIN, vocabularies, cpu)


@pytest.fixture(scope="module", params=[True, False], ids=["one matrix", "three matrices"])
def translator(request) -> tutorial.Translator:
    return toy(share_embeddings=request.param)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder that nobody changes."""
    folder = tmp_path_factory.mktemp("written")
    tutorial.save_pretrained(toy(), folder)
    return folder


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy of it, to spoil."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def sign(folder: Path, **changes) -> None:
    """Change config.json, and put sums into it that are right for what lies there now."""
    about = json.loads((folder / "config.json").read_bytes()) | changes
    del about["sha256"]
    parts = {name: (folder / name).read_bytes() for name in FILES[1:]}
    parts["config.json"] = json.dumps(about).encode()
    about["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    (folder / "config.json").write_text(json.dumps(about))


def refused(folder: Path, message: str | None = None) -> None:
    """Loading ends in an error that has the folder, the message and a way out."""
    with pytest.raises(ValueError, match=message) as caught:
        tutorial.load_pretrained(folder)
    text = str(caught.value)
    assert text.startswith(f"{folder} cannot be used: ")
    assert "git checkout" in text and "export" in text


# There and back ---------------------------------------------------------------------------------


def log_probabilities(translator: tutorial.Translator) -> torch.Tensor:
    ids = translator.vocabularies[0].encode([SENTENCE, "Zwei Kinder lachen."])
    batch = Batch(pad_ids([[*one, END] for one in ids]), pad_ids([[START, *one] for one in ids]))
    with torch.no_grad():
        states = translator.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        return translator.model.generator(states)


def test_a_model_comes_back_but_for_rounding(translator, tmp_path):
    tutorial.save_pretrained(translator, tmp_path)
    back = tutorial.load_pretrained(tmp_path)
    assert (back.config, back.corpus) == (translator.config, tutorial.BUILTIN)
    assert back.name == "toy, int8"
    assert back.vocabularies == translator.vocabularies
    assert not back.model.training
    mine, theirs = log_probabilities(translator), log_probabilities(back)
    assert 0 < (mine - theirs).abs().max() < 0.1 < mine.std() / 5


def test_matrices_are_rounded_row_by_row_and_vectors_not_at_all(translator, tmp_path):
    tutorial.save_pretrained(translator, tmp_path)
    back = tutorial.load_pretrained(tmp_path).model.state_dict()
    state = translator.model.state_dict()
    assert back.keys() == state.keys()
    for name, value in state.items():
        if value.dim() == 2:
            half_a_step = value.abs().amax(1, keepdim=True) / 254
            assert ((back[name] - value).abs() <= 1.0001 * half_a_step).all(), name
        else:
            assert torch.equal(back[name], value), name


def test_a_shared_matrix_is_stored_once_and_shared_again(written):
    kept = load_file(written / "model.safetensors")
    assert [name for name in tutorial.ONE_MATRIX if name in kept] == ["src_embed.0.lut.weight"]
    model = tutorial.load_pretrained(written).model
    shared = model.src_embed[0].lut.weight
    assert model.tgt_embed[0].lut.weight is shared and model.generator.proj.weight is shared


def test_three_matrices_stay_three(tmp_path):
    tutorial.save_pretrained(toy(share_embeddings=False), tmp_path)
    state = tutorial.load_pretrained(tmp_path).model.state_dict()
    first, *others = (state[name] for name in tutorial.ONE_MATRIX)
    assert not any(torch.equal(first, other) for other in others)


def test_a_matrix_takes_a_byte_a_weight_and_sinusoids_none(written):
    with safe_open(written / "model.safetensors", "pt") as file:
        kept = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    assert not any(name.endswith(".pe") for name in kept)
    for name, value in kept.items():
        assert value.get_dtype() == ("I8" if len(value.get_shape()) == 2 else "F32"), name


def test_the_same_model_gives_the_same_bytes(written, tmp_path):
    tutorial.save_pretrained(toy(), tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()


def test_rounding_leaves_the_matrix_as_it_was():
    matrix = torch.randn(3, 7)
    before = matrix.clone()
    numbers, steps = tutorial.quantise(matrix)
    tutorial.dequantise(numbers, steps)
    assert torch.equal(matrix, before) and steps.shape == (3,)


def test_a_row_without_weight_is_divided_by_something():
    """0 / 0 is no number, and what it becomes in int8 depends on the machine."""
    numbers, steps = tutorial.quantise(torch.tensor([[0.0, 0.0], [1e-43, -1e-43], [1.0, 2.0]]))
    assert (steps > 0).all() and numbers[:2].eq(0).all()


# What cannot be written -------------------------------------------------------------------------


def test_a_model_of_words_is_refused(small_run, tmp_path):
    with pytest.raises(ValueError, match=r"small is a model of words.*--preset recipe"):
        tutorial.save_pretrained(tutorial.load_trained_model(small_run), tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused(bad, tmp_path):
    translator = toy()
    translator.model.encoder.layers[0].feed_forward.widen.weight.data[3, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        tutorial.save_pretrained(translator, tmp_path / "none")
    assert not (tmp_path / "none").exists()


# What cannot be read ----------------------------------------------------------------------------


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.config\.json is missing.*git checkout"):
        tutorial.load_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{re.escape(name)} is missing"):
        tutorial.load_pretrained(folder)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_short(folder, name, share):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    refused(folder, f"{re.escape(name)} (is damaged or belongs|does not hold)")


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_goes_unnoticed(folder, name):
    content, rng = bytearray((folder / name).read_bytes()), random.Random(0)
    for place in [0, len(content) - 1] + [rng.randrange(len(content)) for _ in range(100)]:
        bit = 1 << rng.randrange(8)
        content[place] ^= bit
        (folder / name).write_bytes(content)
        refused(folder, "is damaged or belongs|does not hold")
        content[place] ^= bit
    (folder / name).write_bytes(content)
    tutorial.load_pretrained(folder)


@pytest.mark.parametrize("name", FILES)
def test_files_of_two_models(folder, tmp_path, name):
    tutorial.save_pretrained(toy(320, "other", seed=1), tmp_path / "other")
    shutil.copy(tmp_path / "other" / name, folder / name)
    refused(folder, "damaged or belongs to another model: its SHA-256 sum differs")


def test_a_setting_that_was_changed_by_hand(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"norm_first": true', '"norm_first": false'))
    refused(folder, r"config\.json is damaged")


@pytest.mark.parametrize("text", ["", "[]", "7", "null", '"x"', "{}", '{"sha256": 5}', "{"])
def test_a_config_that_holds_something_else(folder, text):
    (folder / "config.json").write_text(text)
    refused(folder, r"config\.json does not hold settings and sums")


# From here on the sums are right: somebody has put the wrong parts together on purpose.


def test_a_good_model_may_be_signed_again(folder):
    sign(folder)
    tutorial.load_pretrained(folder)


@pytest.mark.parametrize("size", [299, 301, 400])
def test_a_tokenizer_of_another_size(folder, size):
    pieces, _ = tutorial.learn_pieces(tutorial.read_builtin(), size)
    (folder / "tokenizer.json").write_text(pieces.saved())
    sign(folder)
    refused(folder, rf"tokenizer \({size}, .*\) does not fit the model \(300, ")


def test_a_tokenizer_without_our_special_symbols(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<blank>", "<space>"))
    sign(folder)
    refused(folder, r"tokenizer \(300, .*'<space>', '<unk>'\) does not fit the model")


@pytest.mark.parametrize("text", ["", "{}", "Ein Hund"])
def test_a_tokenizer_that_is_none(folder, text):
    (folder / "tokenizer.json").write_text(text)
    sign(folder)
    refused(folder, "no settings of a tokenizer")


def settings(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_bytes())["config"]


def test_an_unknown_setting(folder):
    sign(folder, config=settings(folder) | {"rotary": True})
    refused(folder, "rotary")


@pytest.mark.parametrize("lacking", ["config", "corpus"])
def test_a_config_that_lacks_something(folder, lacking):
    sign(folder)
    about = json.loads((folder / "config.json").read_bytes())
    del about[lacking]
    (folder / "config.json").write_text(json.dumps(about))
    sign(folder)
    refused(folder, f"lacks {lacking}")


@pytest.mark.parametrize("change", [{"d_ff": 64}, {"N": 2}, {"d_model": 32}])
def test_settings_of_other_shapes(folder, change):
    sign(folder, config=settings(folder) | change)
    refused(folder, "weights do not fit")


@pytest.mark.parametrize("change", [{"h": 3}, {"N": 0}, {"schedule": "none"}, {"max_len": -1}])
def test_settings_that_cannot_work(folder, change):
    sign(folder, config=settings(folder) | change)
    refused(folder)


@pytest.mark.parametrize("change", ["less", "more", "no steps", "one step", "one matrix"])
def test_weights_that_do_not_fit(folder, change):
    path, name = folder / "model.safetensors", "encoder.layers.0.feed_forward.widen.weight"
    kept = load_file(path)
    if change == "less":
        del kept["encoder.norm.scale"]
    elif change == "more":
        kept["encoder.norm.more"] = torch.ones(3)
    elif change == "no steps":
        del kept[f"{name}.steps"]
    elif change == "one step":
        kept[f"{name}.steps"] = kept[f"{name}.steps"][:1].clone()
    else:
        del kept[tutorial.ONE_MATRIX[0]]
    save_file(kept, path)
    sign(folder)
    refused(folder)


def test_weights_in_another_format(folder):
    torch.save(toy().model.state_dict(), folder / "model.safetensors")
    sign(folder)
    refused(folder)


# The command line -------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint of a model of pieces, in the folder of its run."""
    translator, path = toy(), tmp_path / "run" / "best.pt"
    content = {"config": dataclasses.asdict(translator.config), "corpus": translator.corpus}
    content["vocabularies"] = [one.saved() for one in translator.vocabularies]
    tutorial.save_checkpoint(path, content | {"model": translator.model.state_dict()})
    return path


def test_export_and_translate(checkpoint, tmp_path, capsys):
    folder = tmp_path / "exported"
    command = ["export", "--model", str(checkpoint.parent), "--folder", str(folder)]
    assert tutorial.main(command) == 0
    assert "run, int8" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert tutorial.main(["translate", "--model", str(folder), SENTENCE]) == 0
    said = capsys.readouterr()
    assert f"run, int8, trained on {tutorial.BUILTIN}" in said.err and said.out.count("\n") == 1


def test_export_of_a_model_of_words(small_run, tmp_path, capsys):
    assert tutorial.main(["export", "--model", str(small_run), "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: small is a model of words")


def test_without_a_run_the_model_of_the_repository_translates(
    folder, checkpoint, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(tutorial, "PRETRAINED", folder)
    assert tutorial.main(["translate", SENTENCE]) == 0
    assert "toy, int8" in capsys.readouterr().err
    summary = {"status": "finished", "corpus": "mine", "validation_bleu": 1.0}
    (checkpoint.parent / "summary.json").write_text(json.dumps(summary))
    assert tutorial.main(["translate", SENTENCE]) == 0
    assert "model run, trained" in capsys.readouterr().err


def test_a_folder_with_a_card_only_is_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(tutorial, "PRETRAINED", tmp_path)
    (tmp_path / "README.md").write_text("soon")
    assert tutorial.main(["translate", SENTENCE]) == 1
    assert "no finished run" in capsys.readouterr().err


# In a process of its own: the network closed, and afterwards a look at what was imported.
ALONE = """\
import socket, sys
def closed(*_, **__):
    raise OSError("no network here")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = closed
import the_annotated_transformer as tutorial
status = tutorial.main(["translate", sys.argv[1]])
heavy = "spacy pandas altair torchtext sacrebleu GPUtil vl_convert PIL torch._dynamo".split()
print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


def translate_alone(tmp_path: Path, pretrained: Path) -> subprocess.CompletedProcess:
    """Translate in an empty folder beside a copy of the script, without corpus and network."""
    shutil.copy(PROJECT / "the_annotated_transformer.py", tmp_path)
    shutil.copytree(pretrained, tmp_path / "pretrained")
    gone = ("MULTI30K_DIR", "RUNS_DIR", "ANNOTATED_RUN", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["https_proxy"] = NOWHERE
    command = [sys.executable, "-c", ALONE, SENTENCE]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8"
    )


def test_translating_needs_no_corpus_no_network_and_no_heavy_import(written, tmp_path):
    result = translate_alone(tmp_path, written)
    assert result.returncode == 0, result.stderr
    first, imported = result.stderr.split("\n")[:2]
    assert first == f"model toy, int8, trained on {tutorial.BUILTIN}" and imported == ""
    assert result.stdout.count("\n") == 1
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"the_annotated_transformer.py", "pretrained"}, "nothing else was written"


# The model of the repository --------------------------------------------------------------------


@needs_model
def test_the_model_of_the_repository_is_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 10e6


def seconds_of_children() -> float:
    """Processor time of all processes that have been started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@needs_model
def test_the_model_of_the_repository_translates_within_five_seconds(tmp_path):
    """Of the processor, and, with room for a busy machine, by the clock."""
    before, begin = seconds_of_children(), time.monotonic()
    result = translate_alone(tmp_path, SHIPPED)
    assert result.returncode == 0, result.stderr
    assert seconds_of_children() - before < 5 and time.monotonic() - begin < 30
    assert re.fullmatch(r"A dog .*\bsnow\.\n", result.stdout)
    assert "trained on Multi30k" in result.stderr


@needs_model
def test_nothing_of_a_machine_is_in_the_config():
    text = (SHIPPED / "config.json").read_text(encoding="utf-8")
    assert json.loads(text)["config"]["corpus"] == "multi30k"
    assert "/" not in text and "\\" not in text


@needs_model
def test_the_scores_are_those_of_the_files_that_lie_there():
    result = json.loads((PROJECT / "docs" / "results" / "pretrained.json").read_bytes())
    about = json.loads((SHIPPED / "config.json").read_bytes())
    assert result["sha256"] == about["sha256"] and about["corpus"] == "Multi30k"


@needs_model
def test_the_card_describes_the_model_that_lies_there():
    model = tutorial.load_pretrained(SHIPPED)
    config, card = model.config, CARD.read_text(encoding="utf-8")
    assert f"{config.N} layers, width {config.d_model}, {config.h} heads" in card
    assert f"{config.pieces:,} byte-pair pieces" in card and f"seed {config.seed}" in card
    assert f"{tutorial.count_parameters(model.model):,} |" in card
    assert config.languages == ("de", "en") and "German-English" in card
