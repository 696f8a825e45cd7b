"""The recipe: its scores step by step, its training, and how its settings were chosen."""

from statistics import mean

import altair as alt

from tools import records
from tools.results import plan
from tools.views.common import (
    Chart,
    Table,
    in_markdown,
    listed,
    record,
    runs_that_compare,
    with_range,
    wrapped,
)


def scores(row: plan.Row, split: str) -> list[float]:
    """BLEU of each run of a row; ValueError where they do not compare."""
    entries = record("scores")["scores"]
    found = {e["run"]: e for e in entries if (e["row"], e["split"]) == (row.name, split)}
    records.check_comparable(found)
    return [found[run]["bleu"] for run in row.runs]


def about_scores() -> str:
    """How the scores of the rows were made."""
    [signature] = {entry["signature"] for entry in record("scores")["scores"]}
    return (
        f"A score with a range in brackets is the mean over {len(plan.SEEDS)} seeds; others are of"
        " a single seed."
        f" sacreBLEU signature: `{signature}`."
    )


def for_readme() -> str:
    """The short table, and how it was measured."""
    runs = runs_that_compare(run for row in plan.ROWS for run in row.runs)
    rows = []
    for row in plan.ROWS:
        parameters = f"{runs[row.runs[0]]['summary']['parameters'] / 1e6:.1f} M"
        bleu = [with_range(scores(row, split), 1) for split in plan.TESTS]
        rows.append([row.step, *bleu, parameters])
    columns = ["step", "test 2016 BLEU", "test 2017 BLEU", "parameters"]
    return f"{in_markdown(columns, rows)}\n{wrapped(about_scores())}"


def end_of_interval(number: float) -> str:
    """With one decimal, or two where one would hide the sign."""
    return f"{number:.1f}" if abs(number) >= 0.05 else f"{number:.2f}"


def steps() -> Table:
    """Every step: its scores, and its gains with their intervals."""
    drawn = record("steps")
    found = {(step["row"], step["split"]): step for step in drawn["steps"]}
    rows = []
    for row in plan.scored():
        cells = [row.step]
        for split in plan.TESTS:
            gain = "–"
            if step := found.get((row.name, split)):
                low, high = map(end_of_interval, step["interval"])
                gain = f"{step['gain']:+.1f} ({low} to {high})".replace("-", "−")
            cells += [with_range(scores(row, split), 1), gain]
        rows.append(cells)
    sure = [
        f"*{row.step}*"
        for row in plan.ROWS[1:]
        if all(found[row.name, split]["interval"][0] > 0 for split in plan.TESTS)
    ]
    totals = []
    for split, test in plan.TESTS.items():
        first, last = (mean(scores(row, split)) for row in (plan.ROWS[0], plan.ROWS[-1]))
        totals.append(f"from {first:.1f} to {last:.1f} on {test}")
    runs = runs_that_compare(run for row in plan.scored() for run in row.runs)
    return Table(
        f"Together the steps raise BLEU {listed(totals)}. Gains on both, with intervals above"
        f" zero: {listed(sure)}.",
        ["step", "test 2016 BLEU", "gain", "test 2017 BLEU", "gain"],
        rows,
        f"Multi30k, German to English but for the last row. {about_scores()} Each gain is relative"
        " to the row above, before rounding; brackets give its 95% confidence interval, from"
        f" {drawn['draws']:,} samples of the test sentences and of the seeds.",
        [run["summary"] for run in runs.values()],
    )


def training() -> Chart:
    """Validation perplexity falls and BLEU rises, epoch by epoch, as training goes on."""
    name = record("pretrained")["run"]
    run = record(f"runs/{name}")
    panels = []
    for what, scale in (("perplexity", "log"), ("BLEU", "linear")):
        points = [{"update": e["updates"], what: round(e[what.lower()], 2)} for e in run["log"]]
        chart = alt.Chart(alt.Data(values=points), width=165, height=150).mark_line(point=True)
        y = alt.Y(f"{what}:Q").scale(type=scale, nice=False)
        panels.append(chart.encode(x="update:Q", y=y, tooltip=["update:Q", f"{what}:Q"]))
    measured = f"Multi30k, validation split, greedy decoding, model {name}."
    return Chart(alt.hconcat(*panels), measured)


def int8() -> Table:
    """What rounding the weights to bytes costs."""
    shipped = record("pretrained")
    before, after = shipped["formats"]["fp32"], shipped["formats"]["int8"]
    splits = ("val", *plan.TESTS)
    rows = []
    for name, found in shipped["formats"].items():
        rows.append([name, f"{found['MB']:.1f}", *(f"{found[s]['bleu']:.1f}" for s in splits)])
    change = max(abs(before[split]["bleu"] - after[split]["bleu"]) for split in splits)
    return Table(
        f"The file shrinks from {before['MB']:.1f} to {after['MB']:.1f} MB, and BLEU changes by at"
        f" most {change:.2f}.",
        ["format", "MB", "validation BLEU", "test 2016 BLEU", "test 2017 BLEU"],
        rows,
        f"Multi30k, model {shipped['run']}: the mean of its last {plan.AVERAGED} epochs, a beam of"
        f" {plan.BEAM}, α = {plan.CHOSEN_ALPHA:g}. fp32 is the model before rounding. sacreBLEU"
        f" signature: `{before['val']['signature']}`.",
    )


def beam() -> Table:
    """BLEU of beams and length penalties."""
    swept = record("beam")
    found = {(cell["beam"], cell["alpha"]): f"{cell['bleu']:.1f}" for cell in swept["sweep"]}
    best = max(swept["sweep"], key=lambda cell: cell["bleu"])
    shown = (0.0, plan.ALPHA, plan.CHOSEN_ALPHA, best["alpha"])
    wider = plan.BEAMS[1:]
    return Table(
        f"Greedy decoding, a beam of 1, scores {found[1, 0.0]} BLEU. With α = {plan.ALPHA}, beams"
        f" of {listed(map(str, wider))} score {listed(found[n, plan.ALPHA] for n in wider)}.",
        ["beam", *(f"α = {alpha:g}" for alpha in shown)],
        [[str(n), *(found.get((n, alpha), "") for alpha in shown)] for n in plan.BEAMS],
        f"Multi30k, validation split, run {swept['run']}, the published model with another seed, in"
        f" fp32: the mean of its last {swept['averaged']} epochs. One run: differences of a few"
        " tenths may be chance.",
    )


def averaging() -> Table:
    """BLEU and perplexity of the mean of more and more epochs."""
    swept = record("averaging")
    rows = []
    for cell in swept["sweep"]:
        if cell["averaged"] in (1, 3, plan.AVERAGED):
            numbers = f"{cell['bleu']:.1f}", f"{cell['perplexity']:.2f}"
            rows.append([str(cell["averaged"]), *numbers])
    numbers = listed((number for number, *_ in rows), "or")
    low, *_, high = sorted(bleu for _, bleu, _ in rows)
    return Table(
        f"With {numbers} epochs averaged, BLEU stays between {low} and {high}.",
        ["mean of the last epochs", "BLEU", "perplexity"],
        rows,
        f"Multi30k, validation split, run {swept['run']} in fp32, a beam of"
        f" {swept['beam']}, α = {plan.ALPHA}.",
    )


TRIED = {  # what each trial changes, in words
    "search-base": "baseline: 2,560 positions a batch, dropout 0.15",
    "trial-factor-50": "baseline, a third lower learning rate",
    "trial-after-50": "baseline, post-norm, at that lower rate",
    "trial-layers-4": "baseline, four narrower layers instead of three",
    "search-dropout-25": "baseline, dropout 0.25",
    "search-batch-1280": "baseline, half the batch, so twice the updates",
    "search-subwords-10000": "baseline, half the batch, and twice the subwords in a narrower model",
    "recipe-1": "the recipe: 1,280 positions a batch, dropout 0.25",
    "search-whole-dropout-10": "the recipe with dropout 0.1",
    "trial-whole-25": "the recipe with twice the subwords in a narrower model",
    "trial-whole-30": "the recipe with twice the subwords in a narrower model, and dropout 0.3",
}


def choices() -> Table:
    """The trials, one thing changed at a time, and the recipe."""
    rows = []
    for name, words in TRIED.items():
        last = record(f"runs/{name}")["log"][-1]
        numbers = f"{last['updates']:,}", f"{last['bleu']:.1f}", f"{last['perplexity']:.2f}"
        rows.append([str(last["epoch"]), words, *numbers])
    return Table(
        "Trials for 8 epochs, and four full runs.",
        ["epochs", "settings", "updates", "BLEU", "perplexity"],
        rows,
        "Multi30k, validation split, greedy decoding, last epoch, seed 1. Half the batch comes with"
        " a longer warm-up, so the learning rate peaks 0.7 times as high. More subwords or layers"
        " make the model narrower, so that the number of parameters stays about the same;"
        " perplexities of different vocabularies cannot be compared. Some trials computed in bf16,"
        " the others in fp32. All settings are in `results/runs`.",
    )
