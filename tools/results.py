"""Make the records of docs/results: train, choose on the validation split, score the tests once.

    python tools/results.py train [NAME ...]  the runs whose names begin so (default: the rows')
    python tools/results.py left [NAME ...]   those that are not on record yet
    python tools/results.py pace              seconds of an update, on a quiet machine
    python tools/results.py validate          try beams, penalties and averages
    python tools/results.py score [NAME ...]  each row's runs on each test split, once
    python tools/results.py steps             which steps of the recipe pass the rule of the text
    python tools/results.py pretrained        the folder pretrained/ and what int8 costs

Each command does only what is not on record; remove a record, or entries of scores.json, to make
them anew. Weights lie in RUNS_DIR (default: runs), in a folder for each state of the code that
decides a training. A GPU trains where CUDA_VISIBLE_DEVICES names it.
"""

import functools
import hashlib
import inspect
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

import models
import plan
import reach
import records
import significance
import torch
from plan import Row

at = models.at
PRETRAINED = at.HERE / "pretrained"


# The code that decides a number -------------------------------------------------------------------

# What these name, and so on; what they know as an attribute only stands here beside them.
TRAINING = (
    "read_multi30k Config learn_vocabularies write_ids IdPairs resolve planned_updates new_model "
    "LabelSmoothing ModelWithLoss on_all_ranks new_optimizer train_epoch validate best_of"
).split()
SCORING = "read_multi30k Vocabulary Subwords evaluate length_penalty average dequantise".split()
NOT_FOLLOWED = (
    "find_corpus",  # paths, downloads and a toy: read_multi30k says what our text is
    "length_penalty",  # has no say in a search with one place, as validation's is
)


@functools.cache
def code(*roots: str) -> str:
    """A hash of the code that `roots` can reach, without its messages."""
    return reach.code_hash((at.HERE / at.SCRIPT).read_text("utf-8"), roots, NOT_FOLLOWED)


def code_of(name: str) -> str:
    """A hash of the code that decides a training: this text's, its parts', and the plan's.

    Resuming, the number format and the share of the pairs (`every`) lie outside; the record has the
    format.
    """
    run = plan.RUNS[name]
    parts = {getattr(run.config, part).partition("(")[0] for part in at.PARTS}
    ours = code(*TRAINING, *sorted(part for part in parts if hasattr(at, part)))
    own = [getattr(plan, part) for part in sorted(parts) if hasattr(plan, part)]
    own += [run.embeddings] if run.embeddings else []
    texts = "".join(map(inspect.getsource, own))
    return hashlib.sha256(f"{ours}{texts}".encode()).hexdigest()[:16] if own else ours


def made(run: str = "", /, **decided: Sequence[str]) -> dict:
    """Circumstances, and hashes of the code that decided a number, that of a run among them."""
    hashes = {"training": code_of(run)} if run else {}
    hashes |= {what: code(*roots) for what, roots in decided.items()}
    return records.circumstances() | {"code": hashes}


def made_with_shipped(**decided: Sequence[str]) -> dict:
    """Circumstances and hashes of a measurement of pretrained/, that of its weights among them."""
    weights = (PRETRAINED / "model.safetensors").read_bytes()
    about = made(**decided)
    about["code"]["weights"] = hashlib.sha256(weights).hexdigest()[:16]
    return about


def gpu() -> str:
    """The GPU that CUDA_VISIBLE_DEVICES names, and its PyTorch; ValueError without one.

    That PyTorch may have another version than the one in requirements.txt.
    """
    if not os.environ.get("CUDA_VISIBLE_DEVICES") or not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU: CUDA_VISIBLE_DEVICES must name one that PyTorch sees")
    return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"


# Training ---------------------------------------------------------------------------------------


def folder_of(name: str) -> Path:
    return at.runs_folder() / code_of(name) / name


def begin(name: str) -> tuple[plan.Run, at.Corpus]:
    """A run, and its corpus; what the run changes in the text is changed."""
    run = plan.RUNS[name]
    if run.embeddings:
        at.Embeddings.forward = run.embeddings
    corpus = at.find_corpus(run.config.data, run.config.codes())
    train = corpus.splits["train"][:: run.every]
    return run, replace(corpus, splits=corpus.splits | {"train": train})


def process(name: str, /) -> None:
    """Be the process of a training."""
    at.gains_from_bf16 = lambda device: True  # rows share their format, bf16, on every processor
    run, corpus = begin(name)
    at.train_model(run.config, folder_of(name), corpus=corpus, parts=[plan.NarrowKeys])


def processes(number: int, *arguments: str) -> subprocess.CompletedProcess:
    """Run a command of this tool in so many processes of one thread."""
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node={number} --".split()
    environment = {"CUDA_VISIBLE_DEVICES": ""} | os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *torchrun, __file__, *arguments], env=environment)


def train_one(name: str) -> dict:
    """Train a run to its end, in one process of one thread; its record."""
    folder = folder_of(name)
    status = processes(1, "process", name).returncode
    run = at.read_run(folder)
    if status != 0 or run.status != "finished":
        raise ValueError(
            f"{folder}: not finished ({status}); once stopped, the same command goes on"
        )
    log = [asdict(epoch) for epoch in run.history]
    summary = {
        "status": run.status,
        "best": run.best(),
        "corpus": run.corpus,
        "parameters": run.parameters,
        "settings": asdict(run.settings),
        "validation_bleu": round(at.best_of(run.history).bleu, 2),
        "minutes": round(log[-1]["minutes"], 1),
        "updates": log[-1]["updates"],
        "epochs": len(log),
        "format": "bf16" if "bfloat16" in run.machine else "fp32",
        "device": run.machine.partition(" ")[0],
    }
    summary |= made(name)
    if summary["device"] == "cuda":
        summary["machine"] = gpu()
    return {"summary": summary, "log": log}


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
            gpu()  # ValueError without one
        records.write(f"runs/{name}", train_one(name))


def pace_here(name: str, file: Path, /) -> None:
    """Time updates of a run in this process, and write the seconds of one to a file."""
    run, corpus = begin(name)
    with at.join_workers() as worker:
        data = at.encode_corpus(corpus, run.config)
        config = at.resolve(run.config, data)
        model = at.new_model(config, data.vocabularies, [plan.NarrowKeys])
        criterion = at.LabelSmoothing(len(data.vocabularies[1]), at.PAD, config.smoothing)
        loss_model = at.ModelWithLoss(model, at.make_fast(criterion), worker.autocast)
        loss_model = at.on_all_ranks(loss_model.train(), worker)
        means = at.new_optimizer(model, config, at.planned_updates(config, data))
        updates = itertools.cycle(at.updates_of_epoch(config, data, 0))
        begun = 0.0
        for number in range(plan.TO_WARM_UP + plan.TIMED):
            if number == plan.TO_WARM_UP:
                begun = time.perf_counter()
            batches = [at.share_of(data.train, batch, worker) for batch in next(updates)]
            at.train_step(loss_model, batches, *means)
        seconds = (time.perf_counter() - begun) / plan.TIMED
    if worker.rank == 0:
        file.write_text(f"{seconds:.4f}")


def pace() -> None:
    """Seconds of an update of the runs whose time is told, on a quiet machine, in its format."""
    dtype = "bf16" if at.gains_from_bf16(models.CPU) else "fp32"
    for name in plan.PACED:
        record = records.read("pace")
        if name not in record:
            records.wait_for_quiet()
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "seconds"
                processes(plan.PROCESSES, "pace_here", name, str(file)).check_returncode()
                seconds = float(file.read_text())
            found = {"seconds": seconds, "format": dtype, "made": made(name)}
            records.write("pace", record | {name: found})


def left(beginnings: tuple[str, ...] = (), /) -> None:
    """Print what `train` would train."""
    print("\n".join(missing(beginnings)))


# Validation -------------------------------------------------------------------------------------


def translator_of(name: str, averaged: int) -> at.Translator:
    """A finished run's best epoch, or the mean of its last epochs; ValueError without weights."""
    folder = folder_of(name)
    run = at.read_run(folder)
    if run is None or run.status != "finished":
        raise ValueError(f"no finished run in {folder}: remove runs/{name}.json, `train {name}`")
    if averaged:
        last = len(run.history)
        numbers = range(last - averaged + 1, last + 1)
        epochs = [folder / f"epoch-{n:03}" for n in numbers]
        translator = models.average_models(epochs, [plan.NarrowKeys])
    else:
        translator = at.load_trained_model(folder, models.CPU, [plan.NarrowKeys])
    at.make_fast(translator.model)
    return translator


def translated(
    translator: at.Translator, split: str, beam: int, alpha: float = plan.ALPHA
) -> tuple[list[str], dict]:
    """Translations of a split, and how good they are."""
    pairs = at.find_corpus(plan.CORPUS, translator.languages).splits[split]
    decode = functools.partial(at.beam_search, beam=beam, alpha=alpha)
    written, found = at.score(translator, pairs, decode)
    scores = {
        "bleu": round(found["BLEU"], 2),
        "signature": found["signature"],
        "chrf": round(found["chrF"], 2),
        "perplexity": round(found["perplexity"], 2),
        "format": "fp32",
    }
    print(f"{translator.name}, {split}, beam {beam}, alpha {alpha}: {scores}", flush=True)
    return written, scores


def scored(translator: at.Translator, split: str, beam: int, alpha: float = plan.ALPHA) -> dict:
    return translated(translator, split, beam, alpha)[1]


def validate() -> None:
    """Sweep beam, length penalty and averaging with the first seed of the full recipe."""
    [run] = plan.SHIPPED.runs
    averaged = plan.AVERAGED
    about = made(run, scoring=SCORING)
    facts = {"run": run, "beam": plan.BEAM, "averaged": averaged, "made": about}
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
        for count in range(plan.RUNS[run].config.keep + 1):  # 0 stands for the best epoch
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
    entry |= {"averaged": row.averaged} | scores | made(run, scoring=SCORING)
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
    references = [pair[1] for pair in at.find_corpus(plan.CORPUS).splits[split]]
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
    rounded = models.round_model(average, PRETRAINED)
    at.make_fast(rounded.model)
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
    about = made(run, scoring=SCORING)
    content = {"run": run, "training": training, "formats": formats, "made": about}
    records.write("pretrained", content)


main = records.command_line(
    train=train, left=left, process=process, pace=pace, pace_here=pace_here, validate=validate,
    score=score, steps=steps, pretrained=pretrained,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
