"""The translator in the browser: it says what PyTorch says, and whoever touches it is served."""

import functools
import http.server
import shutil
import threading

import agree
import build_page
import pytest
import records
import torch
from conftest import PROJECT, visited
from test_page import built

pytestmark = pytest.mark.browser
ODD = [
    "",
    "  Zwei  Hunde ",
    "Café „Zür ich“, naïve—ok?",
    "<s> ‿\x07 ▁a\u00a0b\u0085c\ufeff",
    "日本 🙂!",
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


def says(tab, text: str, milliseconds: int = 20_000) -> None:
    tab.locator(".written", has_text=text).wait_for(timeout=milliseconds)


def test_it_is_the_model_of_pytorch(engine, at, shipped):
    """Pieces and greedy decoding of 200 sentences, beam of 20, log-probabilities of 50."""
    texts = [german for german, _ in at.builtin_corpus()["train"][:200]]
    ids = shipped.vocabularies[0].encode([*texts, *ODD])
    ours = engine.evaluate("texts => texts.map((text) => model.encode(text))", [*texts, *ODD])
    assert ours == [[*row, at.END] for row in ids]
    decode = """([texts, width]) => texts.map((text) => model.decode(
        new Search(model, model.encode(text)).translate(width, 0.6).written))"""
    for width, number in ((1, 200), (4, 20)):
        search = functools.partial(at.beam_search, beam=width)
        theirs = at.translate(shipped, texts[:number], search)
        same = map(str.__eq__, engine.evaluate(decode, [texts[:number], width]), theirs)
        assert sum(same) >= 0.99 * number
    for text in texts[:50]:
        assert agree.widest_difference(shipped, engine, text) < 1e-3


def test_the_result_on_file_holds_what_is_promised():
    found = records.read("translator")
    assert found["subwords, both test sets"] == {"sentences": 2000, "equal": 2000}
    assert found["greedy, first test set"]["equal"] >= 990
    assert found["largest difference of log-probabilities, fifty sentences"] < 1e-3


@pytest.mark.parametrize("width", [390, 1360])
def test_from_disk_nothing_is_asked_for_until_it_is_touched(browser, made, width):
    tab = visited(browser, made.as_uri(), viewport={"width": width, "height": 900})
    assert "A little girl rais" in tab.locator(".written").inner_text()
    result = [address for address in tab.asked if "data:" not in address]
    assert result == [made.as_uri()]
    tab.get_by_role("button", name="Faster").click()
    label = tab.locator(".drawings svg:visible").get_attribute("aria-label")
    assert label.startswith("Written: “A little girl rais” To write rais the model looks at hebt (")
    tab.get_by_role("button", name="Play", exact=True).click()
    tab.get_by_role("button", name="layer 2, head 1").click()  # plays on
    says(tab, "A little girl raises a red ball.")
    assert tab.asked[-1].endswith("/model.js")
    tab.get_by_role("button", name="Ich habe heute").click()
    says(tab, "It is")
    tab.locator("select").select_option("greedy")
    tab.get_by_label("A caption in German").fill("Ein Hund rennt.")
    says(tab, "A dog runs")
    tab.get_by_role("button", name="layer 1, head 2").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    assert axe.Axe().run(tab).response["violations"] == []


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
    tab.get_by_role("button", name="Step").click()
    status.get_by_text("Reading the model").wait_for()
    answer("abort")
    status.get_by_text("could not be read").wait_for()
    tab.get_by_role("button", name="Play", exact=True).click()  # asked for again
    status.get_by_text("Reading the model").wait_for()
    tab.locator("[data-decision='8']").first.click()
    answer("continue_")
    says(tab, "A little girl raises a red ball.")
    assert status.inner_text() == ""
    assert not held
    assert not faults
    tab.get_by_label("A caption in German").fill("Ein Hund rennt.")
    tab.get_by_role("button", name="Step").click()  # before the pause after typing
    says(tab, "A dog runs")


def test_an_endless_word_leaves_the_page_awake(browser, made):
    tab = visited(browser, made.as_uri())
    tab.get_by_label("A caption in German").fill("日" * 160)
    tab.keyboard.press("Enter")
    tab.evaluate(
        "self.longest = 0; let last = performance.now(); setInterval(() => {"
        "longest = Math.max(longest, performance.now() - last); last = performance.now(); }, 5)"
    )
    tab.get_by_role("button", name="Step").click()  # in the midst of the search
    says(tab, "There")
    tab.wait_for_timeout(100)  # the clock has its turn
    assert tab.evaluate("longest") < 1500
    tab.get_by_label("A caption in German").fill("   ")
    tab.get_by_role("status").get_by_text("Type a caption").wait_for()


def test_another_candidate_is_gone_on_from_by_the_keyboard_alone(browser, made):
    tab = visited(browser, made.as_uri(), reduced_motion="reduce")
    tab.locator(".candidates button", has_text="picking").focus()
    tab.keyboard.press("Enter")
    says(tab, "A little girl picking a red ball.")
    for _ in range(4):
        tab.get_by_role("button", name="Back").press("Space")
    assert tab.locator(".written").inner_text() == "A little girl picking a"
    assert tab.locator(".written[aria-live=polite][aria-busy=false]").count() == 1


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
    tab.get_by_role("button", name="Play", exact=True).click()
    tab.get_by_role("status").get_by_text("model.js is missing beside this page").wait_for()
    assert tab.locator(".drawings").inner_html() == before


def test_without_scripts_and_on_paper_there_is_the_same_picture(browser, made):
    tab = visited(browser, made.as_uri(), java_script_enabled=False)
    assert tab.locator(".rows .piece.now").text_content() == "rais"
    assert tab.locator(".candidates li").count() == 5
    assert tab.locator(".playable button:visible:enabled").count() == 0
    paper = visited(browser, made.as_uri())
    paper.emulate_media(media="print")
    assert paper.locator(".drawings svg:visible").count() == 1
