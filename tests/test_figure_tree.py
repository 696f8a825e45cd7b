"""The beam as a tree: it grows step by step, and never shows more than is known at a step."""

import functools
import itertools

import pytest
from pages import figure, watched

pytestmark = pytest.mark.slow
SENTENCE = "Ein Kind schläft auf dem Schoß seiner Mutter."


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []


@pytest.fixture
def box(tab):
    return with_a_sentence(figure(tab, "tree"))


def with_a_sentence(box):
    box.get_by_role("button", name="Eine Künstlerin").click()
    wait_for(box, "Eine Künstlerin")
    return at_its_first_step(box)


def press(box, name: str) -> None:
    box.get_by_role("button", name=name, exact=True).press("Enter")


def at_its_first_step(box):
    while not box.get_by_role("button", name="Back", exact=True).get_attribute("aria-disabled"):
        press(box, "Back")
    return box


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def wait_for(box, words: str) -> None:
    """Until the tree is that of this sentence, or width."""
    box.locator(f'.grid[aria-label*="{words}"]:visible').wait_for()


def joined(pieces: list[str]) -> str:
    """What stands in nodes, without spaces."""
    return "".join(pieces).replace("…", "").removesuffix("end")


def test_it_grows_step_by_step_and_nothing_tells_the_end_before(box):
    press(box, "Play")
    count = box.locator(".step").count()
    told = box.locator(".told [role=status]")
    end = told.inner_text()
    place = (
        "key => key.getBoundingClientRect().top - key.closest('figure').getBoundingClientRect().top"
    )
    room = box.locator(".legend").evaluate(place)
    assert box.locator(".grid .fork").count() == 1
    for at in range(1, count):
        press(box, "Step")
        assert box.locator(".step").count() == at
        assert box.locator(".fork").count() == 0
        assert box.locator(".legend").evaluate(place) == room, "nothing jumps"
        assert told.inner_text() != end
    press(box, "Step")
    assert told.inner_text() == end


@pytest.mark.parametrize("width", [1, 4])
def test_it_ends_where_the_script_does(at, shipped, box, width):
    box.get_by_role("slider").fill(str(width))
    wait_for(box, f"width {width}")
    chip = box.get_by_role("group", name="Sentences to try").get_by_role("button", name=SENTENCE)
    chip.click()
    wait_for(box, SENTENCE)
    press(box, "Play")
    for search, nodes in (
        (functools.partial(at.beam_search, beam=width), ".node.best:not(.waits, .own)"),
        (at.greedy_decode, ".node.own"),
    ):
        [theirs] = at.translate(shipped, [SENTENCE], search)
        ours = joined(box.locator(f".step {nodes} b").all_inner_texts())
        assert ours == theirs.replace(" ", "")


def test_the_readers_sentence_is_searched_and_a_sum_falls_along_a_path(box):
    field = box.get_by_role("textbox")
    field.fill("Ein Hund schläft.")
    field.press("Enter")
    wait_for(box, "Ein Hund schläft.")
    logps = [number(text) for text in box.locator(".step .node.best small").all_inner_texts()]
    assert len(logps) > 3, "at once at its end"
    assert logps == sorted(logps, reverse=True)


def test_without_scripts_and_on_paper_the_whole_search_is_shown(tab, box, browser, figures_page):
    silent = figure(watched(browser, figures_page, java_script_enabled=False), "tree")
    count = silent.locator(".tree:visible").last.locator(".step").count()
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert box.locator(".step").count() == count
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert box.locator(".step").count() == 1


OVERLAP = """all => {
    const boxes = all.map((each) => each.getBoundingClientRect());
    return boxes.some((a, i) => boxes.slice(i + 1).some((b) => a.left < b.right - 1
        && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
}"""


EDGES = """all => {
    const boxes = all.map((each) => each.getBoundingClientRect());
    return [Math.min(...boxes.map((each) => each.left)),
        Math.max(...boxes.map((each) => each.right))];
}"""


@pytest.mark.parametrize("width, along, across", [(390, "y", "x"), (1360, "x", "y")])
def test_it_fits_and_grows_downward_where_it_is_narrow(browser, figures_page, width, along, across):
    size = {"width": width, "height": 800}
    tab = watched(browser, figures_page, viewport=size, reduced_motion="reduce")
    box = with_a_sentence(figure(tab, "tree"))
    press(box, "Step")
    places = [node.bounding_box() for node in box.locator(".node.best").all()]
    for one, other in itertools.pairwise(places):
        assert other[along] > one[along] + 30
        assert abs(other[across] - one[across]) < 20
    press(box, "Play")
    scroll = box.locator(".scroll:has(> .grid)")
    assert scroll.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert not box.locator(".node").evaluate_all(OVERLAP)
    if width > 390:
        return
    box.get_by_role("slider").fill("5")
    wait_for(box, "width 5")
    assert scroll.evaluate("box => box.scrollWidth <= box.clientWidth"), "a wide beam, too"
    assert not box.locator(".node").evaluate_all(OVERLAP)
    left, right = box.locator(".node").evaluate_all(EDGES)
    assert 0 <= left < right <= width
