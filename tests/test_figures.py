"""What the figures that readers play with have in common."""

import re
import shutil

import pytest
from conftest import CHROMIUM, QUIET
from pages import PLAYED, figure, watched

from tools.page import playable

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PLAYERS = ("translator", "by-hand", "tree")  # they go through steps
SENTENCES = ("translator", "map", "tree", "maps")  # they have a field for a sentence


def field_of(box):
    """The field for a sentence."""
    return box.locator("input[lang=de]")


def head_of_the_drawer(box):
    """A head of the translator, whose drawer is opened."""
    box.locator(".drawer > summary").click()
    return box.get_by_role("button", name="layer 1, head 1")


ASKS_FOR_THE_MODEL = {  # a touch that needs the model
    "translator": lambda box: head_of_the_drawer(box).click(),
    "map": lambda box: box.locator('[data-place="decoder final"]').press("Enter"),
    "tree": lambda box: box.locator("[name=width]").fill("4"),
    "maps": lambda box: box.locator(".chips button").nth(1).click(),
    "pieces": lambda box: box.get_by_role("button").first.click(),
}
OPERATED = (
    ":is(.player, .chips, .kinds, .bank, .drawer, .handle, .layers, select, "
    "[type=range], [type=checkbox], .small :is(input, button)):visible"
)


@pytest.fixture(scope="module")
def second(chromium):
    """Another browser, whose windows stay open from test to test."""
    with chromium.browser_type.launch(executable_path=CHROMIUM, args=QUIET) as browser:
        yield browser


@pytest.fixture(scope="module")
def awake(second, figures_page):
    """A page that nobody has touched and nothing plays; every figure has been in sight."""
    tab = watched(second, figures_page, reduced_motion="reduce")
    for name in PLAYED:
        figure(tab, name)
    return tab


@pytest.fixture(scope="module")
def silent(second, figures_page):
    """The page where scripts are off."""
    return watched(second, figures_page, java_script_enabled=False)


def html_of(tab, name: str) -> str:
    """A figure as HTML, but for what the page tells a box that scrolls."""
    html = tab.locator(f"[data-play={name}] .stage").evaluate("stage => stage.innerHTML")
    return re.sub('scroll"( tabindex="0"| data-more="[a-z ]+")+', 'scroll"', html)


def test_before_the_first_touch_nothing_is_asked_of_the_network(awake, figures_page):
    assert awake.asked == [figures_page.as_uri()]
    assert awake.faults == []


@pytest.mark.parametrize("name", PLAYED)
def test_scripts_change_nothing_when_they_start(awake, silent, name):
    assert html_of(awake, name) == html_of(silent, name)


@pytest.mark.parametrize("name", PLAYED)
def test_without_scripts_and_on_paper_there_is_the_picture_and_nothing_to_operate(
    awake, silent, name
):
    awake.emulate_media(media="print")
    for tab in (silent, awake):
        box = tab.locator(f"[data-play={name}]")
        assert box.locator(":is([role=img], [role=grid], .grid, table, ol):visible").count() > 0
        assert box.locator(OPERATED).count() == 0
    awake.emulate_media(media="screen")


TOUCHES = {  # a touch that needs no model, and one more
    "translator": lambda box: box.get_by_role("button", name="Step", exact=True).click(),
    "by-hand": lambda box: box.get_by_role("button", name="hide later words").click(),
    "map": lambda box: box.get_by_role("button", name="head 1", exact=True).click(),
    "tree": lambda box: box.get_by_role("button", name="Step", exact=True).click(),
    "learn": lambda box: box.get_by_role("switch", name="positions").first.click(),
    "positions": lambda box: box.get_by_role("slider", name="position").press("ArrowLeft"),
    "smoothing": lambda box: box.get_by_role("slider", name="guess").press("End"),
    "schedule": lambda box: box.get_by_role("slider", name="factor").press("End"),
    "sampling": lambda box: box.get_by_role("slider", name="top-k").press("Home"),
    "maps": lambda box: box.get_by_role("button", name="layer 2, head 3").click(),
    "pieces": lambda box: box.get_by_role("textbox").focus(),
    "ask": lambda box: box.get_by_role("button", name="auf").click(),
    "batches": lambda box: box.get_by_role("button", name="Sort by length").click(),
    "bleu": lambda box: box.get_by_role("button", name="swap two words").click(),
}


@pytest.mark.parametrize(
    "width, scheme", [(320, "light"), (390, "dark"), (1360, "light"), (1360, "dark")]
)
def test_at_any_width_and_in_both_themes_it_fits_and_is_accessible(
    browser, figures_page, width, scheme
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    tab = watched(
        browser,
        figures_page,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",  # colours are at once as they shall be
    )
    for name in PLAYED:
        box = figure(tab, name)
        if name == "map":
            box.locator('[data-place="decoder cross"]').press("Enter")
            box.locator(".weights").wait_for()
        TOUCHES[name](box)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(tab).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
    assert tab.faults == []


# Arrow keys lead through them.
ROWS = ".pieces, .german, .lens table, .heat table, .tree .grid, .maps .overview, .maps table"
FOLLOW_THE_FOCUS = """([box, rows]) => {
    const look = (each) => [each, ...each.children].map((one) => {
        const { outline, outlineOffset, boxShadow, stroke, strokeWidth } = getComputedStyle(one);
        return [outline, outlineOffset, boxShadow, stroke, strokeWidth].join();
    }).join();
    document.activeElement.blur();
    const all = [...box.querySelectorAll("a[href], button, input, select, [tabindex]")];
    self.missed = new Set(all.filter((each) =>
        each.checkVisibility() && (each.tabIndex >= 0 || !each.closest(rows))));
    self.unseen = [];
    const looks = new Map(all.map((each) => [each, look(each)]));
    box.addEventListener("focusin", ({ target }) => {
        missed.delete(target);
        if (look(target) === looks.get(target)) unseen.push(target.outerHTML);
    });
    const { size } = missed;
    [...missed][0].focus();
    return size;
}"""


def test_the_tab_key_reaches_everything_that_can_be_operated(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    for name in PLAYED:
        box = figure(tab, name).element_handle()
        for _ in range(tab.evaluate(FOLLOW_THE_FOCUS, [box, ROWS])):
            tab.keyboard.press("Tab")
        assert tab.evaluate("[...missed].map((each) => each.outerHTML)") == []
        assert tab.evaluate("unseen") == []


def test_rows_tables_and_trees_are_one_stop_for_the_tab_key(awake):
    groups = awake.locator(ROWS)
    assert groups.count() == 10
    for group in groups.all():
        assert group.locator("[tabindex='0']").count() == 1
        assert group.locator("[tabindex='-1']").count() > 1


@pytest.mark.parametrize("name", PLAYERS)
def test_a_player_goes_on_by_the_clock_until_it_is_stopped(browser, figures_page, name):
    tab = watched(browser, figures_page, reduced_motion="reduce")  # nothing plays by itself
    box = figure(tab, name)
    tab.emulate_media(reduced_motion="no-preference")
    tab.clock.install()
    play = box.locator(".play")
    seen = [box.inner_text()]
    play.press("Enter")
    assert play.inner_text() == "Pause"
    for _ in range(2):
        tab.clock.run_for(1400)
        seen.append(box.inner_text())
    assert len(set(seen)) == 3
    play.press("Enter")
    assert play.inner_text() == "Play"
    stopped = box.inner_text()
    tab.clock.run_for(10_000)
    assert box.inner_text() == stopped
    box.get_by_role("button", name="Back", exact=True).press("Enter")
    assert box.inner_text() != stopped
    assert tab.faults == []


@pytest.mark.parametrize("name", PLAYERS)
def test_with_reduced_motion_a_player_is_at_once_at_its_end(browser, figures_page, name):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    box = figure(tab, name)
    step = box.get_by_role("button", name="Step", exact=True)
    step.click()
    stepped = box.inner_text()
    box.get_by_role("button", name="Play", exact=True).click()
    ended = box.inner_text()
    assert ended != stepped
    assert box.locator(".play").inner_text() == "Play"
    moving = "(box) => box.getAnimations({ subtree: true }).some((e) => e instanceof CSSAnimation)"
    assert not box.evaluate(moving)
    step.click()  # from the end on to the first step
    box.get_by_role("button", name="Play", exact=True).click()
    assert box.inner_text() == ended


def test_forced_colours_take_no_meaning_away(browser, figures_page):
    tab = watched(browser, figures_page, forced_colors="active")
    look = """all => all.map((each) => {
        const { outlineStyle, backgroundColor, borderColor, borderWidth } = getComputedStyle(each);
        return [outlineStyle, backgroundColor, borderColor, borderWidth].join();
    })"""
    for name in PLAYED:
        box = figure(tab, name)
        if name == "tree":
            continue
        pressed = {*box.locator("[aria-pressed=true]").evaluate_all(look)}
        others = {*box.locator("[aria-pressed=false]").evaluate_all(look)}
        assert not pressed & others, name
    shades = "all => new Set(all.map((each) => getComputedStyle(each).backgroundColor)).size"
    assert tab.locator(".by-hand .heat td").evaluate_all(shades) > 3
    assert tab.locator(".map .lens td button").evaluate_all(shades) > 3


def damaged(text: str, damage: str) -> str | None:
    """The model's file with a fault: a checksum, settings with the words, weights."""
    return {
        "missing": None,
        "cut": text[:3_000_000],
        "another word": text.replace("</s>", "</z>", 1),
        "another weight": text[:3_000_000]
        + ("B" if text[3_000_000] == "A" else "A")
        + text[3_000_001:],
    }[damage]


@pytest.mark.parametrize("damage", ["missing", "cut", "another word", "another weight"])
def test_without_a_sound_model_a_sentence_says_so_and_nothing_else_changes(
    browser, figures_page, tmp_path, damage
):
    shutil.copy(figures_page, tmp_path)
    if text := damaged(playable.side_file(), damage):
        (tmp_path / "model.js").write_text(text, "utf-8")
    tab = watched(browser, tmp_path / "page.html", reduced_motion="reduce")
    for name, touch in ASKS_FOR_THE_MODEL.items():
        box = figure(tab, name)
        pictures = box.locator("svg").evaluate_all("all => all.map((each) => each.outerHTML)")
        touch(box)
        box.get_by_role("status").get_by_text("model.js").wait_for()
        after = box.locator("svg").evaluate_all("all => all.map((each) => each.outerHTML)")
        assert after == pictures, name


def test_an_endless_word_leaves_the_page_awake_and_the_next_wish_counts(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    box = figure(tab, "tree")
    box.locator("[name=width]").fill("5")
    box.locator(".asked", has_text="width 5").wait_for()  # the model is there
    tab.evaluate("self.turns = 0; setInterval(() => { turns += 1; }, 5)")
    field = box.get_by_role("textbox")
    field.fill("日" * 120)
    field.press("Enter")
    tab.wait_for_function("turns > 5")
    assert "日" not in box.locator(".asked").inner_text(), "it is still searched"
    field.fill("Ein Hund.")
    field.press("Enter")
    box.locator(".asked", has_text="Ein Hund.").wait_for()
    assert tab.faults == []


@pytest.mark.parametrize("name", SENTENCES)
def test_an_empty_sentence_is_not_searched_and_a_strange_one_is_explained(
    browser, figures_page, name
):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    box = figure(tab, name)
    field = field_of(box)
    line = box.locator(".line")
    assert line.inner_text() == ""
    field.fill("   ")
    line.filter(has_text=re.compile(r"\w")).wait_for()
    field.press("Enter")
    assert len(tab.asked) == 1
    field.fill("Ein Mann 日.")
    line.filter(has_text="never seen").wait_for()
    assert [address.rsplit("/")[-1] for address in tab.asked] == ["page.html", "model.js"]
    assert tab.faults == []


# One sentence for all -----------------------------------------------------------------------------


READS = {  # where a figure shows what it has read
    "translator": ".rows .german",
    "map": ".source",
    "tree": ".asked i",
    "maps": ".maps thead",
}


def wait_until_read(box, name: str, word: str) -> None:
    box.locator(READS[name]).filter(has_text=word).first.wait_for(state="attached")


def shown_by(box) -> str:
    """All that a figure draws, without its field."""
    return box.locator(".stage").evaluate("stage => stage.textContent")


@pytest.mark.parametrize("name", SENTENCES)
def test_what_is_typed_in_one_figure_is_read_by_all_once_they_are_in_sight(
    browser, figures_page, name
):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    others = [other for other in SENTENCES if other != name]
    before = {other: shown_by(figure(tab, other)) for other in others}
    assert len(tab.asked) == 1, "to scroll through the page asks for nothing"
    box = figure(tab, name)
    field_of(box).fill("Zwei Hunde bellen.")
    field_of(box).press("Enter")
    wait_until_read(box, name, "Hunde")
    for other in others:
        found = figure(tab, other)
        wait_until_read(found, other, "Hunde")
        assert field_of(found).input_value() == "Zwei Hunde bellen."
        assert shown_by(found) != before[other]
    assert [address.rsplit("/")[-1] for address in tab.asked] == ["page.html", "model.js"]
    assert tab.faults == []


def test_a_linked_sentence_is_that_of_all_figures(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    for name in SENTENCES:
        figure(tab, name)
    tab.evaluate("location.hash = '#s=Ein%20Hund.'")
    for name in SENTENCES:
        wait_until_read(figure(tab, name), name, "Hund")


@pytest.mark.parametrize("name", SENTENCES)
def test_of_a_long_sentence_whole_words_are_read_and_umlauts_are_understood(
    browser, figures_page, name
):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    box = figure(tab, name)
    field = field_of(box)
    long = "Zwei Maedchen " + "und ein Hund " * 8 + "im Sonnenschein."
    field.fill(long)
    field.press("Enter")
    wait_until_read(box, name, "Zwei")
    read = box.locator(READS[name]).text_content()
    assert "Mädchen" in read and "Sonne" not in read
    assert field.input_value() == long
    box.locator(".line", has_text="letters").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1360
    field.fill("Ein Maedchen.")
    box.locator(".line", has_text="Read as “Ein Mädchen.”").wait_for()
    assert tab.faults == []
