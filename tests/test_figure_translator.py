"""The translator: a caption is translated, and any choice of the model can be overruled."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
import torch
from conftest import PROJECT
from pages import figure, watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CAPTION = "Zwei Hunde spielen im Schnee."
LONG = (
    "Ein alter Mann mit einem langen Bart und einem grauen Hut sitzt auf einer Bank im Park und"
    " liest eine Zeitung."
)


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []


@pytest.fixture
def box(tab):
    return figure(tab, "translator")


def english(box) -> str:
    return box.locator(".english").inner_text()


def write(box, text: str) -> None:
    box.get_by_role("textbox").fill(text)
    box.get_by_role("textbox").press("Enter")


def wait_for_english(box, text: str) -> None:
    box.locator(".english", has_text=text).wait_for()


def overrule(box, how: str = "click") -> str:
    """Choose the second of the offers; returns it as it is written."""
    offer = box.locator(".offers [aria-pressed=false]").first
    piece = offer.locator("span").inner_text().removeprefix("…")
    offer.press("Enter") if how == "press" else getattr(offer, how)()
    box.locator(".english .yours", has_text=piece).wait_for()
    return piece


def test_a_sentence_that_is_typed_is_translated_by_beam_or_greedily(at, box):
    shipped = at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))
    write(box, CAPTION)
    for name, search in (("beam", at.beam_search), ("greedy", at.greedy_decode)):
        box.get_by_role("combobox").select_option(name)
        [translation] = at.translate(shipped, [CAPTION], search)
        wait_for_english(box, translation)
    before = english(box)
    chip = box.get_by_role("group", name="Captions to try").get_by_role("button").last
    chip.click()
    assert box.get_by_role("textbox").input_value() == chip.inner_text()
    box.locator(".english").filter(has_not_text=before).wait_for()


def test_after_a_choice_of_the_reader_only_the_rest_is_searched(tab, box):
    places = ".rows rect"
    at = "all => all.map((each) => each.getAttribute('x'))"
    before = english(box)
    boxes = box.locator(places).evaluate_all(at)
    kept = 1 + box.locator(".rows .piece").evaluate_all(
        "all => all.findIndex((each) => each.matches('.now'))"
    )
    now = box.locator(".english .now").inner_text()
    piece = overrule(box, "press")
    assert box.locator(".english .yours").inner_text() == piece
    assert english(box).startswith(f"{before[: before.index(now)]}{piece}")
    assert english(box) != before
    assert box.locator(places).evaluate_all(at)[:kept] == boxes[:kept]
    assert tab.evaluate("document.activeElement.closest('.offers') !== null"), "the focus stays"
    box.get_by_role("button", name="take your choice back").click()
    wait_for_english(box, before)
    assert box.locator(".yours").count() == 0


def test_the_offers_and_all_others_have_the_whole_probability(box):
    shares = box.locator(".offers b").all_inner_texts()
    assert len(shares) == 6
    assert sum(float(text.removesuffix(" %")) for text in shares) == pytest.approx(100, abs=0.4)


def test_the_arcs_are_those_of_the_head_that_is_chosen(box):
    seen = set()
    for name in ("layer 1, head 1", "layer 1, head 2", "layer 3, mean of its heads"):
        button = box.get_by_role("button", name=name)
        button.click()
        box.locator(f".heads [aria-pressed=true][aria-label='{name}']").wait_for()
        assert box.locator(".heads [aria-pressed=true]").count() == 1
        widths = "all => all.map((each) => each.getAttribute('stroke-width')).join()"
        seen.add(box.locator(".rows path").evaluate_all(widths))
    assert len(seen) == 3


def test_a_link_brings_sentence_and_choices_back(browser, tab, box):
    overrule(box)
    box.get_by_role("combobox").select_option("greedy")
    box.get_by_role("button", name="Copy the link").click()
    tab.wait_for_function("location.hash.startsWith('#s=')")
    other = figure(watched(browser, tab.url, reduced_motion="reduce"), "translator")
    other.locator(".english .yours").wait_for()
    assert english(other) == english(box)
    assert other.get_by_role("combobox").input_value() == "greedy"
    assert (
        other.locator(".english .yours").inner_text() == box.locator(".english .yours").inner_text()
    )
    write(other, CAPTION)
    other.page.wait_for_function("start => location.hash.startsWith(start)", arg="#s=Zwei")


def test_markup_in_an_address_is_shown_as_text(browser, figures_page, box):
    before = english(box)
    for text in ('<img src=x onerror="self.harmed=1">', '"><script>self.harmed=1</script>'):
        tab = watched(browser, f"{figures_page.as_uri()}#s={quote(text)}", reduced_motion="reduce")
        found = figure(tab, "translator")
        found.locator(".english").filter(has_not_text=before).wait_for()
        assert found.get_by_role("textbox").input_value() == text
        assert found.locator(".stage :is(img, script)").count() == 0
        assert tab.evaluate("self.harmed") is None
        assert tab.faults == []


def test_an_address_that_makes_no_sense_changes_nothing(tab, box):
    before = box.inner_text()
    for address in ("#top", "#s=", "#s=%20", "#s=%ZZ", "#s=Hund&w=x", "#s=Hund&w=1.-2"):
        tab.evaluate("address => { location.hash = address; }", address)
    assert box.inner_text() == before
    assert len(tab.asked) == 1, "no model"
    tab.evaluate("location.hash = '#s=Ein%20Hund.&w=999999999'")  # no such subword
    box.locator(".rows text", has_text="Hund").wait_for()
    assert box.locator(".yours").count() == 0, "nobody chose anything"


@pytest.fixture
def served(figures_page):
    """The address of the page at a server, which can be made to wait."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=figures_page.parent)
    handler.log_message = None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()


def test_while_the_model_is_read_the_last_wish_counts(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    status = box.get_by_role("status")
    held = []
    tab.route("**/model.js", lambda route: held.append(route))

    def ask(text: str):
        """Ask for a translation; returns the request for the model."""
        with tab.expect_request("**/model.js"):
            write(box, text)
        while not held:
            status.inner_text()
        return held.pop()

    ask("Ein Mann.").abort()
    status.get_by_text("could not be read").wait_for()
    request = ask("Ein Mann.")  # another try
    write(box, "Ein Hund.")
    request.continue_()
    box.locator(".rows text", has_text="Hund").wait_for()
    assert status.inner_text() == ""
    assert not held


def test_a_long_sentence_scrolls_with_the_highlight(tab, box):
    write(box, LONG)
    box.locator(".rows .piece.now", has_text="end").wait_for()
    frame = box.locator(".rows").bounding_box()
    place = box.locator(".rows .piece.now").bounding_box()
    assert frame["x"] <= place["x"] < frame["x"] + frame["width"]
    assert box.locator(".rows").evaluate("rows => rows.scrollLeft") > 0


def test_on_a_phone_the_sentence_is_in_sight_while_offers_are_chosen(browser, figures_page):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    tab = watched(browser, figures_page, reduced_motion="reduce", **phone)
    box = figure(tab, "translator")
    box.locator(".offers button").last.evaluate("offer => offer.scrollIntoView({block: 'center'})")
    overrule(box, "tap")
    header = tab.locator("header").bounding_box()
    sentence = box.locator(".english").bounding_box()
    assert header["y"] + header["height"] - 3 <= sentence["y"] < 100
