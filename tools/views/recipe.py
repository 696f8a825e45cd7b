"""The recipe: its scores step by step, how its settings were chosen, and the shipped model."""

from statistics import mean, median

import the_annotated_transformer as at
from tools import records
from tools.results import plan
from tools.results.score import score_of, scores
from tools.views.common import check_shipped, record, runs_that_compare, table, with_range


def summary() -> str:
    """README's table of the steps."""
    runs = runs_that_compare(run for row in plan.ROWS for run in row.runs)
    rows = []
    for row in plan.ROWS:
        parameters = f"{runs[row.runs[0]]['summary']['parameters'] / 1e6:.1f} M"
        bleu = [with_range(scores(row, split), 1) for split in plan.TESTS]
        rows.append([row.step, *bleu, parameters])
    return table(["step", *(f"{test} BLEU" for test in plan.TESTS.values()), "parameters"], rows)


def end_of_interval(number: float) -> str:
    """With one decimal, or two where one would hide the sign."""
    return f"{number:.1f}" if abs(number) >= 0.05 else f"{number:.2f}"


BESIDES = {  # what differs from the row above besides the step itself
    "words": "–",
    "subwords": "a dropout of its own, 0.25, not 0.4; 6.0 M weights, not 7.1 M",
    "one-matrix": "4.1 M weights; dropout was chosen for this row",
    "beam": "nothing",
    "averaging": "six epochs, not the best one of them",
    "recipe": "nothing",
}


def chrf(row: plan.Row, split: str) -> str:
    """The mean over the runs of a row."""
    return f"{mean(score_of(row, run, split)['chrf'] for run in row.runs):.1f}"


def mean_bleu(row: plan.Row, split: str) -> str:
    """The mean over the runs of a row."""
    return f"{mean(scores(row, split)):.1f}"


def steps() -> str:
    """Every step: its scores, its gains with their intervals, and what else it changes."""
    runs_that_compare(run for row in plan.ROWS for run in row.runs)
    found = {(step["row"], step["split"]): step for step in record("steps")["steps"]}
    rows = []
    for row in plan.ROWS:
        cells = [row.step]
        for split in plan.TESTS:
            gain = "–"
            if step := found.get((row.name, split)):
                low, high = map(end_of_interval, step["interval"])
                gain = f"{step['gain']:+.1f} ({low} to {high})".replace("-", "−")
            cells += [with_range(scores(row, split), 1), gain, chrf(row, split)]
        rows.append([*cells, BESIDES[row.name]])
    columns = [name for test in plan.TESTS.values() for name in (f"{test} BLEU", "gain", "chrF")]
    return table(["step", *columns, "what else differs"], rows)


BOARD = "https://github.com/Helsinki-NLP/{}-MT-leaderboard/tree/{}/models/{}"
OPUS = BOARD.format("OPUS", "master", "Tatoeba-MT-models/deu-eng/opus-2021-02-22")
WMT = BOARD.format("External", "master", "huggingface/facebook/wmt19-de-en")
CAPTIONS = "29,000 pairs of captions"
TUTORIAL = (
    "https://github.com/bentrevett/pytorch-seq2seq/blob/041994c351cc1d743fc589756dd888d146336cc2/"
    "6%20-%20Attention%20is%20All%20You%20Need.ipynb"
)
# Name, training text, BLEU and chrF of either test set, as the tutorial's last cell and
# multi30k_test_*_flickr.deu-eng.eval in the folders above have them.
PUBLISHED = (
    (f"[a tutorial's Transformer]({TUTORIAL})", CAPTIONS, "36.1", "–", "–", "–"),
    (f"[OPUS-MT]({OPUS}), 2021", *("OPUS, texts of many kinds", "40.4", "60.9", "41.4", "63.6")),
    (
        f"[one model of Facebook's entry to WMT 2019]({WMT})",
        *("WMT's pairs, back-translated news", "42.4", "62.8", "45.4", "66.2"),
    ),
)


def systems() -> str:
    """Our recipe beside systems of others, from German to English."""
    ours = {
        "our recipe, three seeds": plan.RECIPE,
        "one of them, published in int8": plan.SHIPPED,
        "`nn.Transformer` in our recipe": plan.OUTSIDE,
    }
    runs_that_compare(run for row in ours.values() for run in row.runs)
    rows = []
    for name, row in ours.items():
        cells = [f(row, split) for split in plan.TESTS for f in (mean_bleu, chrf)]
        rows.append([name, CAPTIONS, *cells])
    tests = [f"{test} {what}" for test in plan.TESTS.values() for what in ("BLEU", "chrF")]
    return table(["system", "trained on", *tests], [*rows, *PUBLISHED])


def int8() -> str:
    """What rounding the weights to bytes costs."""
    shipped = record("pretrained")
    rows = []
    for name, row in (("fp32", plan.RECIPE), ("int8", plan.SHIPPED)):
        found = shipped["formats"][name]
        entries = found["val"], *(score_of(row, shipped["run"], split) for split in plan.TESTS)
        rows.append([name, f"{found['MB']:.1f}", *(f"{each['bleu']:.1f}" for each in entries)])
    tests = [f"{test} BLEU" for test in plan.TESTS.values()]
    return table(["format", "MB", "validation BLEU", *tests], rows)


def beam() -> str:
    """BLEU of beams and length penalties."""
    sweep = record("beam")["sweep"]
    found = {(cell["beam"], cell["alpha"]): f"{cell['bleu']:.1f}" for cell in sweep}
    best = max(sweep, key=lambda cell: cell["bleu"])
    shown = sorted({0.0, plan.ALPHA, plan.CHOSEN_ALPHA, best["alpha"]})
    rows = [[str(n), *(found.get((n, alpha), "") for alpha in shown)] for n in plan.BEAMS]
    return table(["beam", *(f"α = {alpha:g}" for alpha in shown)], rows)


def averaging() -> str:
    """Validation BLEU of the last epoch and of the mean of the last ones, greedy and by a beam."""
    runs = runs_that_compare([*plan.FULL, plan.PAPER])
    found = record("averaging")
    records.check_comparable({"greedy": runs[found["run"]]["summary"], "by a beam": found["made"]})
    beam = {cell["averaged"]: f"{cell['bleu']:.1f}" for cell in found["sweep"]}
    last = [run["log"][-1]["bleu"] for run in runs.values()]
    means = [run["summary"]["mean"]["bleu"] for run in runs.values()]
    rows = []
    for name, averaged, (*ours, paper) in (
        ("the last epoch", 1, last),
        (f"the mean of the last {plan.AVERAGED}", plan.AVERAGED, means),
    ):
        rows.append([name, with_range(ours, 1), beam[averaged], f"{paper:.1f}"])
    by_beam = f"beam of {plan.BEAM}, one seed"
    return table(
        ["weights of", "greedy, three seeds", by_beam, "greedy, the paper's schedule"], rows
    )


def choices() -> str:
    """The trials, one thing changed at a time, and the recipe."""
    found = runs_that_compare(run for runs in plan.TRIALS for run in runs)
    rows = []
    for runs, what in plan.TRIALS.items():
        last = [found[run]["log"][-1] for run in runs]
        bleu = with_range([entry["bleu"] for entry in last], 1)
        rows.append([str(last[0]["epoch"]), what, f"{last[0]['updates']:,}", str(len(runs)), bleu])
    return table(["epochs", "settings", "updates", "seeds", "BLEU"], rows)


def norm_orders() -> str:
    """Validation BLEU of trials of both norm orders, by their highest learning rates."""
    factors = sorted({factor for names in plan.ORDERS.values() for factor in names})
    rows = []
    for order, names in plan.ORDERS.items():
        runs = runs_that_compare(names.values())
        last = {factor: runs[name]["log"][-1]["bleu"] for factor, name in names.items()}
        rows.append([order, *(f"{last[f]:.1f}" if f in last else "–" for f in factors)])
    base = plan.trial()
    peaks = [at.rate(base.warmup, base.d_model, factor, base.warmup) for factor in factors]
    return table(["", *(f"{peak:.4f}" for peak in peaks)], rows)


def heads() -> str:
    """What the shipped model loses without heads; in brackets where the samples disagree."""
    measured = record("heads")
    check_shipped(measured["made"])
    places = {}
    for row in measured["rows"]:
        place = places.setdefault((row["attention"], str(row["layer"])), {})
        place.setdefault(len(row["off"]), []).append(row["changes"])
    rows = []
    for place, removed in places.items():
        kept = min(
            removed[len(removed) - 1], key=mean
        )  # all heads but the one that does best alone
        cells = [*removed[1], kept, *removed[len(removed)]]
        shown = [f"{mean(x):.2f}" if min(x) * max(x) > 0 else f"({mean(x):.2f})" for x in cells]
        rows.append([*place, *shown])
    most = max(map(len, places.values()))
    names = *(f"head {n}" for n in range(1, most + 1)), "all but one", "all"
    return table(["attention", "layer", *names], rows)


def one_sequence() -> str:
    """Translators without an encoder beside those with one, by their positions."""
    columns = ["translator", "positions", "seeds", "validation BLEU", "perplexity"]
    columns += ["cache, bytes a token", "tokens/s, training", "tokens/s, generation"]
    rows = []
    made = {}
    for name, positions in {"one-sequence": "sinusoids", "one-sequence-rotary": "rotary"}.items():
        found = record(name)
        seeds = next(runs for runs in plan.TRIALS if found["settings"]["beside"] in runs)
        beside = {run: record(f"runs/{run}") for run in seeds}
        made |= {run: each["summary"] for run, each in beside.items()}
        made |= {f"speed of {name}": found["speed"]["made"]}
        made |= {f"{name}, seed {each['seed']}": each["made"] for each in found["runs"]}
        kinds = {
            "encoder-decoder": ("encoder and decoder", list(beside.values())),
            "one sequence": ("one stack, one sequence", found["runs"]),
        }
        for kind, (translator, runs) in kinds.items():
            last = [each["log"][-1] for each in runs]
            bleu = with_range([entry["bleu"] for entry in last], 1)
            odds = with_range([entry["perplexity"] for entry in last], 2)
            timed = found["speed"]["rows"][kind].values()
            speeds = [f"{round(median(each), -2):,.0f}" for each in timed]
            cache = f"{found['cache'][kind]:,}"
            rows.append([translator, positions, str(len(runs)), bleu, odds, cache, *speeds])
    records.check_comparable(made)
    return table(columns, rows)
