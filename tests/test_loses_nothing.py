"""Whatever happens to a training, what it had written stays, and it goes on from there."""

import dataclasses
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
from conftest import assert_same_run, contents, log_of, train_one_epoch
from forks import forked, results

import the_annotated_transformer as tutorial

LOCK = ".annotated-transformer.lock"
WRITTEN = "settings.json model.safetensors words.json config.json last.pt log.jsonl summary.json"
HALF = [f".{name}{tutorial.PART}" for name in WRITTEN.split()]
DEEDS = [  # whatever a training does to its folder
    *[("os.mkdir", "run"), ("open", LOCK), ("os.mkdir", "epoch")],
    *[(event, name) for name in HALF for event in ("open", "os.rename")],
    *[("os.remove", name) for name in ("config.json", "model.safetensors", "words.json")],
    ("os.rmdir", "epoch"),
]

# Kills ------------------------------------------------------------------------------------------


def kill(action: Callable, ranks: int, event: str, name: str) -> None:
    """Start the action in all ranks; the first one dies just before what it would do to a file.

    A file that is about to get its name is cut in half first, as if it were still being written.
    Log and summary are written when a run goes on, too: there it is the second time that counts.
    """
    times = []

    def watch(what: str, arguments: tuple) -> None:
        if what == event and re.sub(r"-\d+", "", Path(str(arguments[0])).name) == name:
            times.append(what)
            if len(times) == 1 + name.startswith((".log", ".summary")):
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
    whole, run = tmp_path / "whole", tmp_path / "killed"
    results(lambda: tutorial.train_model(config, whole), 3)
    kill(lambda: tutorial.train_model(config, run), 3, "open", f".log.jsonl{tutorial.PART}")
    assert len(log_of(run)) == 1, "killed after the second of four epochs"
    results(lambda: tutorial.train_model(config, run), 3)
    assert_same_run(run, whole)


# Damage -----------------------------------------------------------------------------------------


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "small.pt"
    tutorial.save_checkpoint(path, {"history": [7]})
    good = path.read_bytes()
    assert tutorial.load_checkpoint(path)["history"] == [7]
    damaged = [good[:length] for length in range(0, len(good), 7)]
    for place in random.Random(0).sample(range(8 * len(good)), 500):
        byte, bit = divmod(place, 8)
        damaged.append(good[:byte] + bytes([good[byte] ^ (1 << bit)]) + good[byte + 1 :])
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"small\.pt is damaged or no checkpoint: train anew"):
            tutorial.load_checkpoint(path)


class Malice:
    """A pickle that, where it is followed, makes a folder."""

    def __init__(self, place: Path):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_checkpoint_that_cannot_be_used_is_refused(small_config, whole, tmp_path):
    """Nothing is touched, nothing executed; without it the run begins anew."""
    run, last = Path(shutil.copytree(whole, tmp_path / "run")), tmp_path / "run" / "last.pt"
    good, malice = last.read_bytes(), Malice(tmp_path / "made by a pickle")
    tutorial.save_checkpoint(tmp_path / "code", {"code": malice})
    for bad, told in (
        (good[:-200], "is damaged or no checkpoint"),
        (pickle.dumps(malice), "is damaged or no checkpoint"),
        ((tmp_path / "code").read_bytes(), "holds more than tensors; none of it was loaded"),
        (b"annotated-transformer-1 " + good, ".*`make convert` one of the first edition"),
    ):
        last.write_bytes(bad)
        before = contents(run)
        with pytest.raises(ValueError, match=rf"last\.pt .*{told}"):
            tutorial.train_model(small_config, run)
        assert contents(run) == before and not Path(malice.place).exists()
    last.unlink()
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


def test_a_full_disk_leaves_the_old_checkpoint(small_config, whole, tmp_path):
    """Here a file may have 60,000 bytes, which is enough for the weights, and not for Adam's."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    before = (run / "last.pt").read_bytes()

    def train_where_little_fits():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        tutorial.train_model(small_config, run)

    with forked(train_where_little_fits) as [process]:
        process.join(60)
        told = re.escape("last.pt was not written (File too large; ")
        found = re.search(rf"OSError: .*{told}([\d,]+) bytes wanted\).*untouched", process.text())
        assert found and int(found[1].replace(",", "")) == pytest.approx(len(before), rel=0.01)
    assert (run / "last.pt").read_bytes() == before and not list(run.rglob("*.part"))
    assert (run / "epoch-002").exists()
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


# Files of others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [".profile", "Documents/letter.txt", ".config/app/settings.json"],
        ["settings.json", "keybindings.json"],
        [".photo.jpg.part", "epoch-001/photo.jpg", "log.jsonl"],
        ["last.pt/weights", "settings.json", ".lock"],
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
    assert contents(home) == before and not (home / LOCK).exists()


def test_a_place_where_no_folder_can_be(small_config, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/run", "/proc/run"):  # root too may not write the last
        with pytest.raises(OSError, match=place.strip("/").split("/")[0]):
            tutorial.train_model(small_config, tmp_path / place)
    assert contents(tmp_path) == {"file": b"mine"}


def test_other_files_in_a_run_stay(small_config, tmp_path):
    """Ours are the names that the program writes, and hidden ones that say whose they are."""
    run = tmp_path / "run"
    train_one_epoch(small_config, run)
    mine = ".last.pt.part .lock notes.txt .last.pt.4711 epoch-001/notes.txt epoch-999/photo".split()
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    half = run / f".last.pt{tutorial.PART}"
    half.write_text("half a checkpoint")
    tutorial.train_model(small_config, run)
    assert all((run / name).read_text() == "mine" for name in mine)
    assert not half.exists()


def test_the_last_epochs_and_the_best_are_kept(small_config, tmp_path, monkeypatch):
    bleu, run = iter([5.0, 9.0, 3.0, 4.0, 9.0, 2.0]), tmp_path / "run"
    kept = []

    def weights() -> list[int]:
        return sorted(int(path.parent.name[-3:]) for path in run.glob("epoch-*/model.safetensors"))

    def judge(*_) -> dict:
        kept.append(weights())
        if len(kept) == 2:
            (run / "epoch-001" / "notes.txt").write_text("mine")
        return {"nll": 1.0, "perplexity": 2.0, "bleu": next(bleu)}

    monkeypatch.setattr(tutorial, "validate", judge)
    tutorial.train_model(dataclasses.replace(small_config, keep=2, epochs=6), run)
    kept.append(weights())
    assert kept == [[], [1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [2, 5, 6]]
    assert contents(run / "epoch-001") == {"notes.txt": b"mine"}
    assert not (run / "epoch-003").exists()
    assert tutorial.read_summary(run)["best"] == "epoch-002", "the first of the best"


@pytest.mark.parametrize("name", ["thesis.txt", "last.pt", "config.json"])
def test_no_model_is_written_over_files_of_others(small_run, tmp_path, name):
    """A thesis, a run, a model of another library."""
    (tmp_path / name).write_text('{"architectures": ["BertModel"]}')
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds other things than a model: name an empty folder"):
        tutorial.save_model(tutorial.load_trained_model(small_run), tmp_path)
    assert contents(tmp_path) == before


def test_one_training_at_a_time(small_config, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = contents(run)
    with (
        filelock.FileLock(run / LOCK, is_singleton=False),
        pytest.raises(ValueError, match=f"another training works in {run}: name another"),
    ):
        tutorial.train_model(small_config, run)
    assert contents(run) == before
    assert tutorial.train_model(small_config, run) == "finished"
    filelock.FileLock(run / LOCK).acquire(timeout=0)  # free again after the end
