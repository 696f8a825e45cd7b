"""Every example and check of the tutorial, run in order; that importing it does nothing; and that
what its prose names is there."""

import ast
import builtins
import inspect
import io
import json
import os
import random
import re
import subprocess
import sys
import tokenize

import altair as alt
import pytest
import tokenizers
import torch
import vl_convert
from conftest import PROJECT

import the_annotated_transformer as tutorial


def assert_is_readable(chart: alt.TopLevelMixin) -> None:
    """A chart that compiles, says what it shows, and misses no value."""
    spec = chart.to_dict()
    assert len(spec.get("description", "")) > 20
    tables = list(spec["datasets"].values())
    assert tables and all(tables), "a chart without data"
    assert ": null" not in json.dumps(tables), "as Altair writes NaN and infinity"
    assert vl_convert.vegalite_to_vega(spec)["marks"]


@pytest.mark.parametrize("name", tutorial.EXAMPLES)
def test_example(name):
    result = tutorial.EXAMPLES[name]()
    assert (result is None) == name.startswith("check_")
    if name.endswith("_figure") and not name.startswith("published"):
        assert isinstance(result, alt.TopLevelMixin)
        assert_is_readable(result)


def test_the_copy_task_is_learnt():
    """At the level of these tests, which is three hundred updates."""
    found = tutorial.EXAMPLES["train_the_copy_task"]()
    assert found["loss"][-1] < 0.5 * found["loss"][0]
    assert found["exact of 500"][-1] > 100


# Training cells -----------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch) -> None:
    """Trainings of a moment, whose models nobody else sees."""
    data_gen = tutorial.data_gen

    def less(V: int, batch_size: int, nbatches: int):
        return data_gen(V, min(batch_size, 16), min(nbatches, 5))

    monkeypatch.setattr(tutorial, "data_gen", less)
    monkeypatch.setattr(tutorial, "TRAINED", {})


PLAIN = inspect.unwrap(tutorial.attention)


def scaled_by_one(query, key, value, mask=None, dropout=None, bias=None):
    """Attention as a reader edits it: without the division."""
    return PLAIN(query * query.size(-1) ** 0.5, key, value, mask, dropout, bias)


def test_a_training_cell_trains_again_with_what_was_edited(short, monkeypatch):
    cell = tutorial.EXAMPLES["train_the_copy_task"]
    before = cell()
    model = tutorial.TRAINED["train_the_copy_task"]
    assert cell() == before, "the same code gives the same numbers"
    assert tutorial.TRAINED["train_the_copy_task"] is not model
    monkeypatch.setattr(tutorial, "attention", scaled_by_one)
    after = cell()
    assert after["loss"] != before["loss"]
    copies = tutorial.EXAMPLES["copies_of_unseen_sequences"]
    edited = copies()
    monkeypatch.setattr(tutorial, "attention", PLAIN)
    cell()
    assert copies() != edited, "the cell after it shows the model that was trained last"


def test_a_cell_trains_what_it_needs_and_only_once(short, monkeypatch):
    copies = tutorial.EXAMPLES["copies_of_unseen_sequences"]
    first = copies()
    model = tutorial.trained("train_the_copy_task")
    assert copies() == first
    assert tutorial.trained("train_the_copy_task") is model


# Examples -----------------------------------------------------------------------------------------


def test_an_example_has_a_name_and_a_seed_of_its_own(monkeypatch):
    monkeypatch.setattr(tutorial, "EXAMPLES", {})

    def numbers() -> tuple[float, float]:
        return torch.rand(()).item(), random.random()

    run = tutorial.example(numbers)
    assert run() == run()
    names = re.findall(r"(?m)^@example\ndef (\w+)", (PROJECT / tutorial.SCRIPT).read_text("utf-8"))
    assert len(names) == len(set(names)) > 0


def test_in_a_notebook_a_check_that_passed_says_so_and_no_other_example(monkeypatch, capsys):
    monkeypatch.setattr(tutorial, "EXAMPLES", {})
    monkeypatch.setattr(tutorial, "IN_NOTEBOOK", True)

    def check_all_is_well():
        pass

    def look_around():
        pass

    tutorial.example(check_all_is_well)
    tutorial.example(look_around)
    assert capsys.readouterr().out == "✓ all is well\n"


def test_a_view_is_shown_as_its_file_says(monkeypatch, tmp_path):
    folder = tmp_path / "docs" / "results" / "views"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tutorial, "HERE", tmp_path)
    monkeypatch.setattr(tutorial, "EXAMPLES", {})
    tutorial.published("a-view")
    [(name, show)] = tutorial.EXAMPLES.items()
    assert name == "published_a_view"
    assert "not measured" in show()
    assert "a-view" in show()
    view = {"columns": ["a", "n"], "rows": [["1 & 2", "3.25"]], "caption": "Of <i>."}
    (folder / "a-view.json").write_text(json.dumps(view))
    page = show().to_html()
    assert all(text in page for text in ("1 &amp; 2", "3.25", "Of &lt;i&gt;."))


# Which corpus and which model a page is made from -------------------------------------------------


def test_what_is_at_hand(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(tutorial, "HERE", tmp_path)
    monkeypatch.setattr(tutorial, "find_corpus", asked.append)
    monkeypatch.setattr(tutorial, "load_trained_model", asked.append)
    monkeypatch.setattr(tutorial, "trained", asked.append)

    def at_hand(level: str) -> list[str]:
        monkeypatch.setenv("ANNOTATED_RUN", level)
        tutorial.corpus_at_hand.__wrapped__()
        tutorial.translator_at_hand()
        return asked[-2:]

    assert at_hand("laptop") == ["multi30k", "train_a_demonstration"]
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "config.json").touch()
    assert at_hand("laptop") == ["multi30k", "pretrained"]
    assert at_hand("smoke") == ["builtin", "train_a_demonstration"]


def test_an_unknown_level_is_refused(monkeypatch):
    monkeypatch.setenv("ANNOTATED_RUN", "full")
    with pytest.raises(ValueError, match="laptop or smoke, got 'full'"):
        tutorial.run_level()


# Importing ----------------------------------------------------------------------------------------

WATCHED_IMPORT = """\
import json, sys
import torch, torch.distributed
seen = []
def watch(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.mkdir", "os.rename", "shutil.")):
        seen.append(event)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"{event} {arguments[0]} {arguments[1]}")
random_state, before = torch.get_rng_state(), set(sys.modules)
sys.addaudithook(watch)
import the_annotated_transformer
packages = "altair pandas spacy torchtext sacrebleu tokenizers safetensors pooch tqdm tyro filelock"
heavy = [name for name in packages.split() if name in set(sys.modules) - before]
same = torch.equal(random_state, torch.get_rng_state())
print("\\n" + json.dumps({"seen": seen, "heavy": heavy, "same": same}))
"""


def test_importing_the_script_does_nothing_and_loads_nothing_heavy(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    printed, _, report = done.stdout.rstrip("\n").rpartition("\n")
    facts = json.loads(report)
    assert (printed, done.stderr) == ("", "")
    assert facts["seen"] == []
    assert facts["heavy"] == []
    assert facts["same"]
    assert list(tmp_path.iterdir()) == []


# What the prose names -----------------------------------------------------------------------------


def spans_of_code(source: str) -> set[str]:
    """What the prose sets as code; not what older code is said to have."""
    prose = [c for c in re.split(r"^# %%", source, flags=re.M) if c.startswith(" [markdown]")]
    text = re.sub(r"```.*?```", "", "\n".join(prose), flags=re.S)
    text = re.sub(r'<a id="older-code">.*?<a id=', "", text, flags=re.S)
    return set(re.findall(r"`([^`]+)`", re.sub(r"\n# ?>? ?", " ", text)))


def words_of_code(source: str) -> set[str]:
    """Every name in the code of the script, and every string, such as the name of a setting."""
    words = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING):
            words.add(token.string.strip("\"'"))
    return words


def words_in(span: str) -> set[str]:
    """Names that a piece of Python uses; none where it is something else."""
    try:
        tree = ast.parse(span.replace("…", "..."))
    except SyntaxError:
        return set()
    parts = {getattr(n, part, None) for n in ast.walk(tree) for part in ("id", "attr", "arg")}
    return parts - {None}


def test_what_the_prose_sets_as_code_exists():
    """A renamed function, argument, option, target or file must not live on in the text."""
    source = (PROJECT / "the_annotated_transformer.py").read_text("utf-8")
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    known = words_of_code(source) | {"B", "help", "torchrun"}  # the notation's, and everybody's
    known |= {"make", "python", "pandas", "read_json", "lines"}
    known |= {"mine", "Mine", "py"}  # the reader's
    torchs = (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.Tensor, torch.optim)
    for place in (builtins, str, tokenizers, *torchs):
        known |= set(dir(place))
    lost = []
    spans = spans_of_code(source) - {".data/multi30k", ".venv/bin/python"}
    for span in sorted(spans):
        if span.startswith("--"):
            exists = span[2:].split()[0].replace("-", "_") in known
        elif span.startswith("make "):
            exists = re.search(rf"^{span.split()[1]}:", makefile, flags=re.M)
        elif re.fullmatch(r"[\w./-]+/[\w./-]*", span):
            exists = (PROJECT / span).exists()
        elif re.fullmatch(r"[\w.-]+\.(pt|json|jsonl|cff|safetensors|de|en|fr)", span):
            exists = True  # a file that a reader or a run has
        else:
            exists = words_in(span) <= known
        if not exists:
            lost.append(span)
    assert not lost, f"the prose names what does not exist: {', '.join(lost)}"
    assert spans
