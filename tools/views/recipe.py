"""The recipe: its scores step by step, its training, and how its settings were chosen."""

from statistics import mean

import altair as alt

from tools import records
from tools.results import plan
from tools.views.common import Chart, Table, listed, record, with_range, wrapped

# Scores and costs of the rows ---------------------------------------------------------------------


def summaries(*rows: plan.Row) -> list[dict]:
    """What is on record of the runs of rows; ValueError where one is missing, or they differ."""
    names = [run for row in rows for run in row.runs]
    if missing := [name for name in names if not records.read(f"runs/{name}")]:
        raise ValueError(f"not on record: {', '.join(missing)}")
    found = {name: record(f"runs/{name}")["summary"] for name in names}
    records.check_comparable(found)
    return list(found.values())


def scores(row: plan.Row, split: str) -> list[dict]:
    """What each run of a row has scored; ValueError where one is missing, or they differ."""
    entries = record("scores")["scores"]
    found = {e["run"]: e for e in entries if (e["row"], e["split"]) == (row.name, split)}
    if missing := [run for run in row.runs if run not in found]:
        raise ValueError(f"not scored on {split}: {', '.join(missing)}")
    records.check_comparable(found)
    return [found[run] for run in row.runs]


def bleu(row: plan.Row, split: str) -> str:
    return with_range([entry["bleu"] for entry in scores(row, split)], 1)


def about_scores() -> str:
    """How the scores of the rows were made."""
    [signature] = {entry["signature"] for entry in record("scores")["scores"]}
    return (
        f"Each score is the mean of {len(plan.SEEDS)} seeds, with the lowest and the highest in"
        f" brackets. Signature of BLEU: `{signature}`."
    )


def timed(*rows: plan.Row) -> list[dict]:
    """What was timed of the rows; ValueError where one is missing, or they do not compare."""
    found = record("pace")
    names = [row.runs[0] for row in rows]
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"not timed: {', '.join(missing)}")
    machines = {name: found[name]["made"]["machine"] for name in names}
    if len({*machines.values()}) > 1:
        raise ValueError(f"minutes compare on one kind of processor, and here are {machines}")
    return [found[name] for name in names]


def costs(row: plan.Row) -> list[str]:
    """Parameters and minutes of training of a row."""
    run, [pace] = summaries(row)[0], timed(row)
    return [f"{run['parameters'] / 1e6:.1f} M", f"{pace['seconds'] * run['updates'] / 60:.0f}"]


def results() -> Table:
    """The short table, for the start of the text and for README."""
    rows = plan.ROWS
    gains = []
    for split, name in plan.TESTS.items():
        low, high = (mean(e["bleu"] for e in scores(row, split)) for row in (rows[0], rows[-1]))
        gains.append(f"from {low:.1f} to {high:.1f} on {name}")
    paces = timed(*rows)
    return Table(
        f"Together the steps bring BLEU {listed(gains)}.",
        ["step", *(f"{test} BLEU" for test in plan.TESTS.values()), "parameters", "minutes"],
        [[row.step, *(bleu(row, split) for split in plan.TESTS), *costs(row)] for row in rows],
        f"Multi30k, German to English. {about_scores()} An unknown word counts as one wrong token."
        " The minutes are those of all updates of a run. Some updates were timed for this, in two"
        f" processes, in {paces[0]['format']}, on {paces[0]['made']['machine']}.",
        [*summaries(*rows), *(pace["made"] for pace in paces)],
    )


def for_readme() -> str:
    """The short table, and how it was scored."""
    return f"{results().markdown()}\n{wrapped(about_scores())}\n"


# Which steps are sure -----------------------------------------------------------------------------


def gain_of(step: dict) -> str:
    """A gain with its interval."""
    low, high = (f"{round(end, 1) + 0.0:.1f}" for end in step["interval"])
    return f"{step['gain']:+.1f} ({low} to {high})".replace("-", "−")


def steps() -> Table:
    """Every step: its scores, its gains with their intervals, and whether it passes the rule."""
    drawn = record("steps")
    found = {(step["row"], step["split"]): step for step in drawn["steps"]}
    rows = (*plan.ROWS, plan.OTHER)
    table = []
    for row in rows:
        of_row = [found.get((row.name, split)) for split in plan.TESTS]
        cells = [row.step]
        for split, step in zip(plan.TESTS, of_row, strict=True):
            cells += [bleu(row, split), gain_of(step) if step else "–"]
        passes = "yes" if all(step and step["passes"] for step in of_row) else "no"
        table.append([*cells, passes if all(of_row) else "–"])
    columns = [heading for test in plan.TESTS.values() for heading in (f"{test} BLEU", "gain")]
    return Table(
        f"Steps that pass on both test sets: {listed(r[0] for r in table if r[-1] == 'yes')}.",
        ["step", *columns, "passes"],
        table,
        f"Multi30k, German to English. {about_scores()} The last row has one seed. A gain is over"
        f" the row above, and in the brackets behind it lie 95 % of {drawn['draws']:,} draws of the"
        f" sentences.{on_gpu(rows)}",
        summaries(*rows),
    )


def on_gpu(rows: tuple[plan.Row, ...]) -> str:
    """Where a GPU has trained some of the runs: which, and what the recipe reaches there."""
    runs = dict.fromkeys(run for row in rows for run in row.runs)
    there = [run for run in runs if record(f"runs/{run}")["summary"].get("device") == "cuda"]
    if not there:
        return ""
    best = []
    for names in (plan.ROWS[-1].runs, plan.ON_GPU):
        reached = [record(f"runs/{name}")["summary"]["validation_bleu"] for name in names]
        best.append(with_range(reached, 1))
    return (
        f" A GPU has trained {listed(there)}. The recipe was trained on both machines, and reaches"
        f" {best[0]} BLEU on the validation split on the CPU, {best[1]} on the GPU."
    )


def training() -> Chart:
    """Perplexity and BLEU on the validation split while the shipped model was trained."""
    run = record(f"runs/{record('pretrained')['run']}")
    panels = []
    for name, scale in (("perplexity", "log"), ("BLEU", "linear")):
        points = [{"update": e["updates"], name: round(e[name.lower()], 2)} for e in run["log"]]
        chart = alt.Chart(alt.Data(values=points), width=165, height=150).mark_line(point=True)
        y = alt.Y(f"{name}:Q").scale(type=scale, nice=False)
        panels.append(chart.encode(x="update:Q", y=y, tooltip=["update:Q", f"{name}:Q"]))
    text = "Validation perplexity falls and BLEU rises, epoch by epoch, as training goes on."
    summary = run["summary"]
    measured = f"Multi30k, validation split, greedy decoding, seed {summary['settings']['seed']}."
    return Chart(alt.hconcat(*panels), text, measured, [summary])


def int8() -> Table:
    """What rounding the weights to bytes costs."""
    shipped = record("pretrained")
    splits = {"val": "validation", **plan.TESTS}
    rows = [
        [name, f"{found['MB']:.1f}", *(f"{found[split]['bleu']:.1f}" for split in splits)]
        for name, found in shipped["formats"].items()
    ]
    before, after = shipped["formats"].values()
    change = max(abs(before[split]["bleu"] - after[split]["bleu"]) for split in splits)
    [score] = scores(plan.SHIPPED, "test_2016_flickr")
    return Table(
        f"The file shrinks from {before['MB']:.1f} to {after['MB']:.1f} MB, and BLEU changes by at"
        f" most {change:.2f}.",
        ["format", "MB", *(f"{name} BLEU" for name in splits.values())],
        rows,
        f"Multi30k, model {shipped['run']}: the mean of its last {score['averaged']} epochs, a beam"
        f" of {score['beam']}, α = {score['alpha']:g}. fp32 is the model before rounding. Signature"
        f" of BLEU: `{score['signature']}`.",
        [shipped["training"], shipped["made"]],
    )


# Choices on the validation split ------------------------------------------------------------------


def beam() -> Table:
    """BLEU of beams and length penalties."""
    swept = record("beam")
    found = {(cell["beam"], cell["alpha"]): cell["bleu"] for cell in swept["sweep"]}
    width, alpha = max(found, key=found.get)
    cells = {place: f"{score:.1f}" for place, score in found.items()}
    return Table(
        f"BLEU is highest with a beam of {width} and α = {alpha:g}: {cells[width, alpha]},"
        f" against {cells[1, 0]} with a beam of one.",
        ["beam", *(f"α = {alpha:g}" for alpha in plan.ALPHAS)],
        [[str(n), *(cells.get((n, alpha), "") for alpha in plan.ALPHAS)] for n in plan.BEAMS],
        f"Multi30k, validation split, model {swept['run']}: the mean of its last"
        f" {swept['averaged']} epochs, before rounding.",
        [swept["made"]],
    )


def averaging() -> Table:
    """BLEU and perplexity of the mean of more and more epochs."""
    swept = record("averaging")
    found = swept["sweep"]
    low, high = (f"{pick(cell['bleu'] for cell in found):.1f}" for pick in (min, max))
    return Table(
        f"However many epochs are averaged, BLEU stays between {low} and {high}.",
        ["last epochs averaged", "BLEU", "perplexity"],
        [
            [str(c["averaged"] or "best epoch"), f"{c['bleu']:.1f}", f"{c['perplexity']:.2f}"]
            for c in found
        ],
        f"Multi30k, validation split, model {swept['run']} before rounding, a beam of"
        f" {swept['beam']}, α = {plan.ALPHA}.",
        [swept["made"]],
    )


def lost() -> Table:
    """How often a beam loses the greedy translation."""
    counted = record("lost")
    kinds = {"equal": "same score", "beam above": "beam higher", "greedy above": "greedy higher"}
    counts = counted["counts"]
    widest = list(counts)[-1]
    return Table(
        f"With a beam of {widest}, greedy decoding scores higher in"
        f" {counts[widest]['greedy above']} of {sum(counts[widest].values()):,} sentences.",
        ["beam", *kinds.values()],
        [[beam, *(str(of_beam[kind]) for kind in kinds)] for beam, of_beam in counts.items()],
        "Sentences of the validation split, translated by the shipped model. A translation is"
        f" scored by its log-probability over the length penalty, with α = {plan.ALPHA}.",
        [counted["made"]],
    )


def choices() -> Table:
    """The trials, one thing changed at a time, and the recipe."""
    base = record("runs/trial-base")["summary"]["settings"]
    made = []
    table = []
    short = {}  # BLEU of the trials that are as long as the first one
    names = [name for name in plan.RUNS if name.startswith("trial-")]
    for name in (*names, *plan.SHIPPED.runs):
        run = record(f"runs/{name}")
        settings = run["summary"]["settings"]
        changed = [key for key in base if settings[key] != base[key] and key != "keep"]
        change = ", ".join(f"`{key}` {settings[key]}" for key in changed) or "none"
        last = run["log"][-1]
        scored = [f"{last['bleu']:.1f}", f"{last['perplexity']:.2f}"]
        table.append([change, f"{last['updates']:,}", *scored])
        made.append(run["summary"])
        if settings["epochs"] == base["epochs"]:
            short[change] = last["bleu"]
    best = max(short, key=short.get)
    shown = "N d_model d_ff h dropout vocab_size warmup factor batch_tokens epochs".split()
    return Table(
        f"The best short trial reaches {short[best]:.1f} BLEU in place of {short['none']:.1f}:"
        f" {best}.",
        ["change", "updates", "BLEU", "perplexity"],
        table,
        f"Multi30k, validation split, greedy decoding, last epoch, seed {base['seed']}. Settings"
        f" without a change: {', '.join(f'`{name}` {base[name]}' for name in shown)}.",
        made,
    )
