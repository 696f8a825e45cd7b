"""Parts 4 and 5: parts taken out, warm-up, distances, and faults planted on purpose."""

from collections.abc import Sequence
from statistics import mean

import altair as alt

from tools.results.faults import COPYING, SOUND
from tools.views.common import check_shipped, record, table, with_range

PARTS = (  # a part and its fault; where it matters, what that is called, the task, the fault
    ("nothing", SOUND),
    ("positions", "no positions"),
    ("residual connections", "no residual connections"),
    ("division by √d_k", "no division by √d_k", "copy, one head of width 512", "wide",
     "no division by √d_k, one head of width 512"),
    ("layer norms", "no norms", "copy, twelve layers", "deep", "no norms, twelve layers"),
    ("feed-forward networks", "no feed-forward network", "look up in a table", "table",
     "a table without feed-forward networks"),
)  # fmt: skip
WHY = {  # the faults that Part 4 tells of, and what goes wrong
    SOUND: "",
    "no causal mask in training": "it reads each answer from the future, until there is none",
    "the target is not shifted": "asked for the token that it has just read, it repeats the start",
    "the target has no end token": "nobody has shown it how to stop",
    "decoding starts from padding": "soundly trained, but never with this token in front",
    "softmax over the queries": "a weight depends on later queries: the future leaks in",
    "reshaped to heads without the transpose": "heads mix positions, so the mask is wrong",
    "the schedule never steps": "the rate stays at a two-hundredth of its peak",
    "gradients are never cleared": "each step repeats all gradients before it",
    "the loss is a sum": "nothing: Adam divides by the size of gradients, so the factor is gone",
    "positions divided by the frequency, not multiplied": "nothing: no two are alike",
}
WORKS = 0.5  # a rate works if all seeds end with a lower loss


def copies(runs: Sequence[dict]) -> str:
    """How many of 200 sequences are right."""
    return with_range([run["copied"] for run in runs], 0)


def parts() -> str:
    """What is copied without each part, and each on a task that needs it, with and without it."""
    runs = record("planted")["copying"]
    rows = []
    for part, fault, *other in PARTS:
        row = [part, copies(runs[fault]), "", "", ""]
        if other:
            called, task, its_fault = other
            row[2:] = [called, copies(runs[COPYING[task][-1]]), copies(runs[its_fault])]
        rows.append(row)
    return table(["without", "copies", "on another task", "with it", "without it"], rows)


def planted() -> str:
    """What known faults do to the copy task: the last loss, what is copied, and why."""
    rows = []
    for fault, why in WHY.items():
        runs = record("planted")["copying"][fault]
        last = [float(run["losses"].split()[-1]) for run in runs]
        name = "no fault" if fault == SOUND else fault
        rows.append([name, with_range(last, 3), copies(runs), why])
    return table(["fault", "final loss", "copied", "what goes wrong"], rows)


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
        x=alt.X("peak:Q", title="highest learning rate")
        .scale(type="log")
        .axis(values=[0.001, 0.004, 0.016, 0.064], format="~g"),
        y=alt.Y("loss:Q", title="last loss"),
        color=alt.Color("curve:N", title=None).legend(orient="top"),
        shape=alt.Shape("curve:N", title=None),
    )
    chance = alt.Chart(alt.Data(values=[{"loss": 2.485}])).mark_rule(strokeDash=[4, 4])  # log 12
    layered = alt.layer(marks, chance.encode(y="loss:Q"), data=alt.Data(values=points))
    return layered.facet(alt.Facet("norm:N", title=None))


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
