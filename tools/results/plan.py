"""What is trained for results, and how the rows of the tables use it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import the_annotated_transformer as at

CORPUS = "multi30k"
SEEDS = (1, 2, 3)
BEAM = 4
ALPHA = 0.6  # both as in the paper
AVERAGED = 6  # of the last epochs, where the paper has 5 or 20 checkpoints
# With a beam of BEAM the best of those that divide by no more than the length: beam.json.
CHOSEN_ALPHA = 1.0
BEAMS = (1, 2, 4, 8)
ALPHAS = (0.0, 0.3, 0.6, 0.8, 1.0, 1.4, 2.0)
TESTS = {"test_2016_flickr": "test 2016", "test_2017_flickr": "test 2017"}


def recipe(**changes) -> at.Config:
    """The settings of the recipe, with a number format that is the same on every processor."""
    config = at.Config(
        data=CORPUS,
        vocab_size=5000,
        share_embeddings=True,
        batch_tokens=1280,
        warmup=2000,
        factor=1.5,
        epochs=32,
        shares=1,
        average=AVERAGED,
        precision="fp32",
    )
    return replace(config, **changes)


# The recipe, step by step -------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of the table: runs that differ in their seed only, and how their weights are used."""

    name: str
    step: str  # what is new, in words
    runs: tuple[str, ...]
    beam: int = 1
    averaged: int = 0  # how many of the last epochs; 0: the best one of the last AVERAGED
    alpha: float = ALPHA


def words(seed: int) -> at.Config:
    """The recipe with words as tokens, and as many updates.

    More weights occur rarely, so there is more dropout. A sentence has fewer words than subwords,
    so a batch of as many sentences has fewer tokens.
    """
    return recipe(vocab_size=0, share_embeddings=False, dropout=0.4, batch_tokens=1070, seed=seed)


RUNS = {
    **{f"words-seed-{seed}": words(seed) for seed in SEEDS},
    **{f"subwords-seed-{seed}": recipe(share_embeddings=False, seed=seed) for seed in SEEDS},
    **{f"recipe-{seed}": recipe(seed=seed) for seed in SEEDS},
}
FULL = tuple(f"recipe-{seed}" for seed in SEEDS)
PENALTY = f"length penalty α = {CHOSEN_ALPHA:g}, not {ALPHA}"
RECIPE = Row("recipe", PENALTY, FULL, BEAM, AVERAGED, CHOSEN_ALPHA)
ROWS = (
    Row("words", "word vocabulary", tuple(f"words-seed-{seed}" for seed in SEEDS)),
    Row("subwords", "subword vocabulary", tuple(f"subwords-seed-{seed}" for seed in SEEDS)),
    Row("one-matrix", "one matrix for all embeddings", FULL),
    Row("beam", "beam search", FULL, BEAM),
    Row("averaging", "checkpoint averaging", FULL, BEAM, AVERAGED),
    RECIPE,
)
SHIPPED = replace(RECIPE, name="int8", step="the model of pretrained/", runs=FULL[2:3])
# The recipe with PyTorch's layers and initial weights: outside.py.
OUTSIDE = replace(RECIPE, name="outside", step="nn.Transformer", runs=("nn-transformer-1",))


def scored() -> tuple[Row, ...]:
    """All rows that are scored on the test splits."""
    return *ROWS, OUTSIDE


# Trials, and a run that is watched ----------------------------------------------------------------


def trial(**changes) -> at.Config:
    """A quarter of the epochs, with batches twice as large and less dropout."""
    base = {"epochs": 8, "batch_tokens": 2560, "dropout": 0.15, "warmup": 250, "factor": 0.75}
    return recipe(**base | changes)


RUNS |= {
    "search-base": trial(),
    "search-dropout-25": trial(dropout=0.25),
    "search-batch-1280": trial(batch_tokens=1280, warmup=500),
    "search-whole-dropout-10": recipe(dropout=0.1),
}
HALF_BATCH = {"batch_tokens": 1280, "warmup": 500}
CHOICE = {  # of Part 10; d_ff makes up for the keys that its three heads share
    **HALF_BATCH, "attention": "rotary-grouped", "positions": "none", "norm": "rms", "bias": False,
    "d_ff": 896, "optimizer": "muon", "weight_decay": 0.1,
}  # fmt: skip
TURNED = {"attention": "rotary", "positions": "none"}
RUNS |= {  # beside search-batch-1280
    "search-batch-1280-2": trial(**HALF_BATCH, seed=2),
    "idea-width-256": trial(**HALF_BATCH, d_model=256, d_ff=1024, h=4),
    "idea-weight-decay": trial(**HALF_BATCH, weight_decay=0.1),
    "idea-batch-640": trial(batch_tokens=640, warmup=1000),
    "idea-rotary": trial(**HALF_BATCH, **TURNED),
    "idea-rotary-2": trial(**HALF_BATCH, **TURNED, seed=2),
    "idea-choice": trial(**CHOICE),
    "idea-choice-2": trial(**CHOICE, seed=2),
}
TRIALS = {  # the rows of their table: runs that differ in their seed only, and what they try
    ("search-base",): "baseline: 2,560 positions a batch, dropout 0.15",
    ("search-dropout-25",): "baseline, dropout 0.25",
    ("search-batch-1280", "search-batch-1280-2"): "baseline, half the batch, so twice the updates",
    ("idea-batch-640",): "a quarter of the batch, four times the updates",
    ("idea-width-256",): "half the batch, width 256, not 192: 6.8 M weights, not 4.1 M",
    ("idea-weight-decay",): "half the batch, weight decay 0.1",
    ("idea-rotary", "idea-rotary-2"): "half the batch, rotary positions",
    (
        "idea-choice",
        "idea-choice-2",
    ): "half the batch; rotary positions, one head of keys, RMSNorm, no biases,"
    " Muon with weight decay 0.1 ([Part 10](#all-together))",
    ("recipe-1",): "the recipe: 1,280 positions a batch, dropout 0.25",
    ("search-whole-dropout-10",): "the recipe with dropout 0.1",
}
WATCHED = FULL[0]  # learning.json shows how it learns

# What a sceptic asks ------------------------------------------------------------------------------

PAPER = "paper-schedule-1"
RUNS |= {OUTSIDE.runs[0]: recipe(), PAPER: recipe(schedule="inverse_sqrt")}

ORDERS = {  # of a norm and its sub-layer: a run for each factor of the learning rate
    "pre-norm": {0.375: "pre-norm-0.375", 0.75: "search-base", 1.5: "pre-norm-1.5"},
    "post-norm": {factor: f"post-norm-{factor}" for factor in (0.1875, 0.375, 0.75)},
}
RUNS |= {
    run: trial(norm_first=order == "pre-norm", factor=factor)
    for order, runs in ORDERS.items()
    for factor, run in runs.items()
}


def beside(run: str) -> set[str]:
    """The runs that stand in one table with a run, and itself."""
    tables = (
        {run for row in scored() for run in row.runs} | {PAPER},
        {run for runs in TRIALS for run in runs},
        {run for runs in ORDERS.values() for run in runs.values()},
    )
    return {run}.union(*(table for table in tables if run in table))


def chosen(names: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Rows to score and runs to train, by the names of rows or runs; all if there are none.

    ValueError for a name that is not planned.
    """
    rows = {row.name: row for row in scored()}
    for name in names:
        if name not in rows and name not in RUNS:
            known = ", ".join([*rows, *RUNS])
            raise ValueError(f"{name} is not planned in tools/results/plan.py; these are: {known}")
    if not names:
        return list(rows.values()), list(RUNS)
    asked = [rows[name] for name in rows if name in names]
    needed = {run for row in asked for run in row.runs}.union(names)
    return asked, [run for run in RUNS if run in needed]
