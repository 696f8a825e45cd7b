"""Inside the shipped model: its heads, and what the German verb and its particle carry."""

from statistics import mean, median, quantiles

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


def part_of_shift(pair: dict, what: str, swapped: str) -> float:
    """The shift of English words by a swap, in percent of their whole shift."""
    return 100 * pair["swapped"][swapped][what] / pair["swapped"]["everything"][what]


def middle(shares: list[float]) -> str:
    """The median of shares in percent, with their interquartile range."""
    low, centre, high = (f"{share:z.0f}" for share in quantiles(shares, n=4))
    return f"{centre}% ({low} to {high})".replace("-", "−")


def particles() -> Table:
    """Which German word moves which English words."""
    found = record("particles")
    rows = []
    for both, english in ENGLISH.items():
        pairs = [pair for pair in found["pairs"] if particles_of(pair) == both]
        at_particle = []
        for pair in pairs:
            whole = pair["swapped"]["everything"]
            at_particle.append(100 * whole["particle"] / sum(whole.values()))
        verb = "–"
        if median(at_particle) < 95:
            verb = middle([part_of_shift(pair, "others", "verb") for pair in pairs])
        particle = middle([part_of_shift(pair, "particle", "particle") for pair in pairs])
        names = f"*{'*, *'.join(both)}*"
        rows.append([names, english, str(len(pairs)), middle(at_particle), particle, verb])
    captions = sum(pair["origin"] == "Multi30k" for pair in found["pairs"])
    least = min((without_range(row[4]) for row in rows), key=lambda cell: int(cell.rstrip("%")))
    [verb] = [without_range(row[5]) for row in rows if row[0] == "*zu*, *an*"]
    return Table(
        f"The German particle brings at least {least} of the shift at the English particle,"
        f" and with *zu* and *an* the German verb brings {verb} of the rest.",
        [
            "particles",
            "in English",
            "pairs",
            "shift at the English particle",
            "of that, from the German particle",
            "of the rest, from the German verb",
        ],
        rows,
        "Each cell is a median over the pairs, with the interquartile range in brackets. A share"
        " exceeds 100% where other words move the other way. English"
        " particles are *at*, *away*, *by*, *down*, *off*, *past*, *through* and *up*; a dash"
        f" stands where other words make less than 5% of the shift. Of {found['tried']} pairs,"
        f" {len(found['pairs'])} count, {captions} of them captions: both"
        " sentences have equally many subwords, and each translation has an English"
        " phrase listed for its particle and none listed for the other.",
    )
