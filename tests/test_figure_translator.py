"""The translator: a caption is translated, and any choice of the model can be overruled."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
import torch
from conftest import PROJECT
from pages import figure, watched
from playwright.sync_api import expect

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


def wait_for_english(box, text: str) -> None:
    box.locator(".english", has_text=text).wait_for()


def wait_for_source(box, text: str) -> None:
    box.locator(".rows .german text", has_text=text).first.wait_for(state="attached")


def overrule(box, how: str = "click") -> str:
    """Choose the first of the offers that was not taken; returns it as it is written."""
    offer = box.locator(".offers [aria-pressed=false]").first
    piece = offer.locator("span").inner_text().removeprefix("…")
    offer.press("Enter") if how == "press" else getattr(offer, how)()
    box.locator(".english .yours", has_text=piece).wait_for()
    return piece


def test_a_sentence_that_is_typed_is_translated_by_beam_or_greedily(at, box, drawer):
    shipped = at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))
    write(box, CAPTION)
    for name, search in (("beam", at.beam_search), ("greedy", at.greedy_decode)):
        box.get_by_role("combobox").select_option(name)
        [translation] = at.translate(shipped, [CAPTION], search)
        wait_for_english(box, translation)
    before = english(box)
    chip = drawer.get_by_role("group", name="Captions to try").get_by_role("button").last
    chip.click()
    assert box.get_by_role("textbox").input_value() == chip.inner_text()
    box.locator(".english").filter(has_not_text=before).wait_for()


def test_words_of_the_bank_make_captions_that_the_model_knows(box):
    bank = box.locator(".bank button")
    captions = set()
    for button in bank.all():
        button.click()
        caption = box.get_by_role("textbox").input_value()
        word = button.locator("[lang=de]").inner_text()
        assert word in caption
        assert button.get_attribute("aria-pressed") == "true"
        captions.add(caption)
    assert bank.count() >= 10 and len(captions) > 5
    assert caption.startswith("Ein") and caption.endswith(".")
    assert box.locator(".bank [aria-pressed=true]").count() == 4, "one of each kind"
    wait_for_source(box, word)
    write(box, "Ich")
    bank.first.press("Enter")
    assert box.get_by_role("textbox").input_value().startswith("Ein")
    assert bank.first.evaluate("button => button === document.activeElement")


def test_the_die_throws_another_caption_each_time_and_it_is_translated(box):
    before = english(box)
    die = box.locator(".die")
    thrown = [box.get_by_role("textbox").input_value()]
    for _ in range(6):
        die.press("Enter")
        thrown.append(box.get_by_role("textbox").input_value())
        assert thrown[-1] != thrown[-2]
    box.locator(".english").filter(has_not_text=before).wait_for()
    pieces = box.locator(".rows .german .piece").count() - 1  # without the end
    assert pieces <= 2 + len(thrown[-1].split()), "the model knows its words"


def test_a_key_writes_an_umlaut_at_the_cursor(box):
    field = box.get_by_role("textbox")
    field.fill("Ein Mdchen")
    field.evaluate("field => field.setSelectionRange(5, 5)")
    box.get_by_role("button", name="ä", exact=True).click()
    assert field.input_value() == "Ein Mädchen"
    assert field.evaluate("field => [field === document.activeElement, field.selectionStart]") == [
        True,
        6,
    ]
    wait_for_source(box, "Mädchen")


@pytest.mark.parametrize(
    "typed, read",
    [
        ("Ein Maedchen laeuft ueber die Strasse.", "Mädchen läuft über die Straße"),
        ("Der neue blaue Hund trinkt Wasser.", "neue blaue Hund trinkt Wasser"),
        ("Eine Klasse passt eventuell an die Mauer.", "Klasse passt eventuell an die Mauer"),
        ("Aepfel auf einer grossen Tuer", "Äpfel auf einer großen T"),
    ],
)
def test_plain_letters_stand_for_umlauts_where_the_model_knows_the_word(box, typed, read):
    write(box, typed)
    wait_for_source(box, typed.split()[-1].strip(".")[0])
    joined = "all => all.map((each) => each.textContent).join('')"
    box.page.wait_for_function(
        "text => [...document.querySelectorAll('.rows .german text')]"
        ".map((each) => each.textContent).join('').includes(text)",
        arg=read.replace(" ", ""),
    )
    assert read.replace(" ", "") in box.locator(".rows .german text").evaluate_all(joined)
    assert box.get_by_role("textbox").input_value() == typed


def test_it_shows_the_most_uncertain_word_with_its_candidates_under_it(box):
    write(box, CAPTION)
    wait_for_source(box, "Schnee")
    doubt = "all => all.map((each) => parseFloat(each.style.getPropertyValue('--doubt')))"
    [most] = box.locator(".english .now").evaluate_all(doubt)
    assert most == max(box.locator(".english span").evaluate_all(doubt))
    [word, offers] = [box.locator(name).bounding_box() for name in (".english .now", ".offers")]
    assert offers["x"] <= word["x"] + 2 and word["x"] < offers["x"] + offers["width"]
    assert 0 <= offers["y"] - word["y"] - word["height"] < 12


def test_it_plays_once_by_itself_and_stops_at_the_most_uncertain_word(browser, figures_page):
    silent = watched(browser, figures_page, java_script_enabled=False)
    stop = silent.locator("[data-play=translator] .english .now").inner_text()
    tab = watched(browser, figures_page)
    box = figure(tab, "translator")
    box.locator(".playing .english .later").first.wait_for(state="attached")
    assert not box.locator(".offers").is_visible()
    box.locator(".translator:not(.playing)").wait_for()
    assert box.locator(".english .now").inner_text() == stop
    assert box.locator(".offers").is_visible()
    assert len(tab.asked) == 1, "no model"
    tab.wait_for_timeout(1500)
    assert box.locator(".translator:not(.playing)").count() == 1
    assert tab.faults == []


def test_after_a_choice_of_the_reader_only_the_rest_is_searched(tab, box):
    places = ".rows g[role=img] rect"
    at = "all => all.map((each) => each.getAttribute('x'))"
    before = english(box)
    boxes = box.locator(places).evaluate_all(at)
    kept = 1 + box.locator(".rows g[role=img] .piece").evaluate_all(
        "all => all.findIndex((each) => each.matches('.now'))"
    )
    now = box.locator(".english .now").inner_text()
    offers = box.locator(".offers li span").all_inner_texts()
    piece = overrule(box, "press")
    start = before[: before.index(now)]
    assert box.locator(".english .yours").inner_text() == piece
    assert english(box).startswith(f"{start}{piece}")
    assert english(box) != before
    assert box.locator(places).evaluate_all(at)[:kept] == boxes[:kept]
    assert box.locator(".ghost").inner_text() == before.removeprefix(start), "the old path"
    assert box.locator(".offers li span").all_inner_texts() == offers, "none moves"
    assert tab.evaluate("document.activeElement.textContent").startswith(piece), "the focus stays"
    back = box.get_by_role("button", name="Take it back")
    back.press("Enter")
    wait_for_english(box, before)
    assert box.locator(".yours").count() == 0
    assert box.locator(".ghost").inner_text() == ""
    assert back.evaluate("button => button === document.activeElement")


def test_while_the_rest_is_written_the_candidates_stay(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    box = figure(tab, "translator")
    tab.emulate_media(reduced_motion="no-preference")
    place = box.locator(".offers").bounding_box()
    offers = box.locator(".offers li span").all_inner_texts()
    piece = overrule(box)
    box.locator(".playing").wait_for()
    assert box.locator(".offers").bounding_box() == place
    assert box.locator(".offers li span").all_inner_texts() == offers
    again = box.locator(".offers [aria-pressed=false]").last
    last = again.locator("span").inner_text()
    again.click()
    box.locator(".english .yours", has_text=last).wait_for()
    assert box.locator(".ghost").inner_text().startswith(piece), "the path before the last choice"
    box.get_by_role("button", name="Step", exact=True).click()
    assert box.locator(".offers li span").all_inner_texts() != offers


@pytest.mark.parametrize("way", ["hover", "focus", "tap"])
def test_a_german_word_shows_every_arc_to_it(browser, figures_page, way):
    tab = watched(browser, figures_page, reduced_motion="reduce", has_touch=True)
    box = figure(tab, "translator")
    word = box.locator(".rows .german .piece").nth(5)
    now = box.locator(".rows path.now")
    getattr(word, way)()
    box.locator(".rows .german .piece.now").wait_for()
    middle = word.locator("rect").evaluate(
        "rect => +rect.getAttribute('x') + rect.getAttribute('width') / 2"
    )
    ends = now.evaluate_all("all => all.map((each) => each.getAttribute('d').split(/[ ,]/).at(-2))")
    assert ends and {float(end) for end in ends} == {middle}
    if way == "focus":
        word.press("ArrowRight")
        assert box.locator(".rows .german .piece").nth(6).evaluate("each => each.matches('.now')")


def test_what_is_typed_is_not_lost_when_the_search_is_changed_at_once(box, drawer):
    box.get_by_role("textbox").fill(CAPTION)
    box.get_by_role("combobox").select_option("greedy")
    wait_for_source(box, "Schnee")


@pytest.mark.parametrize(
    "typed, said",
    [("A dog is running on the beach.", "English"), (".", "word"), ("EIN HUND LÄUFT.", "capitals")],
)
def test_a_sentence_that_cannot_be_translated_well_is_told_why(box, typed, said):
    write(box, typed)
    box.get_by_role("status").get_by_text(said).wait_for()
    write(box, CAPTION)
    wait_for_source(box, "Schnee")
    assert box.get_by_role("status").inner_text() == ""


@pytest.mark.parametrize("size", [(1440, 900, 640), (390, 844, 1300)])
def test_the_figure_fits_the_screen(browser, figures_page, size):
    width, height, most = size
    viewport = {"width": width, "height": height}
    tab = watched(browser, figures_page, reduced_motion="reduce", viewport=viewport)
    box = figure(tab, "translator")
    assert box.bounding_box()["height"] <= most
    assert box.evaluate("box => box.scrollWidth") <= width


def test_the_offers_and_all_others_have_the_whole_probability(box):
    shares = box.locator(".offers b").all_inner_texts()
    assert len(shares) == 6
    assert sum(float(text.removesuffix(" %")) for text in shares) == pytest.approx(100, abs=0.4)


def test_the_arcs_are_those_of_the_head_that_is_chosen(box, drawer):
    seen = set()
    for name in ("layer 1, head 1", "layer 1, head 2", "layer 3, mean of its heads"):
        button = box.get_by_role("button", name=name)
        button.click()
        box.locator(f".heads [aria-pressed=true][aria-label='{name}']").wait_for()
        assert box.locator(".heads [aria-pressed=true]").count() == 1
        widths = "all => all.map((each) => each.getAttribute('stroke-width')).join()"
        seen.add(box.locator(".rows path").evaluate_all(widths))
    assert len(seen) == 3


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
    assert other.get_by_role("combobox", include_hidden=True).input_value() == "greedy"
    for part in (".english", ".english .now", ".ghost", ".offers", ".reads", ".rows svg"):
        assert other.locator(part).text_content() == box.locator(part).text_content(), part
    drawn = "all => all.map((each) => [each.getAttribute('d'), each.getAttribute('stroke-width')])"
    arcs, theirs = (each.locator(".rows path").evaluate_all(drawn) for each in (box, other))
    assert arcs == theirs
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
    tab.evaluate("location.hash = '#s=Ein%20Hund.&w=999999999&o=999999999&v=9.9&at=99'")  # no such
    wait_for_source(box, "Hund")
    assert box.locator(".yours").count() == 0
    assert box.locator(".ghost").inner_text() == ""


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


def test_without_the_model_the_controls_show_what_the_picture_does(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    search = box.get_by_role("combobox")
    status = box.get_by_role("status")
    tab.route("**/model.js", lambda route: route.abort())
    box.get_by_text("Heads, search, link").click()
    search.select_option("greedy")
    status.get_by_text("connection broke").wait_for()
    assert search.input_value() == "beam"
    tab.unroute("**/model.js")
    damaged = "self.translatorFiles = [2, '', ''];"
    tab.route("**/model.js", lambda route: route.fulfill(body=damaged))
    status.get_by_role("button", name="Try again").click()
    status.get_by_text("damaged").wait_for()
    tab.unroute("**/model.js")
    status.get_by_role("button", name="Try again").click()
    expect(search).to_have_value("greedy")
    expect(status).to_be_empty()


def test_an_umlaut_is_written_at_the_cursor_or_at_the_end(box):
    field = box.get_by_role("textbox")
    umlaut = box.get_by_role("button", name="ü", exact=True)
    before = field.input_value()
    umlaut.click()  # the field has no cursor yet
    assert field.input_value() == before + "ü"
    field.press("Home")
    umlaut.click()
    assert field.input_value() == "ü" + before + "ü"


def test_a_long_sentence_scrolls_with_the_highlight(tab, box):
    write(box, LONG)
    wait_for_source(box, "Zeitung")
    box.get_by_role("button", name="Play", exact=True).click()
    box.locator(".rows .piece.now", has_text="end").wait_for()
    frame = box.locator(".rows").bounding_box()
    place = box.locator(".rows .piece.now").bounding_box()
    assert frame["x"] <= place["x"] < frame["x"] + frame["width"]
    assert box.locator(".rows").evaluate("rows => rows.scrollLeft") > 0


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
    write(box, LONG)
    wait_for_source(box, "Zeitung")
    box.locator(".columns .german .piece").nth(2).tap()
    box.locator(".columns .german .piece.now").wait_for()
