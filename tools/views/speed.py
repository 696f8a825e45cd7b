"""Speed and cost: training and decoding beside others, length, and what the paper's models take."""

import math
from statistics import median

import altair as alt

from tools import records
from tools.results.flops import training_flops
from tools.views.common import Chart, Table, made_by, record, with_range, without_range, wrapped

WAYS = {  # rows, with the code and the number format
    "plain loop": ("plain", "fp32"),
    "nn.Transformer": ("torch", "fp32"),
    "nn.Transformer, bf16": ("torch", "bf16"),
    "CTranslate2": ("ctranslate2", "fp32"),
    "ours": ("ours", "fp32"),
    "ours, bf16": ("ours", "bf16"),
    "ours, bf16, compiled": ("ours compiled", "bf16"),
}


def speeds(measured: dict, unit: str | None = None, **values) -> list[float]:
    """Tokens or sentences per second, or another unit, of each round of the case that has these."""
    for case in measured["cases"]:
        if values.items() <= case.items():
            of_task = "sentences per second" if case["task"] == "decode" else "tokens per second"
            return [each[unit or of_task] for each in case["rounds"]]
    return []  # not measured


def per_second(found: list[float]) -> str:
    """The median speed with its range, or a dash."""
    return with_range(found, 0, median) if found else "–"


def on_gpu(**values) -> list[float]:
    """Speeds of the base model on a GPU, in batches as large as the paper's, if measured."""
    measured = records.read("gpu")
    return speeds(measured, size="base-25000", **values) if measured else []


def speed() -> Table:
    """How fast training and decoding are, ours and others."""
    cpu = record("benchmark")
    columns = {
        "small, tokens": lambda **way: speeds(cpu, task="train", size="small", **way),
        "base, tokens": lambda **way: speeds(cpu, task="train", size="base", **way),
        "base on a GPU, tokens": on_gpu,
        "greedy, sentences": lambda **way: speeds(cpu, task="decode", beam=1, **way),
        "beam of 4, sentences": lambda **way: speeds(cpu, task="decode", beam=4, **way),
    }
    if not on_gpu(code="ours", dtype="fp32"):
        del columns["base on a GPU, tokens"]
    rows = []
    for name, (code, dtype) in WAYS.items():
        cells = [per_second(find(code=code, dtype=dtype)) for find in columns.values()]
        if any(cell != "–" for cell in cells):
            rows.append([name, *cells])
    ratios = []
    memory = []
    for size in ("small", "base"):
        case = {"task": "train", "size": size, "dtype": "fp32"}
        ours, theirs = (speeds(cpu, code=code, **case) for code in ("ours", "torch"))
        ratios.append(f"{median(ours) / median(theirs):.2f}")
        ours, theirs = (speeds(cpu, "peak MB", code=code, **case) for code in ("ours", "torch"))
        memory.append(f"{median(ours) / median(theirs):.2f}")
    decoding = []
    for beam in (1, 4):
        case = {"task": "decode", "beam": beam}
        ours, theirs = (speeds(cpu, code=code, **case) for code in ("ours", "ctranslate2"))
        decoding.append(f"{median(ours) / median(theirs):.2f}")
    return Table(
        f"On two cores, our code trains a small model {ratios[0]} and the base model {ratios[1]}"
        f" times as fast as nn.Transformer. It decodes greedily {decoding[0]} times as fast as"
        f" CTranslate2, and {decoding[1]} times with a beam of 4.",
        ["per second", *columns],
        rows,
        "Training: target tokens without padding, words of Multi30k, in fp32. Small has"
        " 3 layers of width 256, base 6 of 512. One process with two threads; all keep freed"
        f" memory. Ours needs {memory[0]} (small) and {memory[1]} times (base) the memory of"
        f" nn.Transformer. Decoding: test 2016, model {cpu['made']['model']}, computed in fp32, two"
        " threads, ours and CTranslate2 in the same batches, the plain loop one sentence at a time."
        " Each cell is the median of 5 rounds, with the range in brackets.",
        [cpu["made"]],
    )


def for_readme() -> str:
    """README's sentence on speed."""
    table = speed()
    return wrapped(f"{table.caption} {made_by(table.made)}")


def two_digits(number: float) -> str:
    """A number that is not known better: 1,263 is "1,300"."""
    return f"{float(f'{number:.1e}'):,.0f}"


def cost() -> Table:
    """The arithmetic of the paper's two training runs, and the time it would take here."""
    measured = record("benchmark")
    rounds = speeds(measured, task="train", code="ours", size="base")
    speed_of = {"2 CPU cores": median(rounds)}
    made = [measured["made"]]
    if fastest := max(
        median(on_gpu(code="ours", dtype=dtype) or [0]) for dtype in ("fp32", "bf16")
    ):
        speed_of = {"one GPU": fastest} | speed_of
        made = [record("gpu")["made"], *made]
    length = 27  # target tokens; tokens of a sentence
    timed = training_flops(6, 512, 2048, measured["words"], length, length)
    rows = []
    days = []
    models = {"base": (512, 1e5, 12, 3.3e18), "big": (1024, 3e5, 84, 2.3e19)}
    for name, (width, steps, hours, paper) in models.items():
        pair = training_flops(6, width, 4 * width, 37_000, length, length)
        tokens = steps * 25_000
        counted = tokens / length * pair
        here = [tokens / speed / 3600 * pair / timed for speed in speed_of.values()]
        operations = [f"{number:.1e}".replace("e+", "e") for number in (paper, counted)]
        rows.append([name, *operations, str(hours), *map(two_digits, here)])
        days.append(f"{round(here[-1] / 24, -1):.0f}")
    speeds_said = " and ".join(f"{speed:,.0f} on {place}" for place, speed in speed_of.items())
    span = f"{min(rounds):,.0f} to {max(rounds):,.0f}"
    return Table(
        f"On two cores the base model would take about {days[0]} days to train, and the big model"
        f" about {days[1]}.",
        [
            "model",
            "operations in the paper",
            "operations we count",
            "hours, 8 GPUs (paper)",
            *(f"hours, {place} (extrapolated)" for place in speed_of),
        ],
        rows,
        f"Floating-point operations, for sentences of {length} tokens. Our hours are"
        f" extrapolated, in proportion to the operations, from the tokens per second of the base"
        f" size: {speeds_said} (the median; {span}), with {measured['words']:,} words.",
        made,
    )


def length_cost() -> Chart:
    """Milliseconds of one layer, forward and backward, against the length, for three kinds."""
    measured = record("length-cost")
    points = []
    for row in measured["rows"]:
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
    drawn = panels.facet(alt.Column("sequences:N", sort=order, title=None))
    how = "In fp32, with one thread. Points are medians of 5 rounds, and bars span the range."
    return Chart(drawn, how, [measured["made"]])


def assembled() -> Table:
    """Two language models of one size, with our parts and with those of today."""
    found = record("assembled")
    rows = []
    for parts, name in (("Parts 1 and 2", "plain"), ("today", "assembled")):
        runs = [run for run in found["runs"] if run["model"] == name]
        perplexity = [math.exp(run["nll"][-1]) for run in runs]
        speed = found["speed"][name]
        tokens = [per_second(speed[task]) for task in ("training", "writing")]
        rows.append([parts, with_range(perplexity, 1), *tokens, f"{speed['bytes']:,}"])
    return Table(
        f"Perplexity is {without_range(rows[0][1])} with our parts, and"
        f" {without_range(rows[1][1])} with today's.",
        ["parts", "perplexity", "tokens/s, training", "tokens/s, generation", "cache, bytes/token"],
        rows,
        f"Pre-norm language models of captions with {runs[0]['parameters'] / 1e6:.1f} million"
        f" parameters, trained for {runs[0]['updates']:,} updates in fp32. Validation perplexity is"
        " the mean of 3 seeds. Speed is the median of 5 interleaved rounds; captions are generated"
        " with a KV cache. Brackets give the range.",
        [found["made"], found["timed"]],
    )
