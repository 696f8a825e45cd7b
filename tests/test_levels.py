"""Which corpus and which model a page is made from, by ANNOTATED_RUN and what lies at hand."""

import pytest


@pytest.fixture
def asked(at, monkeypatch, tmp_path) -> list:
    """What was asked for instead of loading or training it; no model lies beside the script."""
    asked = []
    monkeypatch.setattr(at, "HERE", tmp_path)
    monkeypatch.setattr(at, "find_corpus", lambda name, languages: asked.append(name))
    monkeypatch.setattr(at, "load_trained_model", lambda name: asked.append(name) or name)
    monkeypatch.setattr(at, "demonstration", lambda: asked.append("demonstration"))
    at.translator_at_hand.cache_clear()
    yield asked
    at.translator_at_hand.cache_clear()


@pytest.mark.parametrize(
    "level, finished, corpus, model",
    [
        ("laptop", True, "auto", "pretrained"),
        ("laptop", False, "auto", "demonstration"),
        ("smoke", True, "builtin", "demonstration"),
        (None, True, "auto", "pretrained"),
    ],
)
def test_what_is_at_hand(at, asked, monkeypatch, tmp_path, level, finished, corpus, model):
    monkeypatch.delenv("ANNOTATED_RUN")
    if level:
        monkeypatch.setenv("ANNOTATED_RUN", level)
    if finished:
        (tmp_path / "pretrained").mkdir()
        (tmp_path / "pretrained" / "config.json").touch()
    at.corpus_at_hand()
    at.translator_at_hand()
    at.translator_at_hand()
    assert asked == [corpus, model], "and a model only once"


def test_an_unknown_level_is_refused(at, monkeypatch):
    monkeypatch.setenv("ANNOTATED_RUN", "full")
    with pytest.raises(ValueError, match="laptop or smoke, got 'full'"):
        at.run_level()
