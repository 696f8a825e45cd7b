"""Whatever happens to a training, what it had written stays, and it goes on from there."""

import contextlib
import dataclasses
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from conftest import PROJECT, assert_same_training, saved

import the_annotated_transformer as tutorial

WORKER = str(PROJECT / "tests" / "kill_worker.py")
TORCHRUN = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]
pytestmark = pytest.mark.usefixtures("on_the_cpu")


# Files ------------------------------------------------------------------------------------------


def every_damage(good: bytes, rng: random.Random) -> list[bytes]:
    """A file cut at every byte, with every bit of its beginning flipped, and many of the rest."""
    cuts = [good[:length] for length in range(len(good))]
    places = [*range(8 * 120), *(rng.randrange(8 * len(good)) for _ in range(6000))]
    flipped = []
    for place in places:
        byte, bit = divmod(place, 8)
        flipped.append(good[:byte] + bytes([good[byte] ^ (1 << bit)]) + good[byte + 1 :])
    return cuts + flipped


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "small.pt"
    tutorial.save_checkpoint(path, {"weights": torch.arange(9.0), "step": 7})
    good = path.read_bytes()
    assert tutorial.load_checkpoint(path)["step"] == 7
    for number, bad in enumerate(every_damage(good, random.Random(0))):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"small\.pt (is damaged|is not a checkpoint)"):
            tutorial.load_checkpoint(path)
            pytest.fail(f"damage {number} was not noticed")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    small_config, uninterrupted, tmp_path, damage
):
    run = tmp_path / "run"
    one = dataclasses.replace(small_config, epochs=1)
    tutorial.train_model(dataclasses.replace(one, epochs=2), run)
    last, good = run / "last.pt", (run / "last.pt").read_bytes()
    bad = {"cut": good[:-200], "empty": b"", "flipped": good[:999] + b"\0\xff" + good[1001:]}
    last.write_bytes(bad[damage])
    with pytest.warns(UserWarning, match=r"last\.pt is .*: going on from previous\.pt instead"):
        assert tutorial.train_model(small_config, run) == "finished"
    assert_same_training(saved(run), uninterrupted)
    assert (run / "last.damaged").read_bytes() == bad[damage], "kept for whoever wants to look"
    epochs = [e["epoch"] for e in tutorial.read_log(run) if e["kind"] == "validation"]
    assert epochs == [1, 2], "what was done again stands in the log once"


def test_two_damaged_checkpoints_are_an_error_and_nothing_is_lost(small_config, tmp_path):
    run = tmp_path / "run"
    tutorial.train_model(small_config, run)
    for name in ("last.pt", "previous.pt"):
        (run / name).write_bytes((run / name).read_bytes()[:-7])
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with (
        pytest.warns(UserWarning, match=r"last\.pt is damaged"),
        pytest.raises(ValueError, match=r"previous\.pt is damaged"),
    ):
        tutorial.train_model(small_config, run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_checkpoints_inside_an_epoch_change_nothing(
    small_config, uninterrupted, tmp_path, monkeypatch
):
    monkeypatch.setattr(tutorial, "SAVE_EVERY", 2)
    written, save = [], tutorial.save_checkpoint

    def counted(path, content):
        written.append((path.name, content["state"]["position"]))
        save(path, content)

    monkeypatch.setattr(tutorial, "save_checkpoint", counted)
    tutorial.train_model(small_config, tmp_path / "run")
    assert_same_training(saved(tmp_path / "run"), uninterrupted)
    inside = [position for name, position in written if name == "next.pt"]
    epoch = uninterrupted["state"]["step"] // 2
    assert inside == [*range(2, epoch, 2), 0] * 2


# Files of others --------------------------------------------------------------------------------


def test_no_file_of_others_is_touched(small_config, tmp_path):
    """A folder that is no run is refused; in a run's folder only our half-written files go."""
    home, run = tmp_path / "home", tmp_path / "run"
    home.mkdir()
    (home / ".bashrc.2024-backup").write_text("mine")
    with pytest.raises(ValueError, match=r"holds \['.bashrc.2024-backup'\] and is no run"):
        tutorial.train_model(small_config, home)
    tutorial.train_model(dataclasses.replace(small_config, epochs=1), run)
    (run / ".last.pt.4711").write_text("half a checkpoint")
    (run / ".notes.2024").write_text("mine")
    (run / ".last.pt.4712").mkdir()
    tutorial.train_model(small_config, run)
    left = {path.name for path in run.iterdir() if path.name.startswith(".")} - {".lock"}
    assert left == {".notes.2024", ".last.pt.4712"}
    assert [path.name for path in home.iterdir() if path.is_file()] == [".bashrc.2024-backup"]


# A full disk ------------------------------------------------------------------------------------


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
        tutorial.save_checkpoint(path, {"weights": torch.ones(10_000)})
    told = str(caught.value)
    assert str(path) in told and "File too large" in told and "untouched" in told
    wanted = int(told.split(" bytes wanted")[0].rpartition(" ")[2].replace(",", ""))
    assert 40_000 < wanted < 44_000
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_full_disk_ends_a_training_and_loses_nothing(
    small_config, uninterrupted, tmp_path, monkeypatch
):
    """The disk is full when the second epoch is to be written, and free again afterwards."""
    run, files = tmp_path / "run", []
    fsync = os.fsync

    def full(file):
        files.append(file)
        if len(files) > 8:  # each file, and its folder
            raise OSError(28, "No space left on device")
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"run/.* was not written \(No space left on device; "):
            tutorial.train_model(small_config, run)
    assert not list(run.glob(".*.pt.*")), "no half file stays"
    assert tutorial.load_checkpoint(run / "last.pt")["state"]["epoch"] == 1
    assert tutorial.train_model(small_config, run) == "finished"
    assert_same_training(saved(run), uninterrupted)


def test_a_log_that_cannot_grow_says_so(tmp_path):
    tutorial.write_log(tmp_path, kind="train", text="x" * 19_900)
    told = r"log\.jsonl could not grow \(File too large\)"
    with pytest.raises(OSError, match=told) as caught, small_files():
        tutorial.write_log(tmp_path, kind="train", text="y" * 200)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.slow
def test_a_process_without_room_says_so_and_goes_on_later(small_corpus, tmp_path):
    """A limit on the size of files, of a real process, too small for its next checkpoint."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    run_to_the_end(1, small_corpus, whole, 4)
    run_to_the_end(1, small_corpus, folder, 2)
    good, room = saved(folder), (folder / "last.pt").stat().st_size // 2
    log = (folder / "log.jsonl").read_bytes()
    done = subprocess.run(
        [*command_for(1), str(small_corpus), str(folder), "4"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert done.returncode == 1 and done.stderr.count("error: ") == 1
    told = done.stderr.split("error: ")[1]
    form = rf"{folder}/\S+ was not written \(File too large; [\d,]+ bytes wanted"
    assert re.match(form, told)
    assert_same_training(saved(folder), good)
    assert (folder / "log.jsonl").read_bytes().startswith(log), "nothing that was there is lost"
    run_to_the_end(1, small_corpus, folder, 4)
    assert_same_training(saved(folder), saved(whole))


# Two trainings in one folder ----------------------------------------------------------------------


def test_a_second_training_in_the_same_folder_is_refused(small_config, small_corpus, tmp_path):
    folder, marker = tmp_path / "run", tmp_path / "marker"
    command = [sys.executable, WORKER, str(small_corpus), str(folder), "50"]
    first = subprocess.Popen([*command, "written", "2", str(marker)], cwd=PROJECT)
    try:
        wait_for(marker, first)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        second = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1 and second.stdout == ""
        assert second.stderr == (
            f"error: another training works in {folder}: wait for its end, or name another\n"
        )
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    finally:
        first.kill()
        first.wait()
    assert list(folder.glob(".next.pt.*")), "the dead one has left a file half-written"
    again = subprocess.run([*command[:-1], "3"], cwd=PROJECT, capture_output=True, text=True)
    assert again.returncode == 0, "the lock has died with its process"
    assert not list(folder.glob(".next.pt.*"))


# Kills ------------------------------------------------------------------------------------------


def wait_for(marker: Path, process: subprocess.Popen, seconds: float = 60) -> bool:
    """True when the marker appears, False when the process ends before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if marker.exists():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    raise AssertionError("neither did the marker appear nor did the training end")


def kill_everything(process: subprocess.Popen) -> None:
    """SIGKILL for a process and all that it has started, at once."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=30)
    process.wait()


def command_for(ranks: int) -> list[str]:
    return [sys.executable, WORKER] if ranks == 1 else [*TORCHRUN, "--", WORKER]


def run_to_the_end(ranks: int, corpus: Path, folder: Path, epochs: int) -> None:
    command = [*command_for(ranks), str(corpus), str(folder), str(epochs)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_kills_change_nothing(small_corpus, tmp_path, ranks):
    """SIGKILL at random moments, twice while it starts, ten times while it writes a checkpoint."""
    rng, epochs, stages = random.Random(ranks), 120, ("half", "written", "named")
    run_to_the_end(ranks, small_corpus, tmp_path / "whole", epochs)
    folder, log, kills, in_writing = tmp_path / "killed", tmp_path / "killed" / "log.jsonl", 0, 0
    while kills < 20:
        command = [*command_for(ranks), str(small_corpus), str(folder), str(epochs)]
        marker = tmp_path / f"marker-{kills}"
        if kills % 2:
            command += [stages[kills // 2 % 3], str(rng.randint(1, 9)), str(marker)]
        before = log.stat().st_mtime_ns if log.exists() else 0
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            if kills % 2:
                assert wait_for(marker, process), "the training ended before its accident"
                in_writing += 1
            elif kills in (4, 12):
                time.sleep(rng.uniform(0.0, 3.0))
            else:
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and process.poll() is None:
                    if log.exists() and log.stat().st_mtime_ns > before:
                        break
                    time.sleep(0.002)
                time.sleep(rng.uniform(0.0, 0.6))
                assert process.poll() is None, "the training ended before it was killed"
        finally:
            kill_everything(process)
        kills += 1
    assert in_writing == 10
    run_to_the_end(ranks, small_corpus, folder, epochs)
    whole, killed = saved(tmp_path / "whole"), saved(folder)
    assert_same_training(killed, whole)
    entries = [(e["kind"], e.get("epoch"), e["step"]) for e in tutorial.read_log(folder)]
    assert len(entries) == len(set(entries)), "each report once"
    expected = [
        (e["kind"], e.get("epoch"), e["step"]) for e in tutorial.read_log(tmp_path / "whole")
    ]
    assert entries == expected
    assert not list(folder.glob(".*.pt.*")) and not (folder / "next.pt").exists()
    best = [tutorial.load_checkpoint(run / "best.pt") for run in (tmp_path / "whole", folder)]
    assert best[0]["state"] == best[1]["state"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_rank_ends_the_run_with_a_clear_message(small_corpus, tmp_path, victim):
    folder = tmp_path / "run"
    command = [*command_for(2), str(small_corpus), str(folder), "100000"]
    process = subprocess.Popen(
        command, cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert wait_for(folder / "last.pt", process)
        kill_rank(process, victim)
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - begin < 30
    finally:
        if process.poll() is None:
            kill_everything(process)
            process.communicate()
    assert process.returncode != 0
    told = f"error: rank {1 - victim} of 2 has lost another one, which died or could not be reached"
    assert told in err and "the same command goes on from the last checkpoint" in err, err[-3000:]
    run_to_the_end(2, small_corpus, folder, saved(folder)["state"]["epoch"] + 1)


def kill_rank(process: subprocess.Popen, victim: int) -> None:
    """SIGKILL for one rank of what torchrun has started."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.environ().get("RANK") == str(victim):
            child.kill()
            return
    raise AssertionError(f"no rank {victim}")


def wait_for_epoch(folder: Path, epoch: int, patience: float = 60) -> None:
    """Return when the last checkpoint of a folder holds this epoch or a later one."""
    deadline = time.monotonic() + patience
    while not (folder / "last.pt").exists() or saved(folder)["state"]["epoch"] < epoch:
        assert time.monotonic() < deadline, f"no epoch {epoch} in {folder} after {patience} s"
        time.sleep(0.01)


@pytest.mark.slow
def test_an_elastic_launch_restarts_from_the_last_checkpoint(small_corpus, tmp_path):
    run_to_the_end(2, small_corpus, tmp_path / "whole", 40)
    folder = tmp_path / "run"
    command = [*TORCHRUN, "--max-restarts", "3", "--", WORKER, str(small_corpus), str(folder), "40"]
    process = subprocess.Popen(
        command, cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        for number, victim in enumerate((1, 0)):
            wait_for_epoch(folder, 1 + 5 * number)
            kill_rank(process, victim)
        _, err = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            kill_everything(process)
            process.communicate()
    assert process.returncode == 0, err[-3000:]
    assert_same_training(saved(folder), saved(tmp_path / "whole"))


# Several machines ---------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def two_agents(folders: list[Path], *arguments: str, elastic: bool = False) -> list:
    """Start the worker under two agents, each in a folder of its own, on loopback."""
    port, agents = free_port(), []
    for number, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        meeting = f"--node-rank {number} --master-addr 127.0.0.1 --master-port {port}"
        if elastic:
            meeting = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --max-restarts 3"
        nodes = f"--nnodes 2 --nproc-per-node 1 {meeting}".split()
        command = [sys.executable, "-m", "torch.distributed.run", *nodes, "--", WORKER, *arguments]
        pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        agents.append(subprocess.Popen(command, cwd=folder, **pipes))
    return agents


def ends_of(agents: list[subprocess.Popen]) -> list[subprocess.CompletedProcess]:
    """How two agents have ended."""
    ended = [agent.communicate(timeout=200) for agent in agents]
    results = zip(agents, ended, strict=True)
    return [subprocess.CompletedProcess(a.args, a.returncode, *texts) for a, texts in results]


def on_two_nodes(folders: list[Path], *arguments: str) -> list[subprocess.CompletedProcess]:
    """Run the worker under two agents to the end."""
    return ends_of(two_agents(folders, *arguments))


@pytest.mark.slow
def test_two_nodes_train_like_one(small_corpus, tmp_path):
    """Only the first node writes, and it alone reads; the second one needs no disk in common."""
    run_to_the_end(2, small_corpus, tmp_path / "whole", 6)
    nodes = [tmp_path / "first", tmp_path / "second"]
    for epochs in ("3", "6"):
        ended = on_two_nodes(nodes, str(small_corpus), "run", epochs)
        assert [one.returncode for one in ended] == [0, 0], [one.stderr[-1500:] for one in ended]
        assert not (nodes[1] / "run").exists()
    assert_same_training(saved(nodes[0] / "run"), saved(tmp_path / "whole"))
    ended = on_two_nodes(nodes[::-1], str(small_corpus), "run", "7")
    assert all(one.returncode for one in ended), "ranks have changed places"
    told = (
        "error: rank 1 has a checkpoint in run and rank 0 has none: give the machines fixed ranks"
    )
    assert any(told in one.stderr for one in ended), ended
    assert saved(nodes[0] / "run")["state"]["epoch"] == 6


@pytest.mark.slow
def test_two_nodes_start_again_when_a_rank_has_died(small_corpus, tmp_path):
    """Whichever node it ran on: both start their ranks again, from the last checkpoint."""
    run_to_the_end(2, small_corpus, tmp_path / "whole", 40)
    nodes = [tmp_path / "first", tmp_path / "second"]
    agents = two_agents(nodes, str(small_corpus), "run", "40", elastic=True)
    try:
        for victim in (0, 1):
            wait_for_epoch(nodes[0] / "run", 1 + 5 * victim)
            kill_rank(agents[victim], victim)
        ended = ends_of(agents)
    finally:
        for agent in agents:
            if agent.poll() is None:
                kill_everything(agent)
    assert [one.returncode for one in ended] == [0, 0], [one.stderr[-1500:] for one in ended]
    assert_same_training(saved(nodes[0] / "run"), saved(tmp_path / "whole"))
