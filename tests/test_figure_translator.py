"""The translator: any word can be overruled or covered, and the model blindfolded."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest
import torch
from pages import CAPTION as FIRST
from pages import engine_in, figure, watched
from playwright.sync_api import expect

from tools.page import bundle
from tools.page.markup import FIGURES

pytestmark = pytest.mark.slow
CAPTION = "Zwei Hunde spielen im Schnee."
BITES = "Ein Hund beißt einen Mann."
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []


@pytest.fixture
def box(tab):
    return figure(tab, "translator")


def english(box) -> str:
    """The translation, as it is written."""
    words = box.locator(".english .word:not(small)").all_text_contents()
    return " ".join(words).replace(" .", ".")


def expect_english(box, text: str) -> None:
    """Wait until this is the translation."""
    expect(box.locator(".english .word:not(small)")).to_have_text(text.replace(".", " .").split())


def expect_ghost(box, text: str) -> None:
    """Wait until this stands there as the translation that was; its room is always there."""
    expect(box.locator(".ghost s")).to_be_visible(visible=bool(text))
    assert box.locator(".ghost").inner_text() == text


def write(box, text: str) -> None:
    box.get_by_role("textbox").fill(text)
    box.get_by_role("textbox").press("Enter")
    box.locator(".german", has_text=text.split()[-1].strip(".")).wait_for()


def blindfold(box, name: str) -> None:
    button = box.get_by_role("button", name=name)
    before = button.get_attribute("aria-pressed")
    button.click()
    expect(button).not_to_have_attribute("aria-pressed", before)
    expect(box.locator(".english")).to_have_attribute("aria-busy", "false")


def around_the_lines(box) -> list[float]:
    """Where the two lines begin, and how far below their end the bank of words does."""
    lines, bank = (box.locator(part).bounding_box() for part in (".lines", ".bank"))
    return [lines["y"], bank["y"] - lines["y"] - lines["height"]]


def choose_head(box, name: str) -> None:
    button = box.get_by_role("button", name=name)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(box.locator(".english")).to_have_attribute("aria-busy", "false")


def overrule(box, how: str = "click") -> str:
    """Choose the first of the words that were not taken; returns it."""
    offer = box.locator(".offers [aria-pressed=false]").first
    word = offer.locator("span").inner_text()
    offer.press("Enter") if how == "press" else getattr(offer, how)()
    box.locator(".english .yours", has_text=word).wait_for()
    return word


# Numbers ------------------------------------------------------------------------------------------


def greedily(at, model, text: str, src_mask: torch.Tensor | None = None) -> str:
    """What PyTorch's model writes, of source positions that the mask leaves open."""
    batch = at.source_batch(model, [text])
    mask = batch.src_mask if src_mask is None else src_mask
    with torch.no_grad():
        [ids] = at.greedy_decode(model.model, batch.src, mask, 28, at.START).tolist()
    return model.vocabularies[1].decode(ids)


def silenced(model, kind: str) -> list:
    """Hooks that make what a kind of attention adds zero, in all layers of the decoder."""
    modules = [getattr(layer, kind) for layer in model.model.decoder.layers]
    return [each.register_forward_hook(lambda *given: given[-1] * 0) for each in modules]


@pytest.mark.parametrize("text", [FIRST, CAPTION, BITES])
def test_blindfolded_it_writes_what_pytorch_writes(at, shipped, box, text):
    write(box, text)
    expect_english(box, greedily(at, shipped, text))
    for name, kind in (("cover its eyes", "src_attn"), ("forget what it wrote", "self_attn")):
        hooks = silenced(shipped, kind)
        theirs = greedily(at, shipped, text)
        [each.remove() for each in hooks]
        blindfold(box, name)
        expect_english(box, theirs)
        truth = greedily(at, shipped, text)
        expect_ghost(box, "" if theirs == truth else truth)
        blindfold(box, name)
    waves = [shipped.model.src_embed[1].pe, shipped.model.tgt_embed[1].pe]
    kept = [each.clone() for each in waves]
    [each.zero_() for each in waves]
    theirs = greedily(at, shipped, text)
    [each.copy_(before) for each, before in zip(waves, kept, strict=True)]
    blindfold(box, "forget the order")
    expect_english(box, theirs)


def test_of_a_covered_word_nothing_is_read_as_in_pytorch(at, shipped, box):
    write(box, BITES)
    src = at.source_batch(shipped, [BITES]).src
    words = [shipped.vocabularies[0].words[number] for number in src[0].tolist()]
    for word in ("Hund", "beißt"):
        button = box.locator(".german button", has_text=word)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        inside = [piece.strip("▁") and piece.strip("▁") in word for piece in words]
        mask = torch.tensor(
            [[[not (piece and len(words[n]) > 1) for n, piece in enumerate(inside)]]]
        )
        expect_english(box, greedily(at, shipped, BITES, mask))
        button.click()
        expect_english(box, greedily(at, shipped, BITES))


def test_shares_of_words_add_up_and_a_whole_word_is_offered(at, shipped, box):
    shares = box.locator(".offers b").all_inner_texts()
    assert sum(float(text.removesuffix(" %")) for text in shares) == pytest.approx(100, abs=0.4)
    assert box.locator(".offers [aria-pressed=true] span").inner_text() in english(box).split()
    batch = at.source_batch(shipped, [box.get_by_role("textbox").input_value()])
    words = shipped.vocabularies[1].words
    begun = [at.START, *(words.index(piece) for piece in ("▁A", "▁little", "▁girl"))]
    own = [words.index(piece) for piece in ("▁rais", "es")]
    tgt = torch.tensor([[*begun, own[0]]])
    with torch.no_grad():
        mask = at.subsequent_mask(tgt.size(1))
        states = shipped.model(batch.src, tgt, batch.src_mask, mask)
        log_probs = shipped.model.generator(states)[0]
    share = torch.exp(log_probs[-2, own[0]] + log_probs[-1, own[1]]).item()
    assert float(shares[0].removesuffix(" %")) == pytest.approx(100 * share, abs=0.1)


def test_what_the_page_answers_by_itself_is_what_its_model_computes(chromium):
    tab = engine_in(chromium)
    tab.add_script_tag(content=bundle.bundle(FIGURES / "translation.js", "translation"))
    first = tab.evaluate("translation.firstScene(model)")
    look = "choice => stills.finish(translation.sceneOf(model, choice))"
    for answer in [{}, *first.pop("answers")]:
        scene = first | answer
        choice = {name: scene[name] for name in ("text", "off", "covered", "chosen", "view", "at")}
        assert tab.evaluate(look, choice) == scene
    tab.close()


# A journey ----------------------------------------------------------------------------------------


def test_any_word_is_touched_and_overruled_and_only_the_rest_is_written(tab, box):
    before = english(box)
    words = box.locator(".english button")
    for number in range(words.count()):
        words.nth(number).click()
        expect(words.nth(number)).to_have_attribute("aria-expanded", "true")
        [word, offers] = [
            each.bounding_box() for each in (words.nth(number), box.locator(".offers"))
        ]
        assert offers["x"] <= word["x"] + 2 and word["x"] < offers["x"] + offers["width"]
    words.nth(1).click()
    offered = box.locator(".offers li span").all_inner_texts()
    word = overrule(box, "press")
    assert english(box).split()[:2] == ["A", word]
    assert box.locator(".ghost").inner_text() == before
    assert box.locator(".offers li span").all_inner_texts() == offered, "none moves"
    assert word in tab.evaluate("document.activeElement.textContent"), "the focus stays"
    box.get_by_role("button", name="Take it back").press("Enter")
    expect_english(box, before)
    assert box.locator(".yours").count() == 0
    assert box.locator(".ghost").inner_text() == ""


def test_it_writes_once_by_itself_and_stops_with_the_word_it_was_least_sure_of(
    browser, figures_page
):
    tab = watched(browser, figures_page, viewport={"width": 1360, "height": 200})
    box = tab.locator("[data-play=translator]")
    box.and_(tab.locator("[data-awake]")).wait_for()
    opacity = "all => all.map((each) => getComputedStyle(each).opacity)"
    assert {*box.locator(".english .word").evaluate_all(opacity)} == {"0"}, "no flash"
    tab.set_viewport_size({"width": 1360, "height": 900})
    box.locator(".playing .english .later").first.wait_for(state="attached")
    assert not box.locator(".offers").is_visible()
    box.locator(".translator:not(.playing)").wait_for()
    doubt = "all => all.map((each) => parseFloat(each.style.getPropertyValue('--doubt')))"
    spans = box.locator(".english span")
    [now, *_] = box.locator(".english [aria-expanded=true] span").evaluate_all(doubt)
    assert now == max(spans.evaluate_all(doubt))
    assert box.locator(".offers").is_visible()
    assert len(tab.asked) == 1, "no model"
    assert tab.faults == []


def test_while_the_rest_is_written_the_alternatives_stay(tab, box):
    tab.emulate_media(reduced_motion="no-preference")
    place = box.locator(".offers").bounding_box()
    offers = box.locator(".offers li span").all_inner_texts()
    overrule(box)
    box.locator(".playing").wait_for()
    assert box.locator(".offers").bounding_box() == place
    again = box.locator(".offers [aria-pressed=false]").last
    last = again.locator("span").inner_text()
    again.click()  # before the first choice is written
    box.locator(".english .yours", has_text=last).wait_for()
    box.locator(".translator:not(.playing)").wait_for()
    assert box.locator(".offers li span").all_inner_texts() == offers


def test_arcs_lead_from_words_to_words_and_fall_with_closed_eyes(box):
    ends = "all => all.map((each) => each.getAttribute('d').match(/[\\d.]+/g).map(Number))"
    arcs = box.locator(".arcs path.now").evaluate_all(ends)
    frame = box.locator(".lines").bounding_box()
    for word, x in ((".english [aria-expanded=true]", 0), (".german :text('hebt')", -2)):
        place = box.locator(word).first.bounding_box()
        left = place["x"] - frame["x"]
        assert any(left <= arc[x] <= left + place["width"] for arc in arcs)
    seen = set()
    box.locator(".drawer > summary").click()
    for name in ("layer 1, head 1", "layer 1, head 2", "layer 3, mean of its heads"):
        choose_head(box, name)
        widths = "all => all.map((each) => each.getAttribute('stroke-width')).join()"
        seen.add(box.locator(".arcs path").evaluate_all(widths))
    assert len(seen) == 3
    blindfold(box, "cover its eyes")
    box.locator(".arcs.fallen").wait_for(state="attached")
    expect(box.locator(".arcs path.now")).to_have_count(0)


def test_words_and_the_die_make_captions(box):
    field = box.get_by_role("textbox")
    for button in box.locator(".bank button").all():
        button.click()
        assert button.locator("[lang=de]").inner_text() in field.input_value()
        assert button.get_attribute("aria-pressed") == "true"
    box.locator(".german", has_text="Straße").wait_for()
    before = english(box)
    for _ in range(6):
        typed = field.input_value()
        box.locator(".die").press("Enter")
        assert field.input_value() != typed
    box.locator(".english").filter(has_not_text=before).wait_for()


def test_umlauts_are_written_at_the_cursor_or_understood_without(box):
    field = box.get_by_role("textbox")
    umlaut = box.get_by_role("button", name="ä", exact=True)
    assert not umlaut.is_visible()
    field.fill("Ein Mdchen")
    field.evaluate("field => field.setSelectionRange(5, 5)")
    umlaut.click()
    assert field.input_value() == "Ein Mädchen"
    for typed, read in (
        ("Eine Klasse Maedchen laeuft ueber die neue Strasse", "Straße"),
        ("eine schoene frau laeuft ueber die strasse", "eine schöne Frau läuft über die Straße"),
        ("ZWEI HUNDE SPIELEN", "Zwei Hunde spielen"),
        ("EIN KIND MIT DEM BALL UND EIN PINGUIN", "Ein Kind mit dem Ball und ein Pinguin"),
        ("Ein HUND im BMW", "Ein Hund im BMW"),
    ):
        field.fill(typed)
        box.locator(".german", has_text=read.replace(" ", "")).wait_for()


@pytest.mark.parametrize("typed", ["A dog is running on the beach.", ".", "Ein Hund 日."])
def test_a_sentence_that_cannot_be_translated_well_is_told_why(box, typed):
    status = box.get_by_role("status")
    usual = status.inner_text()
    box.get_by_role("textbox").fill(typed)
    box.get_by_role("textbox").press("Enter")
    expect(status).not_to_have_text(usual)
    write(box, CAPTION)
    expect(status).to_have_text(usual)


# Addresses ----------------------------------------------------------------------------------------


def test_a_friend_gets_what_was_sent_and_finds_back_to_the_truth(browser, tab, box):
    truth = english(box)
    overrule(box)
    box.locator(".drawer > summary").click()
    choose_head(box, "layer 2, head 3")
    box.get_by_role("button", name="Copy a link").click()
    tab.wait_for_function("location.hash.startsWith('#s=')")
    other = figure(watched(browser, tab.url, reduced_motion="reduce"), "translator")
    other.locator(".motive.game").wait_for()
    for part in (".english", ".german"):
        assert other.locator(part).text_content() == box.locator(part).text_content(), part
    assert other.locator(".yours").count() == 0 and other.locator(".ghost").inner_text() == ""
    for word in (0, 3):  # another way first
        other.locator(".english button").nth(word).click()
        favourite = other.locator(".offers li button").first
        if favourite.get_attribute("aria-pressed") == "false":
            favourite.click()
    expect_english(other, truth)
    expect(other.locator(".motive")).to_contain_text("1 tap")
    write(other, CAPTION)
    other.page.wait_for_function("location.hash.startsWith('#s=Zwei')")
    expect(other.locator(".motive.game")).to_have_count(0)


def test_blindfolds_and_covered_words_are_part_of_the_address(browser, tab, box):
    blindfold(box, "forget the order")
    box.locator(".german button").nth(2).click()
    box.locator(".german [aria-pressed=true]").wait_for()
    expect(box.locator(".english")).to_have_attribute("aria-busy", "false")
    box.get_by_role("button", name="Copy a link").click()
    tab.wait_for_function("location.hash.startsWith('#s=')")
    other = figure(watched(browser, tab.url, reduced_motion="reduce"), "translator")
    other.locator(".german [aria-pressed=true]").wait_for()
    expect(other.locator(".english")).to_have_attribute("aria-busy", "false")
    for part in (".english", ".german", ".ghost", ".offers", ".blindfolds [aria-pressed=true]"):
        assert other.locator(part).text_content() == box.locator(part).text_content(), part


def test_an_address_may_hold_anything(browser, figures_page, tab, box):
    before = box.inner_text()
    for address in ("#top", "#s=", "#s=%20", "#s=%ZZ", "#s=Hund&w=x", "#s=Hund&w=1.-2"):
        tab.evaluate("address => { location.hash = address; }", address)
    assert box.inner_text() == before
    assert len(tab.asked) == 1, "no model"
    tab.evaluate("location.hash = '#s=Ein%20Hund.&w=999999999&c=0.99&b=x.order&v=9.9&at=99'")
    box.locator(".german", has_text="Hund").wait_for()  # there are no such words
    expect(box.locator(".german [aria-pressed=true]")).to_have_count(1)
    assert box.locator(".yours").count() == 0
    text = '"><img src=x onerror="self.harmed=1"><script>self.harmed=1</script>'
    other = watched(browser, f"{figures_page.as_uri()}#s={quote(text)}", reduced_motion="reduce")
    found = figure(other, "translator")
    found.locator(".english").filter(has_not_text="girl").wait_for()
    assert found.get_by_role("textbox").input_value() == text
    assert found.locator(".stage :is(img, script)").count() == 0
    assert other.evaluate("self.harmed") is None
    assert other.faults == []


# The model beside the page ------------------------------------------------------------------------


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
    field = box.get_by_role("textbox")
    status = box.get_by_role("status")
    held = []
    tab.route("**/model.js", lambda route: held.append(route))

    def ask(text: str):
        """Ask for a translation; returns the request for the model."""
        with tab.expect_request("**/model.js"):
            field.fill(text)
            field.press("Enter")
        while not held:
            status.inner_text()
        return held.pop()

    ask("Ein Mann.").abort()
    status.get_by_role("button").wait_for()
    request = ask("Ein Mann.")  # another try
    field.fill("Ein Hund.")
    field.press("Enter")
    request.continue_()
    box.locator(".german", has_text="Hund").wait_for()
    assert not held


def test_a_first_touch_is_answered_before_the_model_is_read(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    tab.route("**/model.js", lambda route: route.abort())
    written, status = english(box), box.get_by_role("status").inner_text()
    before = around_the_lines(box)
    touched = box.locator(".blindfolds button, .german button")
    answers = set()
    for button in touched.all():
        for pressed in ("true", "false"):  # there, and back
            button.click()
            expect(button).to_have_attribute("aria-pressed", pressed)
            expect(box.locator(".english")).to_have_attribute("aria-busy", "false")
            assert (box.locator(".ghost").inner_text() == "") == (english(box) == written)
            assert around_the_lines(box) == pytest.approx(before), "nothing moves"
            answers.add(english(box))
    assert len(answers) > 1
    expect_english(box, written)
    for word in box.locator(".english button").all():
        word.click()
        expect(word).to_have_attribute("aria-expanded", "true")
    assert box.get_by_role("status").inner_text() == status


def test_a_caption_to_try_is_translated_before_the_model_is_read(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    tab.route("**/model.js", lambda route: route.abort())
    for name in ("forget the order", "forget what it wrote"):
        blindfold(box, name)
        proposed = box.locator(".verdict button")
        caption = proposed.locator("span").inner_text()
        proposed.click()
        box.locator(".german", has_text=caption.replace(" ", "")).wait_for()
        tab.reload()
        box = figure(tab, "translator")


def test_without_the_model_the_switches_show_what_the_picture_does(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    eyes, order = (
        box.get_by_role("button", name=name) for name in ("cover its eyes", "forget the order")
    )
    again = box.get_by_role("status").get_by_role("button")
    tab.route("**/model.js", lambda route: route.abort())
    eyes.click()
    order.click()
    again.wait_for()
    expect(order).to_have_attribute("aria-pressed", "false")
    expect(eyes).to_have_attribute("aria-pressed", "true")
    tab.unroute("**/model.js")
    again.click()
    expect(order).to_have_attribute("aria-pressed", "true")
    expect(eyes).to_have_attribute("aria-pressed", "true")


def test_a_head_is_chosen_at_once_while_the_model_is_read(browser, served):
    tab = watched(browser, served, reduced_motion="reduce")
    box = figure(tab, "translator")
    tab.route("**/model.js", lambda route: None)
    box.locator(".drawer > summary").click()
    box.get_by_role("button", name="layer 2, head 3").click()
    expect(box.locator(".heads [aria-pressed=true]")).to_have_text(["3"])


# Phones -------------------------------------------------------------------------------------------


def test_on_a_phone_all_that_matters_is_in_sight_and_can_be_hit(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce", **PHONE)
    box = figure(tab, "translator")
    tab.evaluate("scrollTo(0, 0)")
    for part in (".field", ".german", ".english", ".offers", ".blindfolds"):
        place = box.locator(part).bounding_box()
        assert place["y"] + place["height"] <= 844, part
    for button in box.locator("button:visible").all():
        place = button.bounding_box()
        assert place["width"] >= 44 and place["height"] >= 44, button.inner_text()
    switch = box.get_by_role("button", name="cover its eyes")
    before = switch.bounding_box()
    blindfold(box, "cover its eyes")
    assert switch.bounding_box() == before, "a second tap takes it back"
    blindfold(box, "cover its eyes")
    tab.set_viewport_size({"width": 390, "height": 420})  # the keyboard takes the rest
    box.get_by_role("textbox").tap()
    header = tab.locator("header").bounding_box()
    field, written = (box.locator(part).bounding_box() for part in (".field", ".english"))
    assert header["y"] + header["height"] <= field["y"] + 3
    assert written["y"] + written["height"] <= 420
    overrule(box, "tap")
