"""Speed and cost: training and decoding beside others, length, and what the paper's models take."""

import math
from statistics import median

import altair as alt

import the_annotated_transformer as at
from tools.results import plan
from tools.views.common import Chart, Table, made_by, record, with_range, without_range, wrapped

WAYS = {  # of training, with the code and the number format
    "the 2022 edition": ("2022", "fp32"),
    "nn.Transformer": ("torch", "fp32"),
    "nn.Transformer, bf16": ("torch", "bf16"),
    "ours": ("ours", "fp32"),
    "ours, bf16": ("ours", "bf16"),
}
SIZES = ("small", "base")
DECODERS = {"plain loop": "plain", "CTranslate2": "ctranslate2", "ours": "ours"}


def speeds(measured: dict, **values) -> list[float]:
    """Tokens or sentences per second, round by round, of the case with these values."""
    one = {"ranks": 1}
    for case in measured["cases"]:
        if (one | values).items() <= (one | case).items():
            unit = "sentences" if case["task"] == "decode" else "tokens"
            return [each[f"{unit} per second"] for each in case["rounds"]]
    return []  # not measured


def per_second(found: list[float], digits: int) -> str:
    """The median speed with its range, or a dash."""
    rounded = [round(speed, digits) for speed in found]
    return with_range(rounded, max(digits, 0), median) if rounded else "–"


def training_speed() -> Table:
    """How fast training is, ours and others, on a CPU and on a GPU."""
    cpu, gpu = record("benchmark"), record("gpu")
    rows = []
    for name, (code, dtype) in WAYS.items():
        way = {"code": code, "dtype": dtype}
        on_cpu = [per_second(speeds(cpu, size=size, **way), 0) for size in SIZES]
        on_gpu = [per_second(speeds(gpu, size=size, **way), -3) for size in SIZES]
        rows.append([name, *on_cpu, *on_gpu])
    small = {"task": "train", "size": "small", "dtype": "fp32"}
    ratios = []
    for measured in (cpu, gpu):
        ours = median(speeds(measured, code="ours", **small))
        ratios.append(ours / median(speeds(measured, code="torch", **small)))
    shares = {}
    for case in gpu["cases"]:
        if (case["code"], case["size"]) == ("ours", "base"):
            share = median(each["share of peak"] for each in case["rounds"])
            shares[case["dtype"]] = f"{share * 100:.0f}%"
    minutes = [record(f"runs/{run}")["log"][-1]["minutes"] for run in plan.ON_GPU]
    return Table(
        f"The small model trains {ratios[0]:.2f} times as fast as with PyTorch's nn.Transformer"
        f" on the CPU, and {ratios[1]:.2f} times as fast on the GPU.",
        ["tokens per second", "small, CPU", "base, CPU", "small, GPU", "base, GPU"],
        rows,
        "Target tokens without padding, words of Multi30k, fp32 unless noted. Small has 3 layers of"
        " width 256, base 6 of 512. One process with two threads on the CPU. Each cell is the"
        " median of 5 rounds, with the slowest and the fastest in brackets. In the base size,"
        f" ours reaches {shares['fp32']} (fp32) and {shares['bf16']} (bf16) of the GPU's speed on"
        f" large matrix products, counting padding. On the GPU the recipe takes"
        f" {with_range(minutes, 1)} minutes, with validation, alongside other runs.",
        [cpu["made"], gpu["made"]],
    )


def for_readme() -> str:
    """README's sentence on speed."""
    table = training_speed()
    return wrapped(f"{table.caption} {made_by(table.made)}")


def decoding_speed() -> Table:
    """How fast decoding is, ours and others."""
    measured = record("benchmark")
    rows = []
    greedy = {}
    for name, code in DECODERS.items():
        greedy[name] = speeds(measured, task="decode", code=code, beam=1)
        beam = speeds(measured, task="decode", code=code, beam=4)
        rows.append([name, per_second(greedy[name], 1), per_second(beam, 1)])
    faster = median(greedy["CTranslate2"]) / median(greedy["ours"])
    return Table(
        f"In greedy decoding CTranslate2 is {faster:.2f} times as fast as ours.",
        ["sentences per second", "greedy", "beam of 4"],
        rows,
        "Test 2016, the model in pretrained/, fp32, two threads. Ours and CTranslate2 decode"
        " batches of 100 sentences, the plain loop one at a time. Each cell is the median of 5"
        " rounds, with the range in brackets.",
        [measured["made"]],
    )


def cost() -> Table:
    """The arithmetic of the paper's two trainings, and the time it would take here."""
    measured = record("benchmark")
    base = {"task": "train", "code": "ours", "size": "base"}
    second = max(median(speeds(measured, ranks=ranks, **base)) for ranks in (1, 2))
    length = 27  # target tokens; tokens of a sentence
    timed = at.training_flops(6, 512, 2048, measured["words"], length, length)
    rows = []
    days = []
    models = {"base": (512, 1e5, 12, 3.3e18), "big": (1024, 3e5, 84, 2.3e19)}
    for name, (width, steps, hours, paper) in models.items():
        pair = at.training_flops(6, width, 4 * width, 37_000, length, length)
        tokens = steps * 25_000
        counted = tokens / length * pair
        here = tokens / second / 3600 * pair / timed
        operations = [f"{number:.1e}".replace("e+", "e") for number in (paper, counted)]
        share = f"{counted / paper * 100:.0f}%"
        rows.append([name, *operations, share, str(hours), f"{here:,.0f}"])
        days.append(f"{here / 24:.0f}")
    return Table(
        f"On two cores the base model would take {days[0]} days to train, and the big model"
        f" {days[1]}.",
        [
            "model",
            "operations in the paper",
            "operations we count",
            "ours / paper",
            "hours, 8 GPUs (paper)",
            "hours, 2 CPU cores",
        ],
        rows,
        f"Floating-point operations, for sentences of {length} tokens. CPU hours are"
        f" extrapolated, in proportion to the operations, from {second:,.0f} tokens per second, our"
        f" fastest training of the base size (vocabulary of {measured['words']:,} words).",
        [measured["made"]],
    )


def length_cost() -> Chart:
    """Milliseconds of one layer, forward and backward, against the length, for three kinds."""
    measured = record("length-cost")
    points = []
    for row in measured["rows"]:
        found = {"milliseconds": median, "least": min, "most": max}
        point = {name: round(pick(row["milliseconds"]), 3) for name, pick in found.items()}
        points.append({"layer": row["layer"], "length": row["length"], **point})
    chart = alt.Chart(alt.Data(values=points), width=420, height=240).encode(
        x=alt.X("length:Q").scale(type="log", nice=False),
        y=alt.Y("milliseconds:Q").scale(type="log"),
        color=alt.Color("layer:N", sort=None, title=None),
    )
    ranges = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(
        y=alt.Y("least:Q", title="milliseconds"), y2="most:Q"
    )
    drawn = alt.layer(chart.mark_line(point=True, tooltip=True), ranges)
    how = "In fp32, with one thread. Points are medians of 5 rounds, and bars span the range."
    return Chart(drawn, how, [measured["made"]])


def assembled() -> Table:
    """Two language models of one size, with the parts of 2017 and with those of today."""
    found = record("assembled")
    rows = []
    for parts, name in (("2017", "plain"), ("today", "assembled")):
        runs = [run for run in found["runs"] if run["model"] == name]
        perplexity = [math.exp(run["nll"][-1]) for run in runs]
        speed = found["speed"][name]
        tokens = [per_second(speed[task], 0) for task in ("training", "writing")]
        rows.append([parts, with_range(perplexity, 1), *tokens, f"{speed['bytes']:,}"])
    return Table(
        f"Perplexity is {without_range(rows[0][1])} with the components of 2017, and"
        f" {without_range(rows[1][1])} with today's.",
        [
            "components of",
            "perplexity",
            "tokens/s, training",
            "tokens/s, generation",
            "cache, bytes/token",
        ],
        rows,
        f"Language models of captions with {runs[0]['parameters'] / 1e6:.1f} million parameters,"
        f" trained for {runs[0]['updates']:,} updates in fp32. Validation perplexity is the mean of"
        " 3 seeds. Speed is the median of 5 interleaved rounds; captions are generated with a KV"
        " cache. Brackets give the range.",
        [found["made"], found["timed"]],
    )
