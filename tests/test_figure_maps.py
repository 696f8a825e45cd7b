"""All attention maps of a sentence: one is chosen, read cell by cell, and named."""

import re

import pytest
from pages import figure, watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]
DARKEST = """paths => {
    const shade = (path) => Number(path.getAttribute("fill-opacity"));
    const isSeen = (path) => getComputedStyle(path).fill !== "none";
    const [darkest] = paths.filter(isSeen).sort((one, other) => shade(other) - shade(one));
    return darkest.getAttribute("d").match(/M(\\d+) (\\d+)/).slice(1).map(Number);
}"""  # the first of its squares: column, row


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


def focused(tab) -> str:
    return tab.evaluate("document.activeElement.getAttribute('aria-label')")


def large(box) -> list[list[int]]:
    """The numbers of the large map; 0 where none is written."""
    rows = box.locator("tbody tr").all()
    return [[int(text or 0) for text in row.locator("td").all_text_contents()] for row in rows]


def test_the_small_map_that_is_chosen_stands_large_beside(box):
    seen = set()
    for name in ("layer 1, head 2", "layer 3, head 3", "layer 2, mean of its heads"):
        head(box, name).click()
        [chosen] = box.locator(".overview [aria-pressed=true]").all()
        assert chosen.get_attribute("aria-label") == name
        assert name in box.locator(".title").inner_text()
        numbers = large(box)
        seen.add(str(numbers))
        darkest = chosen.locator("path").evaluate_all(DARKEST)
        key, query = darkest
        assert numbers[query][key] > max(map(max, numbers)) - 13, "within a shade"
    assert len(seen) == 3


def test_rows_have_the_sum_one_and_later_words_are_closed(box):
    for kind in ("cross-attention", "encoder self-attention", "decoder self-attention"):
        button = box.get_by_role("button", name=kind)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert box.locator(".kinds [aria-pressed=true]").count() == 1
        numbers = large(box)
        assert all(60 < sum(row) <= 105 for row in numbers), "but for weights below 5"
        closed = box.locator("td.closed").count()
        size = len(numbers)
        assert closed == (size * (size - 1) // 2 if kind.startswith("decoder") else 0)


def test_arrow_keys_lead_through_the_heads_and_through_the_cells(tab, box):
    head(box, "layer 1, head 1").focus()
    for key, name in (
        ("ArrowRight", "layer 1, head 2"),
        ("ArrowDown", "layer 2, head 2"),
        ("ArrowLeft", "layer 2, head 1"),
        ("ArrowUp", "layer 1, head 1"),
    ):
        tab.keyboard.press(key)
        assert focused(tab) == name
        assert head(box, name).get_attribute("aria-pressed") == "true"
    box.locator("td[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        tab.keyboard.press(key)
    cell = box.locator("tbody tr").nth(1).locator("td").nth(2)
    assert cell.evaluate("cell => cell === document.activeElement")
    assert box.locator(".readout").inner_text() == focused(tab)


def test_the_row_of_a_cell_is_marked_in_all_maps(box):
    assert box.locator(".overview .row").count() == 0
    box.locator("tbody tr").nth(3).locator("td").nth(2).hover()
    marks = box.locator(".overview .row")
    assert marks.count() == box.locator(".overview svg").count()
    assert {mark.get_attribute("y") for mark in marks.all()} == {"3"}
    assert re.search(r"0\.\d\d|1\.00", box.locator(".readout").inner_text())


def test_a_head_keeps_the_name_that_it_was_given(tab, box, figures_page):
    head(box, "layer 2, head 2").click()
    name = box.get_by_label("Your name for this head")
    name.fill("copies one by one")
    assert head(box, "layer 2, head 2: copies one by one").count() == 1
    head(box, "layer 2, mean of its heads").click()
    assert name.is_disabled(), "a mean is no head"
    box.get_by_role("button", name="encoder self-attention").click()
    head(box, "layer 2, head 2").click()
    assert name.input_value() == "", "another attention has other heads"
    name.fill("<b>")
    tab.goto(figures_page.as_uri())
    box = figure(tab, "maps")
    again = head(box, "layer 2, head 2: copies one by one")
    again.wait_for()
    again.click()
    assert box.get_by_label("Your name for this head").input_value() == "copies one by one"


def test_another_sentence_has_other_maps_of_the_same_head(box):
    head(box, "layer 3, head 2").click()
    before = box.locator(".translated").inner_text()
    box.locator(".chips button").nth(1).click()
    box.locator("thead", has_text="Frauen").wait_for()
    assert box.locator(".translated").inner_text() != before
    assert head(box, "layer 3, head 2").get_attribute("aria-pressed") == "true"
    assert len(large(box)) == box.locator("tbody th").count() > 5


@pytest.mark.parametrize("width", [390, 1440])
def test_all_maps_fit_and_a_long_sentence_scrolls_by_itself(browser, figures_page, width):
    size = {"width": width, "height": 900}
    tab = watched(browser, figures_page, viewport=size, has_touch=True, reduced_motion="reduce")
    box = figure(tab, "maps")
    fits = "box => box.scrollWidth <= box.clientWidth"
    assert box.locator(".one .scroll").evaluate(fits)
    box.locator("input[lang=de]").fill(
        "Ein Mann und eine Frau sitzen auf einer Bank im Park und lesen."
    )
    box.locator("thead", has_text="Park").wait_for()
    assert box.evaluate(fits)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    box.locator("tbody tr").nth(2).locator("td").nth(1).tap()
    assert box.locator(".overview .row").count() > 0
    assert tab.faults == []
