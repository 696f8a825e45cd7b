"""Attention by hand, played with in a browser: its numbers are those of `attention`."""

import inspect
import itertools

import pytest
from conftest import visited
from nbformat.v4 import new_code_cell
from test_page import built, chart

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(at, tmp_path_factory):
    """A page with the script's figure, below its function `attention`."""
    spec = inspect.unwrap(at.attention_by_hand_figure)().to_dict()
    figure = chart(spec, "@example\ndef attention_by_hand_figure():\n    ...")
    code = new_code_cell(inspect.getsource(at.attention))
    return built(tmp_path_factory.mktemp("page"), code, figure)


@pytest.fixture
def page(browser, page_file):
    return visited(browser, page_file.as_uri(), viewport={"width": 1360, "height": 1000})


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.replace("−", "-").split()]


def columns(page) -> list[list[str]]:
    """What the table shows for each stage, the sums left out."""
    rows = [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()[:-1]]
    return [[text.strip() for text in column] for column in zip(*rows, strict=True)]


def answer(page) -> list[float]:
    return numbers(page.locator("tr.sums .share").inner_text())


@pytest.mark.parametrize(("word", "moved"), [("hebt", 0), ("Ball", 0), ("Ein", 0), ("auf", 3)])
def test_numbers_are_those_of_attention(at, page, word, moved):
    page.get_by_role("combobox").select_option(word)
    for _ in range(moved):
        page.get_by_role("slider").press("Shift+ArrowRight")
    number = at.WORDS.index(word)
    query = at.VECTORS[number] + at.torch.tensor([0.5 * moved, 0.0])
    for root, masked in itertools.product((True, False), repeat=2):
        page.get_by_label("divide by the root").set_checked(root)
        page.get_by_label("hide later words").set_checked(masked)
        mask = at.subsequent_mask(8)[0, number : number + 1] if masked else None
        scaled = query[None] * (1 if root else 8)
        mixed, weights = at.attention(scaled, at.VECTORS, at.VECTORS, mask)
        scores = scaled[0] @ at.VECTORS.T / 2**0.5
        shares = (weights[0][:, None] * at.VECTORS).flatten()
        shown = columns(page)
        expected = at.VECTORS @ query, scores, weights[0], shares
        for column, values in zip([*shown[:2], *shown[3:]], expected, strict=True):
            digits = 6e-4 if values is expected[2] else 6e-3
            result = numbers(" ".join(column))
            assert result == pytest.approx(values.tolist(), abs=digits)
        kept = number + 1 if masked else 8
        assert shown[2] == shown[1][:kept] + ["closed"] * (8 - kept)
        assert answer(page) == pytest.approx(mixed[0].tolist(), abs=6e-3)


def test_the_query_is_dragged_or_moved_by_keys(page):
    handle = page.get_by_role("slider")
    start = answer(page)
    box = handle.bounding_box()
    x = box["x"] + box["width"] / 2
    y = box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 200, y, steps=4)
    page.mouse.up()
    dragged = answer(page)
    assert dragged[0] > start[0] + 0.5
    page.mouse.move(x, y)  # let go: the query stays
    assert answer(page) == dragged
    handle.press("Shift+ArrowDown")
    assert answer(page)[1] < dragged[1]
    page.locator(".plane text", has_text="roten").click()
    assert page.get_by_role("combobox").input_value() == "roten"
    assert handle.get_attribute("aria-valuetext").startswith("(−0.10, 1.90)")


def test_the_softmax_collapses_and_starts_again(page):
    before = columns(page)
    page.get_by_role("button", name="collapse").click()
    result = max(float(weight) for weight in columns(page)[3])
    assert result > 0.95
    assert "collapsed" in page.locator(".said").inner_text()
    page.get_by_role("button", name="start again").click()
    assert columns(page) == before
    assert "collapsed" not in page.locator(".said").inner_text()


def test_a_stage_lights_its_line(at, page):
    lines = []
    for button in page.locator("thead button").all():
        button.hover()
        ranges = "[...CSS.highlights.get('by-hand')]"
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
    assert not page.evaluate("CSS.highlights.has('by-hand')")
    page.get_by_role("button", name="softmax weight").focus()
    assert "softmax(dim=-1)" in page.locator(".quote").inner_text()


def test_without_scripts_the_still_is_shown(browser, page_file):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(page_file.as_uri())
    assert page.locator(".by-hand svg[role=img]").is_visible()
    result = page.locator("tr.sums .share").inner_text().split()
    assert result == ["−1.67", "0.30"]
    assert page.locator(".stage :is(button, input, .handle, .quote)").count() == 0
