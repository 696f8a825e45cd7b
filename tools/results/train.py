"""Train the runs of the plan, and put them on record in results/runs.

    python -m tools.results.train run [NAME ...]   runs whose names begin so (default: the rows')
    … run --at-once 9    nine at a time, as one GPU can

`run` trains only what is not on record; remove a record to train its run anew. After a stop the
same command goes on. Runs lie in RUNS_DIR (default: runs). The GPU that CUDA_VISIBLE_DEVICES names
trains them, or one thread of the CPU.
"""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import torch

import the_annotated_transformer as at
from tools import records
from tools.results import learning, plan


def folder_of(name: str) -> Path:
    return at.runs_folder() / name


def finished_run(name: str) -> tuple[list[dict], dict]:
    """The epochs of a run, and its last.pt; ValueError where it is not finished."""
    folder = folder_of(name)
    last = at.read_last(folder)
    if last is not None:
        config, _ = at.read_settings(folder)
        epochs = [entry for entry in last["history"] if entry["averaged"] == 0]
        if len(epochs) == config.epochs:
            return epochs, last
    raise ValueError(f"no finished run in {folder}: `run {name}` goes on, without its record")


def record_of(name: str) -> dict:
    """What goes on record of a finished run."""
    epochs, last = finished_run(name)
    config, _ = at.read_settings(folder_of(name))
    translator = at.load_trained_model(folder_of(name), torch.device("cpu"))
    summary = {
        "corpus": translator.corpus,
        "parameters": at.count_parameters(translator.model),
        "settings": asdict(config),
        "validation_bleu": round(max(epochs, key=at.quality)["bleu"], 2),
        "mean": next((entry for entry in last["history"] if entry["averaged"] > 0), None),
        "minutes": round(epochs[-1]["minutes"], 1),
        "updates": epochs[-1]["updates"],
        "epochs": len(epochs),
    }
    made = records.circumstances(records.chosen_device(), config.precision)
    return {"summary": summary | made, "log": epochs}


def named(beginnings: Sequence[str]) -> list[str]:
    """Runs whose names begin so, by default those of the rows; ValueError where none does."""
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in plan.RUNS):
            names = ", ".join(plan.RUNS)
            raise ValueError(f"no run begins with {beginning!r}: choose among {names}")
    if beginnings:
        return [name for name in plan.RUNS if name.startswith(tuple(beginnings))]
    of_rows = {run for row in plan.scored() for run in row.runs}
    return [name for name in plan.RUNS if name in of_rows]


def train(name: str) -> None:
    """Train a run, or go on with it, and put it on record; one run is watched."""
    folder = folder_of(name)
    watched = name == plan.WATCHED
    with mock.patch.object(at, "Run", learning.WatchedRun if watched else at.Run):
        at.train_model(plan.RUNS[name], folder)
    record = record_of(name)
    if watched:
        made = {key: record["summary"][key] for key in records.circumstances()}
        learning.put_on_record(folder, made)
    records.write(f"runs/{name}", record)


def run(beginnings: tuple[str, ...] = (), /, at_once: int = 1) -> None:
    """Train every run whose name begins so and that is not on record.

    Args:
        at_once: how many to train at a time, each in its own process
    """
    torch.set_num_threads(1)
    device = records.chosen_device()
    names = [name for name in named(beginnings) if not records.read(f"runs/{name}")]
    if device == "cuda":
        records.graphics_card()  # ValueError without one
    if at_once == 1:
        for name in names:
            train(name)
        return

    def apart(name: str) -> None:
        command = [sys.executable, "-m", "tools.results.train", "run", name]
        subprocess.run(command, check=True, cwd=records.PROJECT)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(apart, names))


main = records.command_line(run=run)

if __name__ == "__main__":
    sys.exit(main())
