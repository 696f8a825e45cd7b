"""The translator: a caption is translated, and any choice of the model can be overruled."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
from pages import figure, watched
from playwright.sync_api import expect

pytestmark = pytest.mark.slow
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


@pytest.fixture
def drawer(box):
    """The drawer with heads, search and link, open."""
    box.locator(".drawer > summary").click()
    return box.locator(".drawer")


def english(box) -> str:
    return box.locator(".english").inner_text()


def write(box, text: str) -> None:
    box.get_by_role("textbox").fill(text)
    box.get_by_role("textbox").press("Enter")


def wait_for_source(box, text: str) -> None:
    box.locator(".rows .german text", has_text=text).first.wait_for(state="attached")


def overrule(box, how: str = "click") -> str:
    """Choose the first of the offers that was not taken; returns it as it is written."""
    offer = box.locator(".offers [aria-pressed=false]").first
    piece = offer.locator("span").inner_text().removeprefix("…")
    offer.press("Enter") if how == "press" else getattr(offer, how)()
    box.locator(".english .yours", has_text=piece).wait_for()
    return piece


def test_a_sentence_that_is_typed_is_translated_by_beam_or_greedily(at, shipped, box, drawer):
    write(box, CAPTION)
    for name, search in (("beam", at.beam_search), ("greedy", at.greedy_decode)):
        box.get_by_role("combobox").select_option(name)
        [translation] = at.translate(shipped, [CAPTION], search)
        box.locator(".english", has_text=translation).wait_for()
    box.get_by_role("textbox").fill("Zwei Frauen.")
    box.get_by_role("combobox").select_option("beam")  # at once: what is typed is not lost
    wait_for_source(box, "Frauen")
    shares = box.locator(".offers b").all_inner_texts()
    assert sum(float(text.removesuffix(" %")) for text in shares) == pytest.approx(100, abs=0.4)


def test_words_and_the_die_make_captions(box):
    field = box.get_by_role("textbox")
    for button in box.locator(".bank button").all():
        button.click()
        assert button.locator("[lang=de]").inner_text() in field.input_value()
        assert button.get_attribute("aria-pressed") == "true"
    wait_for_source(box, "Straße")
    before = english(box)
    for _ in range(6):
        typed = field.input_value()
        box.locator(".die").press("Enter")
        assert field.input_value() != typed
    box.locator(".english").filter(has_not_text=before).wait_for()


def test_umlauts_are_written_at_the_cursor_or_understood_without(box):
    field = box.get_by_role("textbox")
    before = field.input_value()
    box.get_by_role("button", name="ü", exact=True).click()  # the field has no cursor yet
    assert field.input_value() == before + "ü"
    field.fill("Ein Mdchen")
    field.evaluate("field => field.setSelectionRange(5, 5)")
    box.get_by_role("button", name="ä", exact=True).click()
    assert field.input_value() == "Ein Mädchen"
    write(box, "Eine Klasse Maedchen laeuft ueber die neue Strasse")
    wait_for_source(box, "Straße")
    read = "".join(box.locator(".rows .german text").all_text_contents())
    assert "EineKlasseMädchenläuftüberdieneueStraße" in read


def test_it_plays_once_by_itself_and_stops_at_the_most_uncertain_word(browser, figures_page):
    tab = watched(browser, figures_page)
    box = figure(tab, "translator")
    box.locator(".playing .english .later").first.wait_for(state="attached")
    assert not box.locator(".offers").is_visible()
    box.locator(".translator:not(.playing)").wait_for()
    doubt = "all => all.map((each) => parseFloat(each.style.getPropertyValue('--doubt')))"
    [now] = box.locator(".english .now").evaluate_all(doubt)
    assert now == max(box.locator(".english span").evaluate_all(doubt))
    [word, offers] = [box.locator(name).bounding_box() for name in (".english .now", ".offers")]
    assert offers["x"] <= word["x"] + 2 and word["x"] < offers["x"] + offers["width"]
    assert 0 <= offers["y"] - word["y"] - word["height"] < 12
    assert len(tab.asked) == 1, "no model"
    assert tab.faults == []


def test_after_a_choice_of_the_reader_only_the_rest_is_searched(tab, box):
    before = english(box)
    now = box.locator(".english .now").inner_text()
    offers = box.locator(".offers li span").all_inner_texts()
    piece = overrule(box, "press")
    start = before[: before.index(now)]
    assert box.locator(".english .yours").inner_text() == piece
    assert english(box).startswith(f"{start}{piece}")
    assert box.locator(".ghost").inner_text() == before.removeprefix(start), "the old path"
    assert box.locator(".offers li span").all_inner_texts() == offers, "none moves"
    assert tab.evaluate("document.activeElement.textContent").startswith(piece), "the focus stays"
    box.get_by_role("button", name="Take it back").press("Enter")
    box.locator(".english", has_text=before).wait_for()
    assert box.locator(".yours").count() == 0
    assert box.locator(".ghost").inner_text() == ""


def test_while_the_rest_is_written_the_candidates_stay(tab, box):
    tab.emulate_media(reduced_motion="no-preference")
    place = box.locator(".offers").bounding_box()
    offers = box.locator(".offers li span").all_inner_texts()
    overrule(box)
    box.locator(".playing").wait_for()
    assert box.locator(".offers").bounding_box() == place
    again = box.locator(".offers [aria-pressed=false]").last
    last = again.locator("span").inner_text().removeprefix("…")
    again.click()  # before the first choice is written
    box.locator(".english .yours", has_text=last).wait_for()
    box.locator(".translator:not(.playing)").wait_for()
    assert box.locator(".offers li span").all_inner_texts() == offers
    box.get_by_role("button", name="Step", exact=True).click()
    assert box.locator(".offers li span").all_inner_texts() != offers


@pytest.mark.parametrize("way", ["hover", "focus", "tap"])
def test_pieces_of_the_drawing_show_their_arcs(browser, figures_page, way):
    tab = watched(browser, figures_page, reduced_motion="reduce", has_touch=True)
    box = figure(tab, "translator")
    word = box.locator(".rows .german .piece").nth(5)
    getattr(word, way)()
    box.locator(".rows .german .piece.now").wait_for()
    middle = word.locator("rect").evaluate(
        "rect => +rect.getAttribute('x') + rect.getAttribute('width') / 2"
    )
    end = "all => all.map((each) => Number(each.getAttribute('d').split(/[ ,]/).at(-2)))"
    assert {*box.locator(".rows path.now").evaluate_all(end)} == {middle}
    box.locator(".rows .written .piece").first.press("Enter")
    assert box.locator(".rows .written .piece").first.evaluate("each => each.matches('.now')")


def test_the_arcs_are_those_of_the_head_that_is_chosen(box, drawer):
    seen = set()
    for name in ("layer 1, head 1", "layer 1, head 2", "layer 3, mean of its heads"):
        box.get_by_role("button", name=name).click()
        box.locator(f".heads [aria-pressed=true][aria-label='{name}']").wait_for()
        widths = "all => all.map((each) => each.getAttribute('stroke-width')).join()"
        seen.add(box.locator(".rows path").evaluate_all(widths))
    assert len(seen) == 3


@pytest.mark.parametrize("typed", ["A dog is running on the beach.", ".", "EIN HUND LÄUFT."])
def test_a_sentence_that_cannot_be_translated_well_is_told_why(box, typed):
    status = box.get_by_role("status")
    write(box, typed)
    expect(status).not_to_be_empty()
    write(box, CAPTION)
    wait_for_source(box, "Schnee")
    expect(status).to_be_empty()


def test_a_link_opens_the_same_state(browser, tab, box, drawer):
    overrule(box)
    box.get_by_role("combobox").select_option("greedy")
    box.get_by_role("button", name="layer 2, head 3").click()
    box.locator(".heads [aria-pressed=true][aria-label='layer 2, head 3']").wait_for()
    box.get_by_role("button", name="Back", exact=True).click()
    drawer.get_by_role("button", name="Copy the link").click()
    tab.wait_for_function("location.hash.startsWith('#s=')")
    other = figure(watched(browser, tab.url, reduced_motion="reduce"), "translator")
    other.locator(".english .yours").wait_for()
    for part in (".english", ".english .now", ".ghost", ".offers", ".reads", ".rows svg"):
        assert other.locator(part).text_content() == box.locator(part).text_content(), part
    drawn = "all => all.map((each) => [each.getAttribute('d'), each.getAttribute('stroke-width')])"
    arcs, theirs = (each.locator(".rows path").evaluate_all(drawn) for each in (box, other))
    assert arcs == theirs
    write(other, CAPTION)
    other.page.wait_for_function("location.hash.startsWith('#s=Zwei')")


def test_an_address_may_hold_anything(browser, figures_page, tab, box):
    before = box.inner_text()
    for address in ("#top", "#s=", "#s=%20", "#s=%ZZ", "#s=Hund&w=x", "#s=Hund&w=1.-2"):
        tab.evaluate("address => { location.hash = address; }", address)
    assert box.inner_text() == before
    assert len(tab.asked) == 1, "no model"
    tab.evaluate("location.hash = '#s=Ein%20Hund.&w=999999999&o=999999999&v=9.9&at=99'")  # no such
    wait_for_source(box, "Hund")
    assert box.locator(".yours").count() == 0
    text = '"><img src=x onerror="self.harmed=1"><script>self.harmed=1</script>'
    other = watched(browser, f"{figures_page.as_uri()}#s={quote(text)}", reduced_motion="reduce")
    found = figure(other, "translator")
    found.locator(".english").filter(has_not_text="A little girl").wait_for()
    assert found.get_by_role("textbox").input_value() == text
    assert found.locator(".stage :is(img, script)").count() == 0
    assert other.evaluate("self.harmed") is None
    assert other.faults == []


@pytest.fixture
def served(figures_page):
    """The address of the page at a server, which can be made to wait."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=figures_page.parent)
    handler.log_message = None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()


def test_while_the_model_is_read_the_last_choice_counts(browser, served):
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
    status.get_by_role("button").wait_for()
    request = ask("Ein Mann.")  # another try
    write(box, "Ein Hund.")
    request.continue_()
    box.locator(".rows text", has_text="Hund").wait_for()
    expect(status).to_be_empty()
    assert not held


def test_without_the_model_the_controls_show_what_the_picture_does(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    search = box.get_by_role("combobox")
    status = box.get_by_role("status")
    tab.route("**/model.js", lambda route: route.abort())
    box.locator(".drawer > summary").click()
    search.select_option("greedy")
    again = status.get_by_role("button")
    again.wait_for()
    expect(search).to_have_value("beam")
    tab.unroute("**/model.js")
    again.click()
    expect(search).to_have_value("greedy")
    expect(status).to_be_empty()


def test_a_long_sentence_scrolls_with_what_is_played(box):
    write(box, LONG)
    wait_for_source(box, "Zeitung")
    box.get_by_role("button", name="Play", exact=True).click()
    box.locator(".rows .piece.now", has_text="end").wait_for()
    frame = box.locator(".rows").bounding_box()
    place = box.locator(".rows .piece.now").bounding_box()
    assert frame["x"] <= place["x"] < frame["x"] + frame["width"]


def test_on_a_phone_sentence_and_offers_are_in_sight_together(browser, figures_page):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    tab = watched(browser, figures_page, reduced_motion="reduce", **phone)
    box = figure(tab, "translator")
    box.locator(".offers button").last.evaluate("offer => offer.scrollIntoView({block: 'center'})")
    overrule(box, "tap")
    header = tab.locator("header").bounding_box()
    sentence = box.locator(".english").bounding_box()
    offers = box.locator(".offers").bounding_box()
    assert header["y"] + header["height"] - 3 <= sentence["y"]
    assert offers["y"] + offers["height"] <= 844
    box.locator(".columns .german .piece").nth(2).tap()
    box.locator(".columns .german .piece.now").wait_for()
