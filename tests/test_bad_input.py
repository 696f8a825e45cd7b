"""Wrong input of a user ends in one line that names what is wrong, and changes nothing."""

import dataclasses
import errno
import io
import itertools
import json
import math
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from conftest import contents, saved, write_pairs
from safetensors.torch import save

import the_annotated_transformer as tutorial
from the_annotated_transformer import UserError

DE_EN = ("de", "en")
PAIRS = tutorial.builtin_corpus()["train"][:70]
SMALL = "--N 1 --d-model 16 --d-ff 32 --h 2 --min-freq 1 --epochs 1".split()
SMALL += "--vocab-size 0 --no-share-embeddings".split()
COMMANDS = {
    "translate": ["translate", "Hund", "--model", "run"],
    "evaluate": ["evaluate", "--model", "run"],
    "train": ["train", "--data", "text", "--folder", "run", *SMALL],
    "resume": ["resume", "run"],
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """The present folder, with a corpus."""
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "text", DE_EN, train=PAIRS[:60], val=PAIRS[60:])
    return tmp_path


@pytest.fixture
def run(place, stopped_run) -> Path:
    """A run of two epochs that stopped after the first."""
    return Path(shutil.copytree(stopped_run, place / "run"))


def error_of(capsys, *arguments: object) -> str:
    """The one line that the command line ends in."""
    capsys.readouterr()
    status = tutorial.main(list(map(str, arguments)))
    lines = capsys.readouterr().err.splitlines()
    if lines[0].startswith("model "):
        lines.pop(0)  # which model is used
    assert (status, len(lines)) == (1, 1), lines
    assert lines[0].startswith("error: ")
    return lines[0]


# Texts and settings -----------------------------------------------------------------------------


TEXTS = {
    "no folder": (lambda: shutil.rmtree("text"), "text"),
    "an empty folder": (lambda: [p.unlink() for p in Path("text").iterdir()], "text"),
    "unequal train": (lambda: Path("text/train.en").write_text("A dog.\n"), "train.en"),
    "unequal val": (lambda: Path("text/val.de").write_text("Hund\n"), "val.de"),
    "empty train": (lambda: [p.write_text("") for p in Path("text").glob("train*")], "text"),
    "blank train": (lambda: [p.write_text("\n") for p in Path("text").glob("train*")], "text"),
    "blank val": (lambda: [p.write_text("\n") for p in Path("text").glob("val*")], "val"),
    "no train.en": (lambda: Path("text/train.en").unlink(), "train.en"),
    "latin-1": (lambda: Path("text/train.de").write_bytes("Kühe\n".encode("latin-1")), "train.de"),
}


@pytest.mark.parametrize("fault", TEXTS)
def test_a_wrong_text_is_refused(capsys, fault):
    spoil, name = TEXTS[fault]
    spoil()
    said = error_of(capsys, "train", "--data", "text", "--folder", "new", *SMALL)
    assert name in said
    assert not Path("new", "config.json").exists()


SETTINGS = {
    "--dropout nan": "--dropout nan",
    "--factor inf": "--factor inf",
    "--h 3": "--h 3",
    "--d-model 15 --h 3": "--d-model 15",
    "--languages de-2b": "2b",
    "--languages de": "--languages de",
    "--share-embeddings": "--no-share-embeddings --vocab-size",
    "--attention rotary --d-model 6": "6 2",
    "--attention mine": "'mine' --parts",
    "--parts none.py": "none.py",
    "--max-len 3": "3",
    "--data builtin --languages fr-en": "fr",
    "--init-from none": "none",
    "--shares 1000": "1000 pairs",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_refused(capsys, setting):
    said = error_of(capsys, *COMMANDS["train"], *setting.split())
    assert all(word in said for word in SETTINGS[setting].split())
    assert not Path("run", "config.json").exists()
    for option in ("--beam=0", "--alpha=nan"):
        assert option.replace("=", " ") in error_of(capsys, "translate", "Hund", option)


def test_every_setting_has_its_limits():
    whole_numbers = "N d_model d_ff h max_len min_freq batch_tokens accum_iter warmup epochs shares"
    bad = [*itertools.product([*whole_numbers.split(), "log_every"], (0, -1))]
    bad += itertools.product(["vocab_size", "average"], [-1])
    bad += itertools.product(["factor", "clip"], [0.0, -1.0, math.nan])
    bad += itertools.product(["weight_decay"], [-1.0, math.nan])
    bad += itertools.product(["dropout", "attention_dropout", "smoothing"], [-0.1, 1.0, math.nan])
    bad += itertools.product(["languages"], ["de", "-en", "en-en", "de-en-fr", "zh-Hans:", "a:b:c"])
    for name, value in bad:
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} .*{value}"):
            tutorial.Config(**{name: value})


@pytest.mark.parametrize("words", ["translate --beam many", "train --N 2.5", ""])
def test_a_wrong_command_line_points_to_the_help(capsys, words):
    with pytest.raises(SystemExit) as end:
        tutorial.main(words.split())
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--help" in said.err


# Models and runs --------------------------------------------------------------------------------

FILES = {
    "translate": ["config.json", "words.json", "model.safetensors"],
    "evaluate": ["config.json"],
    "train": ["config.json"],
    "resume": ["config.json", "words.json", "train.ids", "train.lengths", "val.json", "last.pt"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_or_damaged_file_is_refused(capsys, run, command):
    """And nothing is changed."""
    for name in FILES[command]:
        path = run / name
        good = path.read_bytes()
        bad = [b"", good[: len(good) // 2], good[:-9]]
        if not name.startswith(("train.", "val.")):
            bad += [b"[]", b"{}", b"null", b'"model"', b"\xff\xfe", b"PK\x03\x04"]
        for content in bad:
            path.write_bytes(content)
            before = contents(run)
            assert "run" in error_of(capsys, *COMMANDS[command])
            assert contents(run) == before
        path.unlink()
        if command != "train":  # it prepares the run anew
            assert "run" in error_of(capsys, *COMMANDS[command])
        path.write_bytes(good)
    assert tutorial.main(COMMANDS["translate"]) == 0
    for folder in (run, Path("text")):
        shutil.rmtree(folder)
    assert ("text" if command == "train" else "run") in error_of(capsys, *COMMANDS[command])


class Malice:
    """A pickle that makes a folder when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("made by a pickle",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "command, name", [("resume", "last.pt"), ("translate", "model.safetensors")]
)
def test_nothing_is_unpickled(capsys, run, command, name):
    (run / name).write_bytes(pickle.dumps(Malice()))
    assert "run" in error_of(capsys, *COMMANDS[command])
    assert not Path("made by a pickle").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_may_not_be_read_or_written_is_no_damage(capsys, run, monkeypatch, command):
    """As root, who may do anything, tests would see no error."""
    name = {"train": ".lock", "resume": ".lock"}.get(command, "model.safetensors")

    def forbidding(opened):
        def open_or_not(path, *given, **more):
            if Path(str(path)).name == name:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return opened(path, *given, **more)

        return open_or_not

    for module in (os, io):  # a lock is opened by the first, all else by the second
        monkeypatch.setattr(module, "open", forbidding(module.open))
    said = error_of(capsys, *COMMANDS[command])
    assert "run" in said
    assert "Permission denied" in said
    assert "no model" not in said


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("all"), AttributeError("of a part")])
def test_what_is_no_damage_of_a_model_keeps_its_traceback(run, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(tutorial, "build_model", fail)
    for command in ("translate", "resume"):
        with pytest.raises(type(error)):
            tutorial.main(COMMANDS[command])


def test_files_of_different_models_are_refused(capsys, run, small_run):
    """Other words, weights of other names and sizes, and a model without a checkpoint."""
    words = json.loads((run / "words.json").read_bytes())
    weights = dict(tutorial.load_trained_model(run).model.state_dict())
    name = "encoder.layers.0.feed_forward.widen.weight"
    less = {key: value for key, value in weights.items() if key != name}
    more = weights | {"encoder.norm.more": weights["encoder.norm.bias"].clone()}
    cut = weights | {name: weights[name][:1].clone()}
    spoilt = [("model.safetensors", save(tensors)) for tensors in (less, more, cut)]
    for side in words:
        other = words | {side: [*words[side], "unheard"]}
        spoilt.append(("words.json", json.dumps(other).encode()))
    for file, content in spoilt:
        good = (run / file).read_bytes()
        (run / file).write_bytes(content)
        assert "run" in error_of(capsys, *COMMANDS["translate"])
        (run / file).write_bytes(good)
    state = saved(run)
    state["model"][name] = state["model"][name][:1]
    torch.save(state, run / "last.pt")
    assert "run" in error_of(capsys, *COMMANDS["resume"])
    tutorial.save_model(tutorial.load_trained_model(small_run), "model")
    assert "model" in error_of(capsys, "resume", "model")


GONE = object()
EDITS = {
    ("translate", "settings.d_model"): ["big", 32, -1, None, GONE],
    ("translate", "settings.attention"): ["mine", 3],
    ("translate", "languages"): [GONE, 3],
    ("resume", "settings"): [GONE, [], None, {}],
    ("resume", "settings.d_model"): ["big", 32, 0, None, GONE],
    ("resume", "settings.h"): [0, 3],
    ("resume", "settings.mistyped"): [1],
    ("resume", "languages"): [GONE, 3],
}


@pytest.mark.parametrize("command, name", EDITS)
def test_a_wrong_entry_of_config_json_is_refused(capsys, run, command, name):
    """The error names the folder or the option; nothing is changed."""
    path = run / "config.json"
    good = path.read_bytes()
    for value in EDITS[command, name]:
        about = json.loads(good)
        *outer, last = name.split(".")
        inside = about[outer[0]] if outer else about
        inside[last] = value
        if value is GONE:
            del inside[last]
        path.write_text(json.dumps(about))
        before = contents(run)
        said = error_of(capsys, *COMMANDS[command])
        assert "run" in said or "--" in said
        assert contents(run) == before


# What is scored ---------------------------------------------------------------------------------


def test_only_the_text_that_is_used_is_asked_for(capsys, place, small_run):
    """The test splits, or the validation split where there is none."""
    evaluate = ["evaluate", "--model", str(small_run), "--data", "scored"]
    for split in ("test", "val"):
        write_pairs(place / "scored", DE_EN, **{split: PAIRS[:2]})
        assert tutorial.main(evaluate) == 0
        assert f"\n{split}: BLEU" in capsys.readouterr().out
        shutil.rmtree("scored")
    write_pairs(place / "scored", DE_EN, dev=PAIRS[:2])
    assert "val" in error_of(capsys, *evaluate)
    assert "test_7" in error_of(capsys, *evaluate, "--split", "test_7")
    write_pairs(place / "scored", DE_EN, test=[("", "")])
    error_of(capsys, *evaluate)


def test_a_text_that_has_moved_can_be_named(capsys, run, small_config):
    config = dataclasses.replace(small_config, data="text")
    shutil.rmtree(run)
    tutorial.train_model(dataclasses.replace(config, epochs=1), run)
    Path("text").rename("moved")
    assert "`resume`" in error_of(capsys, *COMMANDS["train"])
    assert "text" in error_of(capsys, *COMMANDS["evaluate"])
    assert tutorial.main([*COMMANDS["evaluate"], "--data", "moved"]) == 0
