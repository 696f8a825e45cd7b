"""Processes forked from a test: all is imported already, so each starts in no time.

A rank gets the environment variables that torchrun would set, and a kill is a real one.
Slow tests start torchrun itself.
"""

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import GPUtil  # noqa: F401  # this and the next ones for every process
import sacrebleu  # noqa: F401
import spacy  # noqa: F401
import torch
import torch._dynamo  # an optimizer imports it
import torchtext.vocab  # noqa: F401

import the_annotated_transformer as tutorial

HANGS = 60  # seconds; a process that takes longer says where it waits, and ends


class Rank(ForkProcess):
    """Runs `action`; leaves what it returns, and what it prints, in a folder."""

    def __init__(self, action: Callable, folder: Path, number: int, ranks: int, port: int):
        super().__init__(daemon=True)
        self.action = action
        self.said = folder / f"said-{number}"
        self.answer = folder / f"answer-{number}"
        self.place = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
        self.place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def run(self) -> None:
        os.environ.update(self.place)
        sys.stdout = sys.stderr = self.said.open("w", encoding="utf-8", buffering=1)
        faulthandler.dump_traceback_later(HANGS, exit=True, file=sys.stderr)
        torch.save(self.action(), self.answer)

    def text(self) -> str:
        return self.said.read_text("utf-8")


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def forked(action: Callable, ranks: int = 1) -> Iterator[list[Rank]]:
    """Ranks of one process group, each with the same action; none outlives the block."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        processes = [Rank(action, Path(folder), number, ranks, port) for number in range(ranks)]
        try:
            for process in processes:
                process.start()
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.join()


def results(action: Callable, ranks: int = 1) -> list:
    """What `action` returns on each rank; AssertionError as soon as one fails."""
    with forked(action, ranks) as processes:
        running = processes
        while running:
            connection.wait([process.sentinel for process in running])
            for process in processes:
                assert not process.exitcode, process.text()
            running = [process for process in running if process.exitcode is None]
        return [torch.load(process.answer) for process in processes]


@contextlib.contextmanager
def endless_training(config: tutorial.Config, run: Path, ranks: int = 1) -> Iterator[list[Rank]]:
    """Ranks in the midst of a training; the block begins when one more epoch is saved."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    save = tutorial.Run.save

    def save_and_tell(run: tutorial.Run, *given) -> None:
        save(run, *given)
        if run.worker.rank == 0:
            writer.send("saved")

    def train() -> None:
        tutorial.Run.save = save_and_tell
        tutorial.train_model(dataclasses.replace(config, epochs=10**6), run)

    with forked(train, ranks) as processes:
        connection.wait([reader, *(process.sentinel for process in processes)])
        assert reader.poll(), processes[0].text()
        yield processes
