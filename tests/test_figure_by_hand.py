"""Attention by hand: what is shown is what `attention` computes, however words are moved."""

import inspect

import pytest
from pages import figure, watched

pytestmark = pytest.mark.slow


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page)
    yield tab
    assert tab.faults == []
    assert tab.asked == [figures_page.as_uri()], "it needs no model"


@pytest.fixture
def box(tab):
    box = figure(tab, "by-hand")
    box.locator("summary").click()
    return box


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.replace("−", "-").split()]


def columns(box) -> list[list[str]]:
    """The table of the stages, by column, without its sums: products, scores, weights, …"""
    rows = box.locator(".stages tbody tr").all()[:-1]
    texts = [[text.strip() for text in row.locator("td").all_inner_texts()] for row in rows]
    return [list(column) for column in zip(*texts, strict=True)]


def answer(box) -> list[float]:
    return numbers(box.locator("tr.sums .share").inner_text())


def slider(box, name: str):
    return box.get_by_role("slider", name=name, exact=True)


def place_of(box, name: str) -> list[float]:
    """Where a handle says that it is."""
    text = slider(box, name).get_attribute("aria-valuetext")
    return numbers(text[1 : text.index(")")].replace(",", ""))


def drag(locator, right: float, down: float) -> None:
    """Drag by so many pixels, and let go."""
    locator.scroll_into_view_if_needed()
    place = locator.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    mouse = locator.page.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + right, y + down, steps=4)
    mouse.up()


def near(expected, within: float):
    return pytest.approx(expected.flatten().tolist(), abs=within)


def ask(box, word: str) -> None:
    box.locator(".asking button", has_text=word).click()


@pytest.mark.parametrize("word, moved", [("hebt", False), ("auf", False), ("roten", True)])
def test_everything_that_is_shown_is_what_attention_computes(at, box, word, moved):
    ask(box, word)
    number = at.WORDS.index(word)
    query = at.VECTORS[number : number + 1]
    if moved:
        drag(slider(box, "query"), 60, -40)
        query = at.torch.tensor([place_of(box, "query")])
    expected = (query @ at.VECTORS.T)[0]
    products, scores, weights, shares = columns(box)
    assert numbers(" ".join(products)) == near(expected, 6e-3)
    assert numbers(" ".join(scores)) == near(expected / 2**0.5, 6e-3)
    theirs, spread = at.attention(query, at.VECTORS, at.VECTORS)
    assert numbers(" ".join(weights)) == near(spread, 6e-4)
    assert numbers(" ".join(shares)) == near(spread[0][:, None] * at.VECTORS, 6e-3)
    assert answer(box) == near(theirs, 6e-3)


def test_shadows_that_fall_back_look_different(box):
    products = numbers(" ".join(columns(box)[0]))
    assert box.locator(".shadows .shadow.back").count() == sum(each < 0 for each in products)
    width = "path => parseFloat(getComputedStyle(path).strokeWidth)"
    back, forth = (
        box.locator(f".shadows .shadow{kind}").first.evaluate(width)
        for kind in (".back", ":not(.back)")
    )
    assert back < forth


def test_the_query_is_moved_within_the_plane_and_comes_back(box):
    start = columns(box)
    before = answer(box)
    drag(slider(box, "query"), 200, 0)
    dragged = answer(box)
    assert dragged[0] > before[0]
    x, y = place_of(box, "query")
    slider(box, "query").press("Shift+ArrowDown")
    slider(box, "query").press("ArrowLeft")
    assert place_of(box, "query") == pytest.approx([x - 0.1, y - 0.5])
    assert answer(box)[1] < dragged[1]
    drag(slider(box, "query"), 900, 300)
    handle, plane = (e.bounding_box() for e in (slider(box, "query"), box.locator(".plane")))
    middle = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    assert plane["x"] < middle[0] < plane["x"] + plane["width"]
    assert plane["y"] < middle[1] < plane["y"] + plane["height"]
    pressed = box.locator(".asking [aria-pressed=true]")
    assert pressed.count() == 0
    box.locator(".plane text.word", has_text="roten").click()
    assert pressed.inner_text() == "roten"
    ask(box, "hebt")
    assert columns(box) == start


def test_each_stage_is_drawn_and_lights_its_line_of_code(at, tab, box):
    source = inspect.getsource(at.attention)
    drawing = box.locator(".plane > svg")
    drawn = {drawing.inner_html()}
    for button in box.locator(".stages thead button").all():
        button.click()
        tab.wait_for_function("CSS.highlights.has('by-hand')")
        lit = tab.evaluate("[...CSS.highlights.get('by-hand')].join()")
        assert lit == box.locator(".quote mark").inner_text()
        assert box.locator(".quote code").inner_text() in source
        assert drawing.inner_html() not in drawn
        drawn.add(drawing.inner_html())


def test_a_finger_drags_without_scrolling(browser, figures_page):
    tab = watched(browser, figures_page, viewport={"width": 390, "height": 844}, has_touch=True)
    handle = slider(figure(tab, "by-hand"), "query")
    handle.evaluate("handle => handle.scrollIntoView({ block: 'center' })")
    box = figure(tab, "by-hand")
    dot = box.locator(".plane .dot").nth(1).bounding_box()
    tab.touchscreen.tap(dot["x"] + 15, dot["y"] + 15)  # beside it
    assert box.locator(".asking [aria-pressed=true]").inner_text() == "kleines"
    before, scrolled = handle.get_attribute("aria-valuetext"), tab.evaluate("scrollY")
    fingers = tab.context.new_cdp_session(tab)

    def touch(kind: str, *points) -> None:
        spots = [{"x": x, "y": y} for x, y in points]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})

    place = handle.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    touch("touchStart", (x, y))
    for step in range(1, 6):
        touch("touchMove", (x - 10 * step, y - 12 * step))
    touch("touchEnd")
    assert handle.get_attribute("aria-valuetext") != before
    assert tab.evaluate("scrollY") == scrolled
    assert tab.faults == []
