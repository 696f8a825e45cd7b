"""Write the views of docs/results/views, the first drawing of images/, and README's numbers.

    python tools/views.py

Nothing is trained: all comes from the records of docs/results and from pretrained/. The cells of
the script only show these views.
"""

import functools
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median

import altair as alt
import torch

from tools import records
from tools.address import Address, address
from tools.page import build as build_page
from tools.records import finished, read
from tools.results import plan
from tools.results import recipe as results
from tools.results.plan import ROWS, TESTS, at


def with_range(values: Sequence[float], digits: int, middle: float | None = None) -> str:
    """The mean (or `middle`) and the range of the values, in one piece: no line break inside."""
    middle = mean(values) if middle is None else middle
    low = f"{min(values):,.{digits}f}"
    high = f"{max(values):,.{digits}f}"
    return f"{middle:,.{digits}f}" + (f"\u00a0({low}–\u2060{high})" if low != high else "")


def tabulate(items: Iterable[dict], columns: dict[str, str]) -> dict:
    """A row for each item; `columns` maps a heading to the format of the cells below it."""
    rows = [[cell.format(**item) for cell in columns.values()] for item in items]
    return {"columns": list(columns), "rows": rows}


def two_levels(*pairs: tuple[str, str]) -> list[list[str]]:
    """Headings above and headings below, from the pair of each column."""
    return [list(level) for level in zip(*pairs, strict=True)]


# The drawing of the first screen ----------------------------------------------------------------


def first_picture() -> str:
    """What the page's translator draws for its first sentence, as a file with its own style."""
    drawn = json.loads(build_page.still_pictures()("picture", "null"))["html"]
    own = "drawing-first-translation"
    other = (at.HERE / "images" / "multi-head.svg").read_text()
    style = other[other.index("<style>") : other.index("    .drawing-multi-head .d-small")]
    style = style.replace("drawing-multi-head", own)
    label = 'role="img" aria-labelledby="first-translation-title first-translation-desc"'
    begin, words, rest = re.fullmatch(
        r'(<svg .*?) role="img" aria-label="(.*?)">(.*)', drawn
    ).groups()
    return f"""{begin} xmlns="http://www.w3.org/2000/svg" class="drawing {own}" {label}>
  <title id="first-translation-title">A translation, and where the model looked</title>
  <desc id="first-translation-desc">Above: {at.SENTENCE} {words} \
Curves lead from each subword to those that the model looked at while it wrote it.</desc>
  {style}\
    .{own} {{ min-width: 520px; }}
    .{own} rect {{ fill: var(--drawing-panel); stroke: var(--drawing-panel-edge); }}
    .{own} path {{ fill: none; stroke: var(--drawing-attention-edge); stroke-opacity: .6; }}
  </style>
  {rest.replace("<path", chr(10) + "  <path").replace("<g", chr(10) + "  <g")}
"""


# The recipe -------------------------------------------------------------------------------------


def summaries(*rows: plan.Row) -> list[dict]:
    """What is on record of the runs of rows; ValueError where one is missing, or they differ."""
    names = [run for row in rows for run in row.runs]
    if missing := [name for name in names if not read(f"runs/{name}")]:
        raise ValueError(f"not on record: {', '.join(missing)}")
    found = {name: read(f"runs/{name}")["summary"] for name in names}
    records.check_comparable(found)
    return list(found.values())


def scores(*rows: plan.Row, splits: Iterable[str] = TESTS) -> list[dict]:
    found = {
        (row.name, run, split): results.score_of(row, run, split)
        for row in rows
        for split in splits
        for run in row.runs
    }
    records.check_comparable(found)
    return list(found.values())


def bleu(row: plan.Row, split: str) -> str:
    return with_range([entry["bleu"] for entry in scores(row, splits=[split])], 1)


def paces(*rows: plan.Row) -> dict[str, dict]:
    """What was timed of the rows; ValueError where one is missing, or they do not compare."""
    record = read("pace")
    names = [row.runs[0] for row in rows]
    if missing := [name for name in names if name not in record]:
        raise ValueError(f"not timed: {', '.join(missing)}")
    machines = {name: record[name]["made"]["machine"] for name in names}
    if len({*machines.values()}) > 1:
        raise ValueError(f"minutes compare on one kind of processor, and here are {machines}")
    return {name: record[name] for name in names}


def costs(row: plan.Row) -> list[str]:
    """Parameters and minutes of training of a row."""
    [run, *_] = summaries(row)
    [pace] = paces(row).values()
    minutes = pace["seconds"] * run["updates"] / 60
    return [f"{run['parameters'] / 1e6:.1f} M", f"{minutes:.0f}"]


def timed(*rows: plan.Row) -> str:
    """Where the minutes of rows were timed."""
    [(machine, dtype)] = {
        (pace["made"]["machine"], pace["format"]) for pace in paces(*rows).values()
    }
    return f"minutes: updates of a run timed apart, in two processes, {dtype}, {machine}"


def short_table() -> dict:
    """The table for the start of the text, and for README."""
    rows = [[row.step, *(bleu(row, split) for split in TESTS), *costs(row)] for row in ROWS]
    columns = ["step", *(f"BLEU {test}" for test in TESTS.values())]
    caption = (
        "Multi30k, German to English, mean of three seeds (range); an unknown word is one wrong"
        f" token; {timed(*ROWS)}"
    )
    columns += ["parameters", "minutes"]
    made = [*summaries(*ROWS), *(pace["made"] for pace in paces(*ROWS).values())]
    return finished(caption, made, columns=columns, rows=rows)


def average_of(what: str, row: plan.Row, split: str) -> str:
    return f"{mean(entry[what] for entry in scores(row, splits=[split])):.1f}"


def same_tokens(row: plan.Row) -> bool:
    """Whether a row's perplexity is of the tokens of the last row."""
    ours, last = (plan.RUNS[each.runs[0]] for each in (row, ROWS[-1]))
    return (ours.vocab_size, ours.languages) == (last.vocab_size, last.languages)


def gain_of(step: dict) -> str:
    """A gain with its interval, in one piece."""
    low, high = (f"{round(end, 1) + 0.0:.1f}".replace("-", "−") for end in step["interval"])
    return f"{step['gain']:+.1f}\u00a0({low}\u00a0to\u00a0{high})"


def steps() -> dict:
    """Every step: scores with their range, gains with their interval, and which pass the rule."""
    record = read("steps")
    found = {(step["row"], step["split"]): step for step in record["steps"]}
    table = []
    rows = (*ROWS, plan.OTHER)
    for row in rows:
        of_row = [step["passes"] for step in found.values() if step["row"] == row.name]
        cells = [row.step, ("yes" if all(of_row) else "no") if of_row else "–"]
        for split in TESTS:
            step = found.get((row.name, split))
            cells += [bleu(row, split), gain_of(step) if step else "–"]
            cells.append(average_of("chrf", row, split))
            cells.append(average_of("perplexity", row, split) if same_tokens(row) else "–")
        table.append(cells)
    names = ("BLEU (range)", "gain (95 %)", "chrF", "perplexity")
    columns = two_levels(("", "step"), ("", "passes"), *itertools.product(TESTS.values(), names))
    caption = (
        "Multi30k, German to English, means of three seeds (range); last row: one seed, English to"
        f" German. Gain over the row above (95 % of {record['draws']:,} draws of the sentences,"
        " uncorrected). Perplexity where the tokens are the same; BLEU"
        f" {read('scores')['scores'][0]['signature']}{two_machines(rows)}"
    )
    made = summaries(*rows, *([GPU] if on_gpu(rows) else []))
    return finished(caption, made, columns=columns, rows=table)


GPU = plan.Row("gpu", "the recipe on a GPU", tuple(plan.ON_GPU))


def on_gpu(rows: Iterable[plan.Row]) -> list[str]:
    """Which runs of rows a GPU has trained."""
    names = dict.fromkeys(run for row in rows for run in row.runs)
    return [run for run in names if read(f"runs/{run}")["summary"].get("device") == "cuda"]


def two_machines(rows: Iterable[plan.Row]) -> str:
    """Where a GPU has trained some of the runs: which, and how the recipe ends on both."""
    there = on_gpu(rows)
    if not there:
        return ""
    ends = []
    for row in (ROWS[-1], GPU):
        perplexity = [math.exp(read(f"runs/{run}")["log"][-1]["nll"]) for run in row.runs]
        best = [summary["validation_bleu"] for summary in summaries(row)]
        ends.append(f"perplexity {with_range(perplexity, 2)}, BLEU {with_range(best, 1)}")
    return (
        f". Trained on the GPU: {', '.join(there)}. The recipe, trained on each, ends on the"
        f" validation split with {ends[0]} on the CPU and {ends[1]} on the GPU"
    )


def training() -> dict:
    """Perplexity and BLEU on the validation split while the shipped model was trained."""
    record = read(f"runs/{read('pretrained')['run']}")
    panels = []
    for name, scale in (("perplexity", "log"), ("BLEU", "linear")):
        points = [{"update": e["updates"], name: round(e[name.lower()], 2)} for e in record["log"]]
        chart = alt.Chart(alt.Data(values=points), width=165, height=150).mark_line(point=True)
        y = alt.Y(f"{name}:Q").scale(type=scale, nice=False)
        panels.append(chart.encode(x="update:Q", y=y, tooltip=["update:Q", f"{name}:Q"]))
    text = "Validation perplexity falls and BLEU rises, epoch by epoch, as training goes on."
    drawn = alt.hconcat(*panels).properties(description=text).to_dict()
    summary = record["summary"]
    caption = f"Multi30k, validation split, greedy, seed {summary['settings']['seed']}"
    return finished(caption, [summary], chart=drawn)


def int8() -> dict:
    """What rounding the weights to bytes costs."""
    record = read("pretrained")
    splits = {"val": "validation", **TESTS}
    columns = {"format": "{format}", "MB": "{MB:.1f}"}
    columns |= {f"BLEU {name}": f"{{{split}[bleu]:.1f}}" for split, name in splits.items()}
    rows = [{"format": name} | scores for name, scores in record["formats"].items()]
    score = results.score_of(plan.SHIPPED, record["run"], "test_2016_flickr")
    use = "beam {beam}, α = {alpha}, mean of the last {averaged} epochs".format(**score)
    caption = f"Multi30k, {record['run']}, {use}; BLEU {score['signature']}"
    return finished(caption, [record["training"], record["made"]], **tabulate(rows, columns))


# Choices ----------------------------------------------------------------------------------------


def beam() -> dict:
    """BLEU of beams and length penalties."""
    record = read("beam")
    found = {(cell["beam"], cell["alpha"]): f"{cell['bleu']:.1f}" for cell in record["sweep"]}
    rows = [
        [f"{beam}", *(found.get((beam, alpha), "") for alpha in plan.ALPHAS)] for beam in plan.BEAMS
    ]
    columns = ["beam", *(f"α = {alpha}" for alpha in plan.ALPHAS)]
    caption = "BLEU, Multi30k, validation split, {run}, mean of the last {averaged} epochs"
    return finished(caption.format(**record), [record["made"]], columns=columns, rows=rows)


def averaging() -> dict:
    """BLEU and perplexity of the mean of more and more epochs."""
    record = read("averaging")
    rows = [cell | {"averaged": cell["averaged"] or "best epoch"} for cell in record["sweep"]]
    columns = {"last epochs averaged": "{averaged}", "BLEU": "{bleu:.1f}"}
    columns["perplexity"] = "{perplexity:.2f}"
    caption = "Multi30k, validation split, {run}, beam {beam}, α = {alpha}"
    caption = caption.format(**record, alpha=plan.ALPHA)
    return finished(caption, [record["made"]], **tabulate(rows, columns))


def choices() -> dict:
    """The trials, one thing changed at a time, and the recipe."""
    base = read("runs/trial-base")["summary"]["settings"]
    trials = []
    names = [name for name in plan.RUNS if name.startswith("trial-")]
    for name in (*names, *plan.SHIPPED.runs):
        record = read(f"runs/{name}")
        settings = record["summary"]["settings"]
        changes = [
            f"{key} {value}"
            for key, value in settings.items()
            if base[key] != value and key != "keep"  # decided no score of a trial
        ]
        changes += [plan.IN_WORDS[name]] if name in plan.IN_WORDS else []
        change = {"change": ", ".join(changes) or "none"}
        trials.append(record["summary"] | record["log"][-1] | change)
    columns = {"change": "{change}", "BLEU": "{bleu:.1f}", "perplexity": "{perplexity:.2f}"}
    columns |= {"parameters": "{parameters:,}", "updates": "{updates:,}"}
    caption = (
        "Multi30k, validation split, greedy, last epoch, seed {seed}, {epochs} epochs, made while"
        " the recipe was chosen. Without a change: N {N},"
        " d_model {d_model}, d_ff {d_ff}, h {h}, dropout {dropout}, vocab_size {vocab_size},"
        " smoothing {smoothing}, warmup {warmup}, factor {factor}, batch_tokens {batch_tokens}"
    ).format(**base)
    return finished(caption, trials, **tabulate(trials, columns))


# The copy task ----------------------------------------------------------------------------------


PARTS = {  # what Part 4 takes out, and the fault that does so
    "mask over the future": "the future is open in training",
    "positions": "no positions",
    "residuals": "no residual connections",
    "norms": "no norms",
    "feed-forward": "no feed-forward network",
    "division by √d_k": "no division by √d_k",
}
SOUND = "nothing"


def losses_of(run: dict) -> list[float]:
    return [float(loss) for loss in run["losses"].split()]


def breaks() -> dict:
    """Losses of copy models without a part, each beside the whole model's."""
    record = read("planted")
    whole = record["copying"][SOUND]
    every = 2  # a small chart needs no more
    points = []
    missing = {SOUND: list(PARTS)} | {fault: [part] for part, fault in PARTS.items()}
    for fault, parts in missing.items():
        for run in record["copying"][fault]:
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
    drawn = lines.properties(description=text).to_dict()
    caption = f"Copy task, {10 * len(losses_of(whole[0]))} updates, seeds 1 to {len(whole)}"
    return finished(caption, record["made"]["copying"], chart=drawn)


KINDS = ("copied", "ended early", "ran over", "wrong token")


def copied() -> dict:
    """What the same models copy, and how the others fail."""
    record = read("planted")
    rows = []
    for part, fault in ({SOUND: SOUND} | PARTS).items():
        runs = record["copying"][fault]
        last = with_range([losses_of(run)[-1] for run in runs], 3)
        rows.append([part, last, *(with_range([run[kind] for run in runs], 0) for kind in KINDS)])
    caption = f"Copy task, 200 sequences, mean of {len(runs)} seeds (range)"
    columns = ["without", "last loss", *KINDS]
    return finished(caption, record["made"]["copying"], columns=columns, rows=rows)


def beyond(values: Sequence[float], band: Sequence[float]) -> str:
    """ "above" or "below" where all values lie beyond all of the band, else nothing."""
    if min(values) > max(band):
        return "above"
    return "below" if max(values) < min(band) else ""


def symptom_of_copies(runs: Sequence[dict], sound: Sequence[dict]) -> str:
    """What one sees of a fault in the copy task, where all seeds lie beyond all sound ones."""
    last = [losses_of(run)[-1] for run in runs]
    whole = [sum(losses_of(run)) for run in runs]
    of_sound = [sum(losses_of(run)) for run in sound]
    copies = beyond([run["copied"] for run in runs], [run["copied"] for run in sound])
    stays = min(last) > 1.0
    learns = "the loss stays high" if stays else ""
    if not stays and beyond(whole, of_sound):
        learns = "learns slower" if beyond(whole, of_sound) == "above" else "learns faster"
    if copies == "below" and not stays:
        most = max(run["copied"] for run in runs)
        kinds = {kind: sum(run[kind] for run in runs) for kind in KINDS[1:]}
        how = max(kinds, key=kinds.get)
        what = f"copies none ({how})" if most == 0 else f"copies fewer ({how})"
        learns = f"{learns}, {what}" if learns else f"the loss is fine, {what}"
    return learns or "no symptom"


def planted() -> dict:
    """Known faults, by what one sees of them."""
    record = read("planted")
    sound = record["copying"][SOUND]
    wide = record["copying"]["nothing, one head of width 512"]
    rows = []
    for fault, runs in record["copying"].items():
        if not fault.startswith(SOUND):
            band = wide if "512" in fault else sound
            last = with_range([losses_of(run)[-1] for run in runs], 3)
            exact = with_range([run["copied"] for run in runs], 0)
            check = at.in_words(record["checks"].get(fault, "")) or "none"
            rows.append([symptom_of_copies(runs, band), fault, check, last, exact])
    rows.sort(key=lambda row: row[0])
    last = with_range([losses_of(run)[-1] for run in sound], 3)
    exact = with_range([run["copied"] for run in sound], 0)
    rows.insert(0, ["–", "no fault", "–", last, exact])
    columns = ["symptom", "fault", "first check that sees it", "last loss", "copied of 200"]
    updates, fewer = (10 * len(losses_of(runs[0])) for runs in (sound, wide))
    caption = f"Copy task, {updates} updates (width 512: {fewer}), mean of three seeds (range); a"
    caption += " symptom is named where"
    caption += " all three lie beyond three sound ones (faster, slower: by the sum of their losses)"
    return finished(caption, record["made"]["copying"], columns=columns, rows=rows)


def symptom_of_bleu(bleu: Sequence[float], sound: Sequence[float]) -> str:
    """What one sees of a fault in BLEU: beyond all sound ones, and by half a point at least."""
    if abs(mean(bleu) - mean(sound)) < 0.5 or not beyond(bleu, sound):
        return "no symptom"
    return "BLEU is higher" if beyond(bleu, sound) == "above" else "BLEU is lower"


def planted_bleu() -> dict:
    """Known faults of data, decoding and scoring, by the BLEU of what is translated with them."""
    record = read("planted")
    models = {"demonstration": "of Part 6", "shipped": "shipped"}
    rows = []
    for kind, name in models.items():
        sound = record[kind][SOUND]
        for fault, bleu in record[kind].items():
            check = at.in_words(record["checks"].get(fault, "")) or "none"
            what = [symptom_of_bleu(bleu, sound), fault, check]
            if fault == SOUND:
                what = ["–", "no fault", "–"]
            rows.append([name, *what, with_range(bleu, 2)])
    rows.sort(key=lambda row: (row[0], row[1]))
    columns = ["model", "symptom", "fault", "first check that sees it", "BLEU"]
    caption = (
        "Validation split. Of Part 6: two epochs of short sentences, greedy, mean of three seeds"
        " (range). Shipped: beam of four, one run. A symptom is named where"
        " BLEU lies beyond all that is sound, and by half a point or more"
    )
    made = [stamp for kind in models for stamp in record["made"][kind]]
    return finished(caption, made, columns=columns, rows=rows)


def warmups() -> dict:
    """Last losses against the peak of the learning rate, with and without a rise."""
    record = read("warmups")
    of_seeds = {}
    for run in record["runs"]:
        curve = "with warm-up" if run["warm-up"] else "without"
        norm = "norm before the sub-layer" if run["norm first"] else "norm after the sum"
        of_seeds.setdefault((round(run["peak"], 5), curve, norm), []).append(str(run["loss"]))
    points = [
        {"peak": peak, "curve": curve, "norm": norm, "losses": " ".join(losses)}
        for (peak, curve, norm), losses in of_seeds.items()
    ]
    text = "Loss after a short training against the highest learning rate, for two norm orders."
    chart = alt.Chart(width=230, height=200)
    chart = chart.transform_calculate(loss="split(datum.losses, ' ')").transform_flatten(["loss"])
    chart = chart.transform_calculate(loss="toNumber(datum.loss)")
    marks = chart.mark_point(filled=True, size=50).encode(
        x=alt.X("peak:Q", title="highest learning rate").scale(type="log"),
        y=alt.Y("loss:Q", title="last loss"),
        color=alt.Color("curve:N", title=None).legend(orient="top"),
        shape=alt.Shape("curve:N", title=None),
    )
    limit = alt.Chart(alt.Data(values=[{"loss": 2.485}])).mark_rule(strokeDash=[4, 4])
    layered = alt.layer(marks, limit.encode(y="loss:Q"), data=alt.Data(values=points))
    drawn = layered.facet("norm:N").properties(description=text).to_dict()
    caption = "Copy task, four layers in each stack, 400 updates of 32 sequences, three seeds"
    return finished(caption, [record["made"]], chart=drawn)


def length_cost() -> dict:
    """Milliseconds of one layer of each kind against the length: medians, and their range."""
    record = read("length-cost")
    points = []
    for row in record["rows"]:
        times_of_rounds = row["milliseconds"]
        point = {"layer": row["layer"], "length": row["length"]}
        point["milliseconds"] = round(median(times_of_rounds), 3)
        point["least"] = round(min(times_of_rounds), 3)
        points.append(point | {"most": round(max(times_of_rounds), 3)})
    text = "Milliseconds of one layer, forward and backward, against the length, for three kinds."
    chart = alt.Chart(alt.Data(values=points), width=420, height=240).encode(
        x=alt.X("length:Q").scale(type="log", nice=False),
        y=alt.Y("milliseconds:Q").scale(type="log"),
        color=alt.Color("layer:N", sort=None, title=None),
    )
    ranges = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(
        y=alt.Y("least:Q", title="milliseconds"), y2="most:Q"
    )
    drawn = alt.layer(chart.mark_line(point=True, tooltip=True), ranges)
    drawn = drawn.properties(description=text).to_dict()
    rounds = len(times_of_rounds)
    caption = f"One layer of width {record['width']}, one sequence, fp32, one thread; medians of"
    caption += f" {rounds} rounds (bars: from the least to the most)"
    return finished(caption, [record["made"]], chart=drawn)


def heads() -> dict:
    """What the model loses without a head, by two things in its place."""
    record = read("heads")
    cells = {}
    for row in record["rows"]:
        place = row["attention"], str(row["layer"]), row["by"]
        cells.setdefault(place, []).append(with_range(row["changes"], 3).replace("-", "−"))
    rows = [[*place, *each] for place, each in cells.items()]
    number = max(len(each) for each in cells.values())
    columns = ["attention", "layer", "in its place", *(f"head {n + 1}" for n in range(number))]
    whole = with_range(record["perplexity"], 2)
    caption = f"Change in validation perplexity without a head; with all it is {whole}. Mean of"
    caption += f" {len(record['perplexity'])} sets of 200 sentences (range)"
    return finished(caption, [record["made"]], columns=columns, rows=rows)


def lost() -> dict:
    """How often a beam loses the greedy translation."""
    record = read("lost")
    kinds = {"equal": "same score", "beam above": "beam higher", "greedy above": "greedy higher"}
    rows = [
        [beam, *(str(counts[kind]) for kind in kinds)] for beam, counts in record["counts"].items()
    ]
    caption = (
        f"Validation sentences, by the score (α = {plan.ALPHA}) of what greedy decoding and a beam"
        " find"
    )
    return finished(caption, [record["made"]], columns=["beam", *kinds.values()], rows=rows)


def quartiles(values: Sequence[float]) -> str:
    """The median, and between which values half of all lie."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.0%} ({low:.0%} to {high:.0%})"


CHANGES = {"verb": "the English verb", "particle": "the English particle"}


def particles() -> dict:
    """Which share of the whole shift comes with which vectors of the memory."""
    record = read("particles")
    rows = []
    for kind, name in CHANGES.items():
        pairs = [pair for pair in record["pairs"] if pair["kind"] == kind]
        shares = {part: [pair["shares"][part] for pair in pairs] for part in pairs[0]["shares"]}
        rows.append([name, str(len(pairs)), *map(quartiles, shares.values())])
    caption = (
        f"{record['tried']} pairs tried, {len(record['pairs'])} counted. Share of the whole shift"
        " of log p(A) − log p(B) by what was swapped: median (quartiles)"
    )
    swapped = (("swapped, of the German sentence", part) for part in shares)
    columns = two_levels(("", "what changes"), ("", "pairs"), *swapped)
    return finished(caption, [record["made"]], columns=columns, rows=rows)


def layers() -> dict:
    """The share of the shift that lies at the verb and at the particle, layer by layer."""
    record = read("particles")
    points = [
        {
            "layer": layer,
            "swapped at": place,
            "what changes": CHANGES[kind],
            "share": round(
                statistics.median(
                    pair["layers"][place][layer] for pair in record["pairs"] if pair["kind"] == kind
                ),
                3,
            ),
        }
        for kind in CHANGES
        for place in ("verb", "particle")
        for layer in range(len(record["pairs"][0]["layers"]["verb"]))
    ]
    text = (
        "Share of the shift by how many layers lie before the swapped state, at verb and particle."
    )
    chart = alt.Chart(alt.Data(values=points), width=230, height=180).mark_line(point=True)
    lines = chart.encode(
        x=alt.X("layer:O", title="states behind so many layers").axis(labelAngle=0),
        y=alt.Y("share:Q", title="median share of the shift"),
        color=alt.Color("swapped at:N", sort=["verb", "particle"]).legend(orient="top"),
        column=alt.Column("what changes:N", sort=list(CHANGES.values())),
    )
    drawn = lines.properties(description=text).to_dict()
    return finished("States of the encoder, swapped at one word", [record["made"]], chart=drawn)


def lengths() -> dict:
    """What became of sequences to copy, against their length, by kind of positions."""
    record = read("lengths")
    points = [
        {"positions": run["positions"], "seed": run["seed"], "outcome": kind}
        | {"counts": " ".join(map(str, run[kind]))}
        for run in record["runs"]
        for kind in KINDS
    ]
    text = (
        "Four small charts: of 100 sequences, how many were copied, ended early, ran over or have a"
    )
    text += " wrong token, against their length, for four kinds of positions."
    chart = alt.Chart(alt.Data(values=points), width=230, height=130)
    chart = chart.transform_calculate(of="split(datum.counts, ' ')").transform_flatten(["of"])
    chart = chart.transform_window(length="row_number()", groupby=["positions", "seed", "outcome"])
    chart = chart.transform_calculate(number="toNumber(datum.of)")
    lines = chart.mark_line(strokeWidth=1.5).encode(
        x=alt.X("length:Q", title="length of the sequence").axis(tickMinStep=1, tickCount=5),
        y=alt.Y("number:Q", title="of 100"),
        color=alt.Color("positions:N", sort=["sinusoids", "learnt", "rotary", "none"]).legend(
            orient="top", title=None
        ),
        detail="seed:N",
        facet=alt.Facet("outcome:N", columns=2, sort=list(KINDS), title=None),
    )
    drawn = lines.properties(description=text).to_dict()
    caption = f"Copy task, trained on lengths 1 to 10, seeds 1 to {len(plan.SEEDS)}"
    return finished(caption, [record["made"]], chart=drawn)


# Speed ------------------------------------------------------------------------------------------


def matching(record: dict, **values) -> list[dict]:
    """The cases of a benchmark that have these values."""
    return [case for case in record["cases"] if values.items() <= case.items()]


def speeds(case: dict) -> list[float]:
    """Tokens or sentences per second, round by round."""
    unit = "sentences" if case["task"] == "decode" else "tokens"
    return [each[f"{unit} per second"] for each in case["rounds"]]


def times(fast: dict, slow: dict) -> tuple[float, float, float]:
    """The ratio of two medians, and the range of the ratios round by round."""
    ratios = [one / other for one, other in zip(speeds(fast), speeds(slow), strict=True)]
    return median(speeds(fast)) / median(speeds(slow)), min(ratios), max(ratios)


def training_case(record: dict, code: str, size: str, dtype: str) -> dict:
    """The case of a training in one process."""
    values = {"task": "train", "code": code, "size": size, "dtype": dtype}
    [case] = matching(record, **values, ranks=1)
    return case


def per_second(case: dict, digits: int = 0) -> str:
    return with_range(speeds(case), digits, median(speeds(case)))


WAYS = {  # of training, with the code and the number format
    "the way of 2022": ("2022", "fp32"),
    "nn.Transformer": ("torch", "fp32"),
    "nn.Transformer, bf16": ("torch", "bf16"),
    "ours": ("ours", "fp32"),
    "ours, bf16": ("ours", "bf16"),
}
DECODERS = {"plain loop": "plain", "CTranslate2": "ctranslate2", "ours": "ours"}


def speed() -> dict:
    """How fast training and decoding are, ours and others."""
    record = read("benchmark")
    gpu = read("gpu")
    rows = []
    for name, (code, dtype) in WAYS.items():
        cells = ["training", name]
        for size in ("small", "base"):
            if dtype not in ("fp32", record["format"]) or (code, size) == ("2022", "base"):
                cells += ["–", "–"]
            else:
                case = training_case(record, code, size, dtype)
                cells += [per_second(case), f"{case['peak MB']:,.0f}"]
        for size in ("small", "base"):
            if code == "2022":
                cells.append("–")
            else:
                [case] = matching(gpu, code=code, size=size, dtype=dtype)
                thousands = [speed / 1000 for speed in speeds(case)]
                cells.append(with_range(thousands, 0, median(thousands)))
        rows.append(cells)
    for name, code in DECODERS.items():
        cells = ["decoding", name]
        for beam in (1, 4):
            if code == "plain" and beam == 4:
                cells += ["–", "–"]
            else:
                [case] = matching(record, task="decode", code=code, beam=beam)
                cells += [per_second(case, 1), "–"]
        rows.append([*cells, "–", "–"])
    columns = two_levels(
        ("", "what"),
        ("", "by"),
        ("small, or greedy", "a second"),
        ("small, or greedy", "peak MB"),
        ("base, or beam of 4", "a second"),
        ("base, or beam of 4", "peak MB"),
        ("GPU, thousands a second", "small"),
        ("GPU, thousands a second", "base"),
    )
    caption = (
        "Training, in target tokens: one process of two threads, words of Multi30k, fp32 unless"
        " said; small: 3 layers of 256, base: 6 of 512. Decoding, in sentences: test 2016, shipped"
        " model, fp32; ours and CTranslate2 by the hundred, the plain loop one at a time. Medians"
        f" of {record['rounds']} rounds (range). {of_gpu(gpu)}"
    )
    made = [record["made"], gpu["made"], gpu["made comparing"]]
    return finished(caption, made, columns=columns, rows=rows)


def of_gpu(record: dict) -> str:
    """What was found on the GPU beside speed."""
    shares = {}
    for dtype in record["peak"]:
        [case] = matching(record, code="ours", size="base", dtype=dtype)
        shares[dtype] = f"{median(each['share of peak'] for each in case['rounds']):.0%}"
    logs = [read(f"runs/{run}")["log"] for run in plan.ON_GPU]
    loads = [load for log in logs for epoch in log for load in epoch["gpu"]]
    minutes = [log[-1]["minutes"] for log in logs]
    off = {name: f"{each['gradient']:.1e}" for name, each in record["formats"].items()}
    step = torch.finfo(torch.bfloat16).eps / 2
    nccl = record["nccl"]
    return (
        f"GPU: ours, base, reaches {shares['fp32']} of the speed of large products in fp32,"
        f" {shares['bf16']} in bf16, with padding counted. The recipe takes"
        f" {with_range(minutes, 1)} minutes there with validation, beside other runs that together"
        f" load the GPU to {median(loads):.0f} % (GPUtil, after each epoch). The"
        f" gradient of a batch differs from the CPU's in fp32 by {off['fp32']} of its length in"
        f" fp32, by {off['bf16']} in bf16, which rounds by up to {step:.1e}. With NCCL, one rank,"
        f" weights after {nccl['updates']} updates are off those without it by {nccl['with']:g}"
    )


def cost() -> dict:
    """The arithmetic of the paper's two trainings, and the time it would take here."""
    record = read("benchmark")
    ours = matching(record, task="train", code="ours", size="base")
    best = max(ours, key=lambda case: median(speeds(case)))
    second = median(speeds(best))
    words = record["words"]
    length = 27  # target tokens; tokens of a sentence
    base = {"model": "base", "D": 512, "steps": 1e5, "hours": 12, "paper": 3.3e18}
    big = {"model": "big", "D": 1024, "steps": 3e5, "hours": 84, "paper": 2.3e19}
    timed = at.training_flops(6, 512, 2048, words, length, length)
    for row in (base, big):
        row["pair"] = at.training_flops(6, row["D"], 4 * row["D"], 37_000, length, length)
        row["counted"] = row["steps"] * 25_000 / length * row["pair"]
        row["share"] = row["counted"] / row["paper"]
        row["here"] = row["steps"] * 25_000 / second / 3600 * row["pair"] / timed
    columns = {"model": "{model}", "paper, hours on 8 GPUs": "{hours}"}
    columns |= {"paper, time × assumed speed": "{paper:.1e}", "counted": "{counted:.1e}"}
    columns |= {"counted, of the paper's": "{share:.0%}", "hours on two cores": "{here:,.0f}"}
    caption = (
        f"Floating-point operations, sentences of {length} tokens; here at {second:,.0f} tokens a"
        f" second, our fastest training of the base size ({best['dtype']}, {words:,} words,"
        f" processes: {best['ranks']}), in proportion to the operations"
    )
    return finished(caption, [record["made"]], **tabulate((base, big), columns))


def assembled() -> dict:
    """Two language models of one size, with the parts of 2017 and with those of today."""
    record = read("assembled")
    rows = []
    for name in record["speed"]:
        runs = [run for run in record["runs"] if run["model"] == name]
        speed = record["speed"][name]
        parameters = f"{runs[0]['parameters']:,}"
        perplexities = [math.exp(run["nll"][-1]) for run in runs]
        training = with_range(speed["training"], 0, median(speed["training"]))
        writing = with_range(speed["writing"], 0, median(speed["writing"]))
        cache = f"{speed['bytes']:,}"
        rows.append([name, parameters, with_range(perplexities, 1), training, writing, cache])
    columns = ["parts", "parameters", "validation perplexity", "tokens/s, training"]
    columns += ["tokens/s, writing with a cache", "bytes of cache a token"]
    run = record["runs"][0]
    caption = (
        f"Language models of captions, {run['updates']:,} updates each; perplexity: mean of three"
        " seeds (range); speed: median of five rounds in turn (range), fp32"
    )
    return finished(caption, [record["made"], record["timed"]], columns=columns, rows=rows)


# Writing ----------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[], dict]] = {
    "results": short_table, "steps": steps,
    "training": training, "int8": int8, "beam": beam, "averaging": averaging, "choices": choices,
    "speed": speed, "cost": cost, "breaks": breaks, "copied": copied,
    "planted": planted, "warmups": warmups, "lengths": lengths,
    "heads": heads, "lost": lost, "particles": particles, "layers": layers,
    "planted-bleu": planted_bleu, "assembled": assembled, "length-cost": length_cost,
}  # fmt: skip


def speed_line() -> str:
    """README's line on speed, from the benchmark."""
    record = read("benchmark")
    ratios = []
    for dtype in dict.fromkeys(("fp32", record["format"])):
        both = (training_case(record, code, "small", dtype) for code in ("ours", "torch"))
        ratio, *bounds = times(*both)
        ratios.append(f"{with_range(bounds, 2, ratio)} times as fast in {dtype}")
    return (
        f"On the same batches it trains {' and '.join(ratios)} as PyTorch's"
        f" `nn.Transformer`: small size, one process, {record['made']['machine']}.\n"
    )


def badges(place: Address) -> str:
    """README's links to what runs and is read without a clone, where there is an address."""
    named = {"run it in Colab": place.colab, "look at the notebook": place.notebook}
    links = [f"[{name}]({url})" for name, url in named.items() if url]
    return f"Or {' and '.join(links)}.\n" if links else ""


def readme(text: str) -> str:
    """README with its links, its table and its line on speed, as address and views have them."""
    text = records.between_marks(text, "address", badges(address(at.HERE, ask_git=False)))
    text = records.between_marks(text, "results", records.markdown(read("views/results")))
    return records.between_marks(text, "speed", speed_line())


def card(text: str) -> str:
    """README of pretrained/ with its scores."""
    view = read("views/int8")
    return records.between_marks(text, "scores", records.markdown(view) + f"\n{view['caption']}\n")


def write_view(name: str) -> None:
    records.write(f"views/{name}", VIEWS[name]())


def rewrite(name: str, written: Callable[[str], str]) -> None:
    path = at.HERE / name
    records.write_text(path, written(path.read_text("utf-8")))


def main() -> int:
    """Write what the records give; 1, and why, where something stays as it is published."""
    files = {"images/first-translation.svg": lambda text: first_picture()}
    files |= {"README.md": readme, "pretrained/README.md": card}
    writers = {f"views/{name}": functools.partial(write_view, name) for name in VIEWS}
    writers |= {name: functools.partial(rewrite, name, of) for name, of in files.items()}
    refused = 0
    for name, write in writers.items():
        try:
            write()
        except (ValueError, KeyError) as error:
            print(f"error: {name} stays as it was: {error}", file=sys.stderr)
            refused = 1
    return refused


if __name__ == "__main__":
    sys.exit(main())
