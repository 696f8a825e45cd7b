"""Every example and check of the text, run in order; and that importing the script does nothing."""

import inspect
import json
import os
import random
import subprocess
import sys

import altair as alt
import pytest
import torch
from conftest import PROJECT

import the_annotated_transformer as tutorial

SLOW = ("without_the_causal_mask", "without_positions", "train_on_pairs_of_your_own")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in tutorial.EXAMPLES],
)
def test_example(name):
    result = tutorial.EXAMPLES[name]()
    assert (result is None) == name.startswith("check_")
    if name == "train_the_copy_task":
        first, *_, last = result.data["loss"]
        assert last < 0.5 * first


# Training cells ---------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch) -> None:
    """Trainings of a moment, whose models nobody else sees."""
    data_gen = tutorial.data_gen

    def less(V: int, batch_size: int, nbatches: int):
        return data_gen(V, min(batch_size, 16), min(nbatches, 5))

    monkeypatch.setattr(tutorial, "data_gen", less)
    monkeypatch.setattr(tutorial, "TRAINED", {})


PLAIN = inspect.unwrap(tutorial.attention)


def not_scaled(query, key, value, mask=None, dropout=None, bias=None):
    """Attention as a reader edits it: without the division."""
    return PLAIN(query * query.size(-1) ** 0.5, key, value, mask, dropout, bias)


def map_of_a_copy() -> dict:
    """A chart of the model that learns to copy."""
    return tutorial.EXAMPLES["attention_of_a_copy_figure"]().to_dict()


def test_a_training_cell_trains_again_with_what_was_edited(short, monkeypatch):
    cell = tutorial.EXAMPLES["train_the_copy_task"]
    before = cell()
    model = tutorial.TRAINED["train_the_copy_task"]
    assert cell().data.equals(before.data)
    assert tutorial.TRAINED["train_the_copy_task"] is not model
    sound = map_of_a_copy()
    monkeypatch.setattr(tutorial, "attention", not_scaled)
    assert not cell().data.equals(before.data)
    edited = map_of_a_copy()
    monkeypatch.setattr(tutorial, "attention", PLAIN)
    cell()
    assert map_of_a_copy() == sound != edited, "the next cell shows the model that was trained last"


def test_a_cell_trains_what_it_needs_only_once(short):
    map_of_a_copy()
    model = tutorial.trained("train_the_copy_task")
    map_of_a_copy()
    assert tutorial.trained("train_the_copy_task") is model


# Examples ---------------------------------------------------------------------------------------


def test_an_example_has_a_seed_of_its_own(monkeypatch):
    monkeypatch.setattr(tutorial, "EXAMPLES", {})

    def numbers() -> tuple[float, float]:
        return torch.rand(()).item(), random.random()

    run = tutorial.example(numbers)
    assert run() == run()


def test_a_published_chart_is_shown_or_said_to_be_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(tutorial, "HERE", tmp_path)
    monkeypatch.setattr(tutorial, "EXAMPLES", {})
    tutorial.published("a-view")
    show = tutorial.EXAMPLES["published_a_view"]
    assert "not measured" in show()
    chart = alt.Chart(alt.Data(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    file = tmp_path / "results" / "views" / "a-view.json"
    file.parent.mkdir(parents=True)
    chart.save(file)
    assert [{"x": 1}] in show().to_dict()["datasets"].values()


def test_the_level_chooses_corpus_and_model(monkeypatch, tmp_path):
    monkeypatch.setattr(tutorial, "HERE", tmp_path)
    monkeypatch.setattr(tutorial, "read_multi30k", lambda: "multi30k")
    monkeypatch.setattr(tutorial, "read_builtin", lambda: "builtin")
    monkeypatch.setattr(tutorial, "load_trained_model", str)
    monkeypatch.setattr(tutorial, "trained", str)

    def at_hand(level: str) -> list[str]:
        monkeypatch.setenv("ANNOTATED_RUN", level)
        return [tutorial.corpus_at_hand.__wrapped__(), tutorial.translator_at_hand()]

    assert at_hand("laptop") == ["multi30k", "train_a_demonstration"]
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "config.json").touch()
    assert at_hand("laptop") == ["multi30k", "pretrained"]
    assert at_hand("smoke") == ["builtin", "train_a_demonstration"]
    monkeypatch.setenv("ANNOTATED_RUN", "full")
    with pytest.raises(ValueError, match="laptop or smoke, got 'full'"):
        tutorial.run_level()


# Importing --------------------------------------------------------------------------------------

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
print(json.dumps({"seen": seen, "heavy": heavy, "same": same}))
"""


def test_importing_the_script_does_nothing_and_loads_nothing_heavy(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_IMPORT],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"seen": [], "heavy": [], "same": True}
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
