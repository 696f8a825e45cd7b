"""The folder of a run: begun, resumed, taken further; what it keeps, and what is refused."""

import dataclasses
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import filelock
import GPUtil
import pytest
import torch
from conftest import assert_same_run, contents, log_of, saved
from forks import endless_training

import the_annotated_transformer as tutorial
from the_annotated_transformer import UserError


@pytest.fixture
def run(stopped_run, tmp_path) -> Path:
    """A run of two epochs that stopped after the first."""
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All weights and buffers of the model in a folder."""
    return tutorial.load_trained_model(folder).model.state_dict()


# Stop and go on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["train", "resume"])
def test_a_run_that_stopped_ends_like_one_that_did_not(
    run, whole, small_config, tmp_path, monkeypatch, way
):
    """`train` needs the text, wherever it lies now; `resume` needs nothing but the folder."""
    if way == "train":
        text = shutil.copytree(small_config.data, tmp_path / "elsewhere")
        config = dataclasses.replace(small_config, data=str(text))
        assert tutorial.train_model(config, run, minutes=1e-9) == "finished"
    else:
        monkeypatch.delattr(tutorial, "find_corpus")
        assert tutorial.train_model(None, run) == "finished"
    assert_same_run(run, whole)
    assert [entry["averaged"] for entry in log_of(run)] == [0, 0, 2]


def test_a_finished_run_is_left_as_it_is(small_config, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = contents(run)
    assert tutorial.train_model(small_config, run) == "finished"
    for ask in (
        lambda: tutorial.train_model(dataclasses.replace(small_config, epochs=1), run),
        lambda: tutorial.train_model(None, run, epochs=1),
    ):
        with pytest.raises(UserError, match="has 2 epochs: give --epochs 2 or more"):
            ask()
    with pytest.raises(UserError, match="--epochs must be at least 1, got 0"):
        tutorial.train_model(None, run, epochs=0)
    assert contents(run) == before


def test_a_run_goes_further_by_train_or_by_resume(small_config, small_run, tmp_path, monkeypatch):
    """It remembers the new number of epochs, and follows the new learning rate at once."""
    rates = []
    train_epoch = tutorial.Run.train_epoch

    def watched(run: tutorial.Run, epoch: int) -> dict:
        rates.append(run.optimizer.param_groups[0]["lr"])
        return train_epoch(run, epoch)

    config = dataclasses.replace(small_config, schedule="linear", epochs=1)
    runs = tmp_path / "trained", tmp_path / "resumed"
    for run in runs:
        assert tutorial.train_model(config, run) == "finished"
    monkeypatch.setattr(tutorial.Run, "train_epoch", watched)
    assert tutorial.train_model(dataclasses.replace(config, epochs=3), runs[0]) == "finished"
    assert tutorial.train_model(None, runs[1], minutes=1e-9, epochs=3) == "stopped"
    assert tutorial.train_model(None, runs[1]) == "finished"
    assert_same_run(*runs)
    assert [entry["averaged"] for entry in log_of(runs[0])] == [0, 0, 0, 3]
    assert rates == [*rates[:2]] * 2
    assert rates[0] > rates[1] > 0


def test_other_settings_than_those_of_the_run_are_refused(small_corpus, tmp_path):
    """What the program chose the first time is no conflict with what is not given."""
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "vocab_size": 0, "epochs": 1}
    config = tutorial.Config(data=str(small_corpus), **sizes)
    run = tmp_path / "run"
    tutorial.train_model(config, run)
    assert tutorial.train_model(config, run) == "finished"
    before = contents(run)
    for name, value in {"d_model": 32, "norm_first": False, "warmup": 3, "seed": 2}.items():
        with pytest.raises(UserError, match=rf"has {name} \S+, not {value}: `resume` continues"):
            tutorial.train_model(dataclasses.replace(config, **{name: value}), run)
    assert contents(run) == before


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_changed_text_is_refused(run, small_config, tmp_path, split):
    """The test split may change."""
    text = Path(shutil.copytree(small_config.data, tmp_path / "text"))
    config = dataclasses.replace(small_config, data=str(text))
    shutil.copy(text / "val.en", text / "test.en")
    tutorial.begin_run(config, run)
    path = text / f"{split}.en"
    path.write_text(path.read_text("utf-8").replace("A ", "The ", 1), "utf-8")
    before = contents(run)
    with pytest.raises(UserError, match=r"is not the text that .* began with: `resume`"):
        tutorial.train_model(config, run)
    assert contents(run) == before


def test_vocabularies_of_an_attempt_that_failed_do_not_stay(small_config, tmp_path):
    """The first attempt wrote words, the second one takes subwords."""
    with pytest.raises(UserError, match="'mine' is not among plain"):
        tutorial.begin_run(dataclasses.replace(small_config, attention="mine"), tmp_path)
    config = dataclasses.replace(small_config, vocab_size=100, max_len=64, epochs=1)
    tutorial.train_model(config, tmp_path)
    [subwords, _] = tutorial.load_trained_model(tmp_path).vocabularies
    assert isinstance(subwords, tutorial.Subwords)


# A model to start from --------------------------------------------------------------------------


def test_a_run_starts_with_the_weights_and_words_of_a_model(small_config, small_run, tmp_path):
    """It does not need that model any more when it continues."""
    model = tmp_path / "model"
    tutorial.save_model(tutorial.load_trained_model(small_run), model)
    given = weights_of(model)
    config = dataclasses.replace(
        small_config, init_from=str(model), dropout=0.3, factor=1e-12, average=0
    )
    run = tmp_path / "run"
    pairs = tutorial.builtin_corpus()["test"]
    corpus = tutorial.Corpus("other", ("de", "en"), {"train": pairs[:20], "val": pairs[20:24]})
    assert tutorial.train_model(config, run, 1e-9, corpus) == "stopped"
    assert (run / "words.json").read_bytes() == (small_run / "words.json").read_bytes()
    for name, value in weights_of(run).items():
        torch.testing.assert_close(value, given[name], rtol=0, atol=1e-6, msg=name)
    shutil.rmtree(model)
    assert tutorial.train_model(None, run) == "finished"
    assert [entry["averaged"] for entry in log_of(run)] == [0, 0], "no mean was asked for"


def test_a_run_finds_its_first_model_from_any_folder(
    small_config, small_run, tmp_path, monkeypatch
):
    tutorial.save_model(tutorial.load_trained_model(small_run), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(small_config, init_from="model")
    tutorial.begin_run(config, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tutorial.train_model(None, tmp_path / "run", 1e-9) == "stopped"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"d_ff": 64}, "was made with d_ff 32: use the same value"),
        ({"attention": "rotary"}, "was made with attention plain: use"),
        ({"norm_first": False}, "was made with norm_first True"),
        ({"vocab_size": 99}, "--vocab-size is that of --init-from"),
        ({"languages": "en-de", "vocab_size": None}, "--init-from .* knows the words of"),
    ],
    ids=str,
)
def test_a_model_that_does_not_fit_is_refused(small_config, small_run, tmp_path, change, message):
    config = dataclasses.replace(small_config, init_from=str(small_run), **change)
    with pytest.raises(UserError, match=message):
        tutorial.train_model(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


# What is kept -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bleu, nll, kept",
    [
        ([10, 20, 30, 25], [1, 1, 1, 1], [2]),
        ([10, 30, 30, 30], [1, 1, 1, 1], [1]),  # the first of equals
        ([0.4, 0.1, 0.9, 0.8], [3, 1.5, 2, 9], [1]),  # below 1 BLEU the likelihood decides
        ([10, 30, 25, 31], [1, 1, 1, 1], [1, 2]),  # the mean of the last two epochs
    ],
)
def test_the_best_model_is_kept(small_config, tmp_path, monkeypatch, bleu, nll, kept):
    """Of three epochs, and of the mean of the last two, which is scored last."""
    scores = zip(bleu, nll, strict=True)
    weights = []
    save = tutorial.Run.save

    def validate(*_) -> dict:
        return dict(zip(("bleu", "nll"), next(scores), strict=True)) | {"perplexity": 2.0}

    def watched(run: tutorial.Run, model, entry: dict) -> None:
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        save(run, model, entry)

    monkeypatch.setattr(tutorial.Run, "validate", validate)
    monkeypatch.setattr(tutorial.Run, "save", watched)
    tutorial.train_model(dataclasses.replace(small_config, epochs=3, average=2), tmp_path)
    assert [entry["averaged"] for entry in log_of(tmp_path)] == [0, 0, 0, 2]
    for name, value in weights_of(tmp_path).items():
        expected = torch.stack([weights[epoch][name] for epoch in kept]).mean(0)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-7, msg=name)


class Running(torch.nn.Module):
    """A norm that divides by a running size, which is a buffer."""

    def __init__(self, features):
        super().__init__()
        self.register_buffer("size", torch.ones(features))

    def forward(self, x):
        if self.training:
            self.size.lerp_(x.detach().abs().mean(dim=(0, 1)), 0.1)
        return x / (self.size + 0.1)


def test_buffers_are_kept(small_config, tmp_path, monkeypatch):
    monkeypatch.setitem(tutorial.PARTS["norm"], "running", Running)
    tutorial.train_model(dataclasses.replace(small_config, norm="running", epochs=1), tmp_path)
    name = "encoder.layers.0.sublayer.0.norm.size"
    assert torch.equal(weights_of(tmp_path)[name], saved(tmp_path)["model"][name])
    assert not weights_of(tmp_path)[name].eq(1).any()


def test_a_training_that_diverges_is_not_saved(small_config, run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"diverged: the loss is .* --clip"):
        tutorial.train_model(dataclasses.replace(small_config, factor=1e30), tmp_path / "new")
    assert not (tmp_path / "new" / "last.pt").exists()
    before = contents(run)
    monkeypatch.setattr(tutorial.Run, "validate", lambda *_: {"bleu": 0.0, "nll": math.nan})
    with pytest.raises(UserError, match="diverged"):
        tutorial.train_model(None, run)
    assert contents(run) == before


@pytest.mark.parametrize("loads, percent", [(["0.42", "0.973"], [42, 97]), (["no answer"], [])])
def test_the_log_has_a_line_for_each_epoch(small_config, tmp_path, monkeypatch, loads, percent):
    """With the load of each GPU; a driver that fails gives words in the place of a number."""
    import pandas as pd

    def gpus() -> list:
        return [SimpleNamespace(load=float(load)) for load in loads]

    monkeypatch.setattr(GPUtil, "getGPUs", gpus)
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path)
    [row] = pd.read_json(tmp_path / "log.jsonl", lines=True).to_dict("records")
    assert row["gpu"] == percent
    assert row["epoch"] == 1
    for name in ("loss", "updates", "minutes", "tokens_per_second", "nll", "learning_rate"):
        assert row[name] > 0, name


# Files of others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [".profile", "Documents/letter.txt", ".config/app/settings.json"],
        ["settings.json", "keybindings.json"],
        ["config.json", "pytorch_model.bin"],
        ["last.pt", "log.jsonl", "thesis.tex"],
        ["words.json"],
        ["model.safetensors", "tokenizer.json"],
    ],
    ids=[
        "a home",
        "an editor's settings",
        "a model of another library",
        "names like ours",
        "words",
        "an export",
    ],
)
def test_a_folder_with_other_things_is_refused_and_not_touched(
    small_config, small_run, tmp_path, names
):
    home = tmp_path / "home"
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text('{"editor.fontSize": 14}')
    before = sorted(home.rglob("*")), contents(home)
    (tmp_path / "link").symlink_to(home)
    for folder in (home, tmp_path / "link"):
        with pytest.raises(UserError, match="use an empty folder"):
            tutorial.train_model(small_config, folder)
        with pytest.raises(UserError, match="use an empty folder"):
            tutorial.save_model(tutorial.load_trained_model(small_run), folder)
        assert (sorted(home.rglob("*")), contents(home)) == before


def test_pairs_that_do_not_fit_are_counted(small_config, tmp_path):
    pairs = [("a b", "c d")] * 50 + [("a " * 30, "b")] * 2
    corpus = tutorial.Corpus("toy", ("de", "en"), {"train": pairs, "val": pairs[:5]})
    config = dataclasses.replace(small_config, languages="de-en", max_len=16)
    with pytest.warns(UserWarning, match="2 training pairs are left out"):
        tutorial.begin_run(config, tmp_path / "run", corpus)


def test_the_mean_is_of_the_last_epochs_also_where_the_end_was_put_off(small_config, tmp_path):
    config = dataclasses.replace(small_config, epochs=3, average=2)
    for given, epochs, minutes in ((config, 3, 9), (None, 6, 1e-9), (None, 4, 9), (None, 6, 9)):
        tutorial.train_model(given, tmp_path, minutes, epochs=epochs)
    last = saved(tmp_path)
    for name, value in last["recent"][-1].items():
        assert torch.equal(value, last["model"][name])
    assert [entry["epoch"] for entry in last["history"] if entry["averaged"]] == [3, 6]


def test_a_place_where_no_folder_can_be_is_refused(small_config, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run", "/proc/run"):  # root too may not write the last
        with pytest.raises(UserError, match=re.escape(str(tmp_path / place))):
            tutorial.train_model(small_config, tmp_path / place)
    assert contents(tmp_path) == {"file": b"mine"}


def test_other_files_in_a_run_stay(run):
    mine = "notes.txt plots/loss.png .photo.jpg.part".split()
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    (run / ".last.pt.part").write_text("half a checkpoint")
    tutorial.train_model(None, run)
    assert all((run / name).read_text() == "mine" for name in mine)
    assert not (run / ".last.pt.part").exists()


@pytest.mark.parametrize(("left", "vocab_size"), [("words.json", None), ("tokenizer.json", 0)])
def test_a_vocabulary_of_a_killed_start_is_not_read(small_config, tmp_path, left, vocab_size):
    (tmp_path / left).write_text('{"source": [], "target": []}')
    (tmp_path / "train.ids").touch()  # which a run writes first
    share = None if vocab_size is None else False
    config = dataclasses.replace(small_config, vocab_size=vocab_size, share_embeddings=share)
    tutorial.train_model(dataclasses.replace(config, epochs=1), tmp_path)
    assert isinstance(
        tutorial.load_trained_model(tmp_path).vocabularies[0],
        tutorial.Subwords if vocab_size is None else tutorial.Vocabulary,
    )


def test_one_training_at_a_time(small_config, tmp_path):
    """The second one says who holds the folder, and changes nothing."""
    run = tmp_path / "run"
    with endless_training(small_config, run) as [process]:
        with pytest.raises(UserError, match=f"^{run} is in use by process {process.pid} on "):
            tutorial.train_model(small_config, run)
        assert process.is_alive()
    filelock.FileLock(run / ".lock").acquire(timeout=0)  # free again after its death
