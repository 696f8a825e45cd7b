"""The copy task: parts taken out, warm-up, lengths, and faults planted on purpose."""

from collections.abc import Callable, Sequence
from statistics import mean

import altair as alt

from tools.views.common import Chart, Table, listed, record, with_range

SOUND = "nothing"  # the fault of a model without one
SOUND_WIDE = "nothing, one head of width 512"
PARTS = {  # what Part 4 takes out, and the fault that does so
    "causal mask": "no causal mask in training",
    "positional encodings": "no positions",
    "residual connections": "no residual connections",
    "layer norms": "no norms",
    "feed-forward": "no feed-forward network",
    "division by √d_k": "no division by √d_k",
}
KINDS = ("copied", "ended early", "ran over", "wrong token")


def losses_of(run: dict) -> list[float]:
    """The loss of every tenth update."""
    return [float(loss) for loss in run["losses"].split()]


def numbers_of(runs: Sequence[dict], kind: str) -> str:
    """How many of 200 sequences were copied, or failed in one way."""
    return with_range([run[kind] for run in runs], 0)


def copied() -> Table:
    """What the same models copy, and how the others fail."""
    planted = record("planted")
    rows = []
    for part, fault in {SOUND: SOUND, **PARTS}.items():
        runs = planted["copying"][fault]
        last = with_range([losses_of(run)[-1] for run in runs], 3)
        rows.append([part, last, *(numbers_of(runs, kind) for kind in KINDS)])
    useless = [part for part, _, copied, *_ in rows if copied == "0"]
    return Table(
        f"Remove the {listed(useless, 'or the')}, and the model copies nothing.",
        ["without", "final loss", *KINDS],
        rows,
        "Copy task, 600 updates, 200 sequences to copy. Each number is the mean over 3 seeds, with"
        " the range in brackets.",
    )


def symptom_of_copies(runs: Sequence[dict], sound: Sequence[dict]) -> str:
    """What one sees of a fault in the copy task, where all seeds lie beyond all sound ones."""
    if min(losses_of(run)[-1] for run in runs) > 1.0:
        return "the loss stays high"
    learns = ""
    sums, sound_sums = ([sum(losses_of(run)) for run in each] for each in (runs, sound))
    if min(sums) > max(sound_sums):
        learns = "learns slower"
    if max(sums) < min(sound_sums):
        learns = "learns faster"
    most = max(run["copied"] for run in runs)
    if most >= min(run["copied"] for run in sound):
        return learns or "no symptom"
    how = max(KINDS[1:], key=lambda kind: sum(run[kind] for run in runs))
    return f"{learns or 'the loss is fine'}, copies {'fewer' if most else 'none'} ({how})"


def symptom_of_bleu(bleu: Sequence[float], sound: Sequence[float]) -> str:
    """What one sees of a fault in BLEU: below all sound ones, and by half a point at least."""
    lower = max(bleu) < min(sound) and mean(sound) - mean(bleu) >= 0.5
    return "BLEU is lower" if lower else "no symptom"


def rows_of(faults: dict, kind: str, symptom_of: Callable, shown: Callable) -> list[list[str]]:
    """A row of a sound model, and of each fault, in the order of what one sees of them."""
    measured = faults[kind]
    rows = []
    for fault, runs in measured.items():
        if fault not in (SOUND, SOUND_WIDE):
            sound = measured[SOUND_WIDE if "width 512" in fault else SOUND]
            rows.append([symptom_of(runs, sound), fault, shown(runs)])
    rows.sort(key=lambda row: row[0])
    return [["–", "no fault", shown(measured[SOUND])], *rows]


def planted() -> Table:
    """Known faults, by what one sees of them."""
    faults = record("planted")
    rows = rows_of(faults, "copying", symptom_of_copies, lambda runs: numbers_of(runs, "copied"))
    hidden = sum(row[0] == "no symptom" for row in rows)
    return Table(
        f"{hidden} of {len(rows) - 1} faults show no symptom in the copy task.",
        ["symptom", "fault", "copied of 200"],
        rows,
        "Copy task, 600 updates (width 512: 100), 3 seeds: the mean, with the range in brackets."
        " A symptom is reported if every seed falls outside the range of the correct model."
        " Faster or slower means a lower or higher sum of losses over the run.",
    )


def planted_bleu() -> Table:
    """Known faults of data, decoding and scoring, by the BLEU of what is translated with them."""
    faults = record("planted")
    rows = []
    for kind, model in (("demonstration", "Part 6"), ("shipped", "published")):
        found = rows_of(faults, kind, symptom_of_bleu, lambda bleu: with_range(bleu, 2))
        rows += [[model, *row] for row in found]
    lower = sum(row[1] == "BLEU is lower" for row in rows)
    return Table(
        f"{lower} of {len(rows) - 2} faults lower BLEU.",
        ["model", "symptom", "fault", "BLEU"],
        rows,
        "Validation split. The model of Part 6 is trained for two epochs on short sentences, by"
        " three seeds, and decodes greedily: the mean, with the range in brackets. The published"
        " model has one run, with a beam of four. BLEU is reported as lower if every seed falls"
        " below the range of the correct model, and the mean by at least 0.5.",
    )


def warmups() -> Chart:
    """Loss after a short run against the highest learning rate, for two norm orders."""
    warmed = record("warmups")
    points = []
    for run in warmed["runs"]:
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
    measured = "Copy task, four layers in each stack, 400 updates of 32 sequences, three seeds."
    return Chart(layered.facet("norm:N"), measured)


def lengths() -> Chart:
    """Four small charts: of 100 sequences, how many were copied, ended early, ran over or have a
    wrong token, against their length, for four kinds of positions.
    """
    tried = record("lengths")
    points = []
    for run in tried["runs"]:
        for kind in KINDS:
            counts = " ".join(map(str, run[kind]))
            point = {"positions": run["positions"], "seed": run["seed"], "outcome": kind}
            points.append(point | {"counts": counts})
    chart = alt.Chart(alt.Data(values=points), width=230, height=130)
    chart = chart.transform_calculate(of="split(datum.counts, ' ')").transform_flatten(["of"])
    chart = chart.transform_window(length="row_number()", groupby=["positions", "seed", "outcome"])
    chart = chart.transform_calculate(number="toNumber(datum.of)")
    kinds = ["sinusoids", "learnt", "rotary", "none"]
    lines = chart.mark_line(strokeWidth=1.5).encode(
        x=alt.X("length:Q", title="length of the sequence").axis(tickMinStep=1, tickCount=5),
        y=alt.Y("number:Q", title="of 100"),
        color=alt.Color("positions:N", sort=kinds).legend(orient="top", title=None),
        detail="seed:N",
        facet=alt.Facet("outcome:N", columns=2, sort=list(KINDS), title=None),
    )
    return Chart(lines, "Copy task, trained on lengths 1 to 10, 3 seeds.")
