"""Whatever happens to a training, what it had written stays, and it goes on from there."""

import contextlib
import dataclasses
import errno
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import psutil
import pytest
import torch
from conftest import PROJECT, assert_same_training, saved, scores

import the_annotated_transformer as tutorial

WORKER = str(PROJECT / "tests" / "kill_worker.py")
TORCHRUN = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node".split()]
FILES = ["model.safetensors", "words.json", "config.json", "last.pt", "log.jsonl", "summary.json"]
pytestmark = pytest.mark.usefixtures("on_the_cpu")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock, which has no content."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_run(one: Path, other: Path) -> None:
    """The same training, log and weights of epochs; and nothing half-written."""
    assert_same_training(saved(one), saved(other))
    files = contents(one), contents(other)
    assert files[0].keys() == files[1].keys()
    assert not [name for name in files[0] if name.endswith(".part")]
    for name in files[0]:
        if name.endswith((".safetensors", "words.json")):
            assert files[0][name] == files[1][name], name
    for run in (one, other):
        assert scores(log_of(run)) == scores(saved(one)["history"])
    summaries = [tutorial.read_summary(run) for run in (one, other)]
    for name in ("status", "best", "validation_bleu", "corpus", "parameters", "settings"):
        assert summaries[0][name] == summaries[1][name]


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(small_config, uninterrupted, tmp_path_factory) -> Path:
    """The folder of a run of two epochs that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tutorial, "choose_device", lambda: torch.device("cpu"))
        patch.setattr(tutorial, "gains_from_bf16", lambda device: False)
        tutorial.train_model(small_config, folder)
    assert_same_training(saved(folder), uninterrupted)
    return folder


# Damage -----------------------------------------------------------------------------------------


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "small.pt"
    tutorial.save_checkpoint(path, {"weights": torch.arange(9.0), "history": [7]})
    good = path.read_bytes()
    assert tutorial.load_checkpoint(path)["history"] == [7]
    damaged = [good[:length] for length in range(len(good))]
    for place in random.Random(0).sample(range(8 * len(good)), 4000):
        byte, bit = divmod(place, 8)
        damaged.append(good[:byte] + bytes([good[byte] ^ (1 << bit)]) + good[byte + 1 :])
    for number, bad in enumerate(damaged):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"small\.pt is damaged or no checkpoint"):
            tutorial.load_checkpoint(path)
            pytest.fail(f"damage {number} was not noticed")


class Malice:
    """A pickle that, where it is followed, makes a folder."""

    def __init__(self, place: Path):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.mark.parametrize(
    "damage, told",
    [
        ("cut", "is damaged or no checkpoint: train anew, in another folder"),
        ("flipped", "is damaged or no checkpoint"),
        ("empty", "is damaged or no checkpoint"),
        ("code", "holds more than tensors; none of it was loaded"),
        ("plain pickle", "is damaged or no checkpoint"),
        ("first edition", "first edition and cannot be resumed: `python tools/convert.py`"),
        ("other tensors", "is damaged or no checkpoint"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_refused(small_config, whole, tmp_path, damage, told):
    """Nothing is touched, nothing executed; without it the run begins anew."""
    run, buffer = Path(shutil.copytree(whole, tmp_path / "run")), io.BytesIO()
    good, malice = (run / "last.pt").read_bytes(), Malice(tmp_path / "made by a pickle")
    torch.save({"weights": torch.ones(3)}, buffer)
    bad = {
        "cut": good[:-200],
        "flipped": good[:999] + bytes([good[999] ^ 255]) + good[1000:],
        "empty": b"",
        "plain pickle": pickle.dumps(malice),
        "first edition": b"annotated-transformer-1 " + good,
    }
    (run / "last.pt").write_bytes(bad.get(damage, buffer.getvalue()))
    if damage == "code":
        tutorial.save_checkpoint(run / "last.pt", {"code": malice})
    before = contents(run)
    with pytest.raises(ValueError, match=r"last\.pt") as caught:
        tutorial.train_model(small_config, run)
    assert told in str(caught.value)
    assert contents(run) == before and not Path(malice.place).exists()
    (run / "last.pt").unlink()
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_run(run, whole)


# Accidents --------------------------------------------------------------------------------------


class Killed(BaseException):
    """In the place of SIGKILL, for a test in one process."""


@pytest.mark.parametrize("accident", ["half", "named", "full"])
def test_an_accident_at_any_file(small_config, whole, tmp_path, monkeypatch, accident):
    """Killed in the midst of each write, or just after it; or the disk is full, then free again."""
    replace = os.replace
    for number in range(1 + 2 * len(FILES)):
        run, named = tmp_path / f"run-{number}", []

        def failing(beside, target, named=named, number=number):
            named.append(Path(target).name)
            if len(named) <= number:
                return replace(beside, target)
            if accident == "full":
                raise OSError(errno.ENOSPC, "No space left on device")
            if accident == "half":
                os.truncate(beside, os.path.getsize(beside) // 2)
            else:
                replace(beside, target)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            with pytest.raises((Killed, OSError)) as caught:
                tutorial.train_model(small_config, run)
        assert len(named) == number + 1
        if accident == "full":
            told = f"{named[-1]} was not written (No space left on device; "
            assert told in str(caught.value) and "untouched" in str(caught.value)
            assert not list(run.rglob("*.part")), "no half file stays"
        assert tutorial.train_model(small_config, run) == "finished", named[-1]
        assert_same_run(run, whole)


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Files may have 20,000 bytes; a process that writes more gets an error.

    As short as possible, since the limit holds for pytest too, whose log may be longer already.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path):
    path = tmp_path / "model.pt"
    tutorial.save_checkpoint(path, {"weights": torch.ones(10)})
    before = path.read_bytes()
    with pytest.raises(OSError, match="not written") as caught, small_files():
        tutorial.save_checkpoint(path, {"history": [], "weights": torch.ones(10_000)})
    told = str(caught.value)
    assert str(path) in told and "File too large" in told and "untouched" in told
    wanted = int(told.split(" bytes wanted")[0].rpartition(" ")[2].replace(",", ""))
    assert 40_000 < wanted < 44_000
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["model.pt"]


# Files of others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [".bashrc.2024-backup"],
        [".profile", "Documents/letter.txt", ".config/app/settings.json"],
        ["settings.json", "keybindings.json"],
        [".vscode", "epoch-001/photo.jpg", "log.jsonl"],
        [".photo.jpg.part"],
    ],
    ids=["a hidden file", "a home", "an editor's settings", "names like ours", "half a photo"],
)
@pytest.mark.parametrize("linked", [False, True], ids=["", "by a link"])
def test_a_folder_that_is_no_run_is_refused(small_config, tmp_path, names, linked):
    home = tmp_path / "home"
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text('{"editor.fontSize": 14}')
    before = contents(home)
    (tmp_path / "link").symlink_to(home)
    with pytest.raises(ValueError, match="and is no run: name an empty folder"):
        tutorial.train_model(small_config, tmp_path / "link" if linked else home)
    assert contents(home) == before and not (home / ".lock").exists()


def test_a_place_where_no_folder_can_be(small_config, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for place in ("file", "broken", "file/run", "/proc/run"):  # root too may not write the last
        with pytest.raises(OSError, match=place.strip("/").split("/")[0]):
            tutorial.train_model(small_config, tmp_path / place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_other_files_in_a_run_stay(small_config, whole, tmp_path):
    """Ours are the names that the program writes, and `.NAME.part` for each of them."""
    run = tmp_path / "run"
    tutorial.train_model(dataclasses.replace(small_config, epochs=1, warmup=1), run)
    mine = [".notes.part", "notes.txt", ".last.pt.4711", "epoch-001/notes.txt", "epoch-999/photo"]
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    (run / ".last.pt.part").write_text("half a checkpoint")
    tutorial.train_model(dataclasses.replace(small_config, warmup=1), run)
    assert all((run / name).read_text() == "mine" for name in mine)
    assert not (run / ".last.pt.part").exists()


def test_the_last_epochs_and_the_best_are_kept(small_config, tmp_path, monkeypatch):
    bleu, run = iter([5.0, 9.0, 3.0, 4.0, 9.0, 2.0]), tmp_path / "run"
    names = []

    def judge(*_) -> dict:
        names.append(sorted(path.name for path in run.glob("epoch-*/model.safetensors")))
        if len(names) == 2:
            (run / "epoch-001" / "notes.txt").write_text("mine")
        return {"nll": 1.0, "perplexity": 2.0, "bleu": next(bleu)}

    monkeypatch.setattr(tutorial, "validate", judge)
    tutorial.train_model(dataclasses.replace(small_config, keep=2, epochs=6), run)
    kept = sorted(path.parent.name for path in run.glob("epoch-*/model.safetensors"))
    assert kept == ["epoch-002", "epoch-005", "epoch-006"]
    assert [len(found) for found in names] == [0, 1, 2, 2, 3, 3]
    assert contents(run / "epoch-001") == {"notes.txt": b"mine"}
    assert not (run / "epoch-003").exists()
    assert tutorial.read_summary(run)["best"] == "epoch-002", "the first of the best"


@pytest.mark.parametrize(
    "names",
    [
        ["thesis.txt"],
        ["settings.json", "last.pt"],
        ["config.json", "model.safetensors", "tokenizer.json"],
    ],
    ids=["a thesis", "a run", "another library's model"],
)
def test_no_model_is_written_over_files_of_others(small_run, tmp_path, names):
    for name in names:
        (tmp_path / name).write_text('{"architectures": ["BertModel"]}')
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds other things than a model: name an empty folder"):
        tutorial.save_model(tutorial.load_trained_model(small_run), tmp_path)
    assert contents(tmp_path) == before


def test_one_training_at_a_time(small_config, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before, more = contents(run), dataclasses.replace(small_config, epochs=3)
    with (
        filelock.FileLock(run / ".lock", is_singleton=False),
        pytest.raises(ValueError, match=f"another training works in {run}: name another"),
    ):
        tutorial.train_model(more, run)
    assert contents(run) == before
    assert tutorial.train_model(small_config, run) == "finished"
    with filelock.FileLock(run / ".lock").acquire(timeout=0):
        pass  # free again after the end


# Real kills -------------------------------------------------------------------------------------


def command_for(ranks: int) -> list[str]:
    return [sys.executable, WORKER] if ranks == 1 else [*TORCHRUN, str(ranks), "--", WORKER]


def run_to_the_end(ranks: int, *arguments: object) -> None:
    command = [*command_for(ranks), *map(str, arguments)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def wait_for(condition, process: subprocess.Popen, seconds: float = 120) -> None:
    """Return as soon as the condition holds; the process must live till then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"it ended before: {process.communicate()}"
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.003)


def epochs_in(folder: Path) -> int:
    log = folder / "log.jsonl"
    return log.read_text().count("\n") if log.is_file() else 0


def kill_everything(process: subprocess.Popen) -> None:
    """SIGKILL for a process and all that it has started, at once."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=30)
    process.wait()


@contextlib.contextmanager
def started(command: list[str], **options) -> Iterator[subprocess.Popen]:
    """A process that does not outlive the test."""
    options = {"cwd": PROJECT, "text": True} | options
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_everything(process)
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_kills_change_nothing(small_corpus, tmp_path, ranks):
    """At random moments, while it starts, and while it writes each of its files."""
    rng, epochs = random.Random(ranks), 100
    run_to_the_end(ranks, small_corpus, tmp_path / "whole", epochs)
    folder = tmp_path / "killed"
    for kill in range(20):
        command = [*command_for(ranks), str(small_corpus), str(folder), str(epochs)]
        marker, before = tmp_path / f"marker-{kill}", epochs_in(folder)
        if kill % 2:
            stage, name = ("half", "named")[kill // 2 % 2], FILES[kill // 2 % len(FILES)]
            command += [stage, name, str(rng.randint(1, 5)), str(marker)]
        with started(command) as process:
            if kill % 2:
                wait_for(marker.exists, process)
            elif kill in (4, 12):
                time.sleep(rng.uniform(0.0, 4.0))
            else:
                wait_for(lambda before=before: epochs_in(folder) > before, process)
                time.sleep(rng.uniform(0.0, 0.3))
            assert process.poll() is None, "the training ended before it was killed"
            kill_everything(process)
    assert 15 < epochs_in(folder) < epochs
    run_to_the_end(ranks, small_corpus, folder, epochs)
    assert_same_run(folder, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_ranks_go_on_bit_for_bit(small_corpus, tmp_path):
    """A sum of three depends on its order, and so on how gradients lie in DDP's buckets."""
    run_to_the_end(3, small_corpus, tmp_path / "whole", 8)
    folder, marker = tmp_path / "killed", tmp_path / "marker"
    accident = ["named", "summary.json", "5", str(marker)]
    with started([*command_for(3), str(small_corpus), str(folder), "8", *accident]) as process:
        wait_for(marker.exists, process)
        kill_everything(process)
    run_to_the_end(3, small_corpus, folder, 8)
    assert_same_run(folder, tmp_path / "whole")


# Several machines, and the death of a rank ------------------------------------------------------


def kill_rank(process: subprocess.Popen, victim: int) -> None:
    """SIGKILL for one rank of what torchrun has started."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.environ().get("RANK") == str(victim):
            child.kill()
            return
    raise AssertionError(f"no rank {victim}")


@pytest.mark.slow
def test_ranks_that_read_other_texts_are_refused(small_corpus, tmp_path):
    for rank in range(2):
        shutil.copytree(small_corpus, tmp_path / f"corpus-{rank}")
    path = tmp_path / "corpus-1" / "train.en"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")  # the same words
    command = [*command_for(2), str(tmp_path / "corpus-RANK"), str(tmp_path / "run"), "1"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "the first rank has read another text" in done.stderr
    assert not (tmp_path / "run" / "last.pt").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_ends_the_run_with_a_clear_message(small_corpus, tmp_path, victim):
    folder = tmp_path / "run"
    with started([*command_for(2), str(small_corpus), str(folder), "100000"]) as process:
        wait_for((folder / "last.pt").exists, process)
        kill_rank(process, victim)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    told = f"rank {1 - victim} of 2 has lost another one, which died or could not be reached"
    assert f"{told}: the same command goes on from the last epoch" in err, err[-3000:]
    run_to_the_end(2, small_corpus, folder, len(saved(folder)["history"]) + 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_machines_train_like_one(small_corpus, tmp_path):
    """Only the first one writes, and it alone reads; the second one needs no disk in common."""
    run_to_the_end(2, small_corpus, tmp_path / "whole", 6)
    for epochs in ("3", "6"):
        with socket.socket() as free, contextlib.ExitStack() as stack:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            agents = []
            for number in range(2):
                (tmp_path / f"machine-{number}").mkdir(exist_ok=True)
                meeting = f"--node-rank {number} --master-addr 127.0.0.1 --master-port {port}"
                nodes = f"-m torch.distributed.run --nnodes 2 --nproc-per-node 1 {meeting}".split()
                command = [sys.executable, *nodes, "--", WORKER, str(small_corpus), "run", epochs]
                agents.append(
                    stack.enter_context(started(command, cwd=tmp_path / f"machine-{number}"))
                )
            errors = [agent.communicate(timeout=200)[1] for agent in agents]
            assert [agent.returncode for agent in agents] == [0, 0], errors
        assert not (tmp_path / "machine-1" / "run").exists()
    ours, theirs = tmp_path / "machine-0" / "run", tmp_path / "whole"
    assert_same_training(saved(ours), saved(theirs))
