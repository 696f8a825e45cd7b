"""The plan as a map: each box shows what a position has there, and leads to its section."""

import re

import pytest
from conftest import PROJECT
from pages import figure, watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]
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
    """Until the panel is about a place."""
    box.locator(f'.chosen[data-place="{name}"]').wait_for()


def shares(box) -> dict[str, float]:
    """What the panel shows: the likeliest subwords with their probabilities."""
    rows = [row.split() for row in box.locator(".panel li").all_inner_texts()]
    return {piece: float(share) for piece, share in rows}


def test_every_box_is_shown_without_a_jump_and_leads_to_its_section(box):
    parts = ".map, .panel, .where, .slot, .meaning, .lens"
    heights = f"box => [...box.querySelectorAll('{parts}')].map((each) => each.offsetHeight)"
    still = box.evaluate(heights)
    places = box.locator("[data-place]").evaluate_all("all => all.map((e) => e.dataset.place)")
    assert sorted(places) == sorted(LINKS)
    told = set()
    for name in places:
        place(box, name).dispatch_event("click", {"detail": 1})
        wait_for(box, name)
        assert box.locator(".panel a").get_attribute("href") == LINKS[name]
        assert box.evaluate(heights) == still, name
        told.add(box.locator(".where").inner_text())
    assert len(told) == len(places)


def test_a_box_is_chosen_by_mouse_finger_and_keys_and_the_panel_leads_on(tab, box):
    address = tab.url
    cross, final = "decoder cross", "decoder final"
    place(box, final).hover()
    wait_for(box, final)
    place(box, cross).tap()
    wait_for(box, cross)
    for key, name in ((" ", final), ("Enter", cross)):
        place(box, name).press(key)
        wait_for(box, name)
    place(box, final).focus()
    tab.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    wait_for(box, cross)  # to pass a box by is not to choose it
    assert tab.url == address
    box.locator(".panel a").press("Enter")
    assert tab.url == address + LINKS[cross]


def test_a_layer_and_a_position_change_what_is_shown(box):
    where = box.locator(".where")
    for button in (box.locator(".layers button").nth(1), box.locator(".read button").nth(3)):
        before = where.text_content()
        button.click()
        where.filter(has_not_text=before).wait_for()
        button.and_(box.locator("[aria-pressed=true]")).wait_for()
    box.locator(".source button").nth(4).click()
    wait_for(box, "encoder final")  # the other side, where its stack ends


def test_the_last_sum_the_final_norm_and_the_generator_say_the_same(box):
    said = []
    for name in ("decoder feed-forward sum", "decoder final", "decoder generator"):
        place(box, name).press("Enter")
        wait_for(box, name)
        said.append(shares(box))
    assert said[0] == said[1] == said[2]
    assert box.locator(".panel li").first.inner_text().split()[0] == max(said[0], key=said[0].get)


@pytest.mark.parametrize("name", ["encoder attention", "decoder attention", "decoder cross"])
def test_weights_are_shown_by_head_and_the_arcs_are_those_of_a_head(box, name):
    place(box, name).press("Enter")
    wait_for(box, name)
    for row in box.locator(".weights tbody tr").all():
        weights = [float(text) for text in row.locator("td").all_inner_texts()]
        assert sum(weights) == pytest.approx(1, abs=0.005 * len(weights))
    arcs = {box.locator(".arcs").inner_html()}
    for head in (1, 2, 3):
        button = box.get_by_role("button", name=f"head {head}", exact=True)
        button.click()
        assert box.locator(".weights [aria-pressed=true]").count() == 1
        arcs.add(box.locator(".arcs").inner_html())
    assert len(arcs) == 4
    button.click()
    assert box.locator(".weights [aria-pressed=true]").count() == 0


def test_a_cell_of_the_table_chooses_its_place_and_arrow_keys_go_on(tab, box):
    box.locator(".lens summary").click()
    table = box.locator(".lens table")
    pressed = table.locator("[aria-pressed=true]")
    table.locator("tbody tr").nth(3).locator("button").nth(9).click()
    for key, name in (
        (None, "decoder feed-forward sum"),
        ("ArrowUp", "decoder cross sum"),
        ("ArrowLeft", "decoder cross sum"),
        ("ArrowDown", "decoder feed-forward sum"),
    ):
        before = box.locator(".where").text_content()
        if key:
            tab.keyboard.press(key)
            box.locator(".where").filter(has_not_text=before).wait_for()
        wait_for(box, name)
        likeliest, share = next(iter(shares(box).items()))
        assert pressed.inner_text() == likeliest
        assert float(re.match(r"[\d.]+", pressed.get_attribute("title"))[0]) == share
        assert tab.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    for _ in range(5):
        tab.keyboard.press("ArrowUp")  # and no further than the first row
    wait_for(box, "decoder positions")
    place(box, "encoder attention").press("Enter")
    wait_for(box, "encoder attention")
    assert pressed.count() == 0, "weights are none of its cells"
    assert "Ein" in table.locator("thead").inner_text(), "the table of the other side"


def test_the_readers_own_sentence_runs_through_the_map(box):
    field = box.get_by_role("textbox")
    before = box.locator(".translated").inner_text()
    field.fill("Zwei Hunde.")
    field.press("Enter")
    box.locator(".source", has_text="Hunde").wait_for()
    translated = box.locator(".translated").inner_text()
    assert translated != before
    written = box.locator(".written button").all_inner_texts()
    assert written[0] == translated.split()[0]
    assert box.locator(".lens tbody tr").first.locator("td").count() == len(written)
    assert box.locator(".line").inner_text() == ""
    assert "Zwei Hunde." in box.locator(".plan svg").get_attribute("aria-label")
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
    panel, chosen = (box.locator(name).bounding_box() for name in (".panel", ".plan .chosen"))
    assert panel["y"] + panel["height"] <= size["height"] + 1
    assert chosen["y"] + chosen["height"] <= panel["y"]
    box.locator(".lens summary").press("Enter")
    first = box.locator(".lens tbody th").first
    before = first.bounding_box()["x"]
    box.locator(".lens > .scroll").evaluate("table => (table.scrollLeft = 200)")
    assert first.bounding_box()["x"] == before, "the first column stays"
    tab.set_viewport_size({"width": 667, "height": 375})  # a phone on its side
    place(box, "decoder cross").tap()
    wait_for(box, "decoder cross")


# The ride -----------------------------------------------------------------------------------------


def stop(box) -> int:
    """The stop that the slider is at."""
    return int(box.get_by_role("slider").input_value())


def test_the_ride_does_not_call_back_a_reader_who_has_left(browser, figures_page):
    tab = watched(browser, figures_page)
    box = figure(tab, "map")
    box.get_by_role("button", name="Play").press("Enter")
    wait_for(box, "encoder embedding")
    tab.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    before = stop(box)
    tab.wait_for_function(
        "before => document.querySelector('[data-play=map] [type=range]').value > before + 1",
        arg=before,
    )
    plan = box.locator(".plan").bounding_box()
    assert plan["y"] + plan["height"] < 0


def test_a_ride_leads_from_the_source_ids_to_the_generator(box):
    slider = box.get_by_role("slider")
    forth = box.get_by_role("button", name="Next stop")
    chosen = box.locator(".plan .chosen")
    dot = box.locator(".dot")
    slider.press("Home")
    box.locator(".plan .ids.chosen").wait_for()
    seen = [(None, box.locator(".caption").inner_text(), dot.get_attribute("style"))]
    while stop(box) < int(slider.get_attribute("max")):
        before = stop(box)
        forth.press("Enter")
        box.page.wait_for_function(
            "([box, text]) => box.querySelector('.caption').innerText !== text",
            arg=[box.element_handle(), seen[-1][1]],
        )
        assert stop(box) == before + 1
        caption = box.locator(".caption").inner_text()
        place = chosen.get_attribute("data-place")
        seen.append((place, caption, dot.get_attribute("style")))
        assert re.search(r"\d", caption), "with numbers of this sentence"
        assert box.locator(".panel a").get_attribute("href") == LINKS[place]
        looks = place in ("encoder attention", "decoder attention", "decoder cross")
        shown = ".arcs path" if looks else ".strip path"
        assert box.locator(shown).count() > 0
    assert forth.evaluate("button => document.activeElement === button"), "the focus stays"
    sides = [place.split()[0] for place, _, _ in seen[1:]]
    assert sides == sorted(sides, reverse=True), "first the encoder, then the decoder"
    assert place == "decoder generator"
    assert len({spot for _, _, spot in seen}) >= 12


def test_the_caption_says_what_the_panel_shows(box):
    box.get_by_role("slider").press("End")
    wait_for(box, "decoder generator")
    likeliest, share = next(iter(shares(box).items()))
    assert likeliest in box.locator(".caption").inner_text()
    assert f"{share:.2f}" in box.locator(".caption").inner_text()


def test_a_ride_plays_stop_by_stop_and_waits_when_the_reader_takes_over(browser, figures_page):
    tab = watched(browser, figures_page)
    box = figure(tab, "map")
    tab.clock.install()
    play = box.locator(".play")
    play.press("Enter")
    assert stop(box) == 1
    assert play.inner_text() == "Pause"
    for _ in range(60):  # the model, too, is read by the clock, and by the disk
        tab.clock.run_for(1500)
        if stop(box) > 1:
            break
    assert stop(box) > 1
    tab.clock.resume()
    place(box, "decoder generator").press("Enter")
    wait_for(box, "decoder generator")
    assert play.inner_text() == "Play"
    assert tab.faults == []


def test_with_reduced_motion_play_is_at_once_at_the_end(box):
    box.locator(".play").press("Enter")
    wait_for(box, "decoder generator")
    assert box.locator(".play").inner_text() == "Play"
    assert not box.evaluate("box => box.getAnimations({ subtree: true }).length")


def test_a_box_that_is_out_of_sight_is_scrolled_into_view_and_none_else(tab, box):
    box.get_by_role("slider").press("End")
    wait_for(box, "decoder generator")
    before = tab.evaluate("scrollY")
    box.get_by_role("button", name="Previous stop").press("Enter")
    wait_for(box, "decoder final")
    assert tab.evaluate("scrollY") == before


@pytest.mark.parametrize("width, most", [(1440, 920), (390, 1450)])
def test_the_figure_is_not_much_taller_than_a_screen(browser, figures_page, width, most):
    tab = watched(browser, figures_page, viewport={"width": width, "height": 900})
    assert figure(tab, "map").locator(".map").bounding_box()["height"] < most


# Unplugged ----------------------------------------------------------------------------------------


def test_what_is_switched_off_breaks_the_translation_and_comes_back(box):
    broken = box.locator(".broken [lang]")
    assert broken.inner_text() == ""
    for name, cut in (("encoder feed-forward of layer 1", 0), ("positions", 2)):
        switch = box.get_by_role("button", name=f"{name} off")
        switch.press("Enter")
        broken.filter(has_text=re.compile(r"\w")).wait_for()
        assert switch.get_attribute("aria-pressed") == "true"
        assert box.locator(".plan .off").count() >= cut
        assert switch.evaluate("button => document.activeElement === button"), "the focus stays"
    assert broken.inner_text() != box.locator(".translated").inner_text()
    back = box.get_by_role("button", name="plug all in")
    back.press("Enter")
    broken.filter(has_not_text=re.compile(r"\w")).wait_for(state="attached")
    assert box.locator(".plan .off").count() == 0
    assert back.evaluate("button => document.activeElement === button")


def test_a_head_is_switched_off_where_its_weights_are_shown(box):
    place(box, "decoder cross").press("Enter")
    wait_for(box, "decoder cross")
    switch = box.get_by_role("button", name="head 2 off", exact=True)
    switch.tap()
    box.locator(".broken [lang]").filter(has_text=re.compile(r"\w")).wait_for()
    assert "head 2" in box.locator(".verdict").inner_text()
    box.locator(".layers button").first.click()
    switch.and_(box.locator("[aria-pressed=false]")).wait_for()  # the head of another layer
