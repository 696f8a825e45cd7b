"""The translator in the browser: it says what PyTorch says, and whoever touches it is served."""

import functools
import http.server
import json
import re
import shutil
import threading

import pytest
import quickjs
import torch
from conftest import PROJECT
from pages import built, javascript, visited

from tools.page import build as build_page
from tools.results import page_translator as agree

ODD = [
    "",
    "  Zwei  Hunde ",
    "Café „Zür ich“, naïve—ok?",
    "<s> ‿\x07 ▁a\u00a0b\u0085c\ufeff",
    "日本 🙂!",
    "u\u0308ber Cafe\u0301",  # as two characters each
]


@pytest.fixture(scope="module")
def shipped(at):
    return at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page that holds the translator alone, beside its side file."""
    folder = tmp_path_factory.mktemp("translator")
    return built(folder, "![A translation.](images/first-translation.svg)")


@pytest.fixture
def served(made):
    """The address of this page at a server."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=made.parent)
    handler.log_message = None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()


@pytest.fixture
def engine(browser):
    """A window with the model and without a page."""
    tab = browser.new_page()
    tab.add_script_tag(content=build_page.engine())
    return tab


@pytest.fixture(scope="module")
def figure() -> quickjs.Context:
    """The module of the figure and the model, without a browser."""
    return javascript(figure="translator.js", hints="lib/hints.js")


def told(figure: quickjs.Context, expression: str):
    return json.loads(figure.eval(f"JSON.stringify({expression})"))


# Without a browser ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, pieces, words",
    [
        ("", [], "Type a sentence"),
        ("Hund " * 32, [], "at most 160 letters"),
        ("EIN HUND RENNT.", [], "in capitals"),
        ("ein hund rennt.", [], "have a capital letter"),
        ("Ein Hund.", ["▁Ein", "▁Hund", ".", "</s>"], ""),
        ("Ein Xylofon.", ["▁Ein", "▁X", "y", "lo", "fon", ".", "</s>"], "“Xylofon” falls into 4"),
        ("日", ["▁", "<unk>", "</s>"], "a letter that the model has never seen"),
        ("Mein Ei ist da.", "▁Me in ▁ E i ▁is t ▁ d a . </s>".split(), "fall into pieces"),
        ("Wo ist Lea?", "▁Wo ▁ist ▁ L e a ? </s>".split(), ""),
        ("ein hund rennt durch den Park.", [], "have a capital letter"),
        ("The weather is nice today and I like it.", [], "have a capital letter"),
        ("Kein Hund rennt.", [], "what is not"),
        ("Ein Nichtschwimmer badet.", [], ""),
    ],
)
def test_a_poor_sentence_is_told_why(figure, text, pieces, words):
    hint = told(figure, f"hints.hintFor({json.dumps(text)}, {json.dumps(pieces)}, 160)")
    assert words in hint
    assert bool(words) == bool(hint)


@pytest.mark.parametrize(
    "plan",
    [
        {"text": "Zwei Hunde & 100 % + ä=ö#s", "beam": True, "chosen": []},
        {"text": "Ein Hund.", "beam": False, "chosen": [126, 5]},
    ],
)
def test_an_address_holds_a_plan(figure, plan):
    address = told(figure, f"figure.addressOf({json.dumps(plan)})")
    assert address.startswith("#s=")
    assert " " not in address
    assert told(figure, f"figure.planIn({json.dumps(address)})") == plan


@pytest.mark.parametrize("address", ["", "#top", "#s=", "#s=%20", "#s=Hund&w=x", "#s=Hund&w=1.-2"])
def test_an_address_that_asks_for_nothing_is_no_plan(figure, address):
    assert told(figure, f"figure.planIn({json.dumps(address)})") is None


def test_a_scene_adds_up(figure):
    """Shares of what was offered and of all others make one; so do the weights."""
    scene = told(figure, "figure.firstScene(model)")
    assert len(scene["decisions"]) == len(scene["ids"]) == 10
    for decision in scene["decisions"]:
        shares = [offer["share"] for offer in decision["offers"]]
        assert sum(shares) + decision["rest"] == pytest.approx(1)
        assert decision["share"] in shares
        assert decision["others"] == 5000 - 5
        assert sum(decision["weights"]) == pytest.approx(1, abs=0.01)
    assert scene["decisions"][4]["before"] == "A little girl rais"


def test_what_the_reader_chose_stays_and_only_the_rest_is_searched(figure):
    first = told(figure, "figure.firstScene(model)")["ids"]
    plan = "{ text: 'Ein kleines Mädchen hebt einen roten Ball auf.', beam: true,"
    plan += f" view: {{ layer: 0, head: 1 }}, chosen: [{first[0]}, {first[1]}, 4416] }}"
    scene = told(figure, f"stills.finish(figure.sceneOf(model, {plan}))")
    assert scene["ids"][:3] == [first[0], first[1], 4416]
    assert scene["ids"] != first
    assert scene["ids"][-1] == 1, "it ends"


# In a browser -----------------------------------------------------------------------------------


def says(tab, text: str, milliseconds: int = 20_000) -> None:
    tab.locator(".english", has_text=text).wait_for(timeout=milliseconds)


@pytest.mark.browser
def test_it_is_the_model_of_pytorch(engine, at, shipped):
    """Pieces and greedy decoding of 200 sentences, beam of 20, log-probabilities of 50."""
    texts = [german for german, _ in at.builtin_corpus()["train"][:200]]
    ids = shipped.vocabularies[0].encode([*texts, *ODD])
    ours = engine.evaluate("texts => texts.map((text) => model.encode(text))", [*texts, *ODD])
    assert ours == [[*row, at.END] for row in ids]
    decode = """([texts, width]) => texts.map((text) => {
        const { finish, Search } = stills;
        const search = finish(Search.opening(model, text));
        return model.decode(finish(search.translating(width, 0.6)).written); })"""
    for width, number in ((1, 200), (4, 20)):
        search = functools.partial(at.beam_search, beam=width)
        theirs = at.translate(shipped, texts[:number], search, split=False)
        same = map(str.__eq__, engine.evaluate(decode, [texts[:number], width]), theirs)
        assert sum(same) >= 0.99 * number
    for text in texts[:50]:
        assert agree.widest_difference(shipped, engine, text) < 1e-3


@pytest.mark.browser
@pytest.mark.parametrize("width, scheme", [(320, "light"), (390, "dark"), (1360, "light")])
def test_the_result_stands_at_once_and_nothing_is_asked_for_before(browser, made, width, scheme):
    size = {"width": width, "height": 900}
    tab = visited(browser, made.as_uri(), viewport=size, color_scheme=scheme)
    faults = []
    tab.on("pageerror", lambda error: faults.append(error))
    assert tab.locator(".english").inner_text() == "A little girl raises a red ball."
    assert tab.locator(".piece.now:visible").text_content() == "rais"
    assert tab.locator(".piece.later:visible").count() == 6
    tab.get_by_role("button", name="Faster").click()
    tab.get_by_role("button", name="Step").click()
    assert tab.locator(".reads").inner_text().startswith("To write es after “A little girl rais”")
    assert [address for address in tab.asked if "data:" not in address] == [made.as_uri()]
    tab.get_by_label("Type a caption in German").fill("Zwei Hunde spielen im Schnee.")
    says(tab, "Two dogs play in the snow.")
    assert tab.asked[-1].endswith("/model.js")
    above = tab.locator(".english").bounding_box()
    assert above["y"] + above["height"] < 460, "above the keyboard of a phone"
    tab.get_by_role("button", name="layer 1, head 2").click()
    tab.locator("select").select_option("greedy")
    tab.get_by_role("button", name="Ich habe heute").click()
    says(tab, "It are")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert not faults
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    assert axe.Axe().run(tab).response["violations"] == []


@pytest.mark.browser
def test_pieces_stay_where_they_are_while_the_highlight_travels(browser, made):
    tab = visited(browser, made.as_uri())
    places = "[...document.querySelectorAll('.rows rect')].map(e => e.getAttribute('x'))"
    before = tab.evaluate(places)
    tab.get_by_role("button", name="Back").click()
    tab.get_by_role("button", name="Back").click()
    assert tab.locator(".rows .piece.now").text_content() == "little"
    assert tab.evaluate(places) == before
    tab.locator(".offers button", has_text="young").click()
    says(tab, "A young girl")
    after = tab.evaluate(places)
    assert after[:12] == before[:12], "the source, and what stands before the choice"


@pytest.mark.browser
def test_a_choice_is_marked_and_taken_back(browser, made):
    tab = visited(browser, made.as_uri() + "#s=Ein%20Hund.", reduced_motion="reduce")
    says(tab, "A dog")
    tab.get_by_role("button", name="Ein kleines Mädchen").click()
    says(tab, "A little girl raises")
    assert "Ein%20kleines" in tab.evaluate("location.hash"), "an address is never stale"
    tab.locator(".rows .piece", has_text="rais").click()
    tab.locator(".offers button", has_text="picking").click()
    says(tab, "A little girl picking up a red ball.")
    assert tab.locator(".english .yours").inner_text() == "picking"
    tab.locator(".rows .piece", has_text="picking").click()
    assert tab.locator(".reads").inner_text().startswith("Your choice. To write picking after")
    tab.get_by_role("button", name="take your choice back").click()
    says(tab, "A little girl raises")
    assert tab.locator(".yours").count() == 0


@pytest.mark.browser
def test_a_long_sentence_scrolls_with_the_highlight_and_moves_no_button(browser, made):
    tab = visited(browser, made.as_uri(), viewport={"width": 1360, "height": 900})
    before = tab.locator(".play").bounding_box()["y"]
    text = "Ein alter Mann mit einem langen Bart und einem grauen Hut sitzt auf einer Bank im Park."
    tab.get_by_label("Type a caption in German").fill(text)
    says(tab, "An old man with a long beard")
    tab.locator(".rows .piece.now", has_text="end").wait_for(timeout=30_000)
    assert abs(tab.locator(".play").bounding_box()["y"] - before) < 60  # another line of English
    frame = tab.locator(".drawings > .rows").bounding_box()
    place = tab.locator(".rows .piece.now").bounding_box()
    assert frame["x"] <= place["x"] < frame["x"] + frame["width"]


@pytest.mark.browser
def test_on_a_phone_what_is_chosen_below_is_seen_above(browser, made):
    size = {"width": 390, "height": 844}
    tab = visited(browser, made.as_uri(), viewport=size, has_touch=True, reduced_motion="reduce")
    offer = tab.locator(".offers button", has_text="picking")
    offer.scroll_into_view_if_needed()
    tab.evaluate("scrollBy(0, 250)")
    offer.tap()
    says(tab, "A little girl picking")
    header = tab.locator("header").bounding_box()
    english = tab.locator(".english").bounding_box()
    assert header["y"] + header["height"] - 3 <= english["y"] < 100


@pytest.mark.browser
def test_the_highlight_travels_at_a_pace_and_stops(browser, made):
    tab = visited(browser, made.as_uri())
    play = tab.locator(".play")
    play.click()
    assert play.inner_text() == "Pause"
    tab.locator(".rows .piece.now", has_text="red").wait_for()
    play.click()
    assert play.inner_text() == "Play"
    stands = tab.locator(".rows .piece.now").text_content()
    tab.wait_for_timeout(500)
    assert tab.locator(".rows .piece.now").text_content() == stands


@pytest.mark.browser
def test_while_the_model_is_read_the_last_wish_counts(browser, served):
    tab = visited(browser, served, reduced_motion="reduce")
    held = []
    faults = []
    tab.on("pageerror", lambda error: faults.append(error))
    tab.route("**/model.js", lambda route: held.append(route))

    def answer(how: str) -> None:
        while not held:
            tab.wait_for_timeout(20)
        getattr(held.pop(), how)()

    status = tab.get_by_role("status")
    tab.get_by_role("button", name="layer 1, head 1").click()
    status.get_by_text("Reading the model").wait_for()
    answer("abort")
    status.get_by_text("could not be read").wait_for()
    tab.get_by_label("Type a caption in German").fill("Ein Mann schläft.")  # asked for again
    status.get_by_text("Reading the model").wait_for()
    tab.get_by_label("Type a caption in German").fill("Ein Hund rennt.")
    tab.wait_for_timeout(400)
    answer("continue_")
    says(tab, "A dog runs.")
    assert status.inner_text() == ""
    assert not held
    assert not faults


@pytest.mark.browser
def test_an_endless_word_leaves_the_page_awake(browser, made):
    tab = visited(browser, made.as_uri())
    field = tab.get_by_label("Type a caption in German")
    field.fill("Ein Hund rennt.")
    says(tab, "A dog runs.")  # the model is there
    tab.evaluate("self.turns = 0; setInterval(() => { turns += 1; }, 5)")
    field.fill("日" * 160)
    status = tab.get_by_role("status")
    status.get_by_text("160 letters").wait_for()
    tab.locator(".rows .piece", has_text="<unk>").first.wait_for(timeout=60_000)
    assert tab.evaluate("turns") > 5, "the browser had its turn meanwhile"
    field.fill("   ")
    status.get_by_text("Type a sentence").wait_for()


@pytest.mark.browser
def test_another_candidate_is_gone_on_from_by_the_keyboard_alone(browser, made):
    tab = visited(browser, made.as_uri(), reduced_motion="reduce")
    tab.locator(".offers button", has_text="picking").focus()
    tab.keyboard.press("Enter")
    says(tab, "A little girl picking")
    assert tab.locator(".offers p").first.inner_text().startswith("What may follow “…")
    assert tab.evaluate("document.activeElement.closest('.offers') !== null"), "the focus stays"
    for _ in range(3):
        tab.get_by_role("button", name="Back", exact=True).press("Space")
    assert tab.locator(".english[aria-live=polite][aria-busy=false]").count() == 1


@pytest.mark.browser
def test_a_link_brings_sentence_and_choices_back(browser, made):
    tab = visited(browser, made.as_uri(), reduced_motion="reduce")
    tab.locator(".offers button", has_text="picking").click()
    says(tab, "A little girl picking")
    tab.locator("select").select_option("greedy")
    tab.wait_for_timeout(300)
    said = tab.locator(".english").inner_text()
    tab.get_by_role("button", name="Copy the link").click()
    tab.get_by_role("button", name="Copied").wait_for()
    other = visited(browser, tab.url, reduced_motion="reduce")
    says(other, said)
    assert other.locator("select").input_value() == "greedy"
    assert other.get_by_label("Type a caption in German").input_value().startswith("Ein kleines")


@pytest.mark.browser
def test_the_rest_is_counted_and_doubt_is_seen(browser, made):
    tab = visited(browser, made.as_uri())
    shares = tab.locator(".offers b").all_inner_texts()
    assert sum(float(text.removesuffix(" %")) for text in shares) == pytest.approx(100, abs=0.4)
    assert tab.locator(".rest span").inner_text() == "4,995 others"
    fill = "e => getComputedStyle(e).fill"
    sure, unsure = (
        tab.locator(".rows .piece", has_text=re.compile(text)).locator("rect").evaluate(fill)
        for text in ("^ball$", "^rais$")
    )
    assert sure != unsure


@pytest.mark.browser
def test_nothing_is_lost_in_forced_colours(browser, made):
    tab = visited(browser, made.as_uri(), forced_colors="active")
    bar = tab.locator(".offers i").first
    style = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e.closest('li') ?? e)]"
    assert bar.evaluate(style)[0] not in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
    chosen = tab.locator(".offers [aria-pressed=true]")
    assert chosen.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    assert chosen.evaluate("e => getComputedStyle(e).forcedColorAdjust") == "none", "no plate"


@pytest.mark.browser
@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
def test_without_its_side_file_a_sentence_says_so(browser, made, tmp_path, damage):
    shutil.copy(made, tmp_path)
    if damage != "missing":
        text = build_page.side_file()
        flipped = text[:3_000_000] + chr(ord(text[3_000_000]) ^ 1) + text[3_000_001:]
        damaged = flipped if damage == "flipped" else text[:3_000_000]
        (tmp_path / "model.js").write_text(damaged, "utf-8")
    tab = visited(browser, (tmp_path / "page.html").as_uri())
    before = tab.locator(".drawings").inner_html()
    tab.get_by_role("button", name="layer 1, head 1").click()
    tab.get_by_role("status").get_by_text("model.js is missing beside this page").wait_for()
    assert tab.locator(".drawings").inner_html() == before


@pytest.mark.browser
def test_without_scripts_and_on_paper_there_is_the_same_picture(browser, made):
    tab = visited(browser, made.as_uri(), java_script_enabled=False)
    assert tab.locator(".rows .piece.now").text_content() == "rais"
    assert tab.locator(".offers li").count() == 5
    assert tab.locator(".playable button:visible").count() == 5, "the offers, as a list"
    assert tab.locator(".playable input:visible").count() == 0
    paper = visited(browser, made.as_uri())
    paper.emulate_media(media="print")
    assert paper.locator(".drawings svg:visible").count() == 1
    assert paper.locator(".player:visible").count() == 0
