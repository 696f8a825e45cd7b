"""Watch it learn: the stored moments of a training, which a slider goes through."""

import pytest
from pages import figure, watched

from tools import records

pytestmark = pytest.mark.slow


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []
    assert tab.asked == [figures_page.as_uri()], "it needs no model"


def test_each_moment_shows_what_was_written_and_where_the_model_looked(tab):
    box = figure(tab, "moments")
    slider = box.get_by_role("slider")
    sentences = box.get_by_role("group", name="Sentences").get_by_role("button")
    for number, moment in enumerate(records.read("learning")["moments"]):
        slider.fill(str(number))
        for button, sentence in enumerate(moment["sentences"]):
            sentences.nth(button).click()
            rows = box.locator(".alignment .written").count()
            assert 0 < rows <= len(sentence["written"])
            wrote = "".join(sentence["written"][:rows]).replace("</s>", "").replace("▁", " ")
            shown = box.locator(".wrote:not(:has(i))").all_inner_texts()  # or nothing yet
            assert " ".join(shown).removesuffix(" …").split() == wrote.split()
            weights = [weight for row in sentence["attention"][:rows] for weight in row]
            drawn = box.locator(".alignment rect:not(.frame)").evaluate_all(
                "all => all.map((each) => Number(each.getAttribute('fill-opacity')))"
            )
            assert drawn == [weight for weight in weights if weight]


def test_the_dot_is_on_the_line_from_the_first_loss_on(tab):
    box = figure(tab, "moments")
    record = records.read("learning")
    log = records.read(f"runs/{record['run']}")["log"]
    losses = {epoch["updates"]: epoch["nll"] for epoch in log}
    highest = max(int(text) for text in box.locator(".tick").all_inner_texts())
    for number, moment in enumerate(record["moments"]):
        box.get_by_role("slider").fill(str(number))
        now = float(box.locator(".now").get_attribute("d").split()[0].removeprefix("M"))
        assert now == pytest.approx(number / (len(record["moments"]) - 1)), (
            "below the slider's knob"
        )
        if moment["updates"] < min(losses):
            assert box.locator(".dot").count() == 0
        elif moment["updates"] in losses:
            top = box.locator(".dot").evaluate("each => parseFloat(each.style.top)")
            loss = losses[moment["updates"]]
            assert highest * (1 - top / 100) == pytest.approx(loss, abs=highest / 5000)
            assert f"{loss:.2f}" in box.get_by_role("status").inner_text()


def test_keys_and_play_go_through_the_moments_and_nothing_jumps(tab):
    box = figure(tab, "moments")
    slider = box.get_by_role("slider")
    places = """box => [".board", ".loss", ".line"].map((name) =>
        box.querySelector(name).getBoundingClientRect().top - box.getBoundingClientRect().top)"""
    before = box.evaluate(places)
    last = slider.get_attribute("max")
    assert slider.input_value() == "0"
    for _ in range(int(last)):
        slider.press("ArrowRight")
        assert box.evaluate(places) == before
    assert slider.input_value() == last
    box.get_by_role("button", name="Play").press("Enter")
    assert slider.input_value() == last, "with reduced motion it is at once at its end"
