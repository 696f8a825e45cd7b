"""Every example and check of the tutorial, run in order; and that importing it does nothing."""

import argparse
import ast
import builtins
import contextlib
import dataclasses
import html
import json
import os
import re
import subprocess
import sys
import time

import altair as alt
import pytest
import vl_convert
from conftest import PROJECT

import the_annotated_transformer as tutorial

sys.path.insert(0, str(PROJECT / "docs"))
import bench


def nulls(value) -> int:
    """How many nulls a chart's data hold; Altair writes NaN and infinity as null."""
    if isinstance(value, dict):
        return sum(map(nulls, value.values()))
    return sum(map(nulls, value)) if isinstance(value, list) else value is None


def assert_is_readable(chart: alt.TopLevelMixin) -> None:
    """A chart that compiles, says what it shows, and misses no value."""
    spec = chart.to_dict()
    assert len(spec.get("description", "")) > 20
    tables = list(spec["datasets"].values())
    assert tables and all(tables), "a chart without data"
    assert nulls(tables) == 0
    assert vl_convert.vegalite_to_vega(spec)["marks"]


@pytest.fixture
def fair_clock(monkeypatch):
    """Bounds of time count the processor's time: a busy machine must not decide what is learnt."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)


@pytest.mark.parametrize("name", tutorial.EXAMPLES)
def test_example(name, fair_clock):
    result = tutorial.EXAMPLES[name]()
    if name.startswith("check_"):
        assert result is None
    else:
        assert result is not None
    if name.endswith("_figure") and result is not tutorial.NO_RESULTS:
        assert isinstance(result, alt.TopLevelMixin)
        assert_is_readable(result)


# What is drawn from files of docs/results, from files made up here ------------------------------

FROM_RESULTS = {
    "results_so_far": "recipe",
    "the_recipe_step_by_step": "recipe",
    "which_steps_are_real": "recipe",
    "steps_figure": "recipe",
    "beam_and_length_penalty_on_the_validation_split": "beam",
    "loss_along_the_line_figure": "averaging",
    "how_many_epochs_to_average": "averaging",
    "trials_on_the_validation_split": "trials",
    "from_raw_text_to_a_translator": "speedrun",
    "what_int8_costs_in_bleu": "pretrained",
    "training_of_the_published_model_figure": "runs/recipe-1",
    "training_speed": "benchmark",
    "what_each_gain_is_worth": "benchmark",
    "decoding_speed": "benchmark",
    "cost_of_a_late_symbol_figure": "benchmark",
    "share_of_the_peak_figure": "benchmark",
    "hours_for_the_models_of_the_paper": "benchmark",
    "what_a_step_costs": "benchmark",
    "memory_of_the_loss_figure": "benchmark",
    "ratios_and_what_was_aimed_at": "benchmark, benchmark-xeon",
    "where_missed_targets_lose_their_time": "benchmark",
}
MADE = {
    "date": "2030-01-02",
    "machine": "an abacus, 2 CPU cores",
    "versions": "Python 3",
    "commit": "0" * 40,
}
SPLITS = "test_2016_flickr", "test_2017_flickr"


def made_up_row(number: int) -> dict:
    """A row of recipe.json; the score tells which."""
    bleu = {"mean": 30.0 + number, "min": 29.5 + number, "max": 30.5 + number}
    same = dict.fromkeys(("mean", "min", "max"), 7.0)
    scores = {"bleu": bleu, "bleu_lower": same, "chrf": same, "perplexity": same}
    scores["signatures"] = {"bleu": "nrefs:1"}
    scores["step"] = {"bleu": 1.0, "p": 0.02, "smaller_than_seeds": number == 1}
    facts = {"step": f"step {number}", "seeds": [1], "parameters": 5_000_000, "minutes": same}
    return facts | {"splits": {split: scores for split in SPLITS}}


MADE_UP = {
    "recipe": {
        "corpus": "Multi30k",
        "rows": [made_up_row(0), made_up_row(1), made_up_row(2)],
        "range_of_seeds": dict.fromkeys(SPLITS, 0.6),
        "missing": ["words-2", "words-3"],
        "other_direction": made_up_row(3),
        "summaries": {"words-1": {"date": "2026-01-02"}, "words-2": {"date": "2026-01-02"}},
    },
    "beam": {
        "against_greedy": [{"beam": 4, "alpha": 0.6, "below": 28, "same": 372, "above": 614}],
        "sweep": [
            {"beam": 1, "alpha": 0.0, "bleu": 41.0},
            {"beam": 4, "alpha": 0.0, "bleu": 42.0},
            {"beam": 4, "alpha": 0.6, "bleu": 42.5},
        ],
    },
    "averaging": {
        "run": "recipe-1",
        "decoding": "beam 4, alpha 0.6",
        "sweep": [{"averaged": k, "bleu": 42.0 + k, "perplexity": 4.2} for k in range(3)],
        "line": {"epochs": [3, 9], "points": [{"at": n / 4, "nll": 1.5 + n} for n in range(5)]},
    },
    "trials": {
        "base": dataclasses.asdict(tutorial.Config()),
        "trials": [
            {
                "changes": changes,
                "final": {"epoch": 8, "bleu": 36.0, "perplexity": 6.0},
                "parameters": 5_000_000,
            }
            for changes in ({}, {"dropout": [0.2, 0.3]})
        ],
    },
    "speedrun": {
        "minutes": {"mean": 12.0, "min": 11.0, "max": 13.0},
        "seeds": [{"seed": 1, "minutes": 12.0, "summary": {"epochs": 9}, "bleu": 38.1}],
    },
}


def made_up_benchmark() -> dict:
    """Every case of the benchmark, with numbers that say nothing."""
    numbers = {"tokens per second": 10.0, "peak MB": 100.0, "sentences per second": 5.0,
               "GFLOP/s": 50.0, "milliseconds": 2.0, "16": 1.0, "512": 1.4}  # fmt: skip
    cases = [
        {"name": name} | dataclasses.asdict(case) | {"label": bench.CODES.get(case.code)} | numbers
        for name, case in bench.CASES.items()
    ]
    ratios = bench.ratios({case["name"]: case for case in cases})
    profiles = {"a case": {"aten::mm": 0.5, "aten::add": 0.2}}
    content = {"rounds": 5, "ratios": ratios, "profiles": profiles, "cases": cases}
    return json.loads(json.dumps(content))


def made_up_record() -> dict:
    """The log of a run of two epochs."""
    train = {"kind": "train", "loss": 3.0, "lr": 0.1, "grad_norm": 1.0, "tokens": 9.0}
    validation = {"kind": "validation", "perplexity": 5.0, "bleu": 38.1, "nll": 1.6}
    log = [
        entry | {"epoch": n, "step": 10 * n, "seconds": 60.0 * n}
        for n in range(1, 4)
        for entry in (train, validation)
    ]
    return {"summary": {"minutes": 3.0, "ranks": 2} | MADE, "log": log}


scored = {"bleu": 38.1}
MADE_UP["pretrained"] = {
    "corpus": "Multi30k",
    "decoding": "beam 4",
    "formats": {
        name: {"MB": 9.0, "val": scored} | dict.fromkeys(SPLITS, scored)
        for name in ("fp32", "int8")
    },
}
MADE_UP["benchmark"] = MADE_UP["benchmark-xeon"] = made_up_benchmark()
MADE_UP["runs/recipe-1"] = made_up_record()


TOLD_OF_SPEED = {  # what must stand in what these cells show
    "training_speed": "the feed of 2022",
    "what_each_gain_is_worth": "fused Adam",
    "decoding_speed": "CTranslate2",
    "cost_of_a_late_symbol_figure": "1.4",
    "share_of_the_peak_figure": "symbols in a sentence",
    "hours_for_the_models_of_the_paper": "3.5 days",
    "what_a_step_costs": "32,000",
    "memory_of_the_loss_figure": "all at once",
    "ratios_and_what_was_aimed_at": "at most 1.5",
    "where_missed_targets_lose_their_time": "aten::mm",
}


def test_every_cell_that_reads_results_is_tried():
    found = re.findall(r"^@from_results\((.+)\)\ndef (\w+)", tutorial_source(), flags=re.M)
    assert {name: files.replace('"', "") for files, name in found} == FROM_RESULTS


GAINS_TOLD = (  # in the order of the text
    "fused layer norm",
    "dropout from random bytes",
    "fused attention",
    "one product for several maps",
    "loss in chunks, real symbols only",
    "fused Adam",
    "batches alike in length",
)


def test_gains_told_where_they_are_made_are_those_measured():
    kept = json.loads((PROJECT / "docs" / "results" / "benchmark.json").read_text())
    cases = {case["name"]: case.get("tokens per second") for case in kept["cases"]}
    whole = cases["train-ours-small-bf16-1x2"]
    measured = [whole / cases[f"without-ours-small-bf16-1x2-{gain}"] for gain in GAINS_TOLD]
    text = re.sub(r"\n# ", " ", tutorial_source())
    told = re.findall(r"training takes ([\d.]+) times as long \(\[measured\]\(#gains\)\)", text)
    assert told == [f"{ratio:.1f}" for ratio in measured]
    assert set(GAINS_TOLD) == set(bench.GAINS) - {"another allocator"}


@pytest.mark.parametrize(("name", "files"), FROM_RESULTS.items())
def test_results_are_shown_as_their_files_say(name, files, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "docs" / "results"
    (folder / "runs").mkdir(parents=True)
    for file in files.split(", "):
        assert tutorial.EXAMPLES[name]() is tutorial.NO_RESULTS, f"{file} is not there yet"
        (folder / f"{file}.json").write_text(json.dumps(MADE_UP[file] | {"made": MADE}))
    result = tutorial.EXAMPLES[name]()
    if name.endswith("_figure"):
        assert_is_readable(result)
        shown = json.dumps(result.to_dict())
    else:
        shown = result.to_html()
    telling = {"recipe": "step 2", "beam": "42.5", "averaging": "4", "trials": "dropout 0.3"}
    telling |= {"benchmark": TOLD_OF_SPEED.get(name)}
    assert telling.get(files.split(", ")[0], "38.1") in shown


def test_charts_without_description_or_with_holes_are_noticed():
    import pandas as pd

    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, float("nan")]})
    described = "A line through two points, one of which is missing."
    for rows, text in ((frame, described), (frame.fillna(0.0), "")):
        with pytest.raises(AssertionError):
            assert_is_readable(tutorial.line_chart(rows, "x", "y", text))
    assert_is_readable(tutorial.line_chart(frame.fillna(0.0), "x", "y", described))


def test_the_copy_task_is_learnt(fair_clock):
    facts = tutorial.train_the_copy_task()
    (name,) = (name for name in facts if name.startswith("exact of "))
    assert facts[name][-1] == int(name.split()[-1]) >= 200
    assert tutorial.copies_of_unseen_sequences().startswith("100 of 100 ")


def test_a_portable_chart_has_a_picture_a_spec_and_words():
    spec = tutorial.causal_mask_figure().to_dict()
    bundle = tutorial.portable_chart(spec)
    assert bundle["application/vnd.vegalite.v5+json"] == spec
    assert bundle["text/plain"] == spec["description"]
    assert bundle["image/png"].startswith("iVBORw0KGgo")


def test_the_explorer_shows_the_right_weight_at_every_cell():
    """What Vega draws, cell for cell: keys along x, queries along y, the chosen layer and head."""
    import torch

    torch.manual_seed(0)
    queries, keys = ["<s>", "A", "dog"], ["Ein", "Hund", "‿.", "</s>"]
    weights = {kind: torch.rand(2, 2, 3, 4) for kind in tutorial.KINDS}
    tokens = {kind: (queries, keys) for kind in tutorial.KINDS}
    others = {kind: torch.zeros(2, 2, 3, 4) for kind in tutorial.KINDS}
    maps = [tutorial.AttentionMaps(weights, tokens, "this one")]
    maps.append(tutorial.AttentionMaps(others, tokens, "another one"))
    svg = vl_convert.vegalite_to_svg(tutorial.attention_explorer(maps, "title").to_dict())
    marks = re.findall(r'aria-label="(key: [^"]*)"[^>]*aria-roledescription="(\w+) mark"', svg)
    labels = (html.unescape(label) for label, mark in marks if mark != "rule")
    cells = [dict(part.split(": ", 1) for part in label.split("; ")) for label in labels]
    shown = {(c["query"], c["key"]): float(c["weight"]) for c in cells}
    wanted = weights["cross-attention"][1, 0]  # what is chosen at first: last layer, first head
    rows = [f"{n} {token}" for n, token in enumerate(queries, 1)]
    columns = [f"{n} {token}" for n, token in enumerate(keys, 1)]
    assert len(shown) == 12
    for r, row in enumerate(rows):
        for c, column in enumerate(columns):
            assert abs(shown[row, column] - wanted[r, c].item()) <= 0.00051


def test_a_name_serves_once():
    def check_clones_differ_in_weights_and_biases():
        pass

    with pytest.raises(ValueError, match="check_clones_differ"):
        tutorial.example(check_clones_differ_in_weights_and_biases)


def test_every_example_starts_from_the_same_seed(monkeypatch):
    import random

    import torch

    monkeypatch.setattr(tutorial, "EXAMPLES", {})
    run = tutorial.example(lambda: (torch.rand(()).item(), random.random()))
    torch.manual_seed(5)
    random.seed(5)
    assert run() == run()


def test_an_unknown_level_is_refused(monkeypatch):
    monkeypatch.setenv("ANNOTATED_RUN", "fast")
    with pytest.raises(ValueError, match="smoke, laptop, full, got 'fast'"):
        tutorial.run_level()


WATCHED_IMPORT = """\
import json, sys, time
import torch, torch.distributed
seen = []
def watch(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.mkdir", "os.rename", "shutil.")):
        seen.append(event)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"{event} {arguments[0]} {arguments[1]}")
random_state, before = torch.get_rng_state(), set(sys.modules)
sys.addaudithook(watch)
begin = time.process_time()
import the_annotated_transformer
seconds = time.process_time() - begin
packages = "spacy torchtext pandas altair sacrebleu tqdm GPUtil vl_convert PIL matplotlib".split()
heavy = [name for name in packages if name in set(sys.modules) - before]
same = torch.equal(random_state, torch.get_rng_state())
print("\\n" + json.dumps({"seen": seen, "seconds": seconds, "heavy": heavy, "same": same}))
"""


def test_importing_the_script_is_quick_and_does_nothing(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    printed, _, report = done.stdout.rstrip("\n").rpartition("\n")
    facts = json.loads(report)
    assert (printed, done.stderr) == ("", "")
    assert facts["seen"] == [] and facts["heavy"] == [] and facts["same"]
    assert facts["seconds"] < 3, "seconds of the processor, beyond those of importing torch"
    assert list(tmp_path.iterdir()) == []


ELSEWHERE = {  # words set as code that are neither names of ours nor of PyTorch
    "finally", "splitlines", "torchrun", "tokenizers", "MULTI30K_DIR",  # Python, programs
    "dog.", "hold", "reaction", "stoi", "fused",  # a token, keys of our grammar, torchtext, Adam
    "a_2", "b_2", "w_1", "w_2", "src_embed.1.pe", "tgt_embed.1.pe",  # of the older code
}  # fmt: skip


def known_names() -> dict:
    """What a name in the prose may be: PyTorch's, an argument, a setting, a module, ours."""
    import inspect

    import torch

    model, ids, known = tutorial.tiny_model(), torch.ones(1, 4).long(), dict(vars(builtins))
    for place in (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.Tensor,
                  torch.utils.data, torch.autograd):  # fmt: skip
        known |= {name: getattr(place, name) for name in dir(place)}
    for value in vars(tutorial).values():
        if inspect.isfunction(value) or inspect.isclass(value):
            with contextlib.suppress(ValueError, TypeError):
                known |= dict.fromkeys(inspect.signature(value).parameters)
            known |= vars(value) if inspect.isclass(value) else {}
    known |= vars(tutorial.Config()) | tutorial.PRESETS | vars(tutorial.Batch(ids, ids))
    known |= dict.fromkeys((*tutorial.LEVELS, *"BSTDHKFVN", "pool", "meta", *tutorial.COMMANDS))
    for module in model.modules():
        known |= vars(module) | dict(module.named_parameters(recurse=False)) | module._modules
    for theirs in (torch.load, torch.nn.functional.cross_entropy, torch.nn.Module.register_buffer):
        known |= dict.fromkeys(inspect.signature(theirs).parameters)
    variables = re.findall(r'environ(?:\.get\(|\[)"(\w+)"', tutorial_source())
    known |= dict.fromkeys(variables, "a string")
    return known | vars(tutorial) | {"torch": torch, "model": model}


def test_every_name_in_the_prose_exists():
    """A renamed function, argument or setting must not live on in the text."""
    names = {
        found[1]
        for span in spans_of_code()
        if (found := re.fullmatch(r"([A-Za-z_][\w.]*)(?:\(\))?", span))
    } - ELSEWHERE
    known, model, lost = known_names(), tutorial.tiny_model(), []
    files = re.compile(r"[\w.-]+\.(pt|json|jsonl|py)")
    parts = dict(model.named_parameters()) | dict(model.named_modules())
    for name in sorted(names):
        first, *rest = name.split(".")
        if files.fullmatch(name) or name in parts:
            continue
        try:
            value = known[first]
            for attribute in rest:
                value = getattr(value, attribute)
        except (AttributeError, KeyError):
            lost.append(name)
    assert not lost, f"no such name: {', '.join(lost)}"
    assert len(names) > 60


def options_of_commands() -> set[str]:
    """Every option of every command."""
    options = set()
    for _, add_options, _ in tutorial.COMMANDS.values():
        parser = argparse.ArgumentParser()
        add_options(parser)
        options |= set(parser._option_string_actions)
    return options


def test_options_targets_files_and_code_in_the_prose_exist():
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    known, options, lost = {*known_names(), "spacy", "path"}, options_of_commands(), []
    seen = dict.fromkeys(("option", "target", "file", "code"), 0)
    spans = {span for span in spans_of_code() if not re.fullmatch(r"[\w.]+(\(\))?", span)}
    for span in sorted(spans):
        if span.startswith("--"):
            kind, used = "option", re.findall(r"--[a-z][\w-]*", span)
            fine = set(used) <= options
        elif span.startswith("make "):
            kind, fine = "target", re.search(rf"^{span.split()[1]}:", makefile, flags=re.M)
        elif re.fullmatch(r"[\w./-]+/[\w./-]*", span):
            kind, fine = "file", (PROJECT / span).exists() or span == ".data/multi30k"
        else:
            kind, names = "code", names_in(span)
            fine = names <= known
        seen[kind] += 1
        if not fine:
            lost.append(span)
    assert not lost, f"the prose names what does not exist: {', '.join(lost)}"
    assert min(seen.values()) >= 3


def names_in(span: str) -> set[str]:
    """First names and arguments that a piece of Python uses; none where it is something else."""
    try:
        tree = ast.parse(span.replace("…", "..."))
    except SyntaxError:
        return set()
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.keyword)]
    return {node.arg if isinstance(node, ast.keyword) else node.id for node in used}


def spans_of_code() -> set[str]:
    """What the prose sets as code."""
    cells = re.split(r"^# %%", tutorial_source(), flags=re.M)
    text = "\n".join(cell for cell in cells if cell.startswith(" [markdown]"))
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return set(re.findall(r"`([^`]+)`", re.sub(r"\n# ?>? ?", " ", text)))


def tutorial_source() -> str:
    return (PROJECT / "the_annotated_transformer.py").read_text("utf-8")
