"""Inside the shipped model: its heads, and what the German verb and its particle carry."""

from statistics import mean, quantiles

from tools.views.common import Table, record, without_range

ENGLISH = {  # of particles: what changes with them
    ("zu", "an"): "watch, look at",
    ("an", "durch"): "look at, look through",
    ("hinauf", "hinunter"): "up, down",
    ("vorbei", "weg"): "by, away",
    ("hoch", "herunter"): "jump up, jump down",
}


def heads() -> Table:
    """What the model loses without a head."""
    found = record("heads")
    table = {}
    without = {"zero": [], "mean": []}  # the head replaced by nothing, or by its mean output
    for row in found["rows"]:
        without[row["by"]].append(mean(row["changes"]))
        if row["by"] == "zero":
            place = row["attention"], str(row["layer"])
            low, high = min(row["changes"]), max(row["changes"])
            rise = f"{mean(row['changes']):.2f}"
            table.setdefault(place, []).append(rise if low * high > 0 else f"({rise})")
    apart = max(abs(one - other) for one, other in zip(*without.values(), strict=True))
    return Table(
        f"Removing one head raises perplexity from {mean(found['perplexity']):.2f} by"
        f" {max(without['zero']):.2f} at most.",
        ["attention", "layer", "head 1", "head 2", "head 3"],
        [[*place, *cells] for place, cells in table.items()],
        "Each number is the rise in the published model's validation perplexity without that head:"
        " the mean over 5 sets of 200 sentences. It stands in brackets if the sets disagree on its"
        f" sign. If the head is replaced by its mean output instead, no number changes by"
        f" more than {apart:.2f}.",
    )


def particles_of(pair: dict) -> tuple[str, str]:
    """The particles of two sentences, their last words."""
    first, second = (sentence.rstrip(" .").split()[-1] for sentence in pair["sentences"])
    return first, second


def particles() -> Table:
    """Which share of the whole shift comes with which vectors of the memory."""
    found = record("particles")
    rows = []
    for both, english in ENGLISH.items():
        pairs = [pair for pair in found["pairs"] if particles_of(pair) == both]
        cells = []
        for place in ("verb", "particle", "verb and particle"):
            shares = [100 * pair["shares"][place] for pair in pairs]
            low, middle, high = (f"{share:z.0f}" for share in quantiles(shares, n=4))
            cells.append(f"{middle}% ({low} to {high})".replace("-", "−"))
        rows.append([f"*{'*, *'.join(both)}*", english, str(len(pairs)), *cells])
    (verb, *_), *others = ([without_range(cell) for cell in row[3:]] for row in rows)
    least = min((particle for _, particle, _ in others), key=lambda cell: int(cell.rstrip("%")))
    return Table(
        f"With *zu* and *an*, the German verb accounts for {verb} of the shift; with all other"
        f" particles, the particle itself accounts for at least {least}.",
        ["particles", "in English", "pairs", "German verb", "German particle", "verb and particle"],
        rows,
        "The last three columns name the German words whose vectors were patched into the other"
        " sentence. Each cell is the median share of the whole shift of log p(A) − log p(B), with"
        f" the interquartile range in brackets. Of {found['tried']} pairs, {len(found['pairs'])}"
        " count: both sentences have equally many subwords, and each translation has an English"
        " phrase listed for its particle and none listed for the other.",
    )
