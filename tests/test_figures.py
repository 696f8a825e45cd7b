"""What the figures that readers play with have in common."""

import re
import shutil

import pytest
from conftest import CHROMIUM, QUIET
from pages import PLAYED, figure, watched
from playwright.sync_api import expect

from tools.page import playable

pytestmark = pytest.mark.slow


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


@pytest.fixture
def tab(browser, figures_page):
    """A page on which nothing plays by itself, and which shall report no fault."""
    tab = watched(browser, figures_page, reduced_motion="reduce", bypass_csp=False)
    yield tab
    assert tab.faults == []


def field_of(box):
    """The field for a sentence, which is the same in all figures that have one."""
    return box.locator("input[lang=de]")


def with_a_field(tab) -> list[str]:
    """The figures that read a sentence."""
    return [name for name in PLAYED if field_of(figure(tab, name)).count()]


def with_the_same(tab) -> list[str]:
    """Those that read the same; the tree has a sentence of its own, which the text is about."""
    return [name for name in with_a_field(tab) if name != "tree"]


def stage_of(tab, name: str):
    return tab.locator(f"[data-play={name}] .stage")


def asked(tab) -> list[str]:
    return [address.rsplit("/")[-1] for address in tab.asked]


# Before anybody touches it ------------------------------------------------------------------------


def test_before_the_first_touch_nothing_is_asked_of_the_network(awake, figures_page):
    assert awake.asked == [figures_page.as_uri()]
    assert awake.faults == []


@pytest.mark.parametrize("name", PLAYED)
def test_scripts_change_nothing_when_they_start(awake, silent, name):
    html = [stage_of(tab, name).inner_html() for tab in (awake, silent)]
    # But for what the page tells a box that scrolls, and what can only be measured in a window.
    measured = (
        ('scroll"( tabindex="0"| data-more="[a-z ]+")+', 'scroll"'),
        ('<path [^>]*stroke-width[^>]*></path>| style="--left:[^"]*"| opening(?=")', ""),
    )
    for pattern, instead in measured:
        html = [re.sub(pattern, instead, each) for each in html]
    assert html[0] == html[1]


@pytest.mark.parametrize("name", PLAYED)
def test_without_scripts_and_on_paper_there_is_a_picture(awake, silent, name):
    awake.emulate_media(media="print")
    for tab in (silent, awake):
        box = tab.locator(f"[data-play={name}]")
        assert box.locator(":is([role=img], [role=grid], .grid, table, ol):visible").count() > 0
        assert box.locator(":is([type=range], [type=checkbox], .player):visible").count() == 0
    awake.emulate_media(media="screen")


# For everybody ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "width, scheme",
    [(320, "light"), (1360, "dark")]
    + [pytest.param(*each, marks=pytest.mark.long) for each in ((390, "dark"), (1360, "light"))],
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
        buttons = figure(tab, name).get_by_role("button")
        buttons.locator("visible=true").first.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
    assert tab.faults == []


FOLLOW_THE_FOCUS = """(box) => {
    const look = (each) => [each, ...each.children].map((one) => {
        const { outline, outlineOffset, boxShadow, stroke, strokeWidth } = getComputedStyle(one);
        return [outline, outlineOffset, boxShadow, stroke, strokeWidth].join();
    }).join();
    document.activeElement.blur();
    const all = [...box.querySelectorAll("a[href], button, input, select, [tabindex]")];
    self.missed = new Set(all.filter((each) => each.checkVisibility() && each.tabIndex >= 0));
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


def test_the_tab_key_reaches_everything_and_the_focus_is_seen(tab):
    for name in PLAYED:
        box = figure(tab, name).element_handle()
        for _ in range(tab.evaluate(FOLLOW_THE_FOCUS, box)):
            tab.keyboard.press("Tab")
        assert tab.evaluate("[...missed].map((each) => each.outerHTML)") == []
        assert tab.evaluate("unseen") == []


def test_a_finger_can_hit_what_it_shall(browser, figures_page):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    tab = watched(browser, figures_page, reduced_motion="reduce", **phone)
    heights = "all => all.map((each) => each.getBoundingClientRect().height)"
    for name in PLAYED:
        hit = figure(tab, name).locator(":is(button, select, [type=range], [type=text]):visible")
        assert min(hit.evaluate_all(heights), default=44) >= 44, name
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_never_navigates_is_no_link(tab):
    """And what is pressed is not hidden in an image."""
    figures = tab.locator(".playable")
    for link in figures.locator("a").all():
        assert re.match(r"(https?:|#.)", link.get_attribute("href"))
    assert figures.locator("[role=img] :is(a, button, [role=button], [tabindex])").count() == 0


def test_forced_colours_leave_pressed_buttons_apart(browser, figures_page):
    tab = watched(browser, figures_page, forced_colors="active")
    look = """all => all.map((each) => {
        const { outlineStyle, backgroundColor, borderColor, borderWidth } = getComputedStyle(each);
        return [outlineStyle, backgroundColor, borderColor, borderWidth].join();
    })"""
    for name in PLAYED:
        buttons = figure(tab, name).locator("button")
        pressed = {*buttons.and_(tab.locator("[aria-pressed=true]")).evaluate_all(look)}
        others = {*buttons.and_(tab.locator("[aria-pressed=false]")).evaluate_all(look)}
        assert not pressed & others, name


# Players ------------------------------------------------------------------------------------------


def test_players_go_on_by_the_clock_until_they_are_stopped(tab):
    players = [name for name in PLAYED if figure(tab, name).locator(".play").count()]
    assert players
    tab.clock.install()
    for name in players:
        box = figure(tab, name)
        play = box.locator(".play")
        tab.emulate_media(reduced_motion="reduce")
        play.press("Enter")
        ended = box.inner_text()
        assert play.inner_text() == "Play", "with reduced motion it is at once at its end"
        tab.emulate_media(reduced_motion="no-preference")
        play.press("Enter")
        assert play.inner_text() == "Pause"
        begun = box.inner_text()
        assert begun != ended
        for _ in range(20):  # the model is read meanwhile, which no clock of the page hurries
            tab.clock.run_for(750)
            if box.inner_text() not in (ended, begun):
                break
        else:
            pytest.fail(f"{name} stands still")
        play.press("Enter")
        box.get_by_text("Reading the model").wait_for(state="hidden")
        tab.clock.run_for(1400)
        stopped = box.inner_text()
        tab.clock.run_for(10_000)
        assert box.inner_text() == stopped


# The model beside the page ------------------------------------------------------------------------


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
    for name in [*with_a_field(tab), "pieces"]:
        box = figure(tab, name)
        pictures = box.locator(":is(svg, ol)").evaluate_all("all => all.map((e) => e.outerHTML)")
        field = box.get_by_role("textbox").first
        field.fill("Zwei Hunde bellen.")
        field.press("Enter")
        box.get_by_role("status").get_by_text("model.js").wait_for()
        after = box.locator(":is(svg, ol)").evaluate_all("all => all.map((e) => e.outerHTML)")
        assert after == pictures, name


TURNS = """new Promise((done) => {
    let turns = 0;
    const turn = () => (++turns > 5 ? done() : setTimeout(turn, 5));
    turn();
})"""


def test_an_endless_word_leaves_the_page_awake_and_the_last_sentence_counts(tab):
    box = figure(tab, "tree")
    field = field_of(box)
    for text in ("日" * 120, "Zwei Hunde bellen."):
        field.fill(text)
        field.press("Enter")
        tab.evaluate(TURNS)
    box.locator('.grid[aria-label*="Hunde"]').wait_for()


# One sentence for all -----------------------------------------------------------------------------


def test_an_empty_sentence_is_not_asked_for_and_a_strange_one_is_explained(tab):
    for name in with_a_field(tab):
        box = figure(tab, name)
        field = field_of(box)
        before = asked(tab)
        field.fill("   ")
        field.press("Enter")
        assert asked(tab) == before
        field.fill("Ein Mann 日.")
        box.get_by_role("status").filter(has_text="never seen").first.wait_for()
    assert asked(tab) == ["page.html", "model.js"]


def test_a_sentence_that_is_typed_or_linked_is_read_by_all_figures_once_in_sight(tab):
    names = with_the_same(tab)
    own = field_of(stage_of(tab, "tree")).input_value()
    assert asked(tab) == ["page.html"], "to scroll through the page asks for nothing"
    for name, word in zip(names, ("Hunde", "Pferde", "Bauarbeiter", "Spieler"), strict=False):
        field = field_of(figure(tab, name))
        field.fill(f"Zwei {word}.")
        field.press("Enter")
        for other in names:
            box = figure(tab, other)
            stage_of(tab, other).filter(has_text=word).wait_for()
            assert field_of(box).input_value() == f"Zwei {word}."
    tab.evaluate("location.hash = '#s=Zwei%20Jungen.'")
    figure(tab, "tree")
    for name in names:
        figure(tab, name)
        stage_of(tab, name).filter(has_text="Jungen").wait_for()
    assert field_of(stage_of(tab, "tree")).input_value() == own
    assert asked(tab) == ["page.html", "model.js"]


def test_of_a_long_sentence_whole_words_are_read_and_umlauts_are_understood(tab):
    names = with_a_field(tab)
    for name in names:
        box = figure(tab, name)
        field = field_of(box)
        status = box.get_by_role("status")
        if name not in (
            names[0],
            "tree",
        ):  # what was typed in the one before comes over when this one wakes
            expect(field).to_have_value("Ein Maedchen.")
        long = f"{name} Maedchen " + "und ein Hund " * 8 + "im Sonnenschein."
        field.fill(long)
        field.press("Enter")
        status.filter(has_text="letters").first.wait_for()
        assert field.input_value() == long
        field.fill("Ein Maedchen.")
        status.filter(has_text="Read as “Ein Mädchen.”").first.wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1360
