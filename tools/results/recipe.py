"""Make the records of docs/results: train, choose on the validation split, score the tests once.

    python tools/results.py train [NAME ...]  the runs whose names begin so (default: the rows')
    python tools/results.py left [NAME ...]   those that are not on record yet
    python tools/results.py pace              seconds of an update, on a quiet machine
    python tools/results.py validate          try beams, penalties and averages
    python tools/results.py score [NAME ...]  each row's runs on each test split, once
    python tools/results.py steps             which steps of the recipe pass the rule of the text
    python tools/results.py pretrained        the folder pretrained/ and what int8 costs

Each command does only what is not on record; remove a record, or entries of scores.json, to make
them anew. Runs lie in RUNS_DIR (default: runs). A GPU trains where CUDA_VISIBLE_DEVICES names it.
"""

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

import torch

from tools import models, records
from tools.results import plan, significance
from tools.results.plan import Row

at = models.at
PRETRAINED = at.HERE / "pretrained"


def made_with_shipped() -> dict[str, str]:
    """Circumstances of a measurement of pretrained/, and the name of its model."""
    about = json.loads((PRETRAINED / "config.json").read_bytes())
    return records.circumstances() | {"model": about["name"]}


# Training ---------------------------------------------------------------------------------------


def folder_of(name: str) -> Path:
    return at.runs_folder() / name


def begin(name: str) -> at.Config:
    """The settings of a run; where it changes the embeddings, they are changed."""
    at.Embeddings.forward = plan.EMBEDDINGS.get(name, plan.EMBED)
    return plan.RUNS[name]


def process(name: str, /) -> None:
    """Be the process of a training."""
    at.train_model(begin(name), folder_of(name))


def processes(number: int, *arguments: str) -> subprocess.CompletedProcess:
    """Run a command of this tool in so many processes of one thread."""
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node={number} -m".split()
    environment = {"CUDA_VISIBLE_DEVICES": ""} | os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *torchrun, __spec__.name, *arguments], env=environment)


def finished_run(name: str) -> tuple[list[dict], dict]:
    """The epochs of a run, and its last.pt; ValueError where it is not finished."""
    folder = folder_of(name)
    last = at.read_last(folder)
    if last is not None:
        config, _ = at.read_settings(folder)
        epochs = [entry for entry in last["history"] if entry["averaged"] == 0]
        if len(epochs) == config.epochs:
            return epochs, last
    raise ValueError(f"no finished run in {folder}: `train {name}` goes on, without its record")


def train_one(name: str) -> dict:
    """Train a run to its end, in one process of one thread; its record."""
    status = processes(1, "process", name).returncode
    if status != 0:
        raise ValueError(f"{name} was cut short ({status}): the same command goes on")
    epochs, last = finished_run(name)
    config, _ = at.read_settings(folder_of(name))
    device = "cuda" if os.environ.get("CUDA_VISIBLE_DEVICES") else "cpu"
    translator = at.load_trained_model(folder_of(name), models.CPU)
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
    return {"summary": summary | records.circumstances(device, config.precision), "log": epochs}


def named(beginnings: Sequence[str]) -> list[str]:
    """Runs whose names begin so, by default those of the rows; ValueError where none does."""
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in plan.RUNS):
            names = ", ".join(plan.RUNS)
            raise ValueError(f"no run begins with {beginning!r}: choose among {names}")
    of_rows = {run for row in (*plan.ROWS, plan.OTHER) for run in row.runs}
    return [
        name
        for name in plan.RUNS
        if (name.startswith(tuple(beginnings)) if beginnings else name in of_rows)
    ]


def missing(beginnings: Sequence[str] = ()) -> Iterator[str]:
    """Those of them that are not on record."""
    return (name for name in named(beginnings) if not records.read(f"runs/{name}"))


def train(beginnings: tuple[str, ...] = (), /) -> None:
    """Every run whose name begins so and that is not on record, one after the other."""
    for name in missing(beginnings):
        if name in plan.ON_GPU:
            records.graphics_card()  # ValueError without one
        records.write(f"runs/{name}", train_one(name))


def open_run(config: at.Config, folder: Path, worker: at.Worker) -> at.Run:
    """A run before its first update, on this rank."""
    if worker.rank == 0:
        at.begin_run(config, folder)
    at.gather(None, worker)  # the others wait for the files
    return at.Run(folder, worker)


def fast_format() -> str:
    """The number format in which this processor trains faster."""
    return "bf16" if at.gains_from_bf16(models.CPU) else "fp32"


def pace_here(name: str, folder: Path, /) -> None:
    """Time updates of a run in this process, and write the seconds of one into a folder."""
    with at.join_workers() as worker:
        config = replace(begin(name), precision=fast_format())
        run = open_run(config, folder / "run", worker)
        numbers = itertools.cycle(at.batches_of_epoch(run.config, run.train, 1))
        batches = at.load_batches(run.train, numbers, worker)
        means = run.net, run.loss_compute, run.optimizer, run.scheduler
        train = functools.partial(at.run_epoch, autocast=run.autocast, clip=run.config.clip)
        train(itertools.islice(batches, plan.TO_WARM_UP), *means)
        begun = time.perf_counter()
        train(itertools.islice(batches, plan.TIMED), *means)
        seconds = (time.perf_counter() - begun) / plan.TIMED
    if worker.rank == 0:
        (folder / "seconds").write_text(f"{seconds:.4f}")


def pace() -> None:
    """Seconds of an update of the runs whose time is told, on a quiet machine, in its format."""
    for name in plan.PACED:
        record = records.read("pace")
        if name not in record:
            records.wait_for_quiet()
            with tempfile.TemporaryDirectory() as folder:
                processes(plan.PROCESSES, "pace_here", name, folder).check_returncode()
                seconds = float((Path(folder) / "seconds").read_text())
            found = {"seconds": seconds, "format": fast_format()}
            found["made"] = records.circumstances("cpu", fast_format())
            records.write("pace", record | {name: found})


def left(beginnings: tuple[str, ...] = (), /) -> None:
    """Print what `train` would train."""
    print("\n".join(missing(beginnings)))


# Validation -------------------------------------------------------------------------------------


def translator_of(name: str, averaged: int) -> at.Translator:
    """The mean of so many last epochs of a run; for 0, the best of those that it has kept.

    ValueError where the run is not finished, or has kept fewer.
    """
    epochs, last = finished_run(name)
    recent = last["recent"]
    if averaged > len(recent):
        raise ValueError(f"{name} has kept {len(recent)} epochs, not {averaged}")
    if averaged:
        chosen = recent[-averaged:]
    else:
        kept = epochs[-len(recent) :]
        chosen = [recent[kept.index(max(kept, key=at.quality))]]
    translator = at.load_trained_model(folder_of(name), models.CPU)

    def models_of() -> Iterator[torch.nn.Module]:
        for weights in chosen:
            at.load_weights(translator.model, weights)
            yield translator.model

    at.average(translator.model, models_of())
    what = f"{averaged} averaged" if averaged else "best epoch"
    return replace(translator, name=f"{name}, {what}")


def translated(
    translator: at.Translator, split: str, beam: int, alpha: float = plan.ALPHA
) -> tuple[list[str], dict]:
    """Translations of a split, and how good they are."""
    pairs = at.find_corpus(plan.CORPUS, translator.languages).pairs(split)
    decode = functools.partial(at.beam_search, beam=beam, alpha=alpha)
    written, found = at.score(translator, pairs, decode)
    scores = {
        "bleu": round(found["BLEU"], 2),
        "signature": found["signature"],
        "chrf": round(found["chrF"], 2),
        "perplexity": round(found["perplexity"], 2),
    }
    print(f"{translator.name}, {split}, beam {beam}, alpha {alpha}: {scores}", flush=True)
    return written, scores


def scored(translator: at.Translator, split: str, beam: int, alpha: float = plan.ALPHA) -> dict:
    return translated(translator, split, beam, alpha)[1]


def validate() -> None:
    """Sweep beam, length penalty and averaging with the first seed of the full recipe."""
    [run] = plan.SHIPPED.runs
    averaged = plan.AVERAGED
    facts = {"run": run, "beam": plan.BEAM, "averaged": averaged, "made": records.circumstances()}
    if not records.read("beam"):
        whole = translator_of(run, averaged)
        sweep = []
        for beam, alpha in itertools.product(plan.BEAMS, plan.ALPHAS):
            if beam > 1 or alpha == 0:
                scores = scored(whole, "val", beam, alpha)
                sweep.append({"beam": beam, "alpha": alpha} | scores)
        records.write("beam", facts | {"sweep": sweep})
    if not records.read("averaging"):
        sweep = []
        for count in range(averaged + 1):  # 0 stands for the best epoch
            scores = scored(translator_of(run, count), "val", plan.BEAM)
            sweep.append({"averaged": count} | scores)
        records.write("averaging", facts | {"sweep": sweep})


# Scoring the test splits ------------------------------------------------------------------------


def score_of(row: Row, run: str, split: str) -> dict:
    """What is on record of a row, run and test split; empty where it was never scored."""
    key = row.name, run, split
    entries = records.read("scores").get("scores", [])
    return next((e for e in entries if (e["row"], e["run"], e["split"]) == key), {})


def translations_path(row: Row, run: str, split: str) -> Path:
    return records.RESULTS / "translations" / f"{row.name}.{run}.{split}.txt"


def score_once(row: Row, run: str, split: str, translator: at.Translator) -> dict:
    """The scores of a row's run on a test split, computed only if they never were."""
    if entry := score_of(row, run, split):
        return entry
    written, scores = translated(translator, split, row.beam, row.alpha)
    records.write_text(translations_path(row, run, split), "".join(f"{x}\n" for x in written))
    entry = {"row": row.name, "run": run, "split": split, "beam": row.beam, "alpha": row.alpha}
    entry |= {"averaged": row.averaged} | scores | records.circumstances()
    content = records.read("scores")
    records.write("scores", content | {"scores": [*content.get("scores", []), entry]})
    return entry


def score(beginnings: tuple[str, ...] = (), /) -> None:
    """Score what was never scored, of all runs or of those whose names begin so."""
    wanted = named(beginnings)
    for row in (*plan.ROWS, plan.OTHER):
        for run in filter(wanted.__contains__, row.runs):
            splits = [split for split in plan.TESTS if not score_of(row, run, split)]
            translator = translator_of(run, row.averaged) if splits else None
            for split in splits:
                score_once(row, run, split, translator)


# What a step gains ------------------------------------------------------------------------------


def counts_of(row: Row, run: str, split: str) -> torch.Tensor:
    """What BLEU counts in the translations on file of a row's run."""
    references = [pair[1] for pair in at.find_corpus(plan.CORPUS).pairs(split)]
    text = translations_path(row, run, split).read_text("utf-8")
    return significance.counts_of(text.split("\n")[:-1], references)


def step_between(before: Row, after: Row, split: str) -> dict:
    """What a row gains over the row before on a split, seed by seed."""
    scores = [[score_of(row, run, split)["bleu"] for run in row.runs] for row in (before, after)]
    luck = max(max(each) - min(each) for each in scores)  # of the training
    pairs = list(zip(before.runs, after.runs, strict=True))
    gains = [new - old for old, new in zip(*scores, strict=True)]
    drawn = significance.differences(
        [counts_of(before, run, split) for run, _ in pairs],
        [counts_of(after, run, split) for _, run in pairs],
    )
    low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    same_runs = all(old == new for old, new in pairs)
    same_weights = same_runs and before.averaged == after.averaged  # so that each must gain
    return {
        "row": after.name,
        "split": split,
        "gain": round(mean(gains), 2),
        "interval": [round(low, 2), round(high, 2)],
        "chance": significance.chance(drawn),
        "range": round(luck, 2),
        "beyond the seeds": min(gains) > 0 if same_weights else mean(gains) > luck,
    }


def steps() -> None:
    """Which steps gain on both test splits, by more than sentences and seeds differ."""
    found = [
        step_between(before, after, split)
        for before, after in itertools.pairwise(plan.ROWS)
        for split in plan.TESTS
    ]
    corrected = significance.holm([step["chance"] for step in found])
    for step, chance in zip(found, corrected, strict=True):
        step["chance"] = round(chance, 4)  # of all together
        sure = chance < significance.SURE and step["gain"] > 0
        step["passes"] = sure and step["beyond the seeds"]
    records.write("steps", {"draws": significance.DRAWS, "steps": found})
    for row in plan.ROWS[1:]:
        of_row = [step for step in found if step["row"] == row.name]
        verdict = "passes" if all(step["passes"] for step in of_row) else "does not pass"
        print(f"{row.step}: {verdict}", *of_row, sep="\n  ")


# The model to take away -------------------------------------------------------------------------


def pretrained() -> None:
    """Write the folder pretrained/ from the full recipe, and measure what int8 costs."""
    if records.read("pretrained"):
        return
    [run] = plan.SHIPPED.runs
    whole = translator_of(run, plan.AVERAGED)
    average = folder_of(run).with_name(f"{run}-average")
    at.save_model(whole, average)
    models.round_model(average, PRETRAINED)
    rounded = at.load_trained_model(PRETRAINED, models.CPU)
    formats = {}
    for name, translator, row, folder in (
        ("fp32", whole, plan.ROWS[-1], average),
        ("int8", rounded, plan.SHIPPED, PRETRAINED),
    ):
        size = (folder / "model.safetensors").stat().st_size / 1e6
        formats[name] = {
            "MB": round(size, 2),
            "val": scored(translator, "val", plan.BEAM, row.alpha),
        }
        formats[name] |= {split: score_once(row, run, split, translator) for split in plan.TESTS}
    training = records.read(f"runs/{run}")["summary"]
    content = {"run": run, "training": training, "formats": formats}
    records.write("pretrained", content | {"made": records.circumstances()})


main = records.command_line(
    train=train, left=left, process=process, pace=pace, pace_here=pace_here, validate=validate,
    score=score, steps=steps, pretrained=pretrained,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
