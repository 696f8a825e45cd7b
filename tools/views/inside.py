"""Inside the shipped model: its heads, and what the German verb and its particle carry."""

import statistics
from collections.abc import Sequence

import altair as alt

from tools.views.common import Chart, Table, record, with_range

CHANGES = {"verb": "the English verb", "particle": "the English particle"}


def heads() -> Table:
    """What the model loses without a head, by two things in its place."""
    found = record("heads")
    cells = {}
    for row in found["rows"]:
        place = row["attention"], str(row["layer"]), row["by"]
        cells.setdefault(place, []).append(with_range(row["changes"], 3))
    number = max(len(each) for each in cells.values())
    worst = max(statistics.mean(row["changes"]) for row in found["rows"])
    return Table(
        f"No head is worth more than {worst:.2f} in perplexity, which is"
        f" {statistics.mean(found['perplexity']):.2f} with all of them.",
        ["attention", "layer", "in its place", *(f"head {n + 1}" for n in range(number))],
        [[*place, *each] for place, each in cells.items()],
        "Each number is what the validation perplexity rises by without that head. It is the mean"
        f" of {len(found['perplexity'])} sets of 200 sentences, with the lowest and the highest in"
        " brackets.",
        [found["made"]],
    )


def shares(pairs: Sequence[dict], place: str) -> list[float]:
    """Which share of the shift comes with the vectors of a place, pair by pair."""
    return [pair["shares"][place] for pair in pairs]


def quartiles(values: Sequence[float]) -> str:
    """The median, and between which values half of all lie."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle * 100:.0f} % ({low * 100:.0f}–{high * 100:.0f})".replace("-", "−")


def particles() -> Table:
    """Which share of the whole shift comes with which vectors of the memory."""
    found = record("particles")
    known = ("nothing", "everything")  # have 0 and 1
    places = [place for place in found["pairs"][0]["shares"] if place not in known]
    names = {"verb": "German verb", "particle": "German particle"}
    rows = []
    middle = {}
    for kind, name in CHANGES.items():
        pairs = [pair for pair in found["pairs"] if pair["kind"] == kind]
        cells = [quartiles(shares(pairs, place)) for place in places]
        rows.append([name, f"{len(pairs)}", *cells])
        middle[kind] = f"{statistics.median(shares(pairs, kind)) * 100:.0f} %"
    return Table(
        f"The German verb carries {middle['verb']} of the shift where the English verb changes. The"
        f" German particle carries {middle['particle']} where an English particle changes.",
        ["what changes", "pairs", *(names.get(place, place) for place in places)],
        rows,
        "The columns say which German words gave their vectors to the other sentence. Each cell is"
        " the median share of the whole shift of log p(A) − log p(B), and in brackets the range in"
        f" which the middle half of the pairs lies. {len(found['pairs'])} of {found['tried']} pairs"
        " counted.",
        [found["made"]],
    )


def layers() -> Chart:
    """The share of the shift that lies at the verb and at the particle, layer by layer."""
    found = record("particles")
    points = []
    for kind, name in CHANGES.items():
        pairs = [pair for pair in found["pairs"] if pair["kind"] == kind]
        for place in ("verb", "particle"):
            for layer in range(len(pairs[0]["layers"][place])):
                share = statistics.median(pair["layers"][place][layer] for pair in pairs)
                point = {"layer": layer, "swapped at": place, "what changes": name}
                points.append(point | {"share": round(share, 3)})
    chart = alt.Chart(alt.Data(values=points), width=230, height=180).mark_line(point=True)
    lines = chart.encode(
        x=alt.X("layer:O", title="states behind so many layers").axis(labelAngle=0),
        y=alt.Y("share:Q", title="median share of the shift"),
        color=alt.Color("swapped at:N", sort=["verb", "particle"]).legend(orient="top"),
        column=alt.Column("what changes:N", sort=list(CHANGES.values())),
    )
    text = (
        "Share of the shift by how many layers lie before the swapped state, at verb and particle."
    )
    measured = "The pairs are those of the table above."
    return Chart(lines, text, measured, [found["made"]])
