"""Whatever happens to a training, what it had written stays, and it goes on from there."""

import contextlib
import dataclasses
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
import torch
from conftest import assert_same_run, contents, log_of, train_one_epoch
from forks import forked, results
from torch import nn

import the_annotated_transformer as tutorial

LOCK = ".lock"
WRITTEN = "run.json model.safetensors words.json config.json checkpoint.pt"
HALF = [f".{name}.part" for name in WRITTEN.split()]
DEEDS = [  # whatever a training does to its folder
    *[("os.mkdir", "run"), ("open", LOCK), ("os.mkdir", "epoch")],
    *[(event, name) for name in HALF for event in ("open", "os.rename")],
    ("os.remove", "checkpoint.pt"),
    *[("os.remove", name) for name in ("config.json", "model.safetensors", "words.json")],
    ("os.rmdir", "epoch"),
]

# Kills ------------------------------------------------------------------------------------------


def kill(action: Callable, ranks: int, event: str, name: str) -> None:
    """Start the action in all ranks; the first one dies just before what it would do to a file.

    A file that is about to get its name is cut in half first, as if it were still being written.
    `run.json` is written when a run begins, too: there it is the second time that counts.
    """
    times = []

    def watch(what: str, arguments: tuple) -> None:
        if what == event and re.sub(r"-\d+", "", Path(str(arguments[0])).name) == name:
            times.append(what)
            if len(times) == 1 + name.startswith(".run"):
                if event == "os.rename":
                    os.truncate(arguments[0], os.path.getsize(arguments[0]) // 2)
                os.kill(os.getpid(), signal.SIGKILL)

    def watched_action():
        if os.environ["RANK"] == "0":
            sys.addaudithook(watch)
        return action()

    with forked(watched_action, ranks) as processes:
        processes[0].join(60)
        assert processes[0].exitcode == -signal.SIGKILL, processes[0].text()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_anywhere_a_run_ends_like_one_that_was_not(small_config, small_run, tmp_path, ranks):
    """Killed again and again, before each thing that a training does to its folder.

    Between two of them nothing on the disk changes, and the first rank alone writes: so these are
    all states from which a run may have to go on.
    """
    config = dataclasses.replace(small_config, epochs=15)
    results(lambda: tutorial.train_model(config, tmp_path / "whole" / "run"), ranks)
    run = tmp_path / "killed" / "run"
    for event, name in DEEDS:
        kill(lambda: tutorial.train_model(config, run), ranks, event, name)
    assert 0 < len(log_of(run)) < 15
    results(lambda: tutorial.train_model(config, run), ranks)
    assert_same_run(run, tmp_path / "whole" / "run")


def test_three_ranks_go_on_bit_for_bit(small_config, small_run, tmp_path):
    """A sum of three depends on its order, and so on how DDP arranges the gradients."""
    config = dataclasses.replace(small_config, epochs=4)
    whole = tmp_path / "whole"
    run = tmp_path / "killed"
    results(lambda: tutorial.train_model(config, whole), 3)
    kill(lambda: tutorial.train_model(config, run), 3, "os.remove", "checkpoint.pt")
    assert len(log_of(run)) == 2, "killed after the second of four epochs"
    results(lambda: tutorial.train_model(config, run), 3)
    assert_same_run(run, whole)


# Damage -----------------------------------------------------------------------------------------


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path):
    path = tutorial.checkpoint_of(tmp_path, [])
    tutorial.save_checkpoint(path, {"model": nn.Linear(3, 2)})
    tutorial.write_summed(tmp_path / "run.json", {"epochs": 7}, [path.name])
    result = tutorial.load_checkpoint(tmp_path, [])["model"].keys()
    assert result == {"weight", "bias"}

    whole = tutorial.read_summed(tmp_path / "run.json")
    for name in (path.name, "run.json"):
        good = (tmp_path / name).read_bytes()
        damaged = [good[:length] for length in range(0, len(good), 7)]
        for place in random.Random(0).sample(range(8 * len(good)), 500):
            byte, bit = divmod(place, 8)
            damaged.append(good[:byte] + bytes([good[byte] ^ (1 << bit)]) + good[byte + 1 :])
        for bad in damaged:
            (tmp_path / name).write_bytes(bad)
            with contextlib.suppress(ValueError, TypeError, OSError):
                content, sums = tutorial.read_summed(tmp_path / "run.json")
                tutorial.check_sums(tmp_path, sums)
                assert name == "run.json" and (content, sums) == whole, "another blank, at most"
        (tmp_path / name).write_bytes(good)


class Malice:
    """A pickle that, where it is followed, makes a folder."""

    def __init__(self, place: Path):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_checkpoint_that_cannot_be_used_is_refused(small_config, whole, tmp_path):
    """Nothing is touched, nothing executed."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    last = run / "checkpoint-002.pt"
    good = last.read_bytes()
    malice = Malice(tmp_path / "made by a pickle")
    for bad, told in (
        (good[:-200], "is missing, damaged, or more than tensors: train anew in another folder"),
        (pickle.dumps(malice), "is missing, damaged, or more than tensors"),
        (None, "is missing, damaged"),
    ):
        last.unlink()
        if bad is not None:
            last.write_bytes(bad)
        before = contents(run)
        with pytest.raises(ValueError, match=rf"checkpoint-002\.pt {told}"):
            tutorial.train_model(small_config, run)
        assert contents(run) == before
        assert not Path(malice.place).exists()
        last.write_bytes(good)
    last.write_bytes(pickle.dumps(malice))  # and somebody has mended the sum
    content, _ = tutorial.read_summed(run / "run.json")
    tutorial.write_summed(run / "run.json", content, [last.name])
    with pytest.raises(ValueError, match="or more than tensors: train anew"):
        tutorial.train_model(small_config, run)
    assert not Path(malice.place).exists()


def without_room(action: Callable, size: int) -> Callable:
    """The action where no file may have more bytes."""

    def act():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return action()

    return act


def test_a_full_disk_leaves_the_old_checkpoint(small_config, whole, tmp_path):
    """Here a file may have 60,000 bytes, which is enough for the weights, and not for Adam's."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    before = (run / "checkpoint-001.pt").read_bytes()
    with forked(without_room(lambda: tutorial.train_model(small_config, run), 60_000)) as [process]:
        process.join(60)
        assert re.search(
            r"checkpoint-002\.pt was not written \(.*File too large.*\)", process.text()
        )
    assert (run / "checkpoint-001.pt").read_bytes() == before
    assert not list(run.rglob("*.part"))
    assert (run / "epoch-002").exists()
    assert len(log_of(run)) == 1
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


# A corpus on disk -------------------------------------------------------------------------------

ENCODED = [".words.json.part", ".train.ids.part", ".train.lengths.part", ".corpus.json.part"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A place for encoded corpora that is still empty."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs" / "ids"


def test_killed_while_it_encodes_it_encodes_again(small_config, whole, tmp_path, elsewhere):
    run = tmp_path / "run"
    for name in ENCODED:
        for event in ("open", "os.rename"):
            kill(lambda: tutorial.train_model(small_config, run), 1, event, name)
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)
    [folder] = elsewhere.iterdir()
    assert not list(folder.glob("*.part"))
    assert len(list(folder.iterdir())) == 6  # its lock and who held it among them


def test_a_full_disk_is_told_and_leaves_no_half_corpus(small_config, whole, tmp_path, elsewhere):
    run = tmp_path / "run"
    with forked(without_room(lambda: tutorial.train_model(small_config, run), 4000)) as [process]:
        process.join(60)
        assert re.search(r"(ids|json) was not written \(.*File too large.*\)", process.text())
    assert not list(elsewhere.rglob("*.part"))
    assert not list(elsewhere.rglob("corpus.json"))
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


def test_one_process_encodes_and_the_others_wait(small_config, tmp_path, elsewhere, monkeypatch):
    """Each rank says how often it has encoded something."""
    calls = []
    encode_pairs = tutorial.encode_pairs

    def slowly(*arguments):
        calls.append(1)
        time.sleep(1)
        return encode_pairs(*arguments)

    monkeypatch.setattr(tutorial, "encode_pairs", slowly)

    def train() -> int:
        tutorial.train_model(dataclasses.replace(small_config, epochs=1), tmp_path / "run")
        return len(calls)

    with forked(train, 3) as processes:
        for process in processes:
            process.join(60)
        answers = [torch.load(process.answer) for process in processes]
    assert sum(answers) == 1 + 3 + 1, "the training split once; the other by all, then to judge"


# Files of others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [".profile", "Documents/letter.txt", ".config/app/settings.json"],
        ["settings.json", "keybindings.json"],
        [".photo.jpg.part", "epoch-001/photo.jpg", "log.jsonl"],
        ["checkpoint-001.pt", "run.json/settings"],
    ],
    ids=["a home", "an editor's settings", "names like ours", "a folder as a name"],
)
def test_a_folder_that_is_no_run_is_refused(small_config, tmp_path, names):
    home = tmp_path / "home"
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text('{"editor.fontSize": 14}')
    before = contents(home)
    (tmp_path / "link").symlink_to(home)
    for folder in (home, tmp_path / "link"):
        with pytest.raises(ValueError, match="and is no run: name an empty folder"):
            tutorial.train_model(small_config, folder)
    assert contents(home) == before
    assert not (home / LOCK).exists()


def test_a_place_where_no_folder_can_be(small_config, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run", "/proc/run"):  # root too may not write the last
        with pytest.raises((OSError, ValueError), match=place.strip("/").split("/")[0]):
            tutorial.train_model(small_config, tmp_path / place)
    with pytest.raises(ValueError, match="file is a file: name a folder"):
        tutorial.train_model(small_config, tmp_path / "file")
    assert contents(tmp_path) == {"file": b"mine"}


def test_other_files_in_a_run_stay(small_config, tmp_path):
    """Ours are the names that the program writes."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    mine = "notes.txt epoch-001/notes.txt epoch-999/photo .photo.jpg.part".split()
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    half = run / ".checkpoint-002.pt.part"
    half.write_text("half a checkpoint")
    tutorial.train_model(small_config, run)
    assert all((run / name).read_text() == "mine" for name in mine)
    assert not half.exists()


def test_the_last_epochs_and_the_best_are_kept(small_config, tmp_path, monkeypatch):
    bleu = iter([5.0, 9.0, 3.0, 4.0, 9.0, 2.0])
    run = tmp_path / "run"
    kept = []

    def weights() -> list[int]:
        return sorted(int(path.parent.name[-3:]) for path in run.glob("epoch-*/model.safetensors"))

    def judge(*_) -> dict:
        kept.append(weights())
        if len(kept) == 2:
            (run / "epoch-001" / "notes.txt").write_text("mine")
        return {"nll": 1.0, "perplexity": 2.0, "BLEU": next(bleu)}

    monkeypatch.setattr(tutorial, "validate", judge)
    tutorial.train_model(dataclasses.replace(small_config, keep=2, epochs=6), run)
    kept.append(weights())
    expected = [[], [1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [2, 5, 6]]
    assert kept == expected
    assert contents(run / "epoch-001") == {"notes.txt": b"mine"}
    assert not (run / "epoch-003").exists()
    assert tutorial.read_run(run).best() == "epoch-002", "the first of the best"
    result = [path.name for path in run.glob("*.pt")]
    assert result == ["checkpoint-006.pt"]


@pytest.mark.parametrize("name", ["thesis.txt", "checkpoint-001.pt", "config.json"])
def test_no_model_is_written_over_files_of_others(small_run, tmp_path, name):
    """A thesis, a run, a model of another library."""
    (tmp_path / name).write_text('{"architectures": ["BertModel"]}')
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"is no model: name an empty folder|of another program"):
        tutorial.save_model(tutorial.load_trained_model(small_run), tmp_path)
    assert contents(tmp_path) == before


def test_one_training_at_a_time(small_config, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = contents(run)
    told = f"^{run} is held by process {os.getpid()}: stop it$"
    with tutorial.locked(run, 0.0), pytest.raises(ValueError, match=told):
        tutorial.train_model(small_config, run)
    assert contents(run) == before
    assert tutorial.train_model(small_config, run) == "finished"
    filelock.FileLock(run / LOCK).acquire(timeout=0)  # free again after the end
