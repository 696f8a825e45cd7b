"""The beam as a tree: it grows step by step, and never shows more than is known at a step."""

import itertools
import re

import pytest
from pages import figure, watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SENTENCE = "Ein Kind schläft auf dem Schoß seiner Mutter."


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []


@pytest.fixture
def box(tab):
    return at_its_first_step(figure(tab, "tree"))


def at_its_first_step(box):
    back = box.get_by_role("button", name="Back", exact=True)
    while not back.get_attribute("aria-disabled"):
        back.press("Enter")
    return box


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def step(box, times: int = 1) -> None:
    """Press the button by a key: after scrolling, a mouse would hover over a node."""
    for _ in range(times):
        box.get_by_role("button", name="Step", exact=True).press("Enter")


def play(box) -> None:
    """To the end at once, since motion is unwelcome."""
    box.get_by_role("button", name="Play", exact=True).press("Enter")


def wait_for(box, words: str) -> None:
    """Until the line above the tree says this."""
    box.locator(".asked", has_text=words).wait_for()


def test_it_grows_step_by_step_and_nothing_tells_the_end_before(box):
    play(box)
    count = box.locator(".step").count()
    end = box.locator(".told [role=status]").inner_text()
    rooms = """box => [".told", ".key", ".ranks", ".about"].map((name) =>
        box.querySelector(name).getBoundingClientRect().top - box.getBoundingClientRect().top)"""
    room = box.evaluate(rooms)
    assert box.locator(".grid .fork").count() == 1
    for at in range(1, count):
        step(box)
        assert box.locator(".step").count() == at
        assert box.locator(".fork").count() == 0
        assert box.evaluate(rooms) == room, "nothing jumps"
        told = box.locator(".told [role=status]").inner_text()
        assert re.search(rf"\b{at}\b", told)
        assert "winner" not in told
    step(box)
    assert box.locator(".told [role=status]").inner_text() == end


@pytest.mark.parametrize("width", [390, 1440])
def test_it_opens_near_its_start_and_fits_to_its_last(browser, figures_page, width):
    size = {"width": width, "height": 900}
    tab = watched(browser, figures_page, viewport=size, reduced_motion="reduce")
    box = figure(tab, "tree")
    assert box.locator(".step").count() == 3
    play(box)
    assert box.locator(".step").count() > 3
    scroll = box.locator(".scroll:has(> .grid)")
    assert scroll.evaluate("box => box.scrollWidth <= box.clientWidth")
    overlap = """all => {
        const boxes = all.map((each) => each.getBoundingClientRect());
        return boxes.some((a, i) => boxes.slice(i + 1).some((b) => a.left < b.right - 1
            && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
    }"""
    assert not box.locator("button.node").evaluate_all(overlap)


def test_without_scripts_the_whole_tree_is_shown_once(browser, figures_page):
    tab = watched(browser, figures_page, java_script_enabled=False)
    box = figure(tab, "tree")
    assert box.locator(".grid:visible").count() == 1
    assert box.locator(".step:visible").count() > 3


def test_on_paper_the_search_is_over(tab, box):
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert box.locator(".step").count() > 3
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert box.locator(".step").count() == 1


def test_ended_hypotheses_are_ranked_by_log_probability_over_the_length_penalty(box):
    play(box)
    for width, alpha in ((2, 2.0), (5, 0.0)):
        box.locator("[name=width]").fill(str(width))
        box.locator("[name=alpha]").fill(str(alpha))
        wait_for(box, f"width {width}, α = {alpha}")
        scores = []
        for row in box.locator(".ranks tbody tr:not(.empty)").all():
            *_, logp, length, score = row.locator("td").all()
            expected = number(logp.inner_text()) / ((5 + int(length.inner_text())) / 6) ** alpha
            scores.append(number(score.inner_text()))
            assert scores[-1] == pytest.approx(expected, abs=0.002)
        assert scores == sorted(scores, reverse=True)
        assert len(scores) <= width
        winner = box.locator(".ranks tbody tr:not(.empty)").first.locator("td").nth(1)
        pieces = box.locator(".step .node.best:not(.waits) b").all_inner_texts()
        written = "".join(pieces).replace("…", "").removesuffix("end")
        assert written == winner.locator("span > :first-child").inner_text().replace(" ", "")


def test_a_step_keeps_as_many_as_the_width_and_a_sum_falls_along_a_path(box):
    box.locator("[name=width]").fill("4")
    wait_for(box, "width 4")
    step(box, 2)
    logps = box.locator(".step .node.best small").all_inner_texts()
    assert len(logps) == 3
    assert all(number(a) >= number(b) for a, b in itertools.pairwise(logps))
    last = box.locator(".step:last-of-type")
    cut = [number(text) for text in last.locator(".node.cut small").all_inner_texts()]
    stay = last.locator(".node:not(.own):not(.cut) small").all_inner_texts()
    assert len(stay) == 4
    assert max(cut) <= min(number(text) for text in stay)


def test_the_readers_sentence_is_searched(tab, box):
    chip = box.get_by_role("group", name="Sentences to try").get_by_role("button").nth(1)
    chip.click()
    wait_for(box, SENTENCE)
    field = box.get_by_role("textbox")
    assert field.input_value() == SENTENCE
    field.fill("Ein Hund schläft.")
    field.press("Enter")
    wait_for(box, "Ein Hund schläft.")
    assert "winner" in box.locator(".key").inner_text(), "at once at its end"
    field.fill(" ")
    assert "Ein Hund schläft." in box.locator(".asked").inner_text()
    assert [address.rsplit("/")[-1] for address in tab.asked] == ["page.html", "model.js"]


def test_a_node_shows_what_it_has_proposed_and_what_became_of_it(box):
    step(box, 3)
    about = box.locator(".about")
    stay = "> .node:not(.own):not(.cut)"
    named = []
    for node in box.locator(".step").nth(2).locator(stay).all():
        node.focus()
        shares = about.locator("tbody td:nth-child(2)").all_inner_texts()
        assert sum(map(float, shares)) == pytest.approx(1, abs=0.03)
        rows = [row.split() for row in about.locator("tbody tr").all_inner_texts()[:3]]
        assert {row[-1] for row in rows} <= {"kept", "cut"}
        named += [row[0] for row in rows if row[-1] == "kept"]
    grown = box.locator(".step:last-of-type").locator(stay).locator("b").all_inner_texts()
    assert sorted(named) == sorted(grown)
    where = about.locator("p").inner_text()
    box.page.keyboard.press("ArrowRight")
    assert about.locator("p").inner_text() != where
    assert set(about.locator("tbody td:last-child").all_inner_texts()) == {""}, "not known yet"
    box.locator(".step:last-of-type .node.cut").first.focus()
    assert about.locator(".meant td").last.inner_text() == "cut"
    box.get_by_role("button", name="Back", exact=True).press("Enter")  # the node is gone
    assert box.locator(".grid [tabindex='0']").get_attribute("aria-label") == "the start"


@pytest.mark.parametrize("width, along, across", [(390, "y", "x"), (1360, "x", "y")])
def test_it_grows_downward_where_it_is_narrow(browser, figures_page, width, along, across):
    size = {"width": width, "height": 800}
    tab = watched(browser, figures_page, viewport=size, has_touch=True, reduced_motion="reduce")
    box = at_its_first_step(figure(tab, "tree"))
    step(box, 2)
    places = [node.bounding_box() for node in box.locator("button.best").all()]
    assert len(places) == 3
    for one, other in itertools.pairwise(places):
        assert other[along] > one[along] + 30
        assert abs(other[across] - one[across]) < 20
    node = box.locator(".step:last-of-type .node.cut").first
    node.tap()
    assert node.locator("b").inner_text().lstrip("…") in box.locator(".about p").inner_text()
