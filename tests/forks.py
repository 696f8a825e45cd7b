"""Processes that a test starts, kills and waits for, alone or as the ranks of one training.

A copy of a process whose threads have worked, such as pytest, may wait for a lock that nobody holds
any more. So these are copies of a server that has imported the script and done nothing else. What
they are to do is a function of a module, and what it patches is patched for that process only.
"""

import contextlib
import dataclasses
import faulthandler
import functools
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import the_annotated_transformer as tutorial

LIMIT = 100  # seconds; a process that takes longer says where it waits, and ends
SERVER = multiprocessing.get_context("forkserver")
IMPORTED = "the_annotated_transformer torch._dynamo torchtext.vocab spacy sacrebleu GPUtil tyro"
SERVER.set_forkserver_preload(IMPORTED.split())


class Rank(SERVER.Process):
    """Runs `action`, with the environment that torchrun would set; what it prints is kept."""

    def __init__(self, action: Callable, folder: Path, number: int, ranks: int, port: int):
        super().__init__(daemon=True)
        self.action = action
        self.said = folder / f"said-{number}"
        self.place = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
        self.place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def run(self) -> None:
        os.environ.update(self.place)
        sys.stdout = sys.stderr = self.said.open("w", encoding="utf-8", buffering=1)
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.stderr)
        self.action()

    def text(self) -> str:
        return self.said.read_text("utf-8")

    def end(self) -> int:
        """Wait for the end; the exit status, or minus the signal."""
        self.join()
        return self.exitcode


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


def printed(action: Callable, ranks: int = 1) -> list[str]:
    """What each rank prints; AssertionError as soon as one fails."""
    with forked(action, ranks) as processes:
        running = processes
        while running:
            connection.wait([process.sentinel for process in running])
            for process in processes:
                assert not process.exitcode, process.text()
            running = [process for process in running if process.exitcode is None]
        return [process.text() for process in processes]


# Actions ----------------------------------------------------------------------------------------


class Running(torch.nn.Module):
    """A norm that divides by a running size, which is a buffer; one of its weights is not used."""

    def __init__(self, config):
        super().__init__()
        self.register_buffer("size", torch.ones(config.d_model))
        self.unused = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        if self.training:
            self.size.lerp_(x.detach().abs().mean(dim=(0, 1)), 0.1)
        return x / (self.size + 0.1)


def train(config: tutorial.Config | None, run: Path, **given) -> None:
    tutorial.train_model(config, run, **given)


def train_in_float64(*given, **more) -> None:
    """In double precision the order of a sum makes no difference to see."""
    torch.set_default_dtype(torch.float64)
    train(*given, **more)


def train_with_a_running_norm(config: tutorial.Config, run: Path) -> None:
    """Print the buffers and weights with which this rank validates each epoch."""
    validate = tutorial.validate

    def tell(run: tutorial.Run, model: torch.nn.Module) -> dict:
        sizes = [buffer.sum().item() for buffer in model.buffers()]
        print("validates", sizes, [weight.sum().item() for weight in model.parameters()])
        return validate(run, model)

    tutorial.PARTS["norm"]["running"] = Running
    tutorial.validate = tell
    train(dataclasses.replace(config, norm="running"), run)


def train_and_draw(config: tutorial.Config, run: Path) -> None:
    """Print what the first embedding would have drawn for its dropout."""
    forward = tutorial.Embeddings.forward

    def draw(embeddings: tutorial.Embeddings, x: torch.Tensor) -> torch.Tensor:
        if embeddings.training:
            print(torch.rand(3))
        return forward(embeddings, x)

    tutorial.Embeddings.forward = draw
    train(config, run)


def resume_until_an_update(stop: signal.Signals, run: Path) -> None:
    """Get a signal after the first update."""
    register_optimizer_step_post_hook(lambda *_: os.kill(os.getpid(), stop))
    sys.exit(tutorial.main(["resume", str(run)]))


def train_without_room(size: int, *given) -> None:
    """Where no file can have more bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        train(*given)
    except tutorial.UserError as error:
        sys.exit(f"UserError: {error}")  # a traceback might not fit, either


def train_and_tell(saved: connection.Connection, *given) -> None:
    """Say each time that a checkpoint takes the place of the one before."""

    def watch(what: str, arguments: tuple) -> None:
        if what == "os.rename" and Path(str(arguments[1])).name == "last.pt":
            saved.send("saved")

    sys.addaudithook(watch)
    train(*given)


@contextlib.contextmanager
def endless_training(config: tutorial.Config, run: Path, ranks: int = 1) -> Iterator[list[Rank]]:
    """Ranks in the midst of a training; the block begins when one more epoch is saved."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    endless = dataclasses.replace(config, epochs=10**6)
    with forked(functools.partial(train_and_tell, writer, endless, run), ranks) as processes:
        for _ in range(3):  # one when it is prepared; the third comes after the second has happened
            connection.wait([reader, *(process.sentinel for process in processes)], LIMIT)
            assert reader.poll() and reader.recv(), processes[0].text()
        yield processes
