"""The folder of a run: begun, resumed, taken further; what it keeps, and what is refused."""

import dataclasses
import json
import math
import random
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import filelock
import forks
import pytest
import torch
from conftest import assert_same_run, contents, log_of, saved
from safetensors.torch import load_file

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
def test_a_run_that_stopped_ends_like_one_that_did_not(run, whole, small_config, way):
    config = small_config if way == "train" else None
    assert tutorial.train_model(config, run, minutes=1e-9) == "finished"
    assert_same_run(run, whole)
    assert [entry["averaged"] for entry in log_of(run)] == [0, 0, 2]


class Sometimes(tutorial.PositionwiseFeedForward):
    """Rests in half of the training steps, by the random numbers of Python."""

    def forward(self, x):
        return 0 * x if self.training and random.random() < 0.5 else super().forward(x)


@pytest.fixture
def own_parts(monkeypatch):
    """An optimizer with a rate of its own, a schedule that needs an end, a part that draws."""

    def sgd(model, weight_decay):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def falling(step, size, factor, warmup, total):
        return factor * min(1, (total - step) / (total - warmup))

    monkeypatch.setitem(tutorial.OPTIMIZERS, "own", sgd)
    monkeypatch.setitem(tutorial.SCHEDULES, "own", falling)
    monkeypatch.setitem(
        tutorial.PARTS["feed_forward"], "own", lambda config: Sometimes(config.d_model, config.d_ff)
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"optimizer": "muon", "schedule": "stable_decay"},
        {"optimizer": "own", "schedule": "own", "feed_forward": "own"},
    ],
    ids=["muon", "own"],
)
def test_with_other_parts_too_a_run_that_stopped_ends_like_one_that_did_not(
    small_config, tmp_path, own_parts, parts
):
    config = dataclasses.replace(small_config, **parts)
    assert tutorial.train_model(config, tmp_path / "whole") == "finished"
    assert tutorial.train_model(config, tmp_path / "run", minutes=1e-9) == "stopped"
    while tutorial.train_model(None, tmp_path / "run", minutes=1e-9) != "finished":
        pass
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_whose_optimizer_is_not_known_any_more_says_so(
    small_config, tmp_path, own_parts, monkeypatch
):
    config = dataclasses.replace(small_config, optimizer="own")
    assert tutorial.train_model(config, tmp_path, minutes=1e-9) == "stopped"
    monkeypatch.delitem(tutorial.OPTIMIZERS, "own")
    with pytest.raises(UserError, match="optimizer 'own' is not among"):
        tutorial.train_model(None, tmp_path)


def test_a_finished_run_is_left_as_it_is(small_config, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = contents(run)
    assert tutorial.train_model(small_config, run) == "finished"
    with pytest.raises(UserError, match="2 epochs"):
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), run)
    for epochs, said in ((1, "2 epochs"), (0, "--epochs")):
        with pytest.raises(UserError, match=said):
            tutorial.train_model(None, run, epochs=epochs)
    assert contents(run) == before


def test_a_run_goes_further_by_train_or_by_resume(small_config, tmp_path, capsys):
    """It remembers the new number of epochs, and follows the new learning rate at once."""
    config = dataclasses.replace(small_config, schedule="linear", epochs=1, log_every=1)
    rates = []
    for name in ("trained", "resumed"):
        assert tutorial.train_model(config, tmp_path / name) == "finished"
    capsys.readouterr()
    longer = dataclasses.replace(config, epochs=3)
    assert tutorial.train_model(longer, tmp_path / "trained") == "finished"
    rates.append(re.findall(r"learning rate (\S+)", capsys.readouterr().out))
    assert tutorial.train_model(None, tmp_path / "resumed", minutes=1e-9, epochs=3) == "stopped"
    assert tutorial.train_model(None, tmp_path / "resumed") == "finished"
    rates.append(re.findall(r"learning rate (\S+)", capsys.readouterr().out))
    assert_same_run(tmp_path / "trained", tmp_path / "resumed")
    assert [entry["averaged"] for entry in log_of(tmp_path / "trained")] == [0, 0, 0, 3]
    assert rates[0] == rates[1] == sorted(rates[0], key=float, reverse=True)
    assert float(rates[0][0]) > 0 == float(rates[0][-1])


def test_other_settings_than_those_of_the_run_are_refused(small_config, run, tmp_path):
    before = contents(run)
    changes = {"d_model": 32, "norm_first": False, "warmup": 3, "seed": 2, "weight_decay": 0.1}
    for name, value in changes.items():
        with pytest.raises(UserError, match=f"{run} .*{name}.*{value}"):
            tutorial.train_model(dataclasses.replace(small_config, **{name: value}), run)
    assert contents(run) == before


def test_the_text_of_a_run_is_not_read_again_and_another_is_refused(
    small_config, tmp_path, monkeypatch
):
    text = Path(shutil.copytree(small_config.data, tmp_path / "one" / "text"))
    other = shutil.copytree(text, tmp_path / "two" / "text")
    run = tmp_path / "run"
    monkeypatch.chdir(tmp_path / "one")
    config = dataclasses.replace(small_config, data="text", epochs=1)
    tutorial.train_model(config, run)
    for place in (other, "multi30k"):
        with pytest.raises(UserError, match=f"{run} .*{text}"):
            tutorial.train_model(dataclasses.replace(config, data=str(place)), run)
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(UserError, match=f"{run} .*{text}"):
        tutorial.train_model(config, run)
    shutil.rmtree(text)
    assert tutorial.train_model(dataclasses.replace(config, data=str(text)), run) == "finished"
    assert tutorial.train_model(None, run) == "finished"


@pytest.mark.parametrize("schedule, epochs", [("linear", 3), ("linear", 1), ("inverse_sqrt", 3)])
def test_a_number_of_epochs_that_is_given_apart_counts_as_one_of_the_settings(
    small_config, tmp_path, schedule, epochs
):
    """Warm-up, height and decay of the learning rate are planned for so many."""
    config = dataclasses.replace(small_config, schedule=schedule, warmup=None, factor=None)
    config = dataclasses.replace(config, epochs=None)
    tutorial.train_model(config, tmp_path / "apart", epochs=epochs)
    tutorial.train_model(dataclasses.replace(config, epochs=epochs), tmp_path / "inside")
    assert_same_run(tmp_path / "apart", tmp_path / "inside")


@pytest.mark.parametrize("name, value", [("weight_decay", 1.0), ("factor", 1.0), ("dropout", 0.3)])
def test_an_edited_setting_acts_and_is_kept(run, whole, name, value):
    about = json.loads((run / "config.json").read_text())
    about["settings"][name] = value
    (run / "config.json").write_text(json.dumps(about))
    assert tutorial.train_model(None, run) == "finished"
    weight = "encoder.layers.0.self_attn.linears.0.weight"
    ours, theirs = (saved(folder)["model"][weight] for folder in (run, whole))
    assert not torch.allclose(ours, theirs, atol=1e-4)
    assert getattr(tutorial.settings_of(run), name) == value


def test_a_start_that_was_killed_leaves_nothing_that_is_read(small_config, tmp_path):
    (tmp_path / ".new").mkdir()
    for name in ("words.json", "train.ids"):
        (tmp_path / ".new" / name).write_text("half")
    for name in ("train.ids", "words.json"):  # had been moved already
        (tmp_path / name).write_text("half")
    config = dataclasses.replace(
        small_config, vocab_size=100, share_embeddings=True, max_len=64, epochs=1
    )
    assert tutorial.train_model(config, tmp_path) == "finished"
    [source, _] = tutorial.load_trained_model(tmp_path).vocabularies
    assert isinstance(source, tutorial.Subwords)
    assert not (tmp_path / ".new").exists()


@pytest.mark.parametrize(
    "corpus",
    [
        tutorial.Corpus("dates", ("de", "en"), tutorial.read_builtin().splits),
        dataclasses.replace(tutorial.read_builtin(), place="/a/folder"),
    ],
    ids=["in memory", "of a folder"],
)
def test_a_run_of_pairs_from_python_goes_on_with_them_and_with_no_others(
    small_config, tmp_path, monkeypatch, corpus
):
    """From wherever it is called; and the settings may name another text, which is not used."""
    corpus.splits["train"][60:] = []
    config = dataclasses.replace(small_config, data="some/place", max_len=64)
    for place in (tmp_path, tmp_path / "other"):
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        assert tutorial.train_model(config, tmp_path / "run", corpus=corpus) == "finished"
    others = [None, dataclasses.replace(corpus, name="times", place="")]
    for other in others:
        with pytest.raises(UserError, match=f"has data {corpus.place or 'dates'}"):
            tutorial.train_model(config, tmp_path / "run", corpus=other)
    assert tutorial.train_model(None, tmp_path / "run") == "finished"


@pytest.mark.parametrize("name", ["Builtin", "BUILTIN", "Multi30K"])
def test_a_known_corpus_may_be_written_in_capitals(small_config, tmp_path, monkeypatch, name):
    captions = dataclasses.replace(tutorial.read_builtin(), place="multi30k")
    monkeypatch.setattr(tutorial, "read_multi30k", lambda languages: captions)
    config = dataclasses.replace(small_config, data=name, max_len=64, epochs=1, batch_tokens=9000)
    for given in (config, dataclasses.replace(config, data=name.lower())):
        assert tutorial.train_model(given, tmp_path) == "finished"


# A model to start from --------------------------------------------------------------------------


def test_a_run_starts_with_the_weights_and_words_of_a_model(
    small_config, small_run, tmp_path, monkeypatch
):
    """It reads that model once, when it is prepared."""
    model = tmp_path / "model"
    tutorial.save_model(tutorial.load_trained_model(small_run), model)
    given = weights_of(model)
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(
        small_config, init_from="model", dropout=0.3, factor=1e-12, average=0
    )
    run = tmp_path / "run"
    pairs = tutorial.builtin_corpus()["test"]
    corpus = tutorial.Corpus("other", ("de", "en"), {"train": pairs[:20], "val": pairs[20:24]})
    run.mkdir()
    tutorial.prepare(config, run, corpus)
    assert (run / "words.json").read_bytes() == (small_run / "words.json").read_bytes()
    torch.testing.assert_close(saved(run)["model"], given, rtol=0, atol=0)
    shutil.rmtree(model)
    assert tutorial.train_model(config, run, corpus=corpus) == "finished"
    for name, value in weights_of(run).items():
        torch.testing.assert_close(value, given[name], rtol=0, atol=1e-6, msg=name)
    assert [entry["averaged"] for entry in log_of(run)] == [0, 0], "no mean was asked for"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"d_ff": 64}, "d_ff 32"),
        ({"vocab_size": 50, "share_embeddings": True}, "share_embeddings False"),
        ({"h": 4}, "h 2"),  # the weights would fit, as they do below
        ({"attention": "rotary"}, "attention plain"),
        ({"norm_first": False}, "norm_first True"),
        ({"languages": "en-de"}, "'de', 'en'"),
        ({"vocab_size": 300}, "vocab_size 0"),
    ],
    ids=str,
)
def test_a_model_that_does_not_fit_is_refused(small_config, small_run, tmp_path, change, message):
    config = dataclasses.replace(small_config, init_from=str(small_run), **change)
    with pytest.raises(UserError, match=f"{small_run}.*{message}"):
        tutorial.train_model(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_subwords_of_a_model_are_as_many_as_it_has(small_config, tmp_path):
    """Whoever asks for another number would get these, and not know it."""
    config = dataclasses.replace(small_config, vocab_size=70, share_embeddings=True)
    config = dataclasses.replace(config, max_len=64, epochs=1)
    tutorial.train_model(config, tmp_path / "model")
    [subwords, _] = tutorial.load_trained_model(tmp_path / "model").vocabularies
    config = dataclasses.replace(config, init_from=str(tmp_path / "model"))
    for size in (len(subwords), None):
        run = tmp_path / f"run-{size}"
        tutorial.train_model(dataclasses.replace(config, vocab_size=size), run)
        assert tutorial.read_vocabularies(run)[0].words == subwords.words
    with pytest.raises(UserError, match=f"model has vocab_size {len(subwords)}"):
        tutorial.train_model(dataclasses.replace(config, vocab_size=90), tmp_path / "other")


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

    def validate(run: tutorial.Run, model: torch.nn.Module) -> dict:
        weights.append({n: x.clone() for n, x in model.state_dict().items()})
        bleu, nll = next(scores)
        return {"bleu": bleu, "nll": nll, "perplexity": 2.0}

    monkeypatch.setattr(tutorial, "validate", validate)
    tutorial.train_model(dataclasses.replace(small_config, epochs=3, average=2), tmp_path)
    assert [entry["averaged"] for entry in log_of(tmp_path)] == [0, 0, 0, 2]
    for name, value in weights_of(tmp_path).items():
        expected = torch.stack([weights[epoch][name] for epoch in kept]).mean(0)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-7, msg=name)


def test_the_mean_is_of_the_last_epochs_also_where_the_end_was_put_off(small_config, tmp_path):
    config = dataclasses.replace(small_config, epochs=2, average=2)
    for given, epochs, minutes in (
        (config, 2, 9),
        (None, 3, 9),
        (None, 6, 1e-9),
        (None, 4, 9),
        (None, 6, 9),
    ):
        tutorial.train_model(given, tmp_path, minutes, epochs=epochs)
    last = saved(tmp_path)
    recent = [path.name for path in sorted(tmp_path.glob("epoch-*"))]
    assert recent == ["epoch-5.safetensors", "epoch-6.safetensors"]
    for name, value in load_file(tmp_path / recent[-1]).items():
        assert torch.equal(value, last["model"][name])
    means = [(entry["epoch"], entry["averaged"]) for entry in last["history"] if entry["averaged"]]
    assert means == [(2, 2), (3, 2), (6, 2)]


@pytest.mark.parametrize("epochs", [3, 9])
def test_a_run_whose_mean_was_best_goes_on_although_it_is_stopped_at_once(
    small_config, tmp_path, monkeypatch, epochs
):
    monkeypatch.setattr(tutorial, "quality", lambda entry: (entry["epoch"], entry["averaged"]))
    tutorial.train_model(dataclasses.replace(small_config, epochs=2, average=2), tmp_path)
    mean = weights_of(tmp_path)
    for _ in range(2):
        with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
            stopped.setattr(tutorial, "fit", Mock(side_effect=KeyboardInterrupt))
            tutorial.train_model(None, tmp_path, epochs=epochs)
        assert weights_of(tmp_path).keys() == mean.keys()
        for name, value in weights_of(tmp_path).items():
            assert torch.equal(value, mean[name]), name
    tutorial.train_model(None, tmp_path, epochs=epochs)
    means = [entry for entry in saved(tmp_path)["history"] if entry["averaged"]]
    assert [(entry["epoch"], entry["averaged"]) for entry in means] == [(2, 2), (epochs, 2)]


def test_buffers_are_kept(small_config, tmp_path, monkeypatch):
    monkeypatch.setitem(tutorial.PARTS["norm"], "running", forks.Running)
    tutorial.train_model(dataclasses.replace(small_config, norm="running", epochs=1), tmp_path)
    name = "encoder.layers.0.sublayer.0.norm.size"
    assert torch.equal(weights_of(tmp_path)[name], saved(tmp_path)["model"][name])
    assert not weights_of(tmp_path)[name].eq(1).any()


def test_a_part_may_keep_its_weights_in_any_order_of_memory(small_config, tmp_path, monkeypatch):
    class Turned(torch.nn.LayerNorm):
        def __init__(self, config):
            super().__init__(config.d_model)
            self.turned = torch.nn.Parameter(torch.randn(config.d_model, config.d_model).t())

        def forward(self, x):
            return super().forward(x @ self.turned)

    monkeypatch.setitem(tutorial.PARTS["norm"], "turned", Turned)
    config = dataclasses.replace(small_config, norm="turned", epochs=1)
    for epochs in (1, 2):
        tutorial.train_model(config, tmp_path, epochs=epochs)
    name = "encoder.norm.turned"
    last = load_file(tmp_path / "epoch-2.safetensors")[name]
    assert torch.equal(last, saved(tmp_path)["model"][name])


def test_a_training_that_diverges_is_not_saved(small_config, run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="diverged"):
        tutorial.train_model(dataclasses.replace(small_config, factor=1e30), tmp_path / "new")
    assert not saved(tmp_path / "new")["history"]
    before = contents(run)
    nan = {"bleu": 0.0, "nll": math.nan, "perplexity": math.nan}
    monkeypatch.setattr(tutorial, "validate", lambda *_: nan)
    with pytest.raises(UserError, match="diverged"):
        tutorial.train_model(None, run)
    assert contents(run) == before


# Files of others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [".profile", "Documents/letter.txt", ".config/app/settings.json"],  # a home
        ["config.json", "pytorch_model.bin"],  # a model of another library
        ["last.pt", "log.jsonl", "thesis.tex"],  # names like ours
        ["train.ids", "val.json", "tokenizer.json"],
        ["words.json"],
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
        with pytest.raises(UserError, match=str(folder)):
            tutorial.train_model(small_config, folder)
        with pytest.raises(UserError, match=str(folder)):
            tutorial.save_model(tutorial.load_trained_model(small_run), folder)
        assert (sorted(home.rglob("*")), contents(home)) == before


def test_other_files_in_a_run_stay(run):
    mine = "notes.txt plots/loss.png .photo.jpg.part epoch-best.safetensors".split()
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    (run / ".last.pt.part").write_text("half a checkpoint")
    tutorial.train_model(None, run)
    assert all((run / name).read_text() == "mine" for name in mine)
    assert not (run / ".last.pt.part").exists()


def test_a_place_where_no_folder_can_be_stays_as_it_is(small_config, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run", "/proc/run"):  # root too may not write the last
        with pytest.raises(UserError, match=re.escape(str(tmp_path / place))):
            tutorial.train_model(small_config, tmp_path / place)
    assert contents(tmp_path) == {"file": b"mine"}


def test_one_training_at_a_time(small_config, tmp_path):
    """The second one changes nothing."""
    run = tmp_path / "run"
    with forks.endless_training(small_config, run) as [process]:
        with pytest.raises(UserError, match=str(run)):
            tutorial.train_model(small_config, run)
        assert process.is_alive()
    filelock.FileLock(run / ".lock").acquire(timeout=0)  # free again after its death
