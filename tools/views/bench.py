"""The table and the chart of Part 10: one change a row, on one small language model."""

from statistics import mean, median

import altair as alt

from tools import records
from tools.results.bench import LENGTH, ROWS, WRITERS
from tools.views.common import made_by, table, with_range


def runs_of(row: str) -> list[dict]:
    """The trainings of a row that are on record, by seed."""
    paths = (records.RESULTS / "bench").glob(f"{row}-[0-9]*.json")
    found = [records.read(f"bench/{path.stem}") for path in paths]
    return sorted(found, key=lambda run: run["seed"])


BETS = ("swiglu", "rotary", "experts", "multi-query", "window", "muon")  # as the text offers them


def changes() -> alt.LayerChart:
    """Perplexity of a small language model with one change at a time, the lowest above; each point
    is a run, and the band is as wide as the runs without a change are apart.
    """
    found = {row: [run["log"][-1]["perplexity"] for run in runs_of(row)] for row in ROWS}
    rows = sorted((row for row in ROWS if found[row]), key=lambda row: mean(found[row]))
    points = [
        {"change": ROWS[row].name, "perplexity": round(each, 2), "base": row == "base"}
        for row in rows
        for each in found[row]
    ]
    luck = {"from": min(found["base"]), "to": max(found["base"])}
    band = (
        alt.Chart(alt.Data(values=[luck]))
        .mark_rect(opacity=0.25)
        .encode(x=alt.X("from:Q", title="perplexity"), x2="to:Q")
    )
    bets = [ROWS[row].name for row in BETS]
    bold = alt.condition(
        f"indexof({bets}, datum.value) >= 0", alt.value("bold"), alt.value("normal")
    )
    marks = alt.Chart(width=340).mark_point(filled=True, size=45, tooltip=True)
    marks = marks.encode(
        x=alt.X("perplexity:Q", title="perplexity").scale(zero=False, nice=False, padding=12),
        y=alt.Y(
            "change:N", title=None, sort=None, axis=alt.Axis(labelFontWeight=bold, labelLimit=0)
        ),
        color=alt.Color("base:N", legend=None),
    )
    return alt.layer(band, marks, data=alt.Data(values=points))


def bench() -> str:
    """Perplexity of each change and, where they were timed, tokens a second and bytes of cache."""
    runs = {row: found for row in ROWS if (found := runs_of(row))}
    if not runs:
        return "\n"
    made = {f"{row}-{run['seed']}": run for row in runs for run in runs[row]}
    records.check_comparable(made)
    timed = records.read("bench/speed")
    columns = ["one change", "perplexity"]
    if timed:
        columns += ["tokens/s, training", "tokens/s, generation", "cache, bytes/token"]
    rows = []
    for row, found in runs.items():
        name = ROWS[row].name
        if found[0]["parameters"] != found[0]["active"]:
            name += f" ({found[0]['parameters'] / 1e6:.2f} M in all)"
        rows.append([name, with_range([run["log"][-1]["perplexity"] for run in found], 1)])
        if timed:
            speed = timed["rows"].get(row, {"training": [], "writing": [], "bytes": []})
            shown = {"training": -2, "writing": -2, "bytes": 0}  # digits: speeds vary
            rows[-1] += [
                f"{round(median(speed[what]), digits):,.0f}" if speed[what] else "–"
                for what, digits in shown.items()
            ]
    seeds = {len(found) for found in runs.values()}
    active = [run["active"] / 1e6 for run in made.values()]
    shown = table(columns, rows) + (
        f"Means and ranges over {' or '.join(map(str, sorted(seeds)))} seeds; {min(active):.2f} to"
        f" {max(active):.2f} million parameters act on a token.\n\n"
    )
    if not timed:
        return shown
    each = [speed[what] for speed in timed["rows"].values() for what in ("training", "writing")]
    apart = max(max(abs(one / median(rounds) - 1) for one in rounds) for rounds in each)
    turns = (
        "Speeds are medians of rounds in which the rows take turns, and which lie within"
        f" {apart:.0%} of them; generation writes {WRITERS} texts of {LENGTH} tokens with a"
        " cache.\n\n"
    )
    return shown + turns + made_by(timed["made"])  # each run's own stand in its record
