"""What is run at which level: the plan of `full` without its hours, and the demonstrations."""

import json
from pathlib import Path

import pytest

import the_annotated_transformer as tutorial


@pytest.fixture
def plan(monkeypatch, tmp_path):
    """Calls of `launch_training` instead of trainings; each leaves what a short one would leave."""
    launched = []

    def launch(preset: str, folder: Path, minutes: float | None = None) -> None:
        launched.append((preset, folder, minutes))
        folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(tutorial, "launch_training", launch)
    tutorial.trained_run.cache_clear()
    yield launched
    tutorial.trained_run.cache_clear()


def test_full_trains_the_real_model_without_a_limit(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "full")
    assert tutorial.trained_run() == tmp_path / "words-de-en"
    assert plan == [("words", tmp_path / "words-de-en", None)]


@pytest.mark.parametrize(("level", "preset"), [("laptop", "demo"), ("smoke", "smoke")])
def test_demonstrations_are_bounded_and_start_anew(plan, monkeypatch, tmp_path, level, preset):
    monkeypatch.setenv("ANNOTATED_RUN", level)
    monkeypatch.setattr(tutorial, "corpus_name", lambda: "builtin")
    old = tmp_path / f"{preset}-demonstration" / "last.pt"
    old.parent.mkdir()
    old.write_bytes(b"of an earlier reader")
    assert tutorial.trained_run() == old.parent
    [(name, folder, minutes)] = plan
    assert (name, folder) == (preset, old.parent) and 0 < minutes <= 3
    assert not old.exists()


def test_laptop_takes_a_finished_model_of_the_same_corpus(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    monkeypatch.setattr(tutorial, "corpus_name", lambda: "builtin")
    for run, corpus in {"mine": tutorial.BUILTIN, "other": "Multi30k"}.items():
        (tmp_path / run).mkdir()
        (tmp_path / run / "best.pt").write_bytes(b"")
        summary = {"status": "finished", "corpus": corpus, "validation_bleu": 9.0}
        (tmp_path / run / "summary.json").write_text(json.dumps(summary))
    assert tutorial.trained_run() == tmp_path / "mine"
    assert len(plan) == 1, "the demonstration is trained all the same"


def test_an_unknown_level_is_refused(monkeypatch):
    monkeypatch.setenv("ANNOTATED_RUN", "workstation")
    with pytest.raises(ValueError, match="smoke, laptop, full, got 'workstation'"):
        tutorial.run_level()
