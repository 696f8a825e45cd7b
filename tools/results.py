"""Make the records of docs/results: train, choose on the validation split, score the tests once.

    python tools/results.py train [NAME ...]  the runs whose names begin so (default: the rows')
    python tools/results.py validate          try beams, penalties and averages
    python tools/results.py score             each row on each test split, once
    python tools/results.py pretrained        the folder pretrained/ and what int8 costs

Each command does only what is not on record; remove a record, or entries of scores.json, to make
them anew. Weights lie in RUNS_DIR (default: runs), in a folder for each state of the code that
decides a training.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import models
import reach
import records

at = models.at

# The plan ---------------------------------------------------------------------------------------

CORPUS = "multi30k"
SEEDS = (1, 2, 3)
BEAM = 4
ALPHA = 0.6
AVERAGED = 6  # as in the paper, and how many of the last epochs
CHOSEN_ALPHA = 1.4  # the best of ALPHAS with a beam of BEAM: beam.json
BEAMS = (1, 2, 4, 8, 12)
ALPHAS = (0.0, 0.3, 0.6, 1.0, 1.4)
TESTS = {"test_2016_flickr": "test 2016", "test_2017_flickr": "test 2017"}
PRETRAINED = at.HERE / "pretrained"


def recipe(**changes) -> at.Config:
    return replace(at.Config(data=CORPUS, batch_tokens=2560, epochs=32), **changes)


def trial(**changes) -> at.Config:
    """A quarter of the updates of the first recipe, with as high a rate at the end of warm-up."""
    base = {"epochs": 8, "keep": 3, "dropout": 0.15, "warmup": 250, "factor": 0.75}
    return recipe(**base | changes)


# Sizes of about 4.1 million parameters.
NARROW = {"d_model": 176, "d_ff": 704, "h": 4}
NARROWER = {"d_model": 168, "d_ff": 672, "h": 3}

RUNS = {
    **{f"words-{n}": recipe(vocab_size=0, share_embeddings=False, seed=n) for n in SEEDS},
    "subwords-1": recipe(share_embeddings=False),
    **{f"recipe-{n}": recipe(seed=n) for n in SEEDS},
    "recipe-en-de": recipe(languages="en-de"),
    "trial-base": trial(),
    "trial-factor-50": trial(factor=0.5),
    "trial-after-50": trial(norm_first=False, factor=0.5),
    "trial-subwords-8000": trial(vocab_size=8000, **NARROW),
    "trial-clip-1": trial(clip=1.0),
    "trial-batch-1280": trial(batch_tokens=1280, warmup=500),
    "trial-layers-4": trial(N=4, **NARROWER),
    "trial-heads-6": trial(h=6),
    "trial-smoothing-15": trial(smoothing=0.15),
    "trial-decay-10": trial(weight_decay=0.1),
    "trial-dropout-20": trial(dropout=0.2),
    "trial-attention-dropout-10": trial(attention_dropout=0.1),
    "trial-factor-35": trial(factor=0.35),
    "trial-subwords-10000": trial(vocab_size=10_000, **NARROWER),
}


@dataclass(frozen=True)
class Row:
    """A row of the table: runs that differ in their seed only, and how their weights are used."""

    name: str
    step: str  # what is new, in words
    runs: tuple[str, ...]
    beam: int = 1
    averaged: int = 0  # how many of the last epochs; 0: the epoch with the best validation BLEU
    alpha: float = ALPHA


FULL = tuple(f"recipe-{seed}" for seed in SEEDS)
ROWS = (
    Row("words", "words", tuple(f"words-{seed}" for seed in SEEDS)),
    Row("subwords", "subwords", ("subwords-1",)),
    Row("one-matrix", "one matrix instead of three", FULL[:1]),
    Row("beam", "beam search", FULL[:1], BEAM),
    Row("averaging", "averaging", FULL[:1], BEAM, AVERAGED),
    Row("recipe", f"length penalty {CHOSEN_ALPHA}", FULL, BEAM, AVERAGED, CHOSEN_ALPHA),
)
OTHER = Row("en-de", "the same, English to German", ("recipe-en-de",), BEAM, AVERAGED, CHOSEN_ALPHA)
SHIPPED = Row("int8", "the model of pretrained/", FULL[:1], BEAM, AVERAGED, CHOSEN_ALPHA)


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


def made(**decided: Sequence[str]) -> dict:
    """Circumstances, and hashes of the code that decided a number, by what it decided."""
    hashes = {what: code(*roots) for what, roots in decided.items()}
    return records.circumstances() | {"code": hashes}


# Training ---------------------------------------------------------------------------------------


def folder_of(name: str) -> Path:
    return at.runs_folder() / code(*TRAINING) / name


def process(name: str, /) -> None:
    """Be one of the processes of a training."""
    at.train_model(RUNS[name], folder_of(name))


def train_one(name: str) -> dict:
    """Train a run to its end, in two processes of one thread (a trial: in one); its record."""
    folder = folder_of(name)
    ranks = 1 if name.startswith("trial-") else 2
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node={ranks} --".split()
    command = [sys.executable, *torchrun, __file__, "process", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    status = subprocess.run(command, env=environment).returncode
    run = at.read_run(folder)
    if status != 0 or run.get("status") != "finished":
        raise ValueError(
            f"{folder}: not finished ({status}); once stopped, the same command goes on"
        )
    log = [asdict(epoch) for epoch in run["history"]]
    summary = {name: run[name] for name in ("status", "best", "corpus", "parameters")}
    summary |= {
        "settings": asdict(run["settings"]),
        "validation_bleu": round(at.best_of(run["history"]).bleu, 2),
        "minutes": round(log[-1]["minutes"], 1),
        "updates": log[-1]["updates"],
        "epochs": len(log),
        "ranks": ranks,
        "bf16": "bfloat16" in run["machine"],
    }
    return {"summary": summary | made(training=TRAINING), "log": log}


def train(beginnings: tuple[str, ...] = (), /) -> None:
    """Every run whose name begins so and that is not on record, one after the other."""
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in RUNS):
            raise ValueError(f"no run begins with {beginning!r}: choose among {', '.join(RUNS)}")
    of_rows = {run for row in (*ROWS, OTHER) for run in row.runs}
    for name in RUNS:
        wanted = name.startswith(tuple(beginnings)) if beginnings else name in of_rows
        if wanted and not records.read(f"runs/{name}"):
            records.write(f"runs/{name}", train_one(name))


# Validation -------------------------------------------------------------------------------------


def translator_of(name: str, averaged: int) -> at.Translator:
    """A finished run's best epoch, or the mean of its last epochs; ValueError without weights."""
    folder = folder_of(name)
    run = at.read_run(folder)
    if run.get("status") != "finished":
        raise ValueError(f"no finished run in {folder}: remove runs/{name}.json, `train {name}`")
    if averaged:
        last = len(run["history"])
        numbers = range(last - averaged + 1, last + 1)
        translator = models.average_models([folder / f"epoch-{n:03}" for n in numbers])
    else:
        translator = at.load_trained_model(folder, models.CPU)
    at.make_fast(translator.model)
    return translator


def scored(translator: at.Translator, split: str, beam: int, alpha: float = ALPHA) -> dict:
    """BLEU, signature and perplexity on a split."""
    corpus = at.find_corpus(CORPUS, translator.languages)
    decode = functools.partial(at.beam_search, beam=beam, alpha=alpha)
    scores = at.evaluate(translator, corpus, [split], decode)[split]
    print(f"{translator.name}, {split}, beam {beam}, alpha {alpha}: {scores}", flush=True)
    return {
        "bleu": round(scores["BLEU"], 2),
        "signature": scores["signature"],
        "perplexity": round(scores["perplexity"], 2),
    }


def validate() -> None:
    """Sweep beam, length penalty and averaging with the first seed of the full recipe."""
    about = made(training=TRAINING, scoring=SCORING)
    facts = {"run": SHIPPED.runs[0], "beam": BEAM, "averaged": AVERAGED, "made": about}
    if not records.read("beam"):
        whole = translator_of(facts["run"], AVERAGED)
        pairs = [(beam, alpha) for beam in BEAMS for alpha in ALPHAS if beam > 1 or alpha == 0]
        sweep = [{"beam": b, "alpha": a} | scored(whole, "val", b, a) for b, a in pairs]
        records.write("beam", facts | {"sweep": sweep})
    if not records.read("averaging"):
        sweep = [  # 0 stands for the best epoch
            {"averaged": count} | scored(translator_of(facts["run"], count), "val", BEAM)
            for count in range(RUNS[facts["run"]].keep + 1)
        ]
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
    decode = functools.partial(at.beam_search, beam=row.beam, alpha=row.alpha)
    pairs = at.find_corpus(CORPUS, translator.languages).splits[split]
    written = at.translate(translator, [source for source, _ in pairs], decode)
    records.write_text(translations_path(row, run, split), "".join(f"{x}\n" for x in written))
    entry = {"row": row.name, "run": run, "split": split, "beam": row.beam, "alpha": row.alpha}
    entry |= {"averaged": row.averaged} | scored(translator, split, row.beam, row.alpha)
    entry |= made(training=TRAINING, scoring=SCORING)
    content = records.read("scores")
    records.write("scores", content | {"scores": [*content.get("scores", []), entry]})
    return entry


def score() -> None:
    """Score what was never scored."""
    for row in (*ROWS, OTHER):
        for run in row.runs:
            missing = [split for split in TESTS if not score_of(row, run, split)]
            translator = translator_of(run, row.averaged) if missing else None
            for split in missing:
                score_once(row, run, split, translator)


# The model to take away -------------------------------------------------------------------------


def pretrained() -> None:
    """Write the folder pretrained/ from the full recipe, and measure what int8 costs."""
    if records.read("pretrained"):
        return
    [run] = SHIPPED.runs
    whole = translator_of(run, AVERAGED)
    average = folder_of(run).with_name(f"{run}-average")
    at.save_model(whole, average)
    rounded = models.round_model(average, PRETRAINED)
    at.make_fast(rounded.model)
    formats = {}
    for name, translator, row, folder in (
        ("fp32", whole, ROWS[-1], average),
        ("int8", rounded, SHIPPED, PRETRAINED),
    ):
        size = (folder / "model.safetensors").stat().st_size / 1e6
        formats[name] = {"MB": round(size, 2), "val": scored(translator, "val", BEAM, row.alpha)}
        formats[name] |= {split: score_once(row, run, split, translator) for split in TESTS}
    training = records.read(f"runs/{run}")["summary"]
    about = made(training=TRAINING, scoring=SCORING)
    content = {"run": run, "training": training, "formats": formats, "made": about}
    records.write("pretrained", content)


main = records.command_line(
    train=train, process=process, validate=validate, score=score, pretrained=pretrained
)

if __name__ == "__main__":
    sys.exit(main())
