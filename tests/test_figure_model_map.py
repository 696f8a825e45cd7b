"""The model as a map: each box shows what a position has there, and leads to its section."""

import re

import pytest
from conftest import PROJECT
from pages import figure, watched
from playwright.sync_api import expect

pytestmark = pytest.mark.slow
PLAN = (PROJECT / "images/architecture.svg").read_text("utf-8")
LINKS = {place: link for link, place in re.findall(r'href="(.+?)" data-place="(.+?)"', PLAN)}


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce", has_touch=True)
    yield tab
    assert tab.faults == []


@pytest.fixture
def box(tab):
    return figure(tab, "map")


def place(box, name: str):
    return box.locator(f'[data-place="{name}"]')


def wait_for(box, name: str) -> None:
    """Until a box is the chosen one."""
    box.locator(f'.chosen[data-place="{name}"]').wait_for()


def shares(box) -> dict[str, float]:
    """What the panel shows: the likeliest subwords with their probabilities."""
    rows = [row.split() for row in box.locator(".panel li").all_inner_texts()]
    return {piece: float(share) for piece, share in rows}


def test_every_box_is_shown_without_a_jump_and_leads_to_its_section(box):
    height = box.locator(".board").evaluate("board => board.offsetHeight")
    places = box.locator("[data-place]").evaluate_all("all => all.map((e) => e.dataset.place)")
    assert sorted(places) == sorted(LINKS)
    told = set()
    for name in places:
        place(box, name).press("Enter")
        wait_for(box, name)
        assert box.locator(".panel a").get_attribute("href") == LINKS[name]
        assert box.locator(".board").evaluate("board => board.offsetHeight") == height, name
        told.add(box.locator(".panel").inner_text())
    assert len(told) == len(places)


def test_a_box_is_chosen_by_mouse_finger_and_keys_and_the_panel_leads_on(tab, box):
    address = tab.url
    cross, final = "decoder cross", "decoder final"
    place(box, final).hover()
    wait_for(box, final)
    place(box, cross).tap()
    wait_for(box, cross)
    place(box, final).press(" ")
    wait_for(box, final)
    place(box, cross).press("Enter")
    wait_for(box, cross)
    assert tab.url == address
    box.locator(".panel a").press("Enter")
    assert tab.url == address + LINKS[cross]


def test_layers_positions_and_the_end_of_the_stack(box):
    where = box.locator(".where")
    for button in (box.locator(".layers button").nth(1), box.locator(".read button").nth(4)):
        before = where.text_content()
        button.click()
        where.filter(has_not_text=before).wait_for()
        button.and_(box.locator("[aria-pressed=true]")).wait_for()
    box.locator(".layers button").last.click()
    place(box, "decoder generator").press("Enter")
    wait_for(box, "decoder generator")
    said = shares(box)
    likeliest = max(said, key=said.get)
    assert likeliest in box.locator(".caption").inner_text()
    assert likeliest == box.locator(".written [aria-pressed=true]").inner_text()
    box.locator(".source button").nth(4).click()
    wait_for(box, "encoder final")  # the other side, where its stack ends


@pytest.mark.parametrize("name", ["encoder attention", "decoder attention", "decoder cross"])
def test_each_row_of_weights_has_the_sum_one(box, name):
    place(box, name).press("Enter")
    wait_for(box, name)
    for row in box.locator(".weights tbody tr").all():
        weights = [float(text) for text in row.locator("td").all_inner_texts()]
        assert sum(weights) == pytest.approx(1, abs=0.005 * len(weights))
    assert box.locator(".arcs path").count() > 0


def test_a_sentence_goes_stop_by_stop_from_the_embedding_to_the_generator(box):
    step = box.get_by_role("button", name="Step", exact=True)
    box.get_by_role("button", name="Play", exact=True).press("Enter")  # at once at the end
    wait_for(box, "decoder generator")
    assert not box.evaluate("box => box.getAnimations({ subtree: true }).length")
    step.press("Enter")  # from the end to the first stop
    wait_for(box, "encoder embedding")
    seen = [box.locator(".where").text_content()]
    while "generator" not in seen[-1].split()[0]:
        step.press("Enter")
        box.locator(".where").filter(has_not_text=seen[-1]).wait_for()
        seen.append(box.locator(".where").text_content())
        assert re.search(r"\d", box.locator(".caption").inner_text())
    assert len(set(seen)) == len(seen)
    place(box, "encoder memory").press("Enter")  # by hand; the player goes on from there
    wait_for(box, "encoder memory")
    step.press("Enter")
    wait_for(box, "decoder embedding")


def test_a_player_waits_for_the_scene_and_stops_when_the_reader_takes_over(browser, figures_page):
    tab = watched(browser, figures_page)
    box = figure(tab, "map")
    box.locator(".play").press("Enter")
    wait_for(box, "encoder positions")
    tab.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    box.locator('.chosen[data-place="encoder attention"]').wait_for(state="attached")
    drawing = box.locator(".drawn").bounding_box()
    assert drawing["y"] + drawing["height"] < 0, "a reader who has left is not called back"
    place(box, "decoder generator").press("Enter")
    wait_for(box, "decoder generator")
    assert box.locator(".play").inner_text() == "Play"
    assert tab.faults == []


def test_the_readers_own_sentence_runs_through_the_map(box):
    field = box.get_by_role("textbox")
    before = box.locator(".translated").inner_text()
    field.fill("Zwei Hunde.")
    field.press("Enter")
    box.locator(".source", has_text="Hunde").wait_for()
    translated = box.locator(".translated").inner_text()
    assert translated != before
    assert box.locator(".written button").first.inner_text() == translated.split()[0]
    field.fill("ab" * 40)
    field.press("Enter")
    box.locator(".source", has_text="ab").wait_for()
    assert box.locator(".line").inner_text() != "", "it finds no end"
    assert box.page.evaluate("document.documentElement.scrollWidth") <= 1360


def test_on_a_phone_the_panel_stays_in_sight_and_off_the_box(browser, figures_page):
    size = {"width": 390, "height": 780}
    tab = watched(browser, figures_page, viewport=size, has_touch=True)
    box = figure(tab, "map")
    place(box, "encoder attention").tap()
    wait_for(box, "encoder attention")
    panel, chosen = (box.locator(name).bounding_box() for name in (".panel", ".drawn .chosen"))
    assert panel["y"] + panel["height"] <= size["height"] + 1
    assert chosen["y"] + chosen["height"] <= panel["y"]
    top = "panel => panel.querySelector('.player').getBoundingClientRect().top"
    before = box.locator(".panel").evaluate(top)
    box.locator(".panel").evaluate("panel => panel.scrollTo(0, 999)")
    assert box.locator(".panel").evaluate(top) == pytest.approx(before, abs=8), "in sight"
    tall = place(box, "encoder attention norm").bounding_box()["height"]
    assert (
        tall > 1.2 * place(box, "encoder attention norm").locator("rect").bounding_box()["height"]
    )
    for close in (box.locator(".close"), place(box, "encoder attention")):
        close.tap()
        box.locator(".close").wait_for(state="hidden")
        place(box, "encoder attention").tap()
        box.locator(".close").wait_for()


def test_that_the_model_is_being_read_is_in_sight_of_every_switch(browser, figures_page):
    size = {"width": 390, "height": 780}
    tab = watched(browser, figures_page, viewport=size, has_touch=True)
    tab.route("**/model.js", lambda route: None)  # it never comes
    box = figure(tab, "map")
    switch = box.get_by_role("button", name="positions off")
    switch.tap()
    line = box.get_by_text("Reading the model")
    line.wait_for()
    for seen in (line, switch):
        at = seen.bounding_box()
        assert 0 <= at["y"] <= size["height"] - at["height"]


def test_on_a_phone_a_part_its_switch_and_what_comes_of_it_are_in_one_view(browser, figures_page):
    size = {"width": 390, "height": 780}
    tab = watched(browser, figures_page, viewport=size, has_touch=True)
    box = figure(tab, "map")
    place(box, "decoder final").tap()
    box.locator(".close").wait_for()
    switch = box.get_by_role("button", name="cross-attention off")
    switch.dispatch_event("click")
    box.locator(".translated > s").wait_for()
    assert not box.locator(".close").is_visible(), "the panel hides nothing"
    box.locator(".whole").evaluate("drawing => drawing.scrollIntoView({ behavior: 'instant' })")
    for seen in (place(box, "decoder cross"), switch, box.locator(".comes")):
        at = seen.bounding_box()
        assert 0 <= at["y"] <= size["height"] - at["height"]


def test_what_is_switched_off_breaks_the_translation_and_comes_back(box):
    written, ghost = box.locator(".translated > span"), box.locator(".translated > s")
    intact = written.inner_text()
    shades = ".strip svg, .weights"
    before = box.locator(shades).inner_html()
    for name in ("cross-attention", "positions"):
        switch = box.get_by_role("button", name=f"{name} off")
        switch.press("Enter")
        expect(switch).to_have_attribute("aria-pressed", "true")
    box.locator(".drawn .off").first.wait_for()
    expect(ghost).to_have_text(intact)
    expect(box.locator(".comes")).to_contain_text("cross-attention, positions")
    expect(written).not_to_have_text(intact)
    assert box.locator(shades).inner_html() != before, "the boxes show the broken model"
    box.get_by_role("button", name="plug all in").press("Enter")
    expect(written).to_have_text(intact)
    box.get_by_role("button", name="causal mask off").press("Enter")
    box.locator(".comes [role=status]", has_text="same").wait_for()
    box.get_by_role("button", name="plug all in").press("Enter")
    expect(box.locator(".comes [role=status]")).to_be_empty()
    assert box.locator(".drawn .off").count() == 0
