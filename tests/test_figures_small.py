"""Sampling and subwords: their numbers are those of the script, and a walk through each."""

import re
from pathlib import Path

import pytest
import torch
from pages import engine_in, figure, watched

from tools.page.bundle import bundle
from tools.page.markup import FIGURES

pytestmark = pytest.mark.slow
ODD = [
    "",
    "   ",
    "Łódź, 日本 🙂!",
    "u\u0308ber Cafe\u0301",  # as two characters each
    "<s> <unk> ▁a\u00a0b\u0085c\ufeff \x07",
    "“Café”—naïve…1,000.50",
    "Donaudampfschifffahrtsgesellschaftskapitän",
]


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the shipped model and the figures' functions, and no page."""
    tab = engine_in(chromium)
    for name in ("sampling", "pieces"):
        tab.add_script_tag(content=bundle(FIGURES / f"{name}.js", name))
    return tab


@pytest.fixture
def double():
    """The script computes in double precision, as JavaScript does."""
    torch.set_default_dtype(torch.double)
    yield
    torch.set_default_dtype(torch.float)


# Sampling -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(engine):
    """What the figure of sampling shows."""
    return engine.evaluate("sampling.firstScene(model)")


@pytest.mark.parametrize(
    "temperature, top_k, top_p",
    [(1.0, None, 1.0), (0.3, None, 1.0), (2.0, 12, 1.0), (1.0, None, 0.8), (1.7, 100, 0.35)],
)
def test_it_draws_from_what_the_script_draws_from(
    at, double, engine, shown, monkeypatch, temperature, top_k, top_p
):
    drawn_from = []

    def multinomial(probabilities, number):
        drawn_from.append(probabilities[0] / probabilities.sum())
        return torch.zeros(1, number, dtype=torch.long)

    monkeypatch.setattr(torch.Tensor, "multinomial", multinomial)
    at.draw(torch.tensor([shown["logProbs"]]), temperature, top_k, top_p)
    choice = {"temperature": temperature, "topK": top_k, "topP": top_p}
    ours = engine.evaluate("given => sampling.drawnFrom(...given)", [shown["logProbs"], choice])
    torch.testing.assert_close(torch.tensor(ours), drawn_from[0], atol=1e-9, rtol=0)


def test_the_distribution_is_that_of_the_shipped_model(at, shipped, shown):
    batch = at.source_batch(shipped, [at.SENTENCE])
    written = at.greedy_decode(shipped.model, batch.src, batch.src_mask, 4, at.START)
    assert shipped.vocabularies[1].decode(written[0, 1:].tolist()) == shown["written"]
    batch = at.Batch(batch.src, torch.cat([written, written[:, :1]], dim=1))
    with torch.no_grad():
        states = shipped.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = shipped.model.generator(states)[0, -1]
    expected = log_probs.sort(descending=True).values
    torch.testing.assert_close(torch.tensor(shown["logProbs"]), expected, atol=1e-3, rtol=0)


def test_a_hyphen_says_that_the_model_goes_on_with_the_word(at, shipped, shown):
    batch = at.source_batch(shipped, [at.SENTENCE])
    written = at.greedy_decode(shipped.model, batch.src, batch.src_mask, 4, at.START)
    words = shipped.vocabularies[1].words
    marked = []
    for name in shown["names"][:12]:
        token = torch.tensor([[words.index(f"▁{name.removesuffix('-')}")]])
        read = torch.cat([written, token], dim=1)
        longer = at.Batch(batch.src, torch.cat([read, token], dim=1))
        with torch.no_grad():
            states = shipped.model(longer.src, longer.tgt, longer.src_mask, longer.tgt_mask)
            following = words[shipped.model.generator(states)[0, -1].argmax()]
        goes_on = following[0].isalpha()
        assert name.endswith("-") == goes_on, name
        marked.append(goes_on)
    assert len(set(marked)) == 2, "both kinds are there"


def test_a_token_is_drawn_as_often_as_its_probability_says(engine):
    drawn = engine.evaluate(
        """() => {
            const numbers = Array.from({ length: 1000 }, (_, i) => (i + 0.5) / 1000);
            return numbers.map((number) => sampling.tokenAt(number, [0.2, 0.5, 0.3, 0]));
        }"""
    )
    assert [drawn.count(token) for token in range(4)] == [200, 500, 300, 0]


# Subwords -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_text_is_cut_as_the_script_cuts_it(at, engine, shipped):
    captions = [text for pair in at.builtin_corpus()["train"] for text in pair]
    script = Path(at.__file__).read_text("utf-8").splitlines()
    prose = [line[2:] for line in script if line.startswith("# ") and len(line.split()) > 6]
    lines = captions + prose[:200]
    words = sorted({word for line in lines for word in line.split()})
    backwards = [word[::-1] for word in words]  # that it has never seen
    texts = [*ODD, *lines, *words, *backwards]
    cut = """texts => texts.map((text) =>
        stills.finish(pieces.sceneOf(model, { text })).words)"""
    scenes = engine.evaluate(cut, texts)
    for text, ids, scene in zip(texts, shipped.vocabularies[0].encode(texts), scenes, strict=True):
        assert [box["id"] for word in scene for box in word] == ids, text
        spelt = "".join(box["piece"] for word in scene for box in word)
        assert spelt == "".join(f"▁{word}" for word in at.clean(text).split()), text
        for word in scene:
            for box in word:
                known = "whole" if len(word) == 1 else "part"
                assert box["kind"] == ("unknown" if box["id"] == at.UNKNOWN else known)


# Using them ---------------------------------------------------------------------------------------


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page)
    yield tab
    assert tab.faults == []


def test_sliders_cut_what_is_never_drawn_then(tab, figures_page):
    box = figure(tab, "sampling")
    slider = {name: box.get_by_role("slider", name=name) for name in ("temp", "top-k", "top-p")}
    slider["temp"].press("Home")
    assert box.locator(".cut").count() == 0, "at top-p of one nothing is cut"
    slider["temp"].press("End")
    slider["top-k"].fill("1")  # the second choice: two tokens
    box.get_by_role("button", name="Draw").click()
    counts = [int(text.removesuffix(" ×")) for text in box.locator("td.count").all_inner_texts()]
    assert sum(counts) == sum(counts[:2]) == 100
    assert box.locator(".legend i").count() == 0
    slider["top-k"].press("End")
    assert box.locator(".legend i").inner_text(), "some of the others are named"
    slider["top-k"].fill("1")
    slider["top-p"].press("Home")
    assert box.locator("td.count").first.inner_text() == "100 ×", "drawn from what is left"
    assert box.locator("tbody tr:not(.cut)").count() == 1
    assert tab.asked == [figures_page.as_uri()], "it needs no model"


def test_what_is_typed_or_chosen_is_cut_at_once(tab, shipped):
    box = figure(tab, "pieces")
    field = box.get_by_role("textbox")
    examples = box.get_by_role("button").all()
    for text in ("Ein Schneeräumfahrzeug.", "日", "", *examples):
        if isinstance(text, str):
            field.fill(text)
        else:
            text.click()
        [ids] = shipped.vocabularies[0].encode([field.input_value()])
        box.get_by_role("status").get_by_text(re.compile(rf"^{len(ids)} subwords?\.$")).wait_for()
        assert [*map(int, box.locator("ol small").all_text_contents())] == ids
