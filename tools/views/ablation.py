"""Table 3 of the paper, and the same changes to our model."""

from dataclasses import dataclass

from tools.results import plan
from tools.views.common import Table, runs_that_compare

PAPER_BASE = 25.8


@dataclass(frozen=True)
class Group:
    """A row: one thing is changed from its values in the base models to others.

    Each new value has its BLEU in the paper, or the name of its run in plan.VARIATIONS.
    """

    what: str
    base: tuple[str, str]  # in the paper and here
    paper: dict[str, float]
    here: dict[str, str]


def values(name: str, *options: float) -> dict[str, str]:
    return {f"{option:,g}": f"{name}-{option}" for option in options}


GROUPS = (
    Group(
        "heads, at constant cost",
        ("8", "3"),
        {"1": 24.9, "4": 25.5, "16": 25.8, "32": 25.4},
        values("heads", 1, 2, 6, 12),
    ),
    Group("width of keys", ("64", "64"), {"16": 25.1, "32": 25.4}, values("keys", 16)),
    Group("layers", ("6", "3"), {"2": 23.7, "4": 25.3, "8": 25.5}, values("layers", 1, 2, 4, 6)),
    Group(
        "width of the model and of its heads",
        ("512", "192"),
        {"256": 24.5, "1,024": 26.0},
        values("width", 96, 384),
    ),
    Group(
        "width of the feed-forward network",
        ("2,048", "768"),
        {"1,024": 25.4, "4,096": 26.2},
        values("feed-forward", 384, 1536),
    ),
    Group("dropout", ("0.1", "0.25"), {"0": 24.6, "0.2": 25.5}, values("dropout", 0.0, 0.1, 0.4)),
    Group(
        "label smoothing", ("0.1", "0.1"), {"0": 25.3, "0.2": 25.7}, values("smoothing", 0.0, 0.2)
    ),
    Group(
        "positions",
        ("sinusoids", "sinusoids"),
        {"learnt": 25.7},
        {"learnt": "learnt-positions", "none": "no-positions"},
    ),
    Group("norm", ("post-norm", "pre-norm"), {}, {"post-norm": "post-norm"}),
    Group("warm-up, updates", ("4,000", "502"), {}, {"0": "no-warm-up"}),
    Group("matrices of embeddings and generator", ("1", "1"), {}, {"3": "three-matrices"}),
)


def differences(value_of_base: str, found: dict[str, float], base: float) -> str:
    """What each new value gains over the base, as a cell shows it."""
    cells = []
    for value, bleu in found.items():
        gain = f"{bleu - base:+z.1f}".replace("-", "−").replace("+0.0", "0")
        cells.append(f"{value}:\N{NO-BREAK SPACE}{gain}")
    return f"{value_of_base} → {', '.join(cells)}" if cells else ""


def table_3() -> Table:
    """What each change gains or loses, in the paper and here."""
    runs = runs_that_compare(f"{name}-seed-1" for name in plan.VARIATIONS).values()
    measured = {
        name: run["log"][-1]["bleu"] for name, run in zip(plan.VARIATIONS, runs, strict=True)
    }
    base = measured["base"]
    rows = []
    for group in GROUPS:
        here = {value: measured[name] for value, name in group.here.items()}
        paper_base, our_base = group.base
        cells = differences(paper_base, group.paper, PAPER_BASE), differences(our_base, here, base)
        rows.append([group.what, *cells])
    epochs = plan.VARIATIONS["base"].epochs
    return Table(
        f"BLEU relative to the base model: {PAPER_BASE} in the paper and {base:.1f} here.",
        ["changed", "the paper", "here"],
        rows,
        f"The paper: newstest2013, without averaged checkpoints. Here: Multi30k, validation split,"
        f" greedy decoding, seed 1; the recipe for {epochs} epochs, a quarter of them warm-up.",
        [run["summary"] for run in runs],
    )
