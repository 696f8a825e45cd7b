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
        weights = tutorial.tiny_model().state_dict()
        content = {"vocabularies": [["a"], ["b"]], "model": weights}
        for name in ("best", "epoch-001", "epoch-002"):
            tutorial.save_checkpoint(folder / f"{name}.pt", content)

    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(tutorial, "launch_training", launch)
    monkeypatch.setattr(tutorial, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.setattr(tutorial, "corpus_name", lambda: "builtin")
    monkeypatch.setattr(tutorial, "load_trained_model", lambda path: f"model of {path}")
    cached = tutorial.demonstration_run, tutorial.translator_at_hand
    for function in cached:
        function.cache_clear()
    yield launched
    for function in cached:
        function.cache_clear()


def finish(run: Path, corpus: str, languages: list[str] | None = None) -> None:
    """A folder as a finished training leaves it."""
    run.mkdir()
    (run / "best.pt").write_bytes(b"")
    summary = {"status": "finished", "corpus": corpus, "validation_bleu": 9.0}
    summary["languages"] = languages or ["de", "en"]
    (run / "summary.json").write_text(json.dumps(summary))


def test_full_trains_the_whole_recipe_without_a_limit(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "full")
    average = tmp_path / "recipe-de-en" / "average.pt"
    assert tutorial.translator_at_hand() == f"model of {average}"
    assert plan == [("recipe", average.parent, None)] and average.is_file()
    assert "recipe" in tutorial.PRESETS


@pytest.mark.parametrize(("level", "preset"), [("laptop", "demo"), ("smoke", "smoke")])
def test_demonstrations_are_bounded_and_start_anew(plan, monkeypatch, tmp_path, level, preset):
    monkeypatch.setenv("ANNOTATED_RUN", level)
    old = tmp_path / f"{preset}-demonstration" / "last.pt"
    old.parent.mkdir()
    old.write_bytes(b"of an earlier reader")
    assert tutorial.demonstration_run() == old.parent
    [(name, folder, minutes)] = plan
    assert (name, folder) == (preset, old.parent) and 0 < minutes <= 3
    assert not old.exists()


def test_laptop_takes_the_model_of_the_repository_first(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    finish(tmp_path / "mine", tutorial.BUILTIN)
    tutorial.PRETRAINED.mkdir()
    (tutorial.PRETRAINED / "config.json").touch()
    monkeypatch.setattr(tutorial, "load_pretrained", lambda: "the model of the repository")
    assert tutorial.translator_at_hand() == "the model of the repository"
    assert plan == []


def test_laptop_takes_a_finished_model_of_the_same_corpus(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    for run, corpus in {"mine": tutorial.BUILTIN, "other": "Multi30k"}.items():
        finish(tmp_path / run, corpus)
    finish(tmp_path / "backwards", tutorial.BUILTIN, ["en", "de"])
    assert tutorial.translator_at_hand() == f"model of {tmp_path / 'mine'}"
    assert plan == []


def test_without_any_model_the_demonstration_serves(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    finish(tmp_path / "other", "Multi30k")
    assert tutorial.translator_at_hand() == f"model of {tmp_path / 'demo-demonstration'}"
    assert [preset for preset, *_ in plan] == ["demo"]


def test_smoke_uses_its_demonstration_only(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_RUN", "smoke")
    finish(tmp_path / "mine", tutorial.BUILTIN)
    tutorial.PRETRAINED.mkdir()
    (tutorial.PRETRAINED / "config.json").touch()
    assert tutorial.translator_at_hand() == f"model of {tmp_path / 'smoke-demonstration'}"


def test_an_unknown_level_is_refused(monkeypatch):
    monkeypatch.setenv("ANNOTATED_RUN", "workstation")
    with pytest.raises(ValueError, match="smoke, laptop, full, got 'workstation'"):
        tutorial.run_level()
