"""Speed and cost: training and decoding beside others, length, and what the paper's models take."""

from statistics import median

import altair as alt

from tools.results.flops import training_flops
from tools.views.common import made_by, record, table, with_range

WAYS = {  # rows, with the code and the number format
    "plain loop": ("plain", "fp32"),
    "nn.Transformer": ("torch", "fp32"),
    "nn.Transformer, bf16": ("torch", "bf16"),
    "CTranslate2": ("ctranslate2", "fp32"),
    "ours": ("ours", "fp32"),
    "ours, bf16": ("ours", "bf16"),
    "ours, bf16, compiled": ("ours compiled", "bf16"),
}
COLUMNS = {  # the unit of a column, and its cases
    "small, tokens/s": ("tokens per second", {"task": "train", "size": "small"}),
    "small, MB": ("peak MB", {"task": "train", "size": "small"}),
    "base, tokens/s": ("tokens per second", {"task": "train", "size": "base"}),
    "base, MB": ("peak MB", {"task": "train", "size": "base"}),
    "base on a GPU, tokens/s": ("tokens per second", {"task": "train", "size": "base-25000"}),
    "greedy, sentences/s": ("sentences per second", {"task": "decode", "beam": 1}),
    "beam of 4, sentences/s": ("sentences per second", {"task": "decode", "beam": 4}),
}


def rounds(cases: list[dict], unit: str, **values) -> list[float]:
    """What each round measured in the case that has these values; empty if there is none."""
    for case in cases:
        if values.items() <= case.items():
            return [each[unit] for each in case["rounds"]]
    return []


def median_with_range(measured: list[float]) -> str:
    return with_range(measured, 0, median) if measured else "–"


def speed() -> str:
    """How fast training and decoding are, ours and others."""
    measured = record("benchmark")
    cases = measured["cases"]
    cells = {
        way: [
            median_with_range(rounds(cases, unit, code=code, dtype=dtype, **values))
            for unit, values in COLUMNS.values()
        ]
        for way, (code, dtype) in WAYS.items()
    }
    shown = [n for n in range(len(COLUMNS)) if any(row[n] != "–" for row in cells.values())]
    columns = ["", *(list(COLUMNS)[n] for n in shown)]
    rows = [[way, *(row[n] for n in shown)] for way, row in cells.items() if {*row} != {"–"}]
    return table(columns, rows) + made_by(measured["made"])


def two_digits(number: float) -> str:
    """A number that is not known better: 1,263 is "1,300"."""
    return f"{float(f'{number:.1e}'):,.0f}"


def cost() -> str:
    """The arithmetic of the paper's two training runs, and the time it would take here."""
    case = {"task": "train", "code": "ours", "size": "base", "dtype": "fp32"}
    rate = median(rounds(record("benchmark")["cases"], "operations per second", **case))
    length = 27  # tokens of a sentence
    rows = []
    models = {"base": (512, 1e5, 12, 3.3e18), "big": (1024, 3e5, 84, 2.3e19)}
    for name, (width, steps, hours, paper) in models.items():
        pairs = steps * 25_000 / length
        counted = pairs * training_flops(6, width, 4 * width, 37_000, length, length)
        operations = [f"{n:.1e}".replace("e+", "e") for n in (paper, counted)]
        days = two_digits(counted / rate / 3600 / 24)
        rows.append([name, *operations, f"{hours / 24:.1f}", days])
    here = f"days, 2 CPU cores at {rate / 1e9:.0f} GFLOP/s (extrapolated)"
    columns = ["model", "operations in the paper", "operations we count"]
    return table([*columns, "days, 8 GPUs (paper)", here], rows)


def length_cost() -> alt.FacetChart:
    """Milliseconds of one layer, forward and backward, against the length, for three kinds."""
    points = []
    for row in record("length-cost")["rows"]:
        found = {"milliseconds": median, "least": min, "most": max}
        point = {name: round(pick(row["milliseconds"]), 3) for name, pick in found.items()}
        sequences = "one sequence" if row["batch"] == 1 else f"{row['batch']} sequences"
        about = {"layer": row["layer"], "sequences": sequences, "length": row["length"]}
        points.append(about | point)
    chart = alt.Chart(width=230, height=220).encode(
        x=alt.X("length:Q").scale(type="log", nice=False).axis(values=[16, 64, 256, 1024]),
        y=alt.Y("milliseconds:Q").scale(type="log").axis(values=[0.1, 1, 10, 100, 1000]),
        color=alt.Color("layer:N", sort=None, title=None).legend(orient="top"),
    )
    ranges = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(
        y=alt.Y("least:Q", title="milliseconds"), y2="most:Q"
    )
    lines = chart.mark_line(point=True, tooltip=True)
    panels = alt.layer(lines, ranges, data=alt.Data(values=points))
    order = ["one sequence", "16 sequences"]
    return panels.facet(alt.Column("sequences:N", sort=order, title=None))
