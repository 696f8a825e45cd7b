"""Every example and check of the tutorial, run in order; that importing it does nothing; and that
what its prose names is there."""

import ast
import builtins
import contextlib
import html
import inspect
import json
import os
import re
import subprocess
import sys
import time

import altair as alt
import pytest
import torch
import vl_convert
from conftest import PROJECT

import the_annotated_transformer as tutorial


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
    assert (result is None) == name.startswith("check_")
    if name.endswith("_figure") and not name.startswith("published"):
        assert isinstance(result, alt.TopLevelMixin)
        assert_is_readable(result)


def test_charts_without_description_or_with_holes_are_noticed():
    import pandas as pd

    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, float("nan")]})
    described = "A line through two points, one of which is missing."
    for rows, text in ((frame, described), (frame.fillna(0.0), "")):
        with pytest.raises(AssertionError):
            assert_is_readable(tutorial.line_chart(rows, "x", "y", text))
    assert_is_readable(tutorial.line_chart(frame.fillna(0.0), "x", "y", described))


def test_a_view_is_shown_as_its_file_says(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "docs" / "results" / "views"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tutorial, "HERE", tmp_path)
    monkeypatch.setattr(tutorial, "EXAMPLES", {})
    tutorial.published("a-view")
    [(name, show)] = tutorial.EXAMPLES.items()
    assert name == "published_a_view" and "not measured" in show() and "a-view" in show()
    view = {"columns": ["a", "n"], "rows": [["1 & 2", "3.25"]], "caption": "Of <i>."}
    (folder / "a-view.json").write_text(json.dumps(view))
    page = show().to_html()
    assert all(text in page for text in ("1 &amp; 2", "3.25", "Of &lt;i&gt;."))
    frame = tutorial.pd.DataFrame({"x": [1, 2], "y": [3, 4]})
    chart = tutorial.line_chart(frame, "x", "y", "A line through two points.")
    (folder / "a-view.json").write_text(json.dumps({"chart": chart.to_dict(), "caption": "Two."}))
    assert_is_readable(show())
    assert capsys.readouterr().out == "Two.\n"


def test_the_copy_task_is_learnt(fair_clock):
    assert tutorial.EXAMPLES["train_the_copy_task"]()["exact of 500"][-2:] == [500, 500]
    facts = tutorial.EXAMPLES["copies_of_unseen_sequences"]()
    assert facts["read"] == facts["wrote"] and facts["copied exactly, of 100"] == 100


def test_a_portable_chart_has_a_picture_a_spec_and_words():
    spec = tutorial.EXAMPLES["smoothed_targets_figure"]().to_dict()
    bundle = tutorial.portable_chart(spec)
    assert bundle["application/vnd.vegalite.v5+json"] == spec
    assert bundle["text/plain"] == spec["description"]
    assert bundle["image/png"].startswith("iVBORw0KGgo")


def test_the_explorer_shows_the_right_weight_at_every_cell():
    """What Vega draws, cell for cell: keys along x, queries along y, the chosen layer and head."""
    torch.manual_seed(0)
    names = ["1 <s>", "2 A", "3 dog"], ["1 Ein", "2 Hund", "3 .", "4 </s>"]
    kinds = tutorial.attentions_of(tutorial.tiny_model())
    labels = dict.fromkeys(kinds, names)
    weights = {kind: torch.rand(2, 2, 3, 4) for kind in kinds}
    others = {kind: torch.zeros(2, 2, 3, 4) for kind in kinds}
    maps = [tutorial.AttentionMaps("this one", weights, labels)]
    maps.append(tutorial.AttentionMaps("another one", others, labels))
    svg = vl_convert.vegalite_to_svg(tutorial.attention_explorer(maps, "title").to_dict())
    marks = re.findall(r'aria-label="(key: [^"]*)"[^>]*aria-roledescription="(\w+) mark"', svg)
    cells = [html.unescape(label).split("; ") for label, mark in marks if mark != "rule"]
    cells = [dict(part.split(": ", 1) for part in cell) for cell in cells]
    shown = {(cell["query"], cell["key"]): float(cell["weight"]) for cell in cells}
    wanted = weights["cross-attention"][1].mean(0)  # chosen at first: last layer, mean of heads
    assert len(shown) == 12
    for r, row in enumerate(names[0]):
        for c, column in enumerate(names[1]):
            assert abs(shown[row, column] - wanted[r, c].item()) <= 0.00051


def test_a_name_serves_once():
    def what_breaks():
        pass

    with pytest.raises(ValueError, match="what_breaks"):
        tutorial.example(what_breaks)


def test_every_example_starts_from_the_same_seed(monkeypatch):
    import random

    monkeypatch.setattr(tutorial, "EXAMPLES", {})
    run = tutorial.example(lambda: (torch.rand(()).item(), random.random()))
    torch.manual_seed(5)
    random.seed(5)
    assert run() == run()


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
packages = "altair pandas spacy torchtext sacrebleu tokenizers safetensors pooch tqdm tyro filelock"
heavy = [name for name in packages.split() if name in set(sys.modules) - before]
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


# What the prose names -----------------------------------------------------------------------------

ELSEWHERE = set(  # words set as code that are neither names of ours nor of PyTorch
    "finally torchrun splitlines tokenizers pooch tyro MULTI30K_DIR laptop smoke test dog.".split()
)


def source() -> str:
    return (PROJECT / "the_annotated_transformer.py").read_text("utf-8")


def spans_of_code() -> set[str]:
    """What the prose sets as code; not what older code is said to have."""
    prose = [c for c in re.split(r"^# %%", source(), flags=re.M) if c.startswith(" [markdown]")]
    text = re.sub(r"```.*?```", "", "\n".join(prose), flags=re.S)
    text = re.sub(r'<a id="older-code">.*?<a id=', "", text, flags=re.S)
    return set(re.findall(r"`([^`]+)`", re.sub(r"\n# ?>? ?", " ", text)))


def known_names() -> dict:
    """What a name in the prose may be: Python's, PyTorch's, an argument, a setting, ours."""
    model, ids, known = tutorial.tiny_model(), torch.ones(1, 4).long(), dict(vars(builtins))
    for place in (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.Tensor,
                  torch.utils.data, tutorial):  # fmt: skip
        known |= {name: getattr(place, name) for name in dir(place)}
    functions = [torch.load, torch.nn.functional.cross_entropy, torch.nn.Module.register_buffer]
    for value in [*vars(tutorial).values(), *functions]:
        if inspect.isfunction(value) or inspect.isclass(value):
            with contextlib.suppress(ValueError, TypeError):
                known |= dict.fromkeys(inspect.signature(value).parameters)
            known |= vars(value) if inspect.isclass(value) else {}
    for module in (model, *model.modules()):
        known |= vars(module) | module._parameters | module._modules
    known |= vars(tutorial.Config()) | tutorial.PRESETS | vars(tutorial.Batch(ids, ids))
    known |= vars(tutorial.LabelSmoothing(9, tutorial.PAD))
    known |= dict.fromkeys((*"BSTDHFVN", "d_k", "meta", *tutorial.COMMANDS, *tutorial.EXAMPLES))
    known |= dict.fromkeys(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source()))
    return known | {"torch": torch, "model": model}


def test_every_name_in_the_prose_exists():
    """A renamed function, argument or setting must not live on in the text."""
    name = re.compile(r"([A-Za-z_][\w.]*)(?:\(\))?")
    names = {found[1] for span in spans_of_code() if (found := name.fullmatch(span))}
    known, lost = known_names(), []
    files = re.compile(r"[\w.-]+\.(pt|json|jsonl|cff|safetensors|de|en|fr)")
    for name in sorted(names - ELSEWHERE):
        first, *rest = name.split(".")
        try:
            value = known[first]
            for attribute in rest:
                value = getattr(value, attribute)
        except (AttributeError, KeyError):
            if not files.fullmatch(name):
                lost.append(name)
    assert not lost, f"no such name: {', '.join(lost)}"
    assert len(names) > 60


def names_in(span: str) -> set[str]:
    """First names and arguments that a piece of Python uses; none where it is something else."""
    try:
        tree = ast.parse(span.replace("…", "..."))
    except SyntaxError:
        return set()
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.keyword)]
    return {node.arg if isinstance(node, ast.keyword) else node.id for node in used}


def options_of_commands(capsys) -> set[str]:
    """Every option of every command, as their help says."""
    for command in tutorial.COMMANDS:
        with pytest.raises(SystemExit):
            tutorial.main([command, "--help"])
    return set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))


def test_options_targets_files_and_code_in_the_prose_exist(capsys):
    makefile, options = (PROJECT / "Makefile").read_text("utf-8"), options_of_commands(capsys)
    known, lost = {*known_names(), "spacy", "path", *ELSEWHERE}, []
    spans = {span for span in spans_of_code() if not re.fullmatch(r"[\w.]+(\(\))?", span)}
    for span in sorted(spans):
        if span.startswith("--"):
            fine = set(re.findall(r"--[a-z][\w-]*", span)) <= options
        elif span.startswith("make "):
            fine = re.search(rf"^{span.split()[1]}:", makefile, flags=re.M)
        elif re.fullmatch(r"[\w./-]+/[\w./-]*", span):
            fine = (PROJECT / span).exists() or span == ".data/multi30k"
        else:
            fine = names_in(span) <= known
        if not fine:
            lost.append(span)
    assert not lost, f"the prose names what does not exist: {', '.join(lost)}"
    assert len(spans) > 30
