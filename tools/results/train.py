"""Train the runs of the plan, and put them on record in results/runs.

Runs lie in RUNS_DIR (default: runs). The GPU that CUDA_VISIBLE_DEVICES names trains them, or one
thread of the CPU. After a stop a training goes on. To train a run anew, remove its record and its
folder in RUNS_DIR: what was made with its old weights goes off record.
"""

from dataclasses import asdict
from pathlib import Path

import torch

import the_annotated_transformer as at
from tools import records
from tools.results import learning, outside, plan


def folder_of(name: str) -> Path:
    return at.runs_folder() / name


def finished_run(name: str) -> tuple[list[dict], list[dict]]:
    """The epochs of a run, and its whole history; ValueError where it is not finished."""
    folder = folder_of(name)
    if (folder / "last.pt").is_file():
        history = torch.load(folder / "last.pt", weights_only=True)["history"]
        epochs = [entry for entry in history if entry["averaged"] == 0]
        if len(epochs) == at.settings_of(folder).epochs:
            return epochs, history
    raise ValueError(
        f"no finished run in {folder}, and the repository has no weights of runs: remove"
        f" results/runs/{name}.json, and `make results` trains it again and scores it anew"
    )


def record_of(name: str) -> dict:
    """What goes on record of a finished run."""
    epochs, history = finished_run(name)
    config = at.settings_of(folder_of(name))
    translator = at.load_trained_model(folder_of(name), torch.device("cpu"))
    summary = {
        "corpus": translator.corpus,
        "parameters": at.count_parameters(translator.model),
        "settings": asdict(config),
        "validation_bleu": round(max(epochs, key=at.quality)["bleu"], 2),
        "mean": next((entry for entry in history if entry["averaged"] > 0), None),
        "minutes": round(epochs[-1]["minutes"], 1),
        "updates": epochs[-1]["updates"],
        "epochs": len(epochs),
    }
    made = records.circumstances(records.chosen_device(), config.precision)
    return {"summary": summary | made, "log": epochs}


def check_plan(name: str) -> None:
    """ValueError if a run on record was trained with other settings than those of the plan."""
    trained = records.read(f"runs/{name}")["summary"]["settings"]
    for setting, value in asdict(plan.RUNS[name]).items():
        if value is not None and value != trained.get(setting, value):
            way = f"give another plan another name, or remove results/runs/{name}.json"
            raise ValueError(f"{name} was trained with {setting} {trained[setting]}: {way}")


def train(name: str) -> None:
    """Train a run that is not on record, or go on with it, and put it on record."""
    if records.read(f"runs/{name}"):
        check_plan(name)
        return
    config = plan.RUNS[name]
    now = records.circumstances(records.chosen_device(), config.precision)
    made = {run: records.read(f"runs/{run}").get("summary") for run in plan.beside(name)}
    records.check_comparable({run: each for run, each in made.items() if each} | {"now": now})
    folder = folder_of(name)
    if name == plan.WATCHED:
        learning.train_watched(config, folder)
        learning.put_on_record(folder, now)
    elif name in plan.OUTSIDE.runs:
        outside.train_outside(config, folder)
    else:
        at.train_model(config, folder)
    records.write(f"runs/{name}", record_of(name))
