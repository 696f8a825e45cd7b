"""Attention by hand: what is shown is what `attention` computes, however words are moved."""

import inspect
import itertools

import pytest
from pages import figure, watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def turn(at, degrees: float):
    """The matrix that turns by so much."""
    angle = at.torch.tensor(degrees).deg2rad()
    return at.torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).view(2, 2)


def attended(at, word: str, angles: dict, width: int, divide: bool, mask: bool, keys: dict) -> dict:
    """The same by the script's `attention`: for the word that asks, and the weights of all."""
    number = at.WORDS.index(word)
    found = at.VECTORS.clone()
    for moved, place in keys.items():
        found[at.WORDS.index(moved)] = at.torch.tensor(place)
    queries = at.VECTORS @ turn(at, angles["query"])
    keys = found @ turn(at, angles["key"])
    values = at.VECTORS @ turn(at, angles["value"])
    products = queries @ keys.T * (width / 2) ** 0.5
    # `attention` divides by the root of two, the width of what it is given.
    longer = 1 if divide else width**0.5
    allowed = at.subsequent_mask(8)[0] if mask else None
    answers, weights = at.attention(longer * queries, keys, values, allowed)
    return {
        "product": products[number],
        "score": products[number] / (width**0.5 if divide else 1),
        "weight": weights[number],
        "share": weights[number][:, None] * values,
        "answer": answers[number],
        "weights": weights,
    }


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


def knob(box, role: str):
    return box.locator(f".dial.of-{role} .knob")


def place_of(box, name: str) -> list[float]:
    """Where a handle says that it is."""
    text = slider(box, name).get_attribute("aria-valuetext")
    return numbers(text[1 : text.index(")")].replace(",", ""))


def middle_of(locator) -> tuple[float, float]:
    place = locator.bounding_box()
    return place["x"] + place["width"] / 2, place["y"] + place["height"] / 2


def drag(locator, right: float, down: float) -> None:
    """Drag by so many pixels, and let go."""
    locator.scroll_into_view_if_needed()
    x, y = middle_of(locator)
    mouse = locator.page.mouse
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + right, y + down, steps=4)
    mouse.up()


def press(locator, key: str, times: int) -> None:
    for _ in range(times):
        locator.press(key)


def assert_near(shown: list, expected, within: float) -> None:
    assert shown == pytest.approx(expected.flatten().tolist(), abs=within)


@pytest.mark.parametrize(
    "word, turns, width, moved",
    [
        ("hebt", (0, 0, 0), 2, None),
        ("Ball", (3, 0, 1), 2, None),
        ("auf", (-2, 4, 0), 64, None),
        ("roten", (0, 0, -5), 8, "Ball"),
    ],
)
def test_everything_that_is_shown_is_what_attention_computes(at, box, word, turns, width, moved):
    box.get_by_role("combobox").select_option(word)
    angles = dict(zip(("query", "key", "value"), (15 * each for each in turns), strict=True))
    for role, count in zip(angles, turns, strict=True):
        press(knob(box, role), f"Shift+Arrow{'Up' if count > 0 else 'Down'}", abs(count))
        matrix = numbers(box.locator(f".dial.of-{role} .matrix").inner_text())
        assert_near(matrix, turn(at, angles[role]), 6e-3)
    box.locator("input[type=range]").fill(str(width.bit_length() - 1))
    keys = {}
    if moved:
        drag(slider(box, f"key of {moved}"), 60, -40)
        keys = {moved: place_of(box, f"key of {moved}")}
    hide = box.get_by_role("button", name="hide later words")
    for divide, mask in itertools.product((True, False), repeat=2):
        box.get_by_label("divide by √d").set_checked(divide)
        if (hide.get_attribute("aria-pressed") == "true") != mask:
            hide.click()
        expected = attended(at, word, angles, width, divide, mask, keys)
        products, scores, allowed, weights, shares = columns(box)
        assert_near(numbers(" ".join(products)), expected["product"], 6e-3)
        assert_near(numbers(" ".join(scores)), expected["score"], 6e-3)
        assert_near(numbers(" ".join(weights)), expected["weight"], 6e-4)
        assert_near(numbers(" ".join(shares)), expected["share"], 6e-3)
        assert_near(answer(box), expected["answer"], 6e-3)
        kept = at.WORDS.index(word) + 1 if mask else 8
        assert allowed == scores[:kept] + ["closed"] * (8 - kept)
        told = [
            label.split(": ")[1].replace("closed", "0")
            for label in box.locator(".heat tbody td").evaluate_all(
                "all => all.map(e => e.ariaLabel)"
            )
        ]
        assert_near(numbers(" ".join(told)), expected["weights"], 6e-3)


def test_query_and_keys_are_dragged_or_moved_by_keys_and_come_back(box):
    start = columns(box)
    before = answer(box)
    drag(slider(box, "query"), 200, 0)
    dragged = answer(box)
    assert dragged[0] > before[0]
    slider(box, "query").press("Shift+ArrowDown")
    assert answer(box)[1] < dragged[1]
    box.get_by_role("combobox").select_option("auf")
    for word in ("Ein", "Mädchen", "Ball"):
        place = place_of(box, f"key of {word}")
        shown = columns(box)
        drag(slider(box, f"key of {word}"), 30, -24)
        moved = place_of(box, f"key of {word}")
        assert moved[0] > place[0] and moved[1] > place[1]
        assert columns(box) != shown
    x, y = place_of(box, "key of auf")
    slider(box, "key of auf").press("Shift+ArrowUp")
    slider(box, "key of auf").press("ArrowRight")
    assert place_of(box, "key of auf") == pytest.approx([x + 0.1, y + 0.5])
    assert box.get_by_role("combobox").input_value() == "auf", "to drag is not to choose"
    box.get_by_role("button", name="start again").click()
    assert columns(box) == start


def test_nothing_is_dragged_out_of_the_plane(box):
    drag(slider(box, "key of Ball"), 900, 300)
    handle = middle_of(slider(box, "key of Ball"))
    plane = box.locator(".plane").bounding_box()
    assert plane["x"] < handle[0] < plane["x"] + plane["width"]
    assert plane["y"] < handle[1] < plane["y"] + plane["height"]


def test_a_word_that_is_chosen_asks(box):
    asks = box.get_by_role("combobox")
    box.locator(".plane text.word", has_text="roten").click()
    assert asks.input_value() == "roten"
    slider(box, "key of Ball").click()
    assert asks.input_value() == "Ball"
    slider(box, "key of auf").press("Enter")
    assert asks.input_value() == "auf"
    assert box.locator(".heat [aria-selected=true] th").inner_text() == "auf"


def test_dials_are_dragged_and_the_identity_comes_back(box):
    start = columns(box)
    drag(knob(box, "value"), 0, -40)  # its hand points upwards now
    assert knob(box, "value").get_attribute("aria-valuenow") == "90"
    assert columns(box)[:4] == start[:4], "values take no part in comparing"
    assert columns(box)[4] != start[4]
    for role in ("query", "key"):
        knob(box, role).press("PageUp")
    assert columns(box)[:4] == start[:4], "turned alike, they compare as before"
    slider(box, "key of Ball").press(
        "ArrowUp"
    )  # moved as it is seen, not as it was before its matrix
    turned = place_of(box, "key of Ball")
    slider(box, "key of Ball").press("ArrowUp")
    assert place_of(box, "key of Ball") == pytest.approx([turned[0], turned[1] + 0.1], abs=0.011)
    box.get_by_role("button", name="start again").click()
    knob(box, "key").press("ArrowUp")
    box.get_by_role("button", name="back to the identity").click()
    assert columns(box) == start


def test_the_table_of_weights_chooses_who_asks_and_what_is_hidden(box):
    asks = box.get_by_role("combobox")
    cells = box.locator(".heat tbody tr")
    hide = box.get_by_role("button", name="hide later words")
    cells.nth(6).locator("td").nth(2).click()
    assert asks.input_value() == "Ball"
    cells.nth(0).locator("td").nth(5).click()  # a later word
    assert hide.get_attribute("aria-pressed") == "true"
    assert asks.input_value() == "Ball"
    cells.nth(3).locator("td").nth(4).click()
    assert hide.get_attribute("aria-pressed") == "false"
    cells.nth(3).locator("td").nth(3).focus()
    keyboard = box.page.keyboard
    keyboard.press("ArrowUp")
    assert "Mädchen looks at hebt" in box.locator(".readout").inner_text()
    keyboard.press("Enter")
    assert hide.get_attribute("aria-pressed") == "true"
    keyboard.press("ArrowLeft")
    keyboard.press("Space")
    assert asks.input_value() == "Mädchen"
    for _ in range(9):
        keyboard.press("ArrowDown")  # stays inside
    assert "auf looks at Mädchen" in box.locator(".readout").inner_text()


def experiment(box, name: str):
    return box.locator(".experiments").get_by_role("button", name=name)


def test_each_experiment_sets_everything_and_says_what_to_see(box):
    start = columns(box)
    status = box.get_by_role("status")
    said = {status.inner_text()}
    drag(slider(box, "key of Ball"), 60, -40)
    experiment(box, "alike").press("Enter")
    said.add(status.inner_text())
    assert columns(box) == start, "turned alike, they compare as before"
    assert knob(box, "query").get_attribute("aria-valuenow") != "0"
    experiment(box, "future").press("Enter")
    said.add(status.inner_text())
    assert knob(box, "query").get_attribute("aria-valuenow") == "0"
    assert columns(box)[2][4:] == ["closed"] * 4
    assert experiment(box, "future").get_attribute("aria-pressed") == "true"
    experiment(box, "future").press("Enter")
    assert columns(box) == start
    assert status.inner_text() in said
    assert len(said) == 3


def test_plane_and_table_are_on_one_screen(browser, figures_page):
    tab = watched(browser, figures_page, viewport={"width": 1440, "height": 900})
    box = figure(tab, "by-hand")
    box.evaluate("box => box.scrollIntoView()")
    for part in (".experiments", ".plane", ".stages", ".dials", ".heat table"):
        place = box.locator(part).bounding_box()
        assert place["y"] >= 0, part
        assert place["y"] + place["height"] <= 900, part


def test_without_the_division_the_softmax_collapses(box):
    before = columns(box)
    box.get_by_role("button", name="collapse").click()
    assert max(numbers(" ".join(columns(box)[3]))) > 0.95
    box.get_by_label("divide by √d").check()
    assert max(numbers(" ".join(columns(box)[3]))) < 0.95
    box.get_by_role("button", name="start again").click()
    assert columns(box) == before


def test_each_stage_is_drawn_and_lights_its_line_of_code(at, tab, box):
    source = inspect.getsource(at.attention)
    drawing = box.locator(".plane > svg")
    drawn = {drawing.inner_html()}
    lines = set()
    for button in box.locator(".stages thead button").all():
        button.click()
        tab.wait_for_function("CSS.highlights.has('by-hand')")
        lit = tab.evaluate("[...CSS.highlights.get('by-hand')].join()")
        assert lit == box.locator(".quote mark").inner_text()
        lines.add(box.locator(".quote code").inner_text())
        drawn.add(drawing.inner_html())
    assert all(line in source for line in lines)
    assert len(lines) == 4
    assert len(drawn) > 4


def test_a_finger_drags_without_scrolling(browser, figures_page):
    tab = watched(browser, figures_page, viewport={"width": 390, "height": 844}, has_touch=True)
    box = figure(tab, "by-hand")
    fingers = tab.context.new_cdp_session(tab)

    def touch(kind: str, *points) -> None:
        spots = [{"x": x, "y": y} for x, y in points]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})

    for handle in (slider(box, "key of Mädchen"), knob(box, "query")):
        handle.evaluate("handle => handle.scrollIntoView({ block: 'center' })")
        before = handle.get_attribute("aria-valuetext")
        scrolled = tab.evaluate("scrollY")
        x, y = middle_of(handle)
        touch("touchStart", (x, y))
        for step in range(1, 6):
            touch("touchMove", (x - 10 * step, y - 12 * step))
        touch("touchEnd")
        assert handle.get_attribute("aria-valuetext") != before
        assert tab.evaluate("scrollY") == scrolled
    assert tab.faults == []
