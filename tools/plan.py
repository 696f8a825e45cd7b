"""What is trained for docs/results, and how the rows of the tables use it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import models
import torch

at = models.at

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


@dataclass(frozen=True)
class Run:
    """A training: its settings, and what they do not say."""

    config: at.Config
    every: int = 1  # of the training pairs one in so many
    embeddings: Callable | None = None  # a `forward` in the place of that of Embeddings


def recipe(**changes) -> at.Config:
    return replace(at.Config(data=CORPUS, batch_tokens=2560, epochs=32), **changes)


def words(seed: int) -> at.Config:
    """The recipe with words: more weights that occur rarely, and so more dropout; as many updates.

    A sentence has fewer words than subwords, so a batch of as many sentences has fewer tokens.
    """
    return recipe(vocab_size=0, share_embeddings=False, dropout=0.4, batch_tokens=2140, seed=seed)


# The recipe, step by step -------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of the table: runs that differ in their seed only, and how their weights are used."""

    name: str
    step: str  # what is new, in words
    runs: tuple[str, ...]
    beam: int = 1
    averaged: int = 0  # how many of the last epochs; 0: the epoch with the best validation BLEU
    alpha: float = ALPHA


OF_ROWS = {
    **{f"words-{seed}": words(seed) for seed in SEEDS},
    **{f"subwords-{seed}": recipe(share_embeddings=False, seed=seed) for seed in SEEDS},
    **{f"recipe-{seed}": recipe(seed=seed) for seed in SEEDS},
    "recipe-en-de": recipe(languages="en-de"),
}
FULL = tuple(f"recipe-{seed}" for seed in SEEDS)
ON_GPU = {f"gpu-{seed}": recipe(seed=seed) for seed in SEEDS}  # the recipe again, on a GPU
ROWS = (
    Row("words", "words", tuple(f"words-{seed}" for seed in SEEDS)),
    Row("subwords", "subwords", tuple(f"subwords-{seed}" for seed in SEEDS)),
    Row("one-matrix", "one matrix instead of three", FULL),
    Row("beam", "beam search", FULL, BEAM),
    Row("averaging", "averaging", FULL, BEAM, AVERAGED),
    Row("recipe", f"α = {CHOSEN_ALPHA:g} in place of {ALPHA}", FULL, BEAM, AVERAGED, CHOSEN_ALPHA),
)
OTHER = Row("en-de", "the same, English to German", ("recipe-en-de",), BEAM, AVERAGED, CHOSEN_ALPHA)
SHIPPED = Row("int8", "the model of pretrained/", FULL[:1], BEAM, AVERAGED, CHOSEN_ALPHA)


# Trials -------------------------------------------------------------------------------------------


def trial(**changes) -> at.Config:
    """A quarter of the recipe's updates, with as high a rate at the end of warm-up."""
    base = {"epochs": 8, "keep": 3, "dropout": 0.15, "warmup": 250, "factor": 0.75}
    return recipe(**base | changes)


def whole(**changes) -> at.Config:
    """As long as the recipe, with what did best in the trials."""
    base = {"vocab_size": 10_000, "d_model": 160, "d_ff": 720, "h": 4, "batch_tokens": 1280}
    return recipe(**base | {"warmup": 2000} | changes)


TRIALS = {
    "trial-base": trial(),
    "trial-factor-50": trial(factor=0.5),
    "trial-after-50": trial(norm_first=False, factor=0.5),
    "trial-batch-1280": trial(batch_tokens=1280, warmup=500),
    "trial-layers-4": trial(N=4, d_model=168, d_ff=672),
    "trial-subwords-10000": trial(vocab_size=10_000, d_model=160, d_ff=720, h=4),
    "trial-whole-25": whole(dropout=0.25),
    "trial-whole-30": whole(dropout=0.3),
}


def forgetful(self: at.Embeddings, ids: torch.Tensor) -> torch.Tensor:
    """Embeddings of which a tenth is the unknown word's while the model trains."""
    if self.training:
        lost = (torch.rand(ids.shape) < 0.1) & (ids >= len(at.SPECIALS))
        ids = ids.masked_fill(lost, at.UNKNOWN)
    return EMBED(self, ids)


EMBED = at.Embeddings.forward


# Table 3, and nine years --------------------------------------------------------------------------


class NarrowKeys(at.MultiHeadedAttention):
    """Attention whose queries and keys have a width of their own."""

    def __init__(self, h: int, d_model: int, width: int, dropout: float = 0.1):
        super().__init__(h, d_model, dropout)
        self.linears[0] = torch.nn.Linear(d_model, h * width)
        self.linears[1] = torch.nn.Linear(d_model, h * width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)


def unscaled(self: at.Embeddings, ids: torch.Tensor) -> torch.Tensor:
    """What embeddings give without √D."""
    return self.lut(ids)


IN_WORDS = {forgetful: "a tenth of the words read as unknown", unscaled: "no √D"}
SHORT = 5  # epochs that give 30 BLEU


def short(seed: int, warmup: int = 168, **changes) -> at.Config:
    """The recipe for SHORT epochs, a sixth of them to warm up, to as high a rate."""
    factor = at.Config.factor * math.sqrt(warmup / at.Config.warmup)
    base = {"epochs": SHORT, "warmup": warmup, "factor": factor, "keep": 1, "seed": seed}
    return recipe(**base | changes)


# Each with as many weights as the recipe, or a few less: a gate is a third matrix, and shared keys
# leave room.
NINE_YEARS = {
    "rms-norm": {"norm": "RMSNorm"},
    "swiglu": {"feed_forward": "SwiGLU", "d_ff": at.Config.d_ff * 2 // 3},
    "rotary": {"attention": "RotaryAttention", "positions": "NoPositions"},
    "one-group": {"attention": "GroupedAttention(groups=1)", "d_ff": 960},
    "no-biases": {"bias": False},
    "adamw": {"weight_decay": 0.1},
}
TABLE_3 = {
    "base": {},
    **{f"heads-{h}": {"h": h} for h in (1, 2, 6, 12)},
    **{f"key-width-{n}": {"attention": f"NarrowKeys(width={n})"} for n in (16, 32)},
    **{f"layers-{N}": {"N": N} for N in (1, 2, 4, 5, 6)},
    **{f"width-{D}": {"d_model": D} for D in (96, 384)},
    **{f"feed-forward-{F}": {"d_ff": F} for F in (384, 1536)},
    **{f"dropout-{percent}": {"dropout": percent / 100} for percent in (0, 10, 20, 30, 40)},
    **{f"smoothing-{percent}": {"smoothing": percent / 100} for percent in (0, 20)},
    "learnt-positions": {"positions": "LearntPositions"},
    "no-positions": {"positions": "NoPositions"},
    "norm-after": {"norm_first": False},
    "norm-after-no-warm-up": {"norm_first": False, "warmup": 1},
    "no-warm-up": {"warmup": 1},
    "unscaled": {},
    "three-matrices": {"share_embeddings": False},
    "inverse-sqrt": {"schedule": "inverse_sqrt", "keep": AVERAGED},
    **NINE_YEARS,
}
TABLE_3_RUNS = {
    f"table3-{row}-{seed}": Run(
        short(seed, **changes), embeddings=unscaled if row == "unscaled" else None
    )
    for row, changes in TABLE_3.items()
    for seed in SEEDS[:2]
}

# Their schedule does not depend on the length: one training serves equal updates and equal minutes.
TOGETHER = {
    **{name: value for changes in NINE_YEARS.values() for name, value in changes.items()},
    "attention": "RotaryGroupedAttention(groups=1)",
    "d_ff": 640,  # two thirds of 960
}
YEARS_RUNS = {
    f"years-{kind}-{seed}": Run(recipe(schedule="inverse_sqrt", seed=seed, **changes))
    for kind, changes in {"2017": {}, "2026": TOGETHER}.items()
    for seed in SEEDS
}


# Scale --------------------------------------------------------------------------------------------

WIDTHS = (48, 96, 288)  # beside the recipe's
SHARES = (16, 8, 4, 2)  # of the data, one in so many; all of it is the recipe's
SCALE_RUNS = {
    **{f"scale-width-{D}": Run(recipe(d_model=D, d_ff=4 * D)) for D in WIDTHS},
    **{f"scale-data-{n}": Run(recipe(), every=n) for n in SHARES},
}

RUNS = {
    **{name: Run(config) for name, config in (OF_ROWS | ON_GPU | TRIALS).items()},
    "trial-words-lost-10": Run(trial(), embeddings=forgetful),
    **TABLE_3_RUNS,
    **YEARS_RUNS,
    **SCALE_RUNS,
}

# Runs whose time is told, and how many of their updates are timed, in so many processes.
PACED = tuple(row.runs[0] for row in ROWS[:3])
PROCESSES = 2
TO_WARM_UP = 10
TIMED = 200
