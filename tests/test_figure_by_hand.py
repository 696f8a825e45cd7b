"""Attention by hand: what is shown is what `attention` computes, however words are moved."""

import inspect
import itertools

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
    return figure(tab, "by-hand")


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.replace("−", "-").split()]


def columns(box) -> list[list[str]]:
    """The table of the stages, by column, without its sums: products, scores, open or closed, …"""
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


@pytest.mark.parametrize(
    "word, width, moved", [("hebt", 2, None), ("auf", 64, None), ("roten", 8, "Ball")]
)
def test_everything_that_is_shown_is_what_attention_computes(at, box, word, width, moved):
    box.get_by_role("combobox").select_option(word)
    slider(box, "width dk").fill(str(width.bit_length() - 1))
    keys = at.VECTORS.clone()
    if moved:
        drag(slider(box, f"key of {moved}"), 60, -40)
        keys[at.WORDS.index(moved)] = at.torch.tensor(place_of(box, f"key of {moved}"))
    number = at.WORDS.index(word)
    query = at.VECTORS[number : number + 1]
    expected = (query @ keys.T)[0] * (width / 2) ** 0.5
    for divide, mask in itertools.product((True, False), repeat=2):
        box.get_by_label("divide by √d").set_checked(divide)
        box.get_by_label("hide later words").set_checked(mask)
        products, scores, allowed, weights, shares = columns(box)
        assert numbers(" ".join(products)) == near(expected, 6e-3)
        divisor = width**0.5 if divide else 1
        assert numbers(" ".join(scores)) == near(expected / divisor, 6e-3)
        kept = number + 1 if mask else len(at.WORDS)
        assert allowed == scores[:kept] + ["closed"] * (len(at.WORDS) - kept)
        # `attention` divides by the root of two, the width of what it is given.
        longer = query * (width / 2) ** 0.5 * 2**0.5 / divisor
        allowed = at.torch.arange(len(at.WORDS)) < kept
        theirs, spread = at.attention(longer, keys, at.VECTORS, allowed[None])
        assert numbers(" ".join(weights)) == near(spread, 6e-4)
        assert numbers(" ".join(shares)) == near(spread[0][:, None] * at.VECTORS, 6e-3)
        assert answer(box) == near(theirs, 6e-3)


def test_query_and_keys_are_moved_within_the_plane_and_come_back(box):
    start = columns(box)
    before = answer(box)
    drag(slider(box, "query"), 200, 0)
    dragged = answer(box)
    assert dragged[0] > before[0]
    slider(box, "query").press("Shift+ArrowDown")
    assert answer(box)[1] < dragged[1]
    asks = box.get_by_role("combobox")
    box.locator(".plane text.word", has_text="roten").click()
    assert asks.input_value() == "roten"
    slider(box, "key of auf").press("Enter")
    assert asks.input_value() == "auf"
    x, y = place_of(box, "key of Ein")
    slider(box, "key of Ein").press("Shift+ArrowUp")
    slider(box, "key of Ein").press("ArrowRight")
    assert place_of(box, "key of Ein") == pytest.approx([x + 0.1, y + 0.5])
    assert asks.input_value() == "auf", "to move is not to choose"
    drag(slider(box, "key of Ball"), 900, 300)
    handle, plane = (e.bounding_box() for e in (slider(box, "key of Ball"), box.locator(".plane")))
    assert plane["x"] < handle["x"] < plane["x"] + plane["width"]
    assert plane["y"] < handle["y"] < plane["y"] + plane["height"]
    box.get_by_role("button", name="start again").click()
    assert columns(box) == start


def test_experiments_set_everything(box):
    start = columns(box)
    drag(slider(box, "key of Ball"), 60, -40)
    box.get_by_role("button", name="collapse").press("Enter")
    assert max(numbers(" ".join(columns(box)[3]))) > 0.95
    box.get_by_label("divide by √d").check()
    assert max(numbers(" ".join(columns(box)[3]))) < 0.95
    future = box.get_by_role("button", name="future")
    future.press("Enter")
    assert columns(box)[2][4:] == ["closed"] * 4
    future.press("Enter")
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
    handle = slider(figure(tab, "by-hand"), "key of Mädchen")
    handle.evaluate("handle => handle.scrollIntoView({ block: 'center' })")
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
