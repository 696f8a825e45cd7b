"""Views of speed: ours beside others, what each gain is worth, what the paper would cost here."""

import itertools
from statistics import median

import altair as alt
from records import finished, read, tabulate, with_range

BENCHMARKS = {"AMD EPYC": "benchmark", "Intel Xeon": "benchmark-xeon"}


def matching(record: dict, **values) -> list[dict]:
    """The cases of a benchmark that have these values."""
    wanted = values.items()
    return [case for case in record["cases"] if all(case[name] == v for name, v in wanted)]


def speeds(case: dict) -> list[float]:
    """Symbols or sentences per second, round by round."""
    unit = "sentences" if case["task"] == "decode" else "tokens"
    return [each[f"{unit} per second"] for each in case["rounds"]]


def times(fast: dict, slow: dict) -> str:
    """Ratio of two medians, with the range of the ratios round by round."""
    ratio = median(speeds(fast)) / median(speeds(slow))
    ratios = [one / other for one, other in zip(speeds(fast), speeds(slow), strict=True)]
    return with_range(ratios, 1 if ratio > 5 else 2, ratio)


def speed() -> dict:
    """Ours against others, in training and decoding: like for like, and each at its fastest."""
    records, rows = [read(name) for name in BENCHMARKS.values()], []
    one_process = {"dtype": "fp32", "ranks": 1, "threads": 2}
    for name, task, other, size, beam in (
        ("training, small, feed of 2022", "train", "feed2022", "small", 1),
        ("training, small, nn.Transformer", "train", "torch", "small", 1),
        ("training, base, feed of 2022", "train", "feed2022", "base", 1),
        ("training, base, nn.Transformer", "train", "torch", "base", 1),
        ("decoding, plain loop, one by one", "decode", "plain", "shipped", 1),
        ("decoding, CTranslate2, greedy", "decode", "ctranslate2", "shipped", 1),
        ("decoding, CTranslate2, beam of 4", "decode", "ctranslate2", "shipped", 4),
    ):
        rows.append([name])
        for record, how in itertools.product(records, (one_process, {})):
            ours, theirs = (
                matching(record, task=task, code=code, size=size, beam=beam, **how)
                for code in ("ours", other)
            )
            fastest = [
                max(cases, key=lambda case: median(speeds(case))) for cases in (ours, theirs)
            ]
            rows[-1].append(times(*fastest))
    columns = [["", *(name for name in BENCHMARKS for _ in range(2))]]
    columns.append(["ours against", *["fp32, one process", "fastest of each"] * 2])
    caption = (
        "How many times as fast, medians of {rounds} rounds (range). Words of Multi30k; small: 3"
        " layers of 256, base: 6 of 512; decoding: test 2016, shipped model, ours in batches of"
        " 100. The fastest of each may use bf16, int8, or two processes, whose batch is twice as"
        " large. The feed of 2022 is rebuilt and updates after every batch, 2022 after every tenth"
    ).format(**records[0])
    return finished(caption, [record["made"] for record in records], columns=columns, rows=rows)


def gains() -> dict:
    """What each gain is worth: training without it."""
    records, rows = [read(name) for name in BENCHMARKS.values()], {}
    for record in records:
        [whole] = matching(record, name="train-ours-small-bf16-1x2")
        [plain] = matching(record, name="train-ours-small-fp32-1x2")
        for case in [plain | {"change": ["bf16"]}, *matching(record, task="without")]:
            memory = f"{round(case['peak MB'] - whole['peak MB']):+,}"
            rows.setdefault(case["change"][0], []).extend([times(whole, case), memory])
    columns = [["", *(name for name in BENCHMARKS for _ in range(2))]]
    columns.append(["without", *["times as long", "MB"] * 2])
    caption = (
        "Training the small model, bf16, one process of two threads, words of Multi30k; medians of"
        " {rounds} rounds (range). Where the range holds 1, nothing is certain"
    ).format(**records[0])
    rows = [[name, *cells] for name, cells in rows.items()]
    return finished(caption, [record["made"] for record in records], columns=columns, rows=rows)


def training_flops(N: int, D: int, F: int, V: int, S: int, T: int) -> int:
    """Operations of one pair of S and T symbols, forward and backward, counted on paper."""
    encoder = S * (4 * D * D + 2 * D * F) + 2 * S * S * D
    decoder = T * (6 * D * D + 2 * D * F) + 2 * S * D * D + 2 * T * (T + S) * D
    return 3 * 2 * (N * (encoder + decoder) + T * D * V)


def cost() -> dict:
    """The arithmetic of the paper's two trainings, and the time it would take here."""
    steps = [
        (case, r) for r in map(read, BENCHMARKS.values()) for case in matching(r, task="scale")
    ]
    best, record = max(steps, key=lambda pair: pair[0]["GFLOP/s"])
    base = {"model": "base", "D": 512, "steps": 1e5, "hours": 12, "paper": 3.3e18}
    big = {"model": "big", "D": 1024, "steps": 3e5, "hours": 84, "paper": 2.3e19}
    for row in (base, big):
        pair = training_flops(6, row["D"], 4 * row["D"], 37_000, 27, 27)
        row["counted"] = row["steps"] * 25_000 / 27 * pair
        row["share"] = row["counted"] / row["paper"]
        row["here"] = row["counted"] / best["GFLOP/s"] / 1e9 / 3600
    columns = {"model": "{model}", "paper, hours on 8 GPUs": "{hours}"}
    columns |= {"paper, time × assumed speed": "{paper:.1e}", "counted": "{counted:.1e}"}
    columns |= {"share": "{share:.0%}", "hours here": "{here:,.0f}"}
    caption = (
        "Floating-point operations, sentences of 27 symbols; here at {GFLOP/s:,.0f} GFLOP/s, the"
        " fastest step that we measured ({change[0]} {change[1]}, {dtype})"
    ).format(**best)
    return finished(caption, [record["made"]], **tabulate((base, big), columns))


def late_symbol() -> dict:
    """Time of one more symbol, with the cache and without."""
    record, points = read("benchmark"), []
    for code, name in (("plain", "plain loop"), ("ours", "with the cache")):
        [case] = matching(record, task="position", code=code, change=["sentences", 1])
        places = {int(key): value for key, value in case.items() if key.isdecimal()}
        for position, time in places.items():
            points.append({"position": position, "milliseconds": round(time, 2), "loop": name})
    doubled = alt.Scale(type="log", base=2)
    milliseconds = alt.Scale(type="log", nice=False, domainMin=1)
    text = "Milliseconds of one decoding step against its position, both axes logarithmic."
    chart = alt.Chart(alt.Data(values=points), width=380, height=220, description=text)
    chart = chart.mark_line(point=True).encode(
        x=alt.X("position:Q", scale=doubled, axis=alt.Axis(values=list(places))),
        y=alt.Y("milliseconds:Q", scale=milliseconds, axis=alt.Axis(values=[1, 2, 5, 10, 20, 50])),
        color=alt.Color("loop:N", sort=None, title=None, legend=alt.Legend(orient="top")),
        tooltip=["position:Q", "milliseconds:Q", "loop:N"],
    )
    caption = "One sentence, an untrained model of 3 layers of 256, fp32, two threads; medians"
    return finished(caption, [record["made"]], chart=chart.to_dict())
