"""Score the trained rows: choose on the validation split, then score the test splits once.

Nothing on record is scored again: remove beam.json or averaging.json to choose anew; remove entries
of scores.json, and steps.json, to score rows anew. A run that is trained anew loses all of them.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from safetensors.torch import load_file

import the_annotated_transformer as at
from tools import records
from tools.results import bootstrap, plan
from tools.results.plan import Row
from tools.results.train import finished_run, folder_of


def translator_of(name: str, averaged: int) -> at.Translator:
    """The mean of so many last epochs of a run; for 0, the best of those that it has kept.

    ValueError where the run is not finished, or has kept fewer.
    """
    epochs, _ = finished_run(name)
    folder = folder_of(name)
    files = {epoch["epoch"]: folder / f"epoch-{epoch['epoch']}.safetensors" for epoch in epochs}
    kept = [epoch for epoch in epochs if files[epoch["epoch"]].is_file()]
    if averaged > len(kept):
        raise ValueError(f"{name} has kept {len(kept)} epochs, not {averaged}")
    chosen = kept[-averaged:] if averaged else [max(kept, key=at.quality)]
    translator = at.load_trained_model(folder, torch.device("cpu"))

    def models() -> Iterator[torch.nn.Module]:
        for epoch in chosen:
            at.load_weights(translator.model, load_file(files[epoch["epoch"]]))
            yield translator.model

    at.average(translator.model, models())
    what = f"{averaged} averaged" if averaged else "best epoch"
    return replace(translator, name=f"{name}, {what}")


def translated(
    translator: at.Translator, split: str, beam: int, alpha: float = plan.ALPHA
) -> tuple[list[str], dict]:
    """Translations of a split, and their scores."""
    pairs = at.find_corpus(plan.CORPUS, translator.languages).pairs(split)
    decode = functools.partial(at.beam_search, beam=beam, alpha=alpha)
    written, found = at.score(translator, pairs, decode)
    scores = {
        "bleu": round(found["BLEU"], 2),
        "signature": found["signature"],
        "chrf": round(found["chrF"], 2),
        "perplexity": round(found["perplexity"], 2),
    }
    print(f"{translator.name}, {split}, beam {beam}, alpha {alpha}: {scores}", flush=True)
    return written, scores


def forget(run: str) -> None:
    """Take off record what was made with the weights of a run, which are about to be others."""
    stale = ["steps"] if any(run in row.runs for row in plan.ROWS) else []
    if run == plan.FULL[0]:
        stale += ["beam", "averaging"]
    if run in plan.SHIPPED.runs:
        stale += ["pretrained", "heads"]
        if (planted := records.read("planted")).pop("shipped", None):
            del planted["made"]["shipped"]
            records.write("planted", planted)
    for name in stale:
        (records.RESULTS / f"{name}.json").unlink(missing_ok=True)
    for path in (records.RESULTS / "translations").glob(f"*.{run}.*.txt"):
        path.unlink()
    content = records.read("scores")
    kept = [entry for entry in content.get("scores", []) if entry["run"] != run]
    if kept != content.get("scores", []):
        records.write("scores", content | {"scores": kept})


# Validation ---------------------------------------------------------------------------------------


def validation(sweep: list[dict]) -> dict:
    """A sweep with the first seed of the full recipe, and how it was made."""
    facts = {"run": plan.FULL[0], "beam": plan.BEAM, "averaged": plan.AVERAGED}
    return facts | {"made": records.circumstances(), "sweep": sweep}


@records.once("beam")
def sweep_beams() -> dict:
    whole = translator_of(plan.FULL[0], plan.AVERAGED)
    sweep = []
    for beam, alpha in itertools.product(plan.BEAMS, plan.ALPHAS):
        if beam > 1 or alpha == 0:
            _, found = translated(whole, "val", beam, alpha)
            sweep.append({"beam": beam, "alpha": alpha} | found)
    return validation(sweep)


@records.once("averaging")
def sweep_averages() -> dict:
    sweep = []
    for count in range(plan.AVERAGED + 1):  # 0 stands for the best epoch
        _, found = translated(translator_of(plan.FULL[0], count), "val", plan.BEAM)
        sweep.append({"averaged": count} | found)
    return validation(sweep)


# The test splits ----------------------------------------------------------------------------------


def score_of(row: Row, run: str, split: str) -> dict:
    """What is on record of a row, run and test split; empty where it was never scored."""
    key = row.name, run, split
    entries = records.read("scores").get("scores", [])
    return next((e for e in entries if (e["row"], e["run"], e["split"]) == key), {})


def scores(row: Row, split: str) -> list[float]:
    """BLEU of each run of a row; ValueError where one is missing or they do not compare."""
    found = {run: score_of(row, run, split) for run in row.runs}
    for run, entry in found.items():
        if not entry:
            way = f"`make results ARGS={row.name}` adds it"
            raise ValueError(f"row {row.name}: {run} has no score of {split}: {way}")
    records.check_comparable(found)
    return [entry["bleu"] for entry in found.values()]


def translations_path(row: Row, run: str, split: str) -> Path:
    return records.RESULTS / "translations" / f"{row.name}.{run}.{split}.txt"


def score_once(row: Row, run: str, split: str, translator: at.Translator) -> dict:
    """The scores of a row's run on a test split, computed only if they never were."""
    if entry := score_of(row, run, split):
        return entry
    written, found = translated(translator, split, row.beam, row.alpha)
    records.write_text(translations_path(row, run, split), "".join(f"{x}\n" for x in written))
    entry = {"row": row.name, "run": run, "split": split, "beam": row.beam, "alpha": row.alpha}
    entry |= {"averaged": row.averaged} | found | records.circumstances()
    content = records.read("scores")
    records.write("scores", content | {"scores": [*content.get("scores", []), entry]})
    return entry


def test(row: Row) -> None:
    """Translate each test split with each run of a row, where it was never scored."""
    for run in row.runs:
        splits = [split for split in plan.TESTS if not score_of(row, run, split)]
        translator = translator_of(run, row.averaged) if splits else None
        for split in splits:
            score_once(row, run, split, translator)


# What a step gains --------------------------------------------------------------------------------


def counts_of(row: Row, run: str, split: str) -> torch.Tensor:
    """What BLEU counts in the translations on file of a row's run."""
    references = [pair[1] for pair in at.find_corpus(plan.CORPUS).pairs(split)]
    text = translations_path(row, run, split).read_text("utf-8")
    return bootstrap.counts_of(text.split("\n")[:-1], references)


def step_between(before: Row, after: Row, split: str) -> dict:
    """What a row gains over the row before on a split, and the 95% interval of that."""
    gain = mean(scores(after, split)) - mean(scores(before, split))
    counts = [[counts_of(row, run, split) for run in row.runs] for row in (before, after)]
    drawn = bootstrap.gains(*counts, same_runs=before.runs == after.runs)
    interval = drawn.quantile(torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    return {
        "before": before.name,
        "row": after.name,
        "split": split,
        "gain": round(gain, 2),
        "interval": [round(end, 2) for end in interval],
    }


def steps() -> None:
    """What each step gains on each test split; measured again when the plan has other rows."""
    planned = list(itertools.product(itertools.pairwise(plan.ROWS), plan.TESTS))
    known = records.read("steps").get("steps", [])
    names = [(before.name, after.name, split) for (before, after), split in planned]
    if names == [(step["before"], step["row"], step["split"]) for step in known]:
        return
    found = [step_between(before, after, split) for (before, after), split in planned]
    records.write("steps", {"draws": bootstrap.DRAWS, "steps": found})
