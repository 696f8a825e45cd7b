"""Attention by hand: its numbers are those of `attention`, and whoever touches it is served."""

import inspect
import itertools
import json

import pytest
import quickjs
from nbformat.v4 import new_code_cell
from pages import LISTENS, built, chart, visited

from tools.page import build as build_page
from tools.page import bundle

FIRST = {
    "asks": "hebt", "angles": {"query": 0, "key": 0, "value": 0}, "query": None, "keys": {},
    "width": 2, "divide": True, "mask": False,
}  # fmt: skip
WISHES = [
    {},
    {"asks": "Ball", "mask": True},
    {"asks": "Ein", "mask": True, "query": [2.0, -1.0]},
    {"asks": "auf", "angles": {"query": 35, "key": -60, "value": 170}},
    {"asks": "roten", "angles": {"query": 90, "key": 0, "value": 5}, "width": 64},
    {"asks": "roten", "angles": {"query": 90, "key": 0, "value": 5}, "width": 64, "divide": False},
    {"keys": {"0": [1.5, 1.5], "7": [0.0, 0.0]}, "angles": {"query": 0, "key": 45, "value": 0}},
    {"asks": "Mädchen", "query": [2.4, 0.6], "width": 512, "divide": False},
]


@pytest.fixture(scope="module")
def spec(at) -> dict:
    """The notebook's chart."""
    return inspect.unwrap(at.attention_by_hand_figure)().to_dict()


@pytest.fixture(scope="module")
def scenes(spec):
    """What the figure makes of a wish, without a browser; of None its first scene."""
    context = quickjs.Context()
    context.eval(bundle.bundle(build_page.FIGURES / "by-hand.js", "hand"))
    [rows] = spec["datasets"].values()
    context.eval(f"const first = hand.firstScene(null, {json.dumps(rows)})")
    make = context.eval(
        "(wish) => JSON.stringify(wish ? hand.sceneOf(first.rows, JSON.parse(wish)) : first)"
    )
    return lambda wish: json.loads(make(wish and json.dumps(wish)))


def turn(at, degrees: float):
    """The matrix that turns by so much."""
    angle = at.torch.tensor(degrees).deg2rad()
    return at.torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).view(2, 2)


def attended(at, wish: dict) -> dict:
    """The same by the script's `attention`: what the asking word gets, and the weights of all."""
    number = at.WORDS.index(wish["asks"])
    asking = at.VECTORS.clone()
    found = at.VECTORS.clone()
    if wish["query"]:
        asking[number] = at.torch.tensor(wish["query"])
    for moved, place in wish["keys"].items():
        found[int(moved)] = at.torch.tensor(place)
    to_query, to_key, to_value = (
        turn(at, wish["angles"][role]) for role in ("query", "key", "value")
    )
    queries = asking @ to_query
    keys = found @ to_key
    values = at.VECTORS @ to_value
    products = queries @ keys.T * (wish["width"] / 2) ** 0.5
    mask = at.subsequent_mask(8)[0] if wish["mask"] else None
    # `attention` divides by the root of two, the width of what it is given.
    longer = 1 if wish["divide"] else wish["width"] ** 0.5
    answers, weights = at.attention(longer * queries, keys, values, mask)
    return {
        "asked": queries[number],
        "product": products[number],
        "score": products[number] / (wish["width"] ** 0.5 if wish["divide"] else 1),
        "weight": weights[number],
        "share": weights[number][:, None] * values,
        "answer": answers[number],
        "weights": weights,
    }


def assert_near(shown, expected, within: float) -> None:
    assert [*shown] == pytest.approx(expected.flatten().tolist(), abs=within)


@pytest.mark.parametrize("wish", WISHES)
def test_a_scene_is_what_attention_says(at, scenes, wish):
    wish = FIRST | wish
    scene = scenes(wish)
    expected = attended(at, wish)
    for name in ("product", "score", "weight"):
        assert_near([row[name] for row in scene["rows"]], expected[name], 1e-4)
    assert_near(itertools.chain(*(row["share"] for row in scene["rows"])), expected["share"], 1e-4)
    assert_near(itertools.chain(*scene["weights"]), expected["weights"], 1e-4)
    assert_near(scene["answer"], expected["answer"], 1e-4)
    assert_near(scene["asked"], expected["asked"], 1e-5)


def test_it_begins_as_the_text_does(at, scenes):
    """All three roles coincide, and the answer is the one of `attention`."""
    first = scenes(None)
    assert first == scenes(FIRST)
    number = at.WORDS.index("hebt")
    answers, weights = at.attention(at.VECTORS, at.VECTORS, at.VECTORS)
    assert_near(first["answer"], answers[number], 1e-5)
    assert_near([row["weight"] for row in first["rows"]], weights[number], 1e-5)
    assert all(row["key"] == row["value"] == row["place"] for row in first["rows"])
    assert not first["moved"]
    assert len(json.dumps(first)) < 5000


def test_divided_scores_do_not_feel_the_width(scenes):
    """Products grow by the root of the width; divided by it they are what they were."""
    narrow = scenes(FIRST)["rows"]
    for width in (8, 128, 512):
        wide = scenes(FIRST | {"width": width})["rows"]
        bare = scenes(FIRST | {"width": width, "divide": False})["rows"]
        for one, other, undivided in zip(narrow, wide, bare, strict=True):
            assert other["product"] == pytest.approx(one["product"] * (width / 2) ** 0.5)
            assert other["score"] == pytest.approx(one["score"])
            assert undivided["score"] == pytest.approx(one["score"] * width**0.5)


def test_turned_alike_queries_and_keys_compare_as_before(scenes):
    angles = {"query": 70, "key": 70, "value": 0}
    before = scenes(FIRST)["rows"]
    after = scenes(FIRST | {"angles": angles})["rows"]
    assert [row["product"] for row in after] == pytest.approx([row["product"] for row in before])
    assert after[0]["key"] != pytest.approx(before[0]["key"], abs=0.1)


# In a browser -------------------------------------------------------------------------------------


browsing = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(at, spec, tmp_path_factory):
    """A page with the script's figure, below its function `attention`."""
    figure = chart(spec, "@example\ndef attention_by_hand_figure():\n    ...")
    code = new_code_cell(inspect.getsource(at.attention))
    return built(tmp_path_factory.mktemp("page"), code, figure)


def opened(browser, page_file, **settings):
    """The page in a window; the figure is awake, and nothing has gone wrong."""
    tab = visited(
        browser, page_file.as_uri(), **{"viewport": {"width": 1360, "height": 1000}, **settings}
    )
    tab.faults = []
    tab.on("pageerror", lambda error: tab.faults.append(error))
    tab.on("console", lambda message: tab.faults.append(message.text))
    tab.wait_for_function(LISTENS)
    return tab


@pytest.fixture
def page(browser, page_file):
    tab = opened(browser, page_file)
    yield tab
    assert not tab.faults
    assert [address for address in tab.asked if "data:" not in address] == [page_file.as_uri()]


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.replace("−", "-").split()]


def columns(page) -> list[list[str]]:
    """What the table shows for each stage, the sums left out."""
    rows = [
        row.locator("td").all_inner_texts() for row in page.locator(".stages tbody tr").all()[:-1]
    ]
    return [[text.strip() for text in column] for column in zip(*rows, strict=True)]


def answer(page) -> list[float]:
    return numbers(page.locator("tr.sums .share").inner_text())


def said(page) -> str:
    return page.locator(".said").inner_text()


def slider(page, name: str):
    return page.get_by_role("slider", name=name, exact=True)


def place_of(page, name: str) -> list[float]:
    """Where a handle says that it is."""
    text = slider(page, name).get_attribute("aria-valuetext")
    return numbers(text[1 : text.index(")")].replace(",", ""))


def middle_of(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page, locator, right: float, down: float) -> None:
    """Drag by so many pixels, and let go."""
    locator.scroll_into_view_if_needed()
    x, y = middle_of(locator)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right, y + down, steps=4)
    page.mouse.up()


def set_width(page, width: int) -> None:
    page.locator("input[type=range]").fill(str(width.bit_length() - 1))


@browsing
@pytest.mark.parametrize(
    ("word", "turns", "width"),
    [("hebt", (0, 0, 0), 2), ("Ball", (3, 0, 1), 2), ("auf", (-2, 4, 0), 64)],
)
def test_what_is_shown_is_what_attention_says(at, page, word, turns, width):
    page.get_by_role("combobox").select_option(word)
    angles = {}
    for role, count in zip(("query", "key", "value"), turns, strict=True):
        for _ in range(abs(count)):
            page.locator(f".dial.of-{role} .knob").press(
                f"Shift+Arrow{'Up' if count > 0 else 'Down'}"
            )
        angles[role] = 15 * count
        shown = page.locator(f".dial.of-{role} .matrix span").all_inner_texts()
        assert_near(numbers(" ".join(shown)), turn(at, angles[role]), 6e-3)
    set_width(page, width)
    for divide, mask in itertools.product((True, False), repeat=2):
        page.get_by_label("divide by √d").set_checked(divide)
        hide = page.get_by_role("button", name="hide later words")
        if (hide.get_attribute("aria-pressed") == "true") != mask:
            hide.click()
        wish = FIRST | {
            "asks": word,
            "angles": angles,
            "width": width,
            "divide": divide,
            "mask": mask,
        }
        expected = attended(at, wish)
        shown = columns(page)
        assert_near(numbers(" ".join(shown[0])), expected["product"], 6e-3)
        assert_near(numbers(" ".join(shown[1])), expected["score"], 6e-3)
        assert_near(numbers(" ".join(shown[3])), expected["weight"], 6e-4)
        assert_near(numbers(" ".join(shown[4])), expected["share"], 6e-3)
        assert_near(answer(page), expected["answer"], 6e-3)
        kept = at.WORDS.index(word) + 1 if mask else 8
        assert shown[2] == shown[1][:kept] + ["closed"] * (8 - kept)
        cells = page.locator(".heat tbody td")
        told = [cell.get_attribute("aria-label").split(": ")[1] for cell in cells.all()]
        open_ = [0.0 if text == "closed" else float(text) for text in told]
        assert_near(open_, expected["weights"], 6e-3)
        assert told.count("closed") == (28 if mask else 0)
        label = page.get_by_role("button", name="divide", exact=False).inner_text()
        assert (
            label.split("\n")[-1].strip()
            == f"divide {f'÷ √{width}' if divide else 'not divided'}".split(" ", 1)[1]
        )


@browsing
def test_the_query_and_every_key_are_dragged_or_moved_by_keys(page):
    start = columns(page)
    before = answer(page)
    drag(page, slider(page, "query"), 200, 0)
    dragged = answer(page)
    assert dragged[0] > before[0] + 0.5
    assert said(page).endswith("Moved: the query.")
    page.mouse.move(10, 10)  # let go: the query stays
    assert answer(page) == dragged
    slider(page, "query").press("Shift+ArrowDown")
    assert answer(page)[1] < dragged[1]
    page.get_by_role("combobox").select_option("auf")
    assert "Moved" not in said(page)  # who asks anew asks with a query of its own
    for number, word in enumerate(["Ein", "kleines", "Mädchen", "hebt", "einen", "roten", "Ball"]):
        x, y = place_of(page, f"key of {word}")
        weight = columns(page)[0][number]
        drag(page, slider(page, f"key of {word}"), 30, -24)
        moved = place_of(page, f"key of {word}")
        assert moved[0] > x + 0.2 and moved[1] > y + 0.1
        assert columns(page)[0][number] != weight
        assert word in said(page).split("Moved: ")[1]
    slider(page, "key of auf").press("Shift+ArrowUp")
    slider(page, "key of auf").press("ArrowRight")
    assert place_of(page, "key of auf") == pytest.approx([-1.9, 0.2])
    assert page.get_by_role("combobox").input_value() == "auf"  # to drag is not to click
    page.get_by_role("button", name="start again").click()
    assert columns(page) == start
    assert "Moved" not in said(page)


@browsing
def test_nothing_is_dragged_out_of_the_plane(page):
    drag(page, slider(page, "key of Ball"), 900, 300)
    x, y = place_of(page, "key of Ball")
    assert (x**2 + y**2) ** 0.5 == pytest.approx(2.6, abs=0.02)


@browsing
def test_a_word_that_is_clicked_asks(page):
    asks = page.get_by_role("combobox")
    page.locator(".plane text.word", has_text="roten").click()
    assert asks.input_value() == "roten"
    assert place_of(page, "query") == [-0.1, 1.9]
    slider(page, "key of Ball").click()
    assert asks.input_value() == "Ball"
    slider(page, "key of auf").press("Enter")
    assert asks.input_value() == "auf"
    assert "auf receives" in said(page)
    assert page.locator(".heat tr.asks th").inner_text() == "auf"


@browsing
def test_the_dials_turn_the_roles_apart_and_back(page):
    start = columns(page)
    assert page.locator(".plane .value").count() == 0  # where they coincide there is one mark
    assert page.get_by_role("button", name="back to the identity").is_disabled()
    drag(page, page.locator(".dial.of-value .knob"), 0, -40)  # its hand points upwards now
    knob = page.locator(".dial.of-value .knob")
    assert knob.get_attribute("aria-valuenow") == "90"
    assert page.locator(".dial.of-value .matrix").inner_text().split() == [
        "0.00",
        "1.00",
        "−1.00",
        "0.00",
    ]
    assert page.locator(".plane .value").count() == 8
    assert columns(page)[:4] == start[:4]  # values do not take part in comparing
    assert columns(page)[4] != start[4]
    page.locator(".dial.of-query .knob").press("PageUp")
    assert "hebt asks with x WQ and receives" in said(page)
    assert "the value (x WV) of" in said(page)
    page.locator(".dial.of-key .knob").press("PageUp")
    assert "turn alike" in said(page)
    assert columns(page)[:4] == start[:4]
    page.locator(".dial.of-key .knob").press("Home")
    assert "turn alike" not in said(page)
    page.get_by_role("button", name="back to the identity").click()
    assert columns(page) == start
    assert page.locator(".plane .value").count() == 0
    assert "WQ" not in said(page)


@browsing
def test_what_was_dragged_turns_along(page):
    slider(page, "key of Ball").press("ArrowUp")
    page.locator(".dial.of-key .knob").press("PageUp")
    page.locator(".dial.of-key .knob").press("PageUp")
    assert place_of(page, "key of Ball") == pytest.approx([0.3, 1.8])
    slider(page, "key of Ball").press("ArrowUp")
    assert place_of(page, "key of Ball") == pytest.approx([0.3, 1.9])


@browsing
def test_the_table_of_weights_is_asked_and_closed(page):
    asks = page.get_by_role("combobox")
    cells = page.locator(".heat tbody tr")
    hide = page.get_by_role("button", name="hide later words")
    readout = page.locator(".readout")
    cells.nth(6).locator("td").nth(2).hover()
    assert readout.inner_text() == "Ball looks at Mädchen: 0.39"
    cells.nth(6).locator("td").nth(2).click()
    assert asks.input_value() == "Ball"
    assert page.locator(".heat [aria-selected=true] th").inner_text() == "Ball"
    cells.nth(1).locator("th").click()
    assert asks.input_value() == "kleines"
    cells.nth(0).locator("td").nth(5).click()  # in the triangle of later words
    assert hide.get_attribute("aria-pressed") == "true"
    assert asks.input_value() == "kleines"
    assert readout.inner_text() == "Ein may not look at roten: closed"
    assert columns(page)[2].count("closed") == 6
    cells.nth(3).locator("td").nth(4).click()
    assert hide.get_attribute("aria-pressed") == "false"
    hide.click()
    assert page.locator(".heat td.closed").count() == 28


@browsing
def test_the_table_of_weights_by_the_keyboard_alone(page):
    stops = page.locator(".heat td[tabindex='0']")
    assert stops.count() == 1
    stops.focus()
    assert page.locator(".readout").inner_text() == "hebt looks at hebt: 0.48"
    page.keyboard.press("ArrowUp")
    assert page.locator(".readout").inner_text() == "Mädchen looks at hebt: 0.00"
    page.keyboard.press("Enter")  # above the diagonal
    assert page.locator(".heat td.closed").count() == 28
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    assert page.get_by_role("combobox").input_value() == "Mädchen"
    for _ in range(9):
        page.keyboard.press("ArrowDown")  # stays inside
    assert page.locator(".readout").inner_text().startswith("auf looks at Mädchen")
    assert stops.count() == 1


@browsing
def test_the_width_tells_what_it_does(page):
    honest = page.locator(".honest")
    before = columns(page)
    set_width(page, 64)
    assert "√(64/2) ≈ 5.7 times as far" in honest.inner_text()
    assert "spreads as before" in honest.inner_text()
    assert columns(page)[1:] == before[1:]
    assert columns(page)[0] != before[0]
    page.get_by_label("divide by √d").uncheck()
    assert "nothing takes that back" in honest.inner_text()
    assert float(columns(page)[1][3]) == pytest.approx(8 * float(before[1][3]), abs=0.05)
    assert "√64 = 8 times" in said(page)
    heads = page.locator(".stages thead").inner_text()
    assert "not divided" in heads
    assert "÷" not in heads


@browsing
def test_the_softmax_collapses_and_starts_again(page):
    before = columns(page)
    page.get_by_role("button", name="collapse").click()
    assert max(float(weight) for weight in columns(page)[3]) > 0.95
    assert "collapsed" in said(page)
    assert page.locator("output").inner_text() == "64"
    page.get_by_label("divide by √d").check()
    assert "collapsed" not in said(page)
    page.get_by_role("button", name="start again").click()
    assert columns(page) == before
    assert page.locator("output").inner_text() == "2"


@browsing
def test_a_stage_lights_its_line(at, page):
    lines = []
    for button in page.locator(".stages thead button").all():
        button.hover()
        ranges = "[...CSS.highlights.get('by-hand')]"
        page.wait_for_function("CSS.highlights.has('by-hand')")
        lit = page.evaluate(f"{ranges}.map(range => range.toString())")
        block = page.evaluate(f"{ranges}[0].startContainer.parentElement.closest('.code').id")
        quote = page.locator(".quote code").inner_text()
        assert lit == [page.locator("mark").inner_text()]
        assert lit[0] in quote
        assert block == "code-1"
        lines.append(quote)
    source = inspect.getsource(at.attention)
    assert all(line in source for line in lines)
    assert len(set(lines)) == 4
    page.mouse.move(0, 0)
    page.wait_for_function("!CSS.highlights.has('by-hand')")
    page.get_by_role("button", name="softmax weight").focus()
    assert "softmax(dim=-1)" in page.locator(".quote").inner_text()


@browsing
def test_the_stages_are_played_and_each_is_seen(page):
    seen = [page.locator(".plane > svg").screenshot()]
    pressed = page.locator(".stages thead [aria-pressed=true]")
    page.get_by_role("button", name="hide later words").click()
    for number, name in enumerate(("compare", "divide", "mask", "softmax", "mix"), 1):
        page.get_by_role("button", name="Step").click()
        assert pressed.inner_text().startswith(name)
        assert said(page).lower().startswith(f"{number}. {name}:")
        assert page.locator(".stages td.lit").count() >= 8
        page.wait_for_timeout(700)  # what grows has grown
        seen.append(page.locator(".plane > svg").screenshot())
    assert len(set(seen)) == 6
    page.get_by_role("button", name="Back", exact=True).click()
    assert pressed.inner_text().startswith("softmax")
    pressed.click()  # lets go of it
    assert pressed.count() == 0
    assert "hebt receives" in said(page)
    page.evaluate(
        "self.heard = []; const said = document.querySelector('.said');"
        "new MutationObserver(() => heard.push(said.innerText))"
        ".observe(said, { childList: true, subtree: true, characterData: true })"
    )
    page.get_by_role("button", name="Faster").click()
    page.get_by_role("button", name="Play", exact=True).click()
    page.locator(".said", has_text="5. Mix").wait_for(timeout=10_000)
    page.get_by_role("button", name="Play", exact=True).wait_for()  # and has stopped
    heard = [text[:2] for text in page.evaluate("heard")]
    assert [number for number, _ in itertools.groupby(heard)][-5:] == ["1.", "2.", "3.", "4.", "5."]


@browsing
def test_shadows_are_products_and_shrink_when_divided(page):
    """The lengths of the bars along the query, times its own, are the products."""
    page.get_by_role("button", name="compare").click()
    ends = (
        "paths => paths.map(path => Number(path.getAttribute('d').match(/H(-?[0-9]+)/)[1]) / 100)"
    )
    length = (1.9**2 + 0.6**2) ** 0.5
    shadows = page.locator(".plane .shadow").evaluate_all(ends)
    products = numbers(" ".join(columns(page)[0]))
    assert [length * end for end in shadows] == pytest.approx(products, abs=0.02)
    page.get_by_role("button", name="divide", exact=False).click()
    divided = page.locator(".plane .short").evaluate_all(ends)
    assert [2**0.5 * end for end in divided] == pytest.approx(shadows, abs=0.02)


@browsing
def test_where_motion_is_unwelcome_nothing_moves(browser, page_file):
    page = opened(browser, page_file, reduced_motion="reduce")
    page.get_by_role("button", name="Play", exact=True).click()
    assert said(page).startswith("5. Mix")
    page.get_by_role("button", name="softmax weight").click()
    assert (
        page.locator(".plane").evaluate("plane => plane.getAnimations({ subtree: true }).length")
        == 0
    )


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@browsing
def test_on_a_phone_a_finger_drags_without_scrolling(browser, page_file):
    page = opened(browser, page_file, **PHONE)
    slider(page, "key of Mädchen").evaluate("handle => handle.scrollIntoView({ block: 'center' })")
    before = said(page)
    scrolled = page.evaluate("scrollY")
    x, y = middle_of(slider(page, "key of Mädchen"))
    fingers = page.context.new_cdp_session(page)

    def touch(kind: str, *points) -> None:
        spots = [{"x": x, "y": y} for x, y in points]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})

    touch("touchStart", (x, y))
    for step in range(1, 6):
        touch("touchMove", (x - 30 * step, y + 12 * step))
    touch("touchEnd")
    assert place_of(page, "key of Mädchen")[0] < 0.8
    assert said(page) != before
    assert page.evaluate("scrollY") == scrolled
    plane = page.locator(".plane").bounding_box()
    words = page.locator(".said").bounding_box()
    assert 0 <= words["y"] - (plane["y"] + plane["height"]) < 20  # right under it
    assert plane["height"] + words["height"] < 844
    page.locator(".dial.of-query .knob").scroll_into_view_if_needed()
    scrolled = page.evaluate("scrollY")
    x, y = middle_of(page.locator(".dial.of-query .knob"))
    touch("touchStart", (x + 30, y))
    touch("touchMove", (x + 20, y - 20))
    touch("touchMove", (x, y - 30))
    touch("touchEnd")
    assert page.locator(".dial.of-query .knob").get_attribute("aria-valuenow") == "90"
    assert page.evaluate("scrollY") == scrolled
    page.wait_for_timeout(400)  # at once, it would be the second half of a double tap
    page.locator(".heat tbody tr").nth(6).locator("td").nth(1).tap()
    page.wait_for_function("document.querySelector('.stage select').value === 'Ball'")


@browsing
@pytest.mark.parametrize("width", [320, 390, 768, 1360, 1800])
def test_at_any_width_nothing_sticks_out_or_jumps(browser, page_file, width):
    page = visited(browser, page_file.as_uri(), viewport={"width": width, "height": 900})
    page.evaluate(
        "self.jumped = 0; new PerformanceObserver(list => list.getEntries().forEach(each => { "
        "if (!each.hadRecentInput) jumped += each.value; }))"
        ".observe({ type: 'layout-shift', buffered: true })"
    )
    page.wait_for_function(LISTENS)
    page.wait_for_timeout(300)
    assert page.evaluate("jumped") < 0.02
    for act in (None, "collapse", "Step"):
        if act:
            page.get_by_role("button", name=act).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.locator(".by-hand").bounding_box()
    for part in (".stages", ".heat table", ".three", ".matrix", ".legend > span"):
        for box in (each.bounding_box() for each in page.locator(part).all()):
            assert box["x"] + box["width"] <= wide["x"] + wide["width"] + 1, part


@browsing
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(browser, page_file, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(browser, page_file, color_scheme=scheme)
    for stage in range(2):
        assert axe.Axe().run(page).response["violations"] == [], stage
        page.locator(".dial.of-value .knob").press("PageUp")
        page.get_by_role("button", name="hide later words").click()
        page.get_by_role("button", name="mask").click()


@browsing
def test_where_colours_are_forced_numbers_stand_in_for_them(browser, page_file):
    page = opened(browser, page_file, forced_colors="active")
    first = page.locator(".heat tbody td span").first
    assert first.is_visible()
    assert first.inner_text() == ".29"
    bar = page.locator(".stages .weight u").nth(3)
    colours = bar.evaluate(
        "bar => [bar, document.body].map(each => getComputedStyle(each).backgroundColor)"
    )
    assert len(set(colours)) == 2
    page.get_by_role("button", name="mask").click()
    assert (
        page.locator("[aria-pressed=true]").evaluate(
            "button => getComputedStyle(button).outlineStyle"
        )
        == "solid"
    )


@browsing
def test_no_touch_costs_a_slow_machine_long(browser, page_file):
    """Milliseconds of the processor, not of the clock: other work does not count."""
    page = opened(browser, page_file)
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        metrics = meter.send("Performance.getMetrics")["metrics"]
        found = {metric["name"]: metric["value"] for metric in metrics}
        return sum(found[f"{part}Duration"] for part in ("Script", "Layout", "RecalcStyle"))

    touches = (
        lambda: slider(page, "query").press("ArrowRight"),
        lambda: page.locator(".dial.of-value .knob").press("PageUp"),
        lambda: page.get_by_role("button", name="collapse").click(),
        lambda: page.get_by_role("button", name="Step").click(),
    )
    for touch in touches:
        before = used()
        touch()
        page.wait_for_timeout(100)
        assert used() - before < 0.05


@browsing
def test_without_scripts_and_on_paper_there_is_the_same_picture(browser, page_file):
    still = browser.new_context(java_script_enabled=False).new_page()
    still.goto(page_file.as_uri())
    assert still.locator(".by-hand svg[role=img]").is_visible()
    assert still.locator("tr.sums .share").inner_text().split() == ["−1.67", "0.30"]
    assert still.locator(".heat tbody td span").first.is_visible()
    shown = still.locator(
        ".stage :is(.controls, .player, .handle, .dials, .back, .quote, .readout):visible"
    )
    assert shown.count() == 0
    paper = opened(browser, page_file)
    paper.locator(".dial.of-value .knob").press("PageUp")
    paper.emulate_media(media="print")
    assert paper.locator(".by-hand svg[role=img]").is_visible()
    assert paper.locator(".by-hand .matrix").count() == 3
    assert (
        paper.locator(
            ".stage :is(.controls, .player, .handle, .back, .quote, .readout):visible"
        ).count()
        == 0
    )
