"""What is trained for results, and how the rows of the tables use it."""

from dataclasses import dataclass, replace

import the_annotated_transformer as at
from tools.results import parts  # noqa: F401, adds kinds of attention

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


OF_ROWS = {
    **{f"words-seed-{seed}": words(seed) for seed in SEEDS},
    **{f"subwords-seed-{seed}": recipe(share_embeddings=False, seed=seed) for seed in SEEDS},
    **{f"recipe-{seed}": recipe(seed=seed) for seed in SEEDS},
    "recipe-en-de": recipe(languages="en-de"),
}
FULL = tuple(f"recipe-{seed}" for seed in SEEDS)
ROWS = (
    Row("words", "word vocabulary", tuple(f"words-seed-{seed}" for seed in SEEDS)),
    Row("subwords", "subword vocabulary", tuple(f"subwords-seed-{seed}" for seed in SEEDS)),
    Row("one-matrix", "one matrix for all embeddings", FULL),
    Row("beam", "beam search", FULL, BEAM),
    Row("averaging", "checkpoint averaging", FULL, BEAM, AVERAGED),
    Row(
        "recipe",
        f"length penalty α = {CHOSEN_ALPHA:g}, not {ALPHA}",
        FULL,
        BEAM,
        AVERAGED,
        CHOSEN_ALPHA,
    ),
)
OTHER = replace(ROWS[-1], name="en-de", step="English to German", runs=("recipe-en-de",))


def scored() -> tuple[Row, ...]:
    """All rows of the table."""
    return *ROWS, OTHER


SHIPPED = Row("int8", "the model of pretrained/", FULL[2:3], BEAM, AVERAGED, CHOSEN_ALPHA)

# Trials -------------------------------------------------------------------------------------------


def trial(**changes) -> at.Config:
    """A quarter of the epochs, with batches twice as large and less dropout."""
    base = {"epochs": 8, "batch_tokens": 2560, "dropout": 0.15, "warmup": 250, "factor": 0.75}
    return recipe(**base | changes)


def whole(**changes) -> at.Config:
    """As long as the recipe, with what did best in the trials."""
    base = {"vocab_size": 10_000, "d_model": 160, "d_ff": 720, "h": 4}
    return recipe(**base | changes)


TRIALS = {
    "trial-factor-50": trial(factor=0.5),
    "trial-after-50": trial(norm_first=False, factor=0.5),
    "trial-layers-4": trial(N=4, d_model=168, d_ff=672),
    "trial-whole-25": whole(dropout=0.25),
    "trial-whole-30": whole(dropout=0.3),
    "search-base": trial(),
    "search-batch-1280": trial(batch_tokens=1280, warmup=500),
    "search-subwords-10000": trial(
        vocab_size=10_000, d_model=160, d_ff=720, h=4, batch_tokens=1280, warmup=500
    ),
    "search-dropout-25": trial(dropout=0.25),
    "search-whole-dropout-10": recipe(dropout=0.1),
}


# Table 3 at home ----------------------------------------------------------------------------------


def short(**changes) -> at.Config:
    """Five epochs of the recipe, with a warm-up of a quarter of them."""
    return recipe(**{"epochs": 5, "warmup": None, "factor": None} | changes)


VARIATIONS = {  # (§6.2): a row of the table by its name
    "base": short(),
    **{f"heads-{h}": short(h=h) for h in (1, 2, 6, 12)},
    "keys-16": short(attention="keys16"),
    **{f"layers-{N}": short(N=N) for N in (1, 2, 4, 6)},
    **{f"width-{width}": short(d_model=width) for width in (96, 384)},
    **{f"feed-forward-{width}": short(d_ff=width) for width in (384, 1536)},
    **{f"dropout-{rate}": short(dropout=rate) for rate in (0.0, 0.1, 0.4)},
    **{f"smoothing-{share}": short(smoothing=share) for share in (0.0, 0.2)},
    "learnt-positions": short(positions="learnt"),
    "no-positions": short(positions="none"),
    "post-norm": short(norm_first=False),
    "no-warm-up": short(warmup=1),
    "three-matrices": short(share_embeddings=False),
}
TABLE_3 = {
    f"{name}-seed-{seed}": replace(config, seed=seed)
    for seed in (1, 2)
    for name, config in VARIATIONS.items()
}


# Nine years ---------------------------------------------------------------------------------------


def today(seed: int) -> at.Config:
    """The recipe with parts and optimizer of today, and about as many parameters."""
    return recipe(
        norm="rms", feed_forward="swiglu", attention="rotary-grouped", h=4, positions="none",
        bias=False, d_ff=576, weight_decay=0.05, seed=seed,
    )  # fmt: skip


TODAY = {f"today-{seed}": today(seed) for seed in SEEDS}
WATCHED = "base-seed-1"  # learning.json shows how it learns
RUNS = OF_ROWS | TRIALS | TABLE_3 | TODAY
