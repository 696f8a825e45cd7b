"""A model as a folder: what is written comes back; and the model of the repository translates."""

import builtins
import dataclasses
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import PROJECT, contents
from safetensors.torch import load

import the_annotated_transformer as tutorial


def toy(vocab_size: int = 300, **changes) -> tutorial.Translator:
    """An untrained model, every weight of which differs from what a fresh model would have."""
    corpus = tutorial.read_builtin()
    vocabularies = (
        tutorial.learn_subwords(corpus, vocab_size) if vocab_size else tutorial.learn_words(corpus)
    )
    torch.manual_seed(0)
    small = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "max_len": 32, "dropout": 0.25}
    config = tutorial.ModelConfig(**small | {"share_embeddings": vocab_size > 0} | changes)
    model = tutorial.build_model(config, *map(len, vocabularies)).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    facts = corpus.name, corpus.languages, vocabularies, 32, config, corpus.place, 9
    return tutorial.Translator("toy", model, *facts)


@pytest.mark.parametrize(
    "changes", [{"share_embeddings": False}, {"bias": False}, {"vocab_size": 0}], ids=str
)
def test_a_model_comes_back_bit_for_bit(tmp_path, changes):
    translator = toy(**changes)
    tutorial.save_model(translator, tmp_path)
    back = tutorial.load_trained_model(str(tmp_path), torch.device("cpu"))
    assert not back.model.training
    for name in ("name", "corpus", "languages", "data", "longest", "max_len", "config"):
        assert getattr(back, name) == getattr(translator, name)
    text = ["Ein Kind hebt auf der Wiese einen roten Ball auf."]
    for ours, theirs in zip(translator.vocabularies, back.vocabularies, strict=True):
        assert theirs.encode(text, "de") == ours.encode(text, "de")
    stored = load((tmp_path / "model.safetensors").read_bytes())
    assert stored.keys() == dict(back.model.named_parameters()).keys(), "shared matrices once"
    weights = back.model.state_dict()
    for name, value in translator.model.state_dict().items():
        assert torch.equal(weights[name], value), name


def test_int8_is_within_half_a_step_of_each_row(tmp_path):
    """Rows of very different sizes, and one of zeros; vectors stay as they are."""
    translator = toy()
    matrix = translator.model.get_parameter("decoder.layers.0.feed_forward.widen.weight").data
    matrix.mul_(10.0 ** torch.arange(-4, 4).repeat(4).unsqueeze(1))
    matrix[5] = 0
    tutorial.save_model(translator, tmp_path, int8=True)
    stored = load((tmp_path / "model.safetensors").read_bytes())
    back = dict(tutorial.load_trained_model(tmp_path).model.named_parameters())
    for name, value in translator.model.named_parameters():
        if value.dim() == 2:
            assert stored[name].dtype == torch.int8
            half_a_step = value.abs().amax(1, keepdim=True) / 127 / 2
            assert ((back[name] - value).abs() <= 1.001 * half_a_step).all(), name
            assert not torch.equal(back[name], value), "it was rounded"
        else:
            assert torch.equal(back[name], value), name


def test_a_model_without_settings_is_not_saved(tmp_path):
    translator = dataclasses.replace(toy(), config=None)
    with pytest.raises(tutorial.UserError, match="toy"):
        tutorial.save_model(translator, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("package", ["tokenizers", "safetensors.torch"])
def test_a_package_that_is_missing_is_not_taken_for_a_damaged_model(monkeypatch, package):
    def without(name, *given, **how):
        if name == package:
            raise ImportError(f"no {package}")
        return imported(name, *given, **how)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=package):
        tutorial.main(["translate", "Hund"])


# The model of the repository --------------------------------------------------------------------

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
sys.exit(status or " ".join(filter(loaded, heavy)) or 0)
"""


def test_the_shipped_model_translates_alone(tmp_path):
    """Beside a copy of the script, from another folder, without corpus, network, heavy import."""
    shutil.copy(PROJECT / tutorial.SCRIPT, tmp_path)
    shutil.copytree(PROJECT / "pretrained", tmp_path / "pretrained")
    (tmp_path / "elsewhere").mkdir()
    before = contents(tmp_path)
    gone = ("MULTI30K_DIR", "RUNS_DIR", "ANNOTATED_RUN", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "env": environment}
    command = [sys.executable, "-c", ALONE, "Ein Hund rennt durch den Schnee."]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", **options)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"A .*\bdog .*\bsnow\.\n", done.stdout)
    assert contents(tmp_path) == before, "nothing was written"


def test_the_text_shows_what_the_shipped_model_writes(shipped):
    """On the first screen of the tutorial, and on the card of the model."""
    _, _, text = (PROJECT / tutorial.SCRIPT).read_text("utf-8").partition("# %% [markdown]\n")
    first_screen = text[: text.index("\n# %%")]
    card = (PROJECT / "pretrained" / "README.md").read_text("utf-8")
    shown = re.findall(r"(?m)^# \| (.+) \| (.+) \| .+ \|$", first_screen)[2:]
    shown += re.findall(r'"(.+?)" becomes "(.+?)"', card)
    sentences, translations = zip(*shown, strict=True)
    assert tutorial.translate(shipped, sentences, tutorial.beam_search) == [*translations]
