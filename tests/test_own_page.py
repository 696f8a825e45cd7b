"""A page of one's own model: it computes what PyTorch computes; what it cannot hold is refused."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from pages import figure, watched

from tools import records
from tools.page import own
from tools.page.bundle import bundle
from tools.page.markup import FIGURES
from tools.page.playable import packed

OUTPUTS = 300
LENGTH = 16  # tokens of an output: these models find no end
SIZES = {  # two layers or one, both norm orders, one matrix or three, with biases or without
    "pre-norm": {"N": 2, "d_model": 32, "d_ff": 64, "h": 4, "share_embeddings": True},
    "post-norm": {"N": 1, "d_model": 24, "d_ff": 44, "h": 3, "norm_first": False},
    "no biases, int8": {"N": 2, "d_model": 40, "d_ff": 50, "h": 2, "bias": False},
}


def perturbed(at, folder: Path, int8: bool = False, **sizes) -> Path:
    """A model with weights drawn at random, norms and biases too, as the script saves it."""
    vocabularies = at.learn_subwords(at.read_builtin(), 301)
    torch.manual_seed(2)
    words = len(vocabularies[0])
    model = at.build_model(src_vocab=words, tgt_vocab=words, max_len=60, **sizes)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    made = at.Translator("toy & co", model, at.BUILTIN, ("de", "en"), vocabularies)
    at.save_model(made, folder, int8)
    return folder


@pytest.fixture(scope="module", params=SIZES)
def model(request, at, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy"
    return perturbed(at, folder, "int8" in request.param, **SIZES[request.param])


@pytest.fixture
def build(tmp_path, monkeypatch) -> Path:
    """The folder that pages are written to."""
    monkeypatch.setattr(records, "PROJECT", tmp_path)
    return tmp_path / "build"


# It computes what PyTorch computes ----------------------------------------------------------------

GREEDY = """([text, most]) => {
    const search = stills.finish(stills.Search.opening(model, text));
    const steps = [];
    for (const path of search.greedy()) {
        steps.push([path.written.at(-1), [...path.from.next.logProbs]]);
        if (steps.length === most) break;
    }
    return [search.ids, steps];
}"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.browser
def test_what_it_writes_equals_pytorch(at, chromium, model):
    tab = chromium.new_page()
    tab.add_script_tag(content=bundle(FIGURES / "stills.js", "stills"))
    tab.evaluate(
        "files => { self.model = stills.finish(stills.readingModel(files)); }", packed(model)
    )
    theirs = at.load_trained_model(model, torch.device("cpu"))
    texts = [german for german, _ in at.builtin_corpus()["train"]][:OUTPUTS]
    sources = at.source_ids(theirs, texts)
    outputs = set()
    for text, ids in zip(texts, sources, strict=True):
        read, steps = tab.evaluate(GREEDY, [text, LENGTH])
        assert read == ids
        written, log_probs = zip(*steps, strict=True)
        given = torch.tensor([[at.START, *written[:-1]]])
        with torch.no_grad():  # no padding: these models write its token as a word
            mask = at.subsequent_mask(len(written))
            states = theirs.model(torch.tensor([ids]), given, None, mask)
            expected = theirs.model.generator(states)[0]
        torch.testing.assert_close(torch.tensor(log_probs), expected, atol=1e-3, rtol=0)
        for row, token in zip(expected, written, strict=True):
            assert row[token] > row.max() - 1e-3
        outputs.add(written)
    assert len(texts) == OUTPUTS
    assert len(outputs) > 20, "what is read matters"


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_a_page_is_one_file_and_its_figures_can_be_played_with(at, browser, build, model, width):
    own.make(model)
    [page] = build.iterdir()
    assert page.name == "model-toy.html"
    size = {"width": width, "height": 900}
    tab = watched(browser, page, viewport=size, offline=True, reduced_motion="reduce")
    translator = at.load_trained_model(model, torch.device("cpu"))
    has_map = translator.model.arguments["norm_first"]
    names = ["translator", "tree", *["map"] * has_map]
    for name in names:
        figure(tab, name)
    assert tab.locator(".playable").count() == len(names)
    assert ("post-norm" in tab.locator("h1 + p").inner_text()) == (not has_map)
    assert tab.get_by_text(own.NO_MAP).count() == (not has_map)

    box = figure(tab, "translator")
    text = "Ein Hund schläft."
    box.get_by_role("textbox").fill(text)
    box.get_by_role("textbox").press("Enter")
    box.locator(".drawer > summary").click()
    box.get_by_role("combobox").select_option("greedy")
    [translation] = at.translate(translator, [text])
    box.locator(".english", has_text=translation).wait_for()
    offer = box.locator(".offers [aria-pressed=false]").first
    offer.click()
    box.locator(".english .yours").wait_for()

    box = figure(tab, "tree")
    box.locator("[name=width]").fill("2")
    box.locator(".asked", has_text="width 2").wait_for()
    if has_map:
        box = figure(tab, "map")
        last = translator.model.arguments["N"]
        box.get_by_role("group", name="Layer").get_by_role("button").nth(last - 1).click()
        box.locator('[data-place="encoder attention"]').press("Enter")
        box.locator(".weights").wait_for()
        box.get_by_role("button", name="causal mask off").click()
        box.locator(".verdict", has_text="Off: causal mask").wait_for()
        assert box.get_by_role("link", name="the section about it").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.faults == []
    assert tab.asked == [page.as_uri()]


@pytest.mark.browser
def test_its_figures_name_the_language_that_it_reads(at, browser, build):
    folder = perturbed(at, build.parent / "toy", **SIZES["pre-norm"])
    config = folder / "config.json"
    about = json.loads(config.read_bytes()) | {"languages": ["en", "de"]}
    config.write_text(json.dumps(about), "utf-8")
    own.make(folder)
    tab = watched(browser, build / "model-toy.html")
    for name in ("translator", "tree", "map"):
        box = figure(tab, name)
        field = box.get_by_label("sentence in English")
        assert field.get_attribute("lang") == "en"
        assert "German" not in box.inner_text()
        field.fill(" ")
        box.locator(".line", has_text="in English").wait_for()
    assert tab.faults == []


@pytest.mark.browser
def test_a_page_that_was_damaged_says_so(at, browser, build):
    own.make(perturbed(at, build.parent / "toy", **SIZES["pre-norm"]))
    [page] = build.iterdir()
    page.write_text(page.read_text("utf-8").replace('"merges', '"murges'), "utf-8")
    tab = watched(browser, page)
    tab.get_by_role("status").get_by_text("damaged").first.wait_for()


# Sentences ----------------------------------------------------------------------------------------


def test_sentences_are_those_of_the_reader_and_of_the_run(at, small_run):
    validated = [source for source, _ in json.loads((small_run / "val.json").read_bytes())]
    short = [source for source in validated if len(source) <= own.LONGEST]
    assert own.sentences_to_try(small_run, ["de", "en"], "") == short[: own.ENOUGH]
    first, second, *_ = own.sentences_to_try(small_run, ["de", "en"], "Ein Wal.")
    assert (first, second) == ("Ein Wal.", short[0])


def test_a_page_of_a_run_begins_with_a_sentence_of_its_own(at, small_config, tmp_path):
    config = dataclasses.replace(small_config, vocab_size=None, share_embeddings=True, epochs=1)
    at.train_model(config, tmp_path / "run")
    [sentence, *_] = own.sentences_to_try(tmp_path / "run", ["de", "en"], "")
    assert json.dumps(sentence, ensure_ascii=False) in own.page(tmp_path / "run")


# Refusals -----------------------------------------------------------------------------------------


def changed(folder: Path, **changes) -> None:
    """Change what a config.json says about its model; None takes something out."""
    path = folder / "config.json"
    about = json.loads(path.read_bytes())
    merged = about["model"] | changes
    about["model"] = {name: value for name, value in merged.items() if value is not None}
    path.write_text(json.dumps(about), "utf-8")


def with_words(at, folder: Path) -> None:
    vocabularies = at.learn_words(at.read_builtin())
    source, target = map(len, vocabularies)
    model = at.make_model(source, target, N=1, d_model=8, d_ff=8, h=1)
    shutil.rmtree(folder)
    at.save_model(at.Translator("words", model, "none", ("de", "en"), vocabularies), folder)


REFUSED = {
    "attention rotary has no JavaScript: train one with --attention plain": (
        lambda at, folder: changed(folder, attention="rotary")
    ),
    "feed_forward mine has no JavaScript: train one with --feed-forward plain": (
        lambda at, folder: changed(folder, feed_forward="mine")
    ),
    "is a language model": lambda at, folder: changed(folder, src_vocab=None),
    "vocabulary of words": with_words,
    "too large .*make export ARGS=": (
        lambda at, folder: (folder / "model.safetensors").write_bytes(bytes(int(own.LARGEST) + 1))
    ),
    "model.safetensors cannot be read": (
        lambda at, folder: (folder / "model.safetensors").unlink()
    ),
    "no sentence to begin with: give one, as TEXT=": (
        lambda at, folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text("utf-8").replace('"de"', '"fr"'), "utf-8"
        )
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_page_cannot_hold_is_refused_before_anything_is_written(at, build, capsys, message):
    folder = perturbed(at, build.parent / "toy", **SIZES["pre-norm"])
    REFUSED[message](at, folder)
    assert own.main(["make", str(folder)]) == 1
    told = capsys.readouterr().err
    assert re.search(message, told), told
    assert not build.exists()


def test_a_text_that_is_too_long_is_refused(at, build, monkeypatch, capsys):
    monkeypatch.setenv("TEXT", "Ein Hund " * 20)
    folder = perturbed(at, build.parent / "toy", **SIZES["pre-norm"])
    assert own.main(["make", str(folder)]) == 1
    assert "TEXT has 179 letters" in capsys.readouterr().err
    assert not build.exists()
