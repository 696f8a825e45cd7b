"""The copy task: parts taken out, warm-up, lengths, and faults planted on purpose."""

from collections.abc import Sequence
from statistics import mean

import altair as alt

import the_annotated_transformer as at
from tools.views.common import Chart, Table, listed, record, with_range

PARTS = {  # what Part 4 takes out, and the fault that does so
    "mask over the future": "the future is open in training",
    "positions": "no positions",
    "residuals": "no residual connections",
    "norms": "no norms",
    "feed-forward": "no feed-forward network",
    "division by √d_k": "no division by √d_k",
}
SOUND = "nothing"  # the fault of a model without one
KINDS = ("copied", "ended early", "ran over", "wrong token")


def losses_of(run: dict) -> list[float]:
    """The loss of every tenth update."""
    return [float(loss) for loss in run["losses"].split()]


# Without a part -----------------------------------------------------------------------------------


def breaks() -> Chart:
    """Losses of copy models without a part, each beside the whole model's."""
    planted = record("planted")
    whole = planted["copying"][SOUND]
    every = 2  # a small chart needs no more
    points = []
    missing = {SOUND: list(PARTS)} | {fault: [part] for part, fault in PARTS.items()}
    for fault, parts in missing.items():
        for run in planted["copying"][fault]:
            point = {"parts": ",".join(parts), "model": "whole" if fault == SOUND else "without"}
            losses = " ".join(f"{loss:.2g}" for loss in losses_of(run)[every - 1 :: every])
            points.append(point | {"seed": run["seed"], "losses": losses})
    chart = alt.Chart(alt.Data(values=points), width=130, height=90)
    chart = chart.transform_calculate(without="split(datum.parts, ',')")
    chart = chart.transform_flatten(["without"])
    chart = chart.transform_calculate(loss="split(datum.losses, ' ')").transform_flatten(["loss"])
    chart = chart.transform_window(n="row_number()", groupby=["without", "model", "seed"])
    update = f"datum.n * {10 * every}"
    chart = chart.transform_calculate(update=update, loss="toNumber(datum.loss)")
    lines = chart.mark_line(strokeWidth=1.5).encode(
        x=alt.X("update:Q").axis(tickCount=3),
        y=alt.Y("loss:Q", title="loss per token").scale(type="log", domain=[0.001, 4], clamp=True),
        color=alt.Color("model:N", sort=["without", "whole"], title=None).legend(orient="top"),
        detail="seed:N",
        facet=alt.Facet("without:N", columns=3, sort=list(PARTS), title="without"),
    )
    text = "Small charts of loss against updates, one for each part that is taken out of the model."
    measured = f"Copy task, {10 * len(losses_of(whole[0]))} updates, {len(whole)} seeds."
    return Chart(lines, text, measured, planted["made"]["copying"])


def copied() -> Table:
    """What the same models copy, and how the others fail."""
    planted = record("planted")
    rows = []
    useless = []
    for part, fault in ({SOUND: SOUND} | PARTS).items():
        runs = planted["copying"][fault]
        last = with_range([losses_of(run)[-1] for run in runs], 3)
        rows.append([part, last, *(with_range([run[kind] for run in runs], 0) for kind in KINDS)])
        useless += [part] if not any(run["copied"] for run in runs) else []
    return Table(
        f"Parts without which nothing is copied: {listed(useless)}.",
        ["without", "last loss", *KINDS],
        rows,
        f"Copy task, {sum(runs[0][kind] for kind in KINDS)} sequences. Each number is the mean of"
        f" {len(runs)} seeds, with the lowest and the highest in brackets.",
        planted["made"]["copying"],
    )


# Planted faults -----------------------------------------------------------------------------------


def beyond(values: Sequence[float], band: Sequence[float]) -> str:
    """ "above" or "below" where all values lie beyond all of the band, else nothing."""
    if min(values) > max(band):
        return "above"
    return "below" if max(values) < min(band) else ""


def symptom_of_copies(runs: Sequence[dict], sound: Sequence[dict]) -> str:
    """What one sees of a fault in the copy task, where all seeds lie beyond all sound ones."""
    stays = min(losses_of(run)[-1] for run in runs) > 1.0
    sums = [[sum(losses_of(run)) for run in each] for each in (runs, sound)]
    fewer = beyond([run["copied"] for run in runs], [run["copied"] for run in sound]) == "below"
    speeds = {"above": "learns slower", "below": "learns faster", "": ""}
    learns = "the loss stays high" if stays else speeds[beyond(*sums)]
    if fewer and not stays:
        how = max(KINDS[1:], key=lambda kind: sum(run[kind] for run in runs))
        many = "fewer" if any(run["copied"] for run in runs) else "none"
        learns = f"{learns or 'the loss is fine'}, copies {many} ({how})"
    return learns or "no symptom"


def symptom_of_bleu(bleu: Sequence[float], sound: Sequence[float]) -> str:
    """What one sees of a fault in BLEU: beyond all sound ones, and by half a point at least."""
    if abs(mean(bleu) - mean(sound)) < 0.5 or not beyond(bleu, sound):
        return "no symptom"
    return "BLEU is higher" if beyond(bleu, sound) == "above" else "BLEU is lower"


def first_check(planted: dict, fault: str) -> str:
    """The first check of the text that a fault fails, in words."""
    return at.in_words(planted["checks"].get(fault, "")) or "none"


def planted() -> Table:
    """Known faults, by what one sees of them."""
    faults = record("planted")
    sound = faults["copying"][SOUND]
    wide = faults["copying"]["nothing, one head of width 512"]

    def copies(runs: Sequence[dict]) -> str:
        return with_range([run["copied"] for run in runs], 0)

    rows = []
    for fault, runs in faults["copying"].items():
        if not fault.startswith(SOUND):
            symptom = symptom_of_copies(runs, wide if "512" in fault else sound)
            rows.append([symptom, fault, first_check(faults, fault), copies(runs)])
    rows.sort(key=lambda row: row[0])
    hidden = sum(row[0] == "no symptom" for row in rows)
    updates, fewer = (10 * len(losses_of(runs[0])) for runs in (sound, wide))
    return Table(
        f"{hidden} of {len(rows)} faults show no symptom in the copy task.",
        ["symptom", "fault", "first check that sees it", "copied of 200"],
        [["–", "no fault", "–", copies(sound)], *rows],
        f"Copy task, {updates} updates (width 512: {fewer}), {len(sound)} seeds: the mean, with"
        " the lowest and the highest in brackets. A symptom is named if all seeds lie beyond all"
        " seeds of a sound model. What learns faster or slower has a lower or higher sum of"
        " losses.",
        faults["made"]["copying"],
    )


def planted_bleu() -> Table:
    """Known faults of data, decoding and scoring, by the BLEU of what is translated with them."""
    faults = record("planted")
    models = {"demonstration": "of Part 6", "shipped": "shipped"}
    rows = []
    for kind, name in models.items():
        sound = faults[kind][SOUND]
        rows.append([name, "–", "no fault", "–", with_range(sound, 2)])
        of_model = []
        for fault, bleu in faults[kind].items():
            if fault != SOUND:
                of_model.append([name, symptom_of_bleu(bleu, sound), fault])
                of_model[-1] += [first_check(faults, fault), with_range(bleu, 2)]
        rows += sorted(of_model, key=lambda row: row[1])
    lower = sum(row[1] == "BLEU is lower" for row in rows)
    return Table(
        f"{lower} of {len(rows) - len(models)} faults lower BLEU.",
        ["model", "symptom", "fault", "first check that sees it", "BLEU"],
        rows,
        "Validation split. The model of Part 6 is trained for two epochs on short sentences, by"
        " three seeds, and decodes greedily: the mean, with the lowest and the highest in"
        " brackets. The shipped model searches once, with a beam of four. A symptom is named if"
        " all seeds lie beyond all sound ones, and the mean by half a point or more.",
        [stamp for kind in models for stamp in faults["made"][kind]],
    )


# Warm-up and lengths ------------------------------------------------------------------------------


def warmups() -> Chart:
    """Last losses against the peak of the learning rate, with and without a rise."""
    warmed = record("warmups")
    points = [
        {"peak": round(run["peak"], 5), "loss": run["loss"]}
        | {"curve": "with warm-up" if run["warm-up"] else "without"}
        | {"norm": "norm before the sub-layer" if run["norm first"] else "norm after the sum"}
        for run in warmed["runs"]
    ]
    chart = alt.Chart(width=230, height=200)
    marks = chart.mark_point(filled=True, size=50).encode(
        x=alt.X("peak:Q", title="highest learning rate").scale(type="log"),
        y=alt.Y("loss:Q", title="last loss"),
        color=alt.Color("curve:N", title=None).legend(orient="top"),
        shape=alt.Shape("curve:N", title=None),
    )
    chance = alt.Chart(alt.Data(values=[{"loss": 2.485}])).mark_rule(strokeDash=[4, 4])  # log 12
    layered = alt.layer(marks, chance.encode(y="loss:Q"), data=alt.Data(values=points))
    text = "Loss after a short training against the highest learning rate, for two norm orders."
    measured = "Copy task, four layers in each stack, 400 updates of 32 sequences, three seeds."
    return Chart(layered.facet("norm:N"), text, measured, [warmed["made"]])


def lengths() -> Chart:
    """What became of sequences to copy, against their length, by kind of positions."""
    tried = record("lengths")
    points = [
        {"positions": run["positions"], "seed": run["seed"], "outcome": kind}
        | {"counts": " ".join(map(str, run[kind]))}
        for run in tried["runs"]
        for kind in KINDS
    ]
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
    text = "Four small charts: of 100 sequences, how many were copied, ended early, ran over or"
    text += " have a wrong token, against their length, for four kinds of positions."
    seeds = len({run["seed"] for run in tried["runs"]})
    measured = f"Copy task, trained on lengths 1 to 10, {seeds} seeds."
    return Chart(lines, text, measured, [tried["made"]])
