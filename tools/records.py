"""What the tools share: records of results, circumstances, a command line."""

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import tyro

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = PROJECT / "results"
PRETRAINED = PROJECT / "pretrained"
BUSY = 15  # per cent of the cores that others may use while something is timed


def read(name: str) -> dict:
    """A record of results; empty where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece or not at all: a reader never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write(name: str, content: dict) -> None:
    """Write a record."""
    path = RESULTS / f"{name}.json"
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}")


def once(name: str) -> Callable[[Callable[[], dict]], Callable[[], None]]:
    """Decorate a measurement: its result goes on record, unless a record of that name exists."""

    def decorate(measure: Callable[[], dict]) -> Callable[[], None]:
        @functools.wraps(measure)
        def measure_once() -> None:
            if not read(name):
                write(name, measure())

        return measure_once

    return decorate


def commit() -> str:
    """The commit of the project, with "-dirty" if more has changed since than what is measured."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PROJECT), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    changes = git("status", "--porcelain", "-uno", "--", ".", ":!results", ":!pretrained")
    return (git("rev-parse", "HEAD") or "unknown") + ("-dirty" if changes else "")


def circumstances(device: str = "cpu", dtype: str = "fp32") -> dict[str, str]:
    """When, where and with what something is measured."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": graphics_card() if device == "cuda" else processor(),
        "commit": commit(),
        "torch": without_suffix(importlib.metadata.version("torch")),
        "device": device,
        "format": dtype,
    }


def made_with_shipped() -> dict[str, str]:
    """Circumstances of a measurement of pretrained/, and the name of its model."""
    about = json.loads((PRETRAINED / "config.json").read_bytes())
    return circumstances() | {"model": about["name"]}


def processor() -> str:
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpu.read_text()) if cpu.is_file() else None
    return f"{model[1].strip() if model else platform.machine()}, {os.cpu_count()} CPU cores"


def chosen_device() -> str:
    """Return "cuda" if CUDA_VISIBLE_DEVICES names a GPU; if it is not set, hide all GPUs."""
    return "cuda" if os.environ.setdefault("CUDA_VISIBLE_DEVICES", "") else "cpu"


def graphics_card() -> str:
    """The GPU that CUDA_VISIBLE_DEVICES names; ValueError without one."""
    import torch

    if not os.environ.get("CUDA_VISIBLE_DEVICES") or not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU: CUDA_VISIBLE_DEVICES must name one that PyTorch sees")
    return torch.cuda.get_device_name()


def without_suffix(version: str) -> str:
    """A version without the build that a wheel names: "2.13.0" for "2.13.0+cpu"."""
    return version.partition("+")[0]


def check_comparable(made: dict[str, dict]) -> None:
    """ValueError unless all were made with one version of PyTorch, device and number format.

    Where they measure the shipped model, that must be the same, too.
    """
    for what in ("torch", "device", "format", "model"):
        values = {name: without_suffix(str(each.get(what))) for name, each in made.items()}
        if len({*values.values()}) > 1:
            raise ValueError(
                f"numbers of one table share {what}, and here are {values}: remove the records that"
                " differ, and make them anew"
            )


def wait_for_quiet(patience: float = 60.0) -> None:
    """Return when the machine is quiet; ValueError when it is not after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (percent := psutil.cpu_percent(interval=2)) > BUSY:
        if time.monotonic() >= deadline:
            raise ValueError(f"others use {percent:.0f} % of the cores, so nothing can be timed")


def command_line(
    command: Callable | None = None, /, **commands: Callable
) -> Callable[[list[str] | None], int]:
    """A main function that runs the command, or the one of several that its first argument names.

    An error has no traceback.
    """

    def main(arguments: list[str] | None = None) -> int:
        try:
            if command:
                tyro.cli(command, args=arguments)
            else:
                tyro.extras.subcommand_cli_from_dict(commands, args=arguments)
        except (Exception, KeyboardInterrupt) as error:
            from the_annotated_transformer import UserError  # loads torch, so only when needed

            expected = UserError, ValueError, OSError, RuntimeError, ArithmeticError
            if not isinstance(error, (*expected, KeyboardInterrupt)):
                raise
            print(f"error: {str(error) or 'interrupted'}", file=sys.stderr)
            return 1
        return 0

    return main
