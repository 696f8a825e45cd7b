"""Write the finished views of docs/results/views, which the cells of the script only show.

    python tools/views.py            write every view from the records of docs/results
    python tools/views.py rescore    score the rows of words anew (needs MULTI30K_DIR)

Nothing is trained, and torch is not needed. What a view is stands in records.py; those of speed
are in speed_views.py.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from statistics import mean

import altair as alt
import records
import rescore
from records import TESTS, finished, read, scorings, summaries, tabulate, with_range
from speed_views import cost, gains, late_symbol, speed

MINUTES = "minutes with bf16, about twice as many without"


def steps_of_the_recipe() -> list[dict]:
    """The rows of recipe.json, BLEU and minutes by seed; words as `rescore` has scored them."""
    bleu = {(each["row"], each["run"], each["split"]): each["bleu"] for each in scorings()}
    anew, record = read("unknown-as-one"), read("recipe")
    bleu |= {("words", each["run"], each["split"]): each["bleu"] for each in anew["scores"]}
    rows = [*record["rows"], record["other_direction"]]
    for row in rows:
        row["millions"] = row["parameters"] / 1e6
        row["minutes"] = [summary["minutes"] for summary in summaries(row["runs"])]
        for split, scores in row["splits"].items():
            scores["bleu"] = [bleu[row["row"], run, split] for run in row["runs"]]
            if row["row"] == "pieces":
                scores["step"] = anew["words to pieces"][split]
    return rows


def runs_of(rows: list[dict]) -> list[dict]:
    """The circumstances of all runs of some rows."""
    return summaries(run for row in rows for run in row["runs"])


def seed_of(run: str) -> int:
    return read(f"runs/{run}")["summary"]["settings"]["seed"]


def results() -> dict:
    """The short table for the start of the text."""
    rows = steps_of_the_recipe()[:-1]
    columns = {"step": "{step}"}
    for split, test in TESTS.items():
        columns[f"BLEU {test}"] = f"{{{split}:.1f}}"
    columns |= {"parameters": "{millions:.1f} M", "minutes": "{time:.0f}", "seeds": "{number}"}
    for row in rows:
        row |= {split: mean(row["splits"][split]["bleu"]) for split in TESTS}
        row |= {"time": mean(row["minutes"]), "number": len(row["runs"])}
    caption = "Multi30k, German to English, mean of the seeds, an unknown word is one wrong token"
    return finished(f"{caption}; {MINUTES}", runs_of(rows), **tabulate(rows, columns))


def largest_that_counts(p_values: Sequence[float], level: float = 0.05) -> float:
    """Holm's correction: the largest p that still counts when so many are tested at once."""
    counts = 0.0
    for number, p in enumerate(sorted(p_values)):
        if p > level / (len(p_values) - number):
            break
        counts = p
    return counts


def steps() -> dict:
    """Every step: scores with their range, and what is gained over the row before."""
    rows, table = steps_of_the_recipe(), []
    tests = [scores["step"]["p"] for row in rows[1:-1] for scores in row["splits"].values()]
    counts = largest_that_counts(tests, level=0.025)  # p is that of one side
    for row in rows:
        cells = [row["step"]]
        for scores in row["splits"].values():
            gain, p = "–", "–"
            if step := scores.get("step"):
                mark = "*" if step["p"] <= counts else ""
                gain, p = f"{step['bleu']:+.2f}", f"{step['p']:.3f}{mark}"
            perplexity = f"{scores['perplexity']['mean']:.2f}"
            cells += [with_range(scores["bleu"], 1), gain, p, perplexity]
        size = f"{row['millions']:.1f} M"
        table.append([*cells, size, with_range(row["minutes"], 0), str(len(row["runs"]))])
    each = ["BLEU (range)", "gain", "p", "perplexity"]
    groups = ["", *itertools.chain(*([test] * len(each) for test in TESTS.values())), "", "", ""]
    columns = [groups, ["step", *each, *each, "parameters", "minutes", "seeds"]]
    anew, runs = read("unknown-as-one"), runs_of(rows)
    several = len({run["commit"] for run in runs}) > 1
    mixed = "Rows come from different commits, so a step can hold a change of the code too. "
    caption = (
        "Multi30k, German to English, mean of the seeds (range). Gain and p (paired bootstrap):"
        " first seed against first seed of the row above; * survives Holm's correction for"
        f" {len(tests)} tests, on both sides. {mixed * several}Settings were tuned for pieces, not"
        " for words, and perplexities of the two cannot be compared. An unknown word is one wrong"
        " token (scored"
        f" {anew['made']['date']}); {MINUTES}; BLEU {anew['signature']}"
    )
    return finished(caption, runs, columns=columns, rows=table)


def steps_figure() -> dict:
    """What each step gains with the first seed, and how far seeds alone differ."""
    rows, points = steps_of_the_recipe()[:-1], []
    for split, test in TESTS.items():
        scores = [row["splits"][split]["bleu"] for row in rows]
        seeds = round(max(max(each) - min(each) for each in scores), 2)
        for before, row in itertools.pairwise(rows):
            point = {"step": row["step"], "split": test}
            point["gain"] = row["splits"][split]["step"]["bleu"]
            if row["runs"][0] != before["runs"][0]:  # other weights, from other random numbers
                point |= {"low": -seeds, "high": seeds}
            points.append(point)
    chart = alt.Chart(alt.Data(values=points), width=290, height=210).encode(
        y=alt.Y("step:N", sort=None, title=None, axis=alt.Axis(labelLimit=180)),
        yOffset=alt.YOffset("split:N", sort=None),
        tooltip=["step:N", "split:N", "gain:Q", alt.Tooltip("high:Q", title="range of seeds")],
    )
    legend = alt.Legend(orient="top", symbolOpacity=1)
    colour = alt.Color("split:N", sort=None, title=None, legend=legend)
    title = alt.X("low:Q", title="gain in BLEU, first seed")
    bars = chart.mark_bar(opacity=0.25, height=alt.RelativeBandSize(0.6))
    bars = bars.encode(x=title, x2="high", color=colour)
    zero = alt.Chart(alt.Data(values=[{}])).mark_rule(color="gray").encode(x=alt.datum(0))
    dots = chart.mark_point(filled=True, size=70, opacity=1).encode(x="gain:Q", color=colour)
    text = (
        "Gain in BLEU of each step on two test sets; for steps that train anew, bars to both"
        " sides say how far seeds differ."
    )
    drawn = (bars + zero + dots).properties(description=text).to_dict()
    caption = "Multi30k, first seed; bars show the range of seeds of one row, to both sides"
    return finished(caption, runs_of(rows), chart=drawn)


def training() -> dict:
    """Perplexity and BLEU on the validation split while the shipped model was trained."""
    record = read(f"runs/{read('pretrained')['run']}")
    panels = []
    for name, scale, ticks in (("perplexity", "log", [5, 10, 20, 50]), ("BLEU", "linear", None)):
        points = [{"update": e["updates"], name: round(e[name.lower()], 2)} for e in record["log"]]
        y = alt.Y(f"{name}:Q", scale=alt.Scale(type=scale, nice=False))
        y = y.axis(values=ticks) if ticks else y
        x = alt.X("update:Q", axis=alt.Axis(tickCount=4))
        chart = alt.Chart(alt.Data(values=points), width=165, height=150).mark_line(point=True)
        panels.append(chart.encode(x=x, y=y, tooltip=["update:Q", f"{name}:Q"]))
    text = "Validation perplexity falls and BLEU rises, epoch by epoch, as training goes on."
    drawn = alt.hconcat(*panels).properties(description=text).to_dict()
    summary = record["summary"]
    caption = f"Multi30k, validation split, greedy, seed {summary['settings']['seed']}"
    return finished(f"{caption}, {summary['minutes']:.0f} minutes", [summary], chart=drawn)


def int8() -> dict:
    """What rounding the weights to bytes costs."""
    record, splits = read("pretrained"), {"val": "validation", **TESTS}
    columns = {"format": "{format}", "MB": "{MB:.1f}"}
    columns |= {f"BLEU {name}": f"{{{split}[bleu]:.1f}}" for split, name in splits.items()}
    rows = [{"format": name} | numbers for name, numbers in record["formats"].items()]
    weights, seed = record["weights"].removesuffix(", in int8"), seed_of(record["run"])
    caption = f"Multi30k, seed {seed}, {record['decoding']}, {weights}; BLEU {record['signature']}"
    made = [record["training"], record["made"]]
    return finished(caption, made, **tabulate(rows, columns))


def beam() -> dict:
    """BLEU of beams and length penalties, and how often a beam misses what greedy finds."""
    record = read("beam")
    bleu = {(cell["beam"], cell["alpha"]): f"{cell['bleu']:.1f}" for cell in record["sweep"]}
    beams, alphas = (sorted(set(values)) for values in zip(*bleu, strict=True))
    rows = [[f"{beam}", *(bleu.get((beam, alpha), "") for alpha in alphas)] for beam in beams]
    caption = (
        "BLEU, Multi30k, validation split, seed {seed}, {weights}. Against greedy decoding, a beam"
        " of {beam} with α = {alpha} finds a better score for {above} sentences, the same for"
        " {same}, a lower one for {below}"
    ).format(**record, **record["against_greedy"][-1], seed=seed_of(record["run"]))
    columns = ["beam", *(f"α = {alpha}" for alpha in alphas)]
    made = [*summaries([record["run"]]), record["made"]]
    return finished(caption, made, columns=columns, rows=rows)


def averaging() -> dict:
    """BLEU and perplexity of the mean of more and more epochs."""
    record = read("averaging")
    rows = [cell | {"averaged": cell["averaged"] or "best epoch"} for cell in record["sweep"]]
    columns = {"last epochs averaged": "{averaged}", "BLEU": "{bleu:.1f}"}
    columns["perplexity"] = "{perplexity:.2f}"
    caption = f"Multi30k, validation split, seed {seed_of(record['run'])}, {record['decoding']}"
    made = [*summaries([record["run"]]), record["made"]]
    return finished(caption, made, **tabulate(rows, columns))


def choices() -> dict:
    """The trials: one thing changed at a time."""

    def changes(trial: dict) -> list[tuple]:
        return [(name, now) for name, (_, now) in trial["changes"].items() if name != "keep"]

    record, rows = read("trials"), {}
    for trial in sorted(record["trials"], key=changes):
        change = ", ".join(f"{name} {now}" for name, now in changes(trial)) or "none"
        change += ", again" if change in rows else ""
        rows[change] = trial | {"change": change, "millions": trial["parameters"] / 1e6}
    columns = {"change": "{change}", "BLEU": "{final[bleu]:.1f}"}
    columns |= {"perplexity": "{final[perplexity]:.2f}", "parameters": "{millions:.1f} M"}
    caption = (
        "Multi30k, validation split, greedy, seed {seed}, {epochs} epochs. Without a change: N {N},"
        " d_model {d_model}, d_ff {d_ff}, h {h}, dropout {dropout}, pieces {pieces}, schedule"
        " {schedule}, warmup {warmup}, factor {factor}, batch_tokens {batch_tokens}. Perplexities"
        " of different pieces cannot be compared"
    ).format(**record["base"])
    return finished(caption, record["trials"], **tabulate(rows.values(), columns))


def speedrun() -> dict:
    """Minutes from raw text to a usable translator."""
    record = read("speedrun")
    columns = {"seed": "{seed}", "minutes": "{minutes:.1f}"}
    columns |= {"epochs": "{summary[epochs]}", "BLEU": "{bleu:.1f}"}
    caption = "Multi30k, from raw text to {until:.0f} BLEU on the validation split, greedy:"
    caption = (caption + " mean {minutes[mean]:.1f} minutes").format(**record)
    made = [run["summary"] for run in record["seeds"]]
    return finished(f"{caption}; {MINUTES}", made, **tabulate(record["seeds"], columns))


VIEWS = (
    *(results, steps, steps_figure, training, int8, beam, averaging, choices, speedrun),
    *(speed, gains, cost, late_symbol),
)


def name_of(view: Callable[[], dict]) -> str:
    return view.__name__.replace("_", "-")


def main(arguments: Sequence[str]) -> None:
    """Write every view, or with `rescore` the record that those of words need."""
    if arguments not in ([], ["rescore"]):
        sys.exit("usage: python tools/views.py [rescore]")
    if arguments:
        rescore.main()
    for view in VIEWS if not arguments else ():
        records.write(f"views/{name_of(view)}", view())


if __name__ == "__main__":
    main(sys.argv[1:])
