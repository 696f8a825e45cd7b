"""The copy task: parts taken out, warm-up, lengths, distances, and faults planted on purpose."""

from collections.abc import Sequence
from statistics import mean

import altair as alt

from tools.results.faults import SOUND, SOUND_WIDE
from tools.views.common import check_shipped, record, table, with_range

REMOVED = {  # what Part 4 takes out, and the fault that does so
    "nothing": SOUND,
    "causal mask": "no causal mask in training",
    "positional encodings": "no positions",
    "residual connections": "no residual connections",
    "layer norms": "no norms",
    "feed-forward": "no feed-forward network",
    "division by √d_k": "no division by √d_k",
}
KINDS = ("copied", "ended early", "ran over", "wrong token")
WORKS = 0.5  # a rate works if all seeds end with a lower loss


def cells_of(runs: Sequence[dict]) -> list[str]:
    """Mean loss of a run, its last loss, and what became of 200 sequences."""
    losses = [[float(loss) for loss in run["losses"].split()] for run in runs]
    numbers = [with_range([mean(each) for each in losses], 2)]
    numbers.append(with_range([each[-1] for each in losses], 3))
    return numbers + [with_range([run[kind] for run in runs], 0) for kind in KINDS]


def copied() -> str:
    """What the same models copy without a part, and how the others fail."""
    runs = record("planted")["copying"]
    rows = [[part, *cells_of(runs[fault])[1:]] for part, fault in REMOVED.items()]
    return table(["without", "final loss", *KINDS], rows)


def planted() -> str:
    """What the copy task shows of known faults."""
    names = {SOUND: "no fault", SOUND_WIDE: "no fault, one head of width 512"}
    runs = record("planted")["copying"]
    ordered = [*names, *(fault for fault in runs if fault not in names)]
    rows = [[names.get(fault, fault), *cells_of(runs[fault])] for fault in ordered]
    return table(["fault", "mean loss", "final loss", *KINDS], rows)


def planted_bleu() -> str:
    """Known faults of data, decoding and scoring, by the BLEU of what is translated with them."""
    measured = record("planted")
    check_shipped(*measured["made"]["shipped"])
    rows = []
    for kind, model in (("demonstration", "Part 6"), ("shipped", "published")):
        for fault, bleu in measured[kind].items():
            rows.append([model, "no fault" if fault == SOUND else fault, with_range(bleu, 2)])
    return table(["model", "fault", "BLEU"], rows)


def highest_rates() -> str:
    """The highest rate below the first one that a seed fails with, for each norm order."""
    runs = record("warmups")["runs"]
    rows = []
    for norm, norm_first in (("pre-norm", True), ("post-norm", False)):
        cells = [norm]
        for warm in (False, True):
            tried = [r for r in runs if (r["norm first"], r["warm-up"]) == (norm_first, warm)]
            failed = min(run["peak"] for run in tried if run["loss"] >= WORKS)
            works = [run["peak"] for run in tried if run["peak"] < failed]
            cells.append(f"{max(works):.3f}" if works else "–")
        rows.append(cells)
    return table(["", "no warm-up", "warm-up"], rows)


def warmups() -> alt.FacetChart:
    """Loss after a short run against the highest learning rate, for two norm orders."""
    points = []
    for run in record("warmups")["runs"]:
        curve = "with warm-up" if run["warm-up"] else "without"
        norm = "pre-norm" if run["norm first"] else "post-norm"
        peak = round(run["peak"], 5)
        points.append({"peak": peak, "loss": run["loss"], "curve": curve, "norm": norm})
    marks = alt.Chart(width=230, height=200).mark_point(filled=True, size=50)
    marks = marks.encode(
        x=alt.X("peak:Q", title="highest learning rate").scale(type="log"),
        y=alt.Y("loss:Q", title="last loss"),
        color=alt.Color("curve:N", title=None).legend(orient="top"),
        shape=alt.Shape("curve:N", title=None),
    )
    chance = alt.Chart(alt.Data(values=[{"loss": 2.485}])).mark_rule(strokeDash=[4, 4])  # log 12
    layered = alt.layer(marks, chance.encode(y="loss:Q"), data=alt.Data(values=points))
    return layered.facet("norm:N")


def lengths() -> alt.Chart:
    """Four small charts: of 100 sequences, how many were copied, ended early, ran over or have a
    wrong token, against their length, for four kinds of positions.
    """
    points = []
    for run in record("lengths")["runs"]:
        for kind in KINDS:
            counts = " ".join(map(str, run[kind]))
            point = {"positions": run["positions"], "seed": run["seed"], "outcome": kind}
            points.append(point | {"counts": counts})
    chart = alt.Chart(alt.Data(values=points), width=230, height=130)
    chart = chart.transform_calculate(of="split(datum.counts, ' ')").transform_flatten(["of"])
    chart = chart.transform_window(length="row_number()", groupby=["positions", "seed", "outcome"])
    chart = chart.transform_calculate(number="toNumber(datum.of)")
    kinds = ["sinusoids", "learnt", "rotary", "none"]
    return chart.mark_line(strokeWidth=1.5).encode(
        x=alt.X("length:Q", title="length of the sequence").axis(tickMinStep=1, tickCount=5),
        y=alt.Y("number:Q", title="of 100"),
        color=alt.Color("positions:N", sort=kinds).legend(orient="top", title=None),
        detail="seed:N",
        facet=alt.Facet("outcome:N", columns=2, sort=list(KINDS), title=None),
    )


def reach() -> alt.LayerChart:
    """How often a layer names the token that stood some places earlier, against that distance, for
    self-attention, a GRU, a GRU that has one token to keep, and a convolution over 8 positions.
    """
    found = {}
    for run in record("reach")["runs"]:
        layer = run["layer"] if run["answers"] > 1 else f"{run['layer']}, one token"
        found.setdefault((layer, run["distance"]), []).append(run["accuracy"])
    points = []
    for (layer, distance), accuracy in found.items():
        about = {"layer": layer, "distance": distance, "accuracy": round(mean(accuracy), 3)}
        points.append(about | {"least": min(accuracy), "most": max(accuracy)})
    chart = alt.Chart(width=420, height=220).encode(
        x=alt.X("distance:Q", title="places back").scale(type="log", base=2, nice=False),
        y=alt.Y("accuracy:Q").axis(format="%"),
        color=alt.Color("layer:N", sort=None, title=None).legend(orient="top", columns=2),
    )
    ranges = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(
        y=alt.Y("least:Q", title="right answers"), y2="most:Q"
    )
    lines = chart.mark_line(point=True, tooltip=True)
    return alt.layer(lines, ranges, data=alt.Data(values=points))
