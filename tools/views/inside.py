"""Inside the shipped model: its heads, and what the German verb and its particle carry."""

from statistics import mean, median, quantiles

import altair as alt

from tools.views.common import Chart, Table, record, without_range

CHANGES = {"verb": "the English verb", "particle": "the English particle"}


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
        "Each number is the rise in validation perplexity without that head: the mean over 5 sets"
        " of 200 sentences. It stands in brackets if the sets disagree on its sign. If the head is"
        f" replaced by its mean output instead, no number changes by more than {apart:.2f}.",
    )


def particles() -> Table:
    """Which share of the whole shift comes with which vectors of the memory."""
    found = record("particles")
    rows = []
    for kind, name in CHANGES.items():
        pairs = [pair for pair in found["pairs"] if pair["kind"] == kind]
        cells = []
        for place in ("verb", "particle", "verb and particle"):
            shares = [100 * pair["shares"][place] for pair in pairs]
            low, middle, high = (f"{share:.0f}" for share in quantiles(shares, n=4))
            cells.append(f"{middle}% ({low}–{high})")
        rows.append([name, str(len(pairs)), *cells])
    given = ["German verb", "German particle", "verb and particle"]
    return Table(
        f"When the English verb changes, the German verb accounts for {without_range(rows[0][2])}"
        " of the shift; when the English particle changes, the German particle accounts for"
        f" {without_range(rows[1][3])}.",
        ["what changes", "pairs", *given],
        rows,
        "Each column names the German words whose vectors were patched into the other sentence."
        " Each cell is the median share of the whole shift of log p(A) − log p(B), with the"
        f" interquartile range in brackets. Of {found['tried']} pairs, {len(found['pairs'])} count:"
        " both sentences have equally many subwords and are translated as intended.",
    )


def layers() -> Chart:
    """Share of the shift by how many layers lie before the swapped state, at verb and particle."""
    found = record("particles")
    points = []
    for kind, name in CHANGES.items():
        pairs = [pair for pair in found["pairs"] if pair["kind"] == kind]
        for place in CHANGES:
            by_layer = zip(*(pair["layers"][place] for pair in pairs), strict=True)
            for layer, shares in enumerate(by_layer):
                point = {"layer": layer, "swapped at": place, "what changes": name}
                points.append(point | {"share": round(median(shares), 3)})
    chart = alt.Chart(alt.Data(values=points), width=230, height=180).mark_line(point=True)
    lines = chart.encode(
        x=alt.X("layer:O", title="states behind so many layers").axis(labelAngle=0),
        y=alt.Y("share:Q", title="median share of the shift"),
        color=alt.Color("swapped at:N", sort=["verb", "particle"]).legend(orient="top"),
        column=alt.Column("what changes:N", sort=list(CHANGES.values())),
    )
    return Chart(lines, "The same pairs as in the table above.")
