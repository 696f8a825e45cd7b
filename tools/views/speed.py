"""Speed and cost: training and decoding beside others, length, and what the paper's models take."""

import math
from collections.abc import Iterable
from statistics import mean, median

import altair as alt

import the_annotated_transformer as at
from tools.results import plan
from tools.views.common import Chart, Table, listed, made_by, record, with_range, wrapped

WAYS = {  # of training, with the code and the number format
    "the way of 2022": ("2022", "fp32"),
    "nn.Transformer": ("torch", "fp32"),
    "nn.Transformer, bf16": ("torch", "bf16"),
    "ours": ("ours", "fp32"),
    "ours, bf16": ("ours", "bf16"),
}
SIZES = ("small", "base")
DECODERS = {"plain loop": "plain", "CTranslate2": "ctranslate2", "ours": "ours"}


def case_of(measured: dict, **values) -> dict | None:
    """The case of a benchmark with these values, in one process, if there is one."""
    one = {"ranks": 1}
    fitting = (case for case in measured["cases"] if (values | one).items() <= (one | case).items())
    return next(fitting, None)


def speeds(case: dict) -> list[float]:
    """Tokens or sentences per second, round by round."""
    unit = "sentences" if case["task"] == "decode" else "tokens"
    return [each[f"{unit} per second"] for each in case["rounds"]]


def times(fast: dict, slow: dict) -> float:
    """How many times as fast one case is as another, by their medians."""
    return median(speeds(fast)) / median(speeds(slow))


def per_second(case: dict | None, digits: int = 0) -> str:
    """The median speed of a case with its range, or a dash."""
    if case is None:
        return "–"
    rounded = [round(speed, digits) for speed in speeds(case)]
    return with_range(rounded, max(digits, 0), median(rounded))


def training_speed() -> Table:
    """How fast training is, ours and others, on a CPU and on a GPU."""
    cpu, gpu = record("benchmark"), record("gpu")
    rows = [
        [name]
        + [per_second(case_of(cpu, code=code, size=size, dtype=dtype)) for size in SIZES]
        + [per_second(case_of(gpu, code=code, size=size, dtype=dtype), -3) for size in SIZES]
        for name, (code, dtype) in WAYS.items()
    ]
    times_as_fast = {}
    for name, measured in (("CPU", cpu), ("GPU", gpu)):
        small = {"task": "train", "size": "small", "dtype": "fp32"}
        both = (case_of(measured, code=code, **small) for code in ("ours", "torch"))
        times_as_fast[name] = f"{times(*both):.2f} times"
    shares = []
    for dtype in ("fp32", "bf16"):
        case = case_of(gpu, code="ours", size="base", dtype=dtype)
        share = median(each["share of peak"] for each in case["rounds"])
        shares.append(f"{share * 100:.0f} % in {dtype}")
    minutes = [record(f"runs/{run}")["log"][-1]["minutes"] for run in plan.ON_GPU]
    return Table(
        f"Training in the small size is {times_as_fast['CPU']} as fast as with nn.Transformer on"
        f" the CPU, and {times_as_fast['GPU']} as fast on the GPU.",
        ["tokens a second", *(f"{size}, {where}" for where in times_as_fast for size in SIZES)],
        rows,
        "Target tokens without padding, words of Multi30k, fp32 unless said. Small has 3 layers of"
        " width 256, base 6 of 512. One process with two threads on the CPU. Each cell is the"
        f" median of {cpu['rounds']} rounds, with the slowest and the fastest in brackets. Of the"
        f" speed of large products on the GPU, ours reaches {listed(shares)} in the base size, with"
        f" padding counted. The recipe takes {with_range(minutes, 1)} minutes there, with"
        " validation, beside other runs.",
        [cpu["made"], gpu["made"]],
    )


def for_readme() -> str:
    """README's sentence on speed."""
    table = training_speed()
    return f"{wrapped(f'{table.caption} {made_by(table.made)}')}\n"


def decoding_speed() -> Table:
    """How fast decoding is, ours and others."""
    measured = record("benchmark")
    found = {
        name: [case_of(measured, task="decode", code=code, beam=beam) for beam in (1, 4)]
        for name, code in DECODERS.items()
    }
    fastest = times(found["CTranslate2"][0], found["ours"][0])
    return Table(
        f"In greedy decoding CTranslate2 is {fastest:.2f} times as fast as ours.",
        ["sentences a second", "greedy", "beam of 4"],
        [[name, *(per_second(case, 1) for case in cases)] for name, cases in found.items()],
        "Test 2016, shipped model, fp32, two threads. Ours and CTranslate2 take a hundred sentences"
        f" at once, the plain loop one. Each cell is the median of {measured['rounds']} rounds,"
        " with the slowest and the fastest in brackets.",
        [measured["made"]],
    )


def cost() -> Table:
    """The arithmetic of the paper's two trainings, and the time it would take here."""
    measured = record("benchmark")
    ours = {"task": "train", "code": "ours", "size": "base"}
    cases = (case for case in measured["cases"] if ours.items() <= case.items())
    best = max(cases, key=lambda case: median(speeds(case)))
    second = median(speeds(best))
    words = measured["words"]
    length = 27  # target tokens; tokens of a sentence
    timed = at.training_flops(6, 512, 2048, words, length, length)
    rows = []
    days = []
    for name, width, steps, hours, paper in (
        ("base", 512, 1e5, 12, 3.3e18),
        ("big", 1024, 3e5, 84, 2.3e19),
    ):
        pair = at.training_flops(6, width, 4 * width, 37_000, length, length)
        counted = steps * 25_000 / length * pair
        here = steps * 25_000 / second / 3600 * pair / timed
        operations = [f"{number:.1e}".replace("e+", "e") for number in (paper, counted)]
        share = f"{counted / paper * 100:.0f} %"
        rows.append([name, *operations, share, f"{hours}", f"{here:,.0f}"])
        days.append(f"{here / 24:.0f}")
    return Table(
        f"On two cores the base model would take {days[0]} days to train, the big one {days[1]}.",
        ["model", "operations in the paper", "counted", "share", "hours, 8 GPUs", "hours here"],
        rows,
        f"Floating-point operations, for sentences of {length} tokens. The hours here follow from"
        f" {second:,.0f} tokens a second in our fastest training of the base size"
        f" ({best['dtype']}, {words:,} words, processes: {best['ranks']}), in proportion to the"
        " operations.",
        [measured["made"]],
    )


def length_cost() -> Chart:
    """Milliseconds of one layer of each kind against the length: medians, and their range."""
    measured = record("length-cost")
    points = []
    for row in measured["rows"]:
        rounds = row["milliseconds"]
        found = {"milliseconds": median(rounds), "least": min(rounds), "most": max(rounds)}
        point = {"layer": row["layer"], "length": row["length"]}
        points.append(point | {name: round(number, 3) for name, number in found.items()})
    chart = alt.Chart(alt.Data(values=points), width=420, height=240).encode(
        x=alt.X("length:Q").scale(type="log", nice=False),
        y=alt.Y("milliseconds:Q").scale(type="log"),
        color=alt.Color("layer:N", sort=None, title=None),
    )
    ranges = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(
        y=alt.Y("least:Q", title="milliseconds"), y2="most:Q"
    )
    drawn = alt.layer(chart.mark_line(point=True, tooltip=True), ranges)
    text = "Milliseconds of one layer, forward and backward, against the length, for three kinds."
    told = f"One layer of width {measured['width']}, one sequence, fp32, one thread. The points are"
    told += f" medians of {len(rounds)} rounds, the bars reach from the shortest to the longest."
    return Chart(drawn, text, told, [measured["made"]])


def assembled() -> Table:
    """Two language models of one size, with the parts of 2017 and with those of today."""
    found = record("assembled")
    names = {"plain": "2017", "assembled": "today"}

    def middle(values: Iterable[float]) -> str:
        return with_range(values, 0, median(values))

    rows = []
    perplexity = {}
    for name, shown in names.items():
        runs = [run for run in found["runs"] if run["model"] == name]
        speed = found["speed"][name]
        perplexity[name] = [math.exp(run["nll"][-1]) for run in runs]
        cells = [with_range(perplexity[name], 1), middle(speed["training"])]
        rows.append([shown, *cells, middle(speed["writing"]), f"{speed['bytes']:,}"])
    old, new = (mean(perplexity[name]) for name in names)
    return Table(
        f"Perplexity is {old:.1f} with the parts of 2017, and {new:.1f} with those of today.",
        ["parts of", "perplexity", "tokens/s, training", "tokens/s, writing", "cache, bytes/token"],
        rows,
        f"Language models of captions with {runs[0]['parameters'] / 1e6:.1f} million parameters,"
        f" trained for {runs[0]['updates']:,} updates in fp32. Validation perplexity is the mean of"
        f" {len(runs)} seeds. Speed is the median of {len(speed['training'])} rounds in turn, and"
        " captions are written with a cache. In brackets stand the"
        " lowest and the highest.",
        [found["made"], found["timed"]],
    )
