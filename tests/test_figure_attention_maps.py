"""All attention maps of a sentence: one is chosen, and read cell by cell."""

import pytest
from pages import figure, watched

pytestmark = pytest.mark.slow


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []


@pytest.fixture
def box(tab):
    return figure(tab, "maps")


def head(box, name: str):
    return box.get_by_role("button", name=name)


def large(box) -> list[list[int]]:
    """The numbers of the large map; 0 where none is written."""
    rows = box.locator("tbody tr").all()
    return [[int(text or 0) for text in row.locator("td").all_text_contents()] for row in rows]


def test_the_chosen_map_has_the_weights_of_the_script(at, shipped, box):
    sentence = box.locator("input[lang=de]").input_value()
    theirs = at.attention_maps(shipped, sentence)
    for kind in theirs.attention.unique():
        box.get_by_role("button", name=kind).click()
        for layer, number in (("1", "2"), ("3", "mean")):
            name = f"head {number}" if number != "mean" else "mean of its heads"
            head(box, f"layer {layer}, {name}").click()
            rows = theirs[(theirs.attention == kind) & (theirs.layer.astype(str) == layer)]
            [row] = rows[rows["head"].astype(str) == number].itertuples()
            ours = [weight for line in large(box) for weight in line]
            assert len(ours) == len(row.weights)
            for mine, other in zip(ours, row.weights, strict=True):
                assert abs(mine - other) <= 1 or (mine == 0 and other < 6)


def test_it_opens_at_the_clearest_head_of_the_last_layer(shipped, box):
    def sharpness() -> int:
        return sum(max(row) for row in large(box))

    opened = sharpness()
    layers = shipped.model.decoder.layers
    others = []
    for number in range(1, layers[-1].src_attn.h + 1):
        head(box, f"layer {len(layers)}, head {number}").click()
        others.append(sharpness())
    assert opened == max(others)


def test_mouse_and_keys_lead_through_heads_and_cells(tab, box):
    box.locator("tbody tr").nth(3).locator("td").nth(2).hover()
    marks = box.locator(".overview .row")
    assert {mark.get_attribute("y") for mark in marks.all()} == {"3"}, "its row in all maps"
    head(box, "layer 1, head 1").focus()
    for key, name in (("ArrowRight", "layer 1, head 2"), ("ArrowDown", "layer 2, head 2")):
        tab.keyboard.press(key)
        assert head(box, name).get_attribute("aria-pressed") == "true"
        asked = box.locator("tbody tr:has(td.asked)")
        assert asked.inner_text() == box.locator("tbody tr").nth(3).inner_text(), "as before"
    box.locator("td[tabindex='0']").focus()
    before = box.locator(".readout").inner_text()
    tab.keyboard.press("ArrowDown")
    assert box.locator(".readout").inner_text() != before


@pytest.mark.parametrize("width", [390, 1440])
def test_maps_of_a_long_sentence_fit_and_the_head_stays(browser, figures_page, width):
    size = {"width": width, "height": 900}
    tab = watched(browser, figures_page, viewport=size, has_touch=True, reduced_motion="reduce")
    box = figure(tab, "maps")
    head(box, "layer 3, head 2").click()
    before = box.locator(".translated").inner_text()
    long = "Ein Mann und eine Frau sitzen auf einer Bank im Park und lesen."
    box.locator("input[lang=de]").fill(long)
    box.locator("thead", has_text="Park").wait_for()
    assert box.locator(".translated").inner_text() != before
    assert head(box, "layer 3, head 2").get_attribute("aria-pressed") == "true"
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    box.locator("tbody tr").nth(2).locator("td").nth(1).tap()
    assert box.locator(".overview .row").count() > 0
    assert tab.faults == []
