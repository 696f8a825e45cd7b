"""The page in a browser: charts, contents, folds, themes, paper; without scripts; for everybody."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import CHROMIUM, PROJECT
from forks import free_port
from nbformat.v4 import new_code_cell
from pages import (
    ROOM,
    SECTIONS,
    UNFINISHED,
    built,
    chart,
    facts,
    heat_map,
    line_chart,
    notebook,
    shown,
    watched,
)

PUBLISHED = PROJECT / "docs" / "index.html"
SCROLLING = ".scroll, .code pre, .output"  # what may scroll sideways


@pytest.fixture(scope="module")
def sample(chromium, tmp_path_factory) -> Path:
    """A page with one of everything; test_figures.py has figures that can be played with."""
    text = (
        SECTIONS + "## Section\n\n$$" + "x + " * 60 + "x$$\n\n"
        "Inline, $\\sqrt{x}$, `code` and [a link](#section).\n\n> **Why?** Remarks with `code`.\n\n"
        "| | b |\n| --- | --- |\n| " + "wide " * 30 + " | unbreakable" + "x" * 60 + " |"
    )
    frame = pd.DataFrame([range(20)], columns=[f"column {i}" for i in range(20)])
    long = 'def f(x: int) -> str:  # comment\n    return f"{x}" + "long" * 9' + " + x" * 40
    cells = [
        text,
        new_code_cell(long),
        shown({"text/plain": "word " * 60}, code="class A:\n    pass", tags=("hide-input",)),
        chart(line_chart([1, 3, 2])),
        '<a id="figure-a-line"></a>\n**Figure 1.** A line. ' + "It is long. " * 20,
        chart(heat_map()),
        "**Figure 2.** Cells.\n\n![A box](images/multi-head.svg)\n\n**Figure 3.** A drawing.",
        shown({"text/html": frame.to_html()}),
        shown({"text/plain": "✓ done"}, code="@example\ndef check_done():\n    pass"),
        "# Part 2. More\n\n## Before\n\nIt.\n\n## End\n\n" + "Last words. " * 400,
        *ROOM[1:],
        facts(UNFINISHED),
    ]
    return built(tmp_path_factory.mktemp("page"), *cells)


@pytest.fixture(params=["sample", pytest.param("published", marks=pytest.mark.slow)])
def any_page(request) -> Path:
    return PUBLISHED if request.param == "published" else request.getfixturevalue("sample")


def opened(browser, path: Path, width: int = 1360, theme: str = "light", folds: str = ".section"):
    """The page, unfolded, and laid out where it is far away, too."""
    size = {"width": width, "height": 900}
    page = watched(browser, path, viewport=size, color_scheme=theme, bypass_csp=False)
    set_folds(page, folds, True)
    visible = "part => { part.style.contentVisibility = 'visible' }"
    page.evaluate(f"document.querySelectorAll('article > *').forEach({visible})")
    # What was far away fetches its letters now, and only then a formula has its width.
    page.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
    return page


def set_folds(page, selector: str, is_open: bool) -> None:
    script = "([selector, open]) => document.querySelectorAll(selector).forEach("
    page.evaluate(script + "fold => { fold.open = open })", [selector, is_open])


# Every page ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, pytest.param(768, marks=pytest.mark.long), 1360])
def test_a_page_fits_the_window_and_asks_nothing_of_the_network(browser, any_page, width):
    page = opened(browser, any_page, width, folds="details")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Scrolling sideways would also be needed where a box clips what it holds.
    stuck = """([width, boxes]) => [...document.querySelectorAll('main *')].filter(e =>
        e.getBoundingClientRect().right > width + 1 && !e.closest(`${boxes}, svg, .katex-mathml`)
    ).map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(stuck, [width, SCROLLING]) == []
    assert page.faults == []
    assert page.asked == [any_page.as_uri()]


@pytest.mark.parametrize(("theme", "width"), [("light", 1360), ("dark", 390)])
@pytest.mark.parametrize(
    "any_page",
    ["sample", pytest.param("published", marks=[pytest.mark.slow, pytest.mark.long])],  # minutes
    indirect=True,
)
def test_a_page_has_no_accessibility_violation(browser, any_page, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(browser, any_page, width, theme, folds=".fold")
    violations = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in violations] == []


def test_the_keyboard_reaches_everything(browser, sample):
    page = opened(browser, sample)
    page.evaluate("scrollTo(0, 0)")
    step = """() => {
        const { activeElement: e } = document;
        e.dataset.met = "yes";
        return [e.className || e.id || e.tagName, getComputedStyle(e).outlineStyle];
    }"""
    page.keyboard.press("Tab")
    met = [page.evaluate(step)]
    while met[-1][0] != "BODY":
        page.keyboard.press("Tab")
        met.append(page.evaluate(step))
    assert met[0][0] == "skip"
    assert [name for name, outline in met[:-1] if outline == "none"] == [], "the focus is seen"
    missed = """all => all.filter(e => e.tabIndex >= 0 && e.checkVisibility() && !e.dataset.met)
        .map(e => e.outerHTML.slice(0, 80))"""
    controls = page.locator("main :is(a[href], button, summary, select, input)")
    assert controls.evaluate_all(missed) == []


def test_without_scripts_it_can_be_read(browser, any_page):
    phone = {"width": 390, "height": 800}
    page = watched(browser, any_page, java_script_enabled=False, viewport=phone)
    for summary in page.locator(".section > summary").all():
        summary.click()
    assert page.locator(".chart svg:visible").count() == page.locator(".chart").count() > 0
    assert not page.locator("nav").is_visible(), "closed until asked for"
    page.locator("#contents > summary").click()
    above = page.locator("nav").bounding_box()
    below = page.locator("h1").bounding_box()
    assert above["y"] + above["height"] <= below["y"], "the contents cover nothing"


def test_paper_is_light_and_has_whole_captions_and_what_is_unfolded(browser, any_page):
    page = opened(browser, any_page, theme="dark")
    set_folds(page, "details", False)
    page.locator(".section").first.evaluate("fold => { fold.open = true }")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("figcaption details:not([open])").count() == 0
    assert page.locator(".section > :not(summary):visible").count() > 0
    assert page.locator(".fold:not(.section, .section *):visible").count() == 0, "set-up code"
    assert not page.locator("header").is_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("figcaption details[open]").count() == 0


def test_prints_to_pdf(chromium, sample, tmp_path):
    """By a copy of the Makefile, so that nothing is written into the project."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    command = ["make", "pdf", f"PAGE={sample}", f"CHROMIUM={CHROMIUM}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    data = (tmp_path / "build" / "the_annotated_transformer.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert re.search(rb"/Type */Page\b", data)


# Charts and themes --------------------------------------------------------------------------------

COLOURS = """all => all.map((each) => getComputedStyle(each)).flatMap(({ fill, stroke }) =>
    [fill, stroke]).filter((colour) => !["none", "rgba(0, 0, 0, 0)"].includes(colour))"""


def test_a_chart_is_readable_and_takes_the_colours_of_the_theme(browser, any_page):
    page = opened(browser, any_page)
    marks = page.locator(".chart svg:visible :is(path, text)[fill], .chart svg:visible path")
    light = marks.evaluate_all(COLOURS)
    page.get_by_role("button", name="Switch to the dark theme").click()
    dark = marks.evaluate_all(COLOURS)
    black = "rgb(0, 0, 0)"
    assert black not in {*light, *dark}, "a colour that CSS does not know"
    assert len({*light}) > 5
    assert {*light} & {*dark} == set()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("width", [390, 1360])
def test_the_letters_of_a_chart_are_not_too_small(browser, any_page, width):
    page = opened(browser, any_page, width)
    height = """all => all.filter((each) => each.getBoundingClientRect().width > 0)
        .map((each) => each.getBBox().height * each.getScreenCTM().d)"""
    upright = page.locator(".chart .role-axis-label text:not([transform*=rotate])")
    assert min(upright.evaluate_all(height)) >= 11


# Text, code and contents --------------------------------------------------------------------------


def test_code_is_copied(browser, sample):
    page = watched(browser, sample, permissions=["clipboard-read", "clipboard-write"])
    block = page.locator(".code").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    block.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def f(x: int) -> str:")


def test_the_engine_room_opens(browser, sample):
    """By its summary, and by itself for a reader who follows a link into it."""
    page = watched(browser, sample)
    inside = page.get_by_text("Said deep inside.")
    assert not inside.is_visible()
    page.locator("summary:has(#engine-room)").press("Enter")
    inside.wait_for()
    code = page.locator(".section .to-code").get_attribute("href")
    for address in ("#deep", code, "#faster", "#quick"):
        page.goto("about:blank")
        page.goto(sample.as_uri() + address)
        inside.wait_for()
    page.goto(sample.as_uri())
    page.get_by_role("button", name="Sections of The engine room").click()
    page.get_by_role("link", name="Faster").click()
    inside.wait_for()
    page.go_back()
    set_folds(page, ".fold", False)
    page.go_forward()
    inside.wait_for()


def test_the_contents_mark_what_is_in_sight(browser, sample):
    """On a slow device too, where the page still grows when it is at its place."""
    page = watched(browser, f"{sample.as_uri()}#own-thing")
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 6})
    page.locator("nav a[aria-current]", has_text="A thing").wait_for()
    assert page.locator("nav a[aria-current]").count() == 1


def test_the_bar_of_a_phone_leads_to_sections_and_back_to_the_top(browser, sample):
    page = watched(browser, sample, viewport={"width": 390, "height": 800})
    contents = page.locator("#contents > summary")
    assert page.locator("header > [data-switch=ideas]").is_visible()
    contents.click()
    page.locator("nav").get_by_role("button", name="Wrap code").click()
    page.locator("nav").wait_for(state="hidden")
    page.evaluate("addEventListener('pointerdown', ({ target }) => (window.hit = target.id))")
    contents.click()
    page.mouse.click(200, 790)
    page.locator("nav").wait_for(state="hidden")
    assert page.evaluate("hit") == "contents", "a tap beside them works nothing there"
    contents.click()
    page.locator("main a").first.press("Enter")
    page.locator("nav").wait_for(state="hidden")
    contents.click()
    end = page.get_by_role("link", name="End", exact=True)
    assert not end.is_visible()
    page.get_by_role("button", name="Sections of Part 2").click()
    end.click()
    end.wait_for(state="hidden")
    page.get_by_text("Part 2 · End").wait_for()
    top = page.locator("#end").bounding_box()["y"]
    assert contents.bounding_box()["y"] + 20 < top < 200, "below the bar, not under it"
    share = "Number(document.getElementById('read').style.getPropertyValue('--read'))"
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_function(f"{share} > 0.9")
    page.locator("#home").click()
    page.wait_for_function(f"scrollY === 0 && {share} === 0")


def test_ideas_only_folds_all_code_and_is_remembered(browser, sample):
    page = watched(browser, sample)
    check = page.locator(".cell", has_text="done")
    code, line = check.locator(".code"), check.locator("summary")
    code.wait_for()
    assert not line.is_visible()
    set_folds(page, "details", True)
    page.get_by_role("button", name="Ideas only").click()
    code.wait_for(state="hidden")
    assert page.locator(".code:visible").count() == 0
    page.reload()
    code.wait_for(state="hidden")
    line.click()
    code.wait_for()
    page.get_by_role("button", name="Show code").click()
    page.reload()
    code.wait_for()
    assert not line.is_visible()


def test_long_lines_of_code_wrap_on_a_phone_until_the_switch(browser, tmp_path):
    cells = '<a id="start"></a>\n# Start here', new_code_cell("x = 1" + " + 1" * 40)
    page = watched(browser, built(tmp_path, *cells), viewport={"width": 390, "height": 800})
    hidden = "box => box.scrollWidth - box.clientWidth"
    assert page.locator(".code pre").evaluate(hidden) == 0
    lefts = page.locator(".code pre").evaluate(
        """box => {
            const range = document.createRange();
            range.selectNodeContents(box);
            return [...range.getClientRects()].map((line) => line.left);
        }"""
    )
    assert lefts[-1] > lefts[0], "what goes on below does not look like a line of its own"
    page.locator("main").get_by_role("button", name="Wrap code").click()
    assert page.locator(".code pre").evaluate(hidden) > 0
    page.reload()
    assert page.locator(".code pre").evaluate(hidden) > 0


def test_code_without_spaces_wraps_between_names(browser, tmp_path):
    code = "result=outer_function(first_argument,inner.method.of_an_object[index])"
    size = {"width": 390, "height": 800}
    page = watched(browser, built(tmp_path, new_code_cell(code)), viewport=size)
    lines = """(box, names) => names.map((name) => {
        const range = document.createRange();
        const letters = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
        while (letters.nextNode()) {
            const at = letters.currentNode.data.indexOf(name);
            if (at < 0) continue;
            range.setStart(letters.currentNode, at);
            range.setEnd(letters.currentNode, at + name.length);
            return [...new Set([...range.getClientRects()].map((line) => line.top))];
        }
    })"""
    names = re.findall(r"\w+", code)
    pre = page.locator(".code pre")
    tops = pre.evaluate(lines, names)
    assert [len(each) for each in tops] == [1] * len(names), "no name is broken"
    assert tops[-1] > tops[0]
    assert pre.evaluate("box => box.scrollWidth <= box.clientWidth")
    page.evaluate("document.documentElement.classList.remove('wrap')")
    assert len({top for [top] in pre.evaluate(lines, names)}) == 1, "unwrapped it is one line"


def test_the_map_in_the_margin_lights_what_is_in_sight(browser, tmp_path):
    sections = ("attention", "causal-mask", "feed-forward", "results")
    text = "".join(
        f'<a id="{name}"></a>\n{"##" if "-" in name else "#"} {name}\n\n' + "Words. " * 900 + "\n\n"
        for name in sections
    )
    page = watched(browser, built(tmp_path, text))
    lit = page.locator("#map .lit")
    for name, boxes in zip(sections, ([], ["causal mask"], ["feed-forward"] * 2, []), strict=True):
        page.evaluate(f"location.hash = '{name}'")
        page.locator("nav a[aria-current]", has_text=name).wait_for()
        assert lit.all_text_contents() == boxes
        shown = "visible" if name != "results" else "hidden"
        page.locator("#map").wait_for(state=shown)
    page.evaluate("location.hash = 'causal-mask'")
    page.locator("#map a", has_text="feed-forward").first.click()
    page.locator("nav a[aria-current]", has_text="feed-forward").wait_for()
    page.set_viewport_size({"width": 900, "height": 900})
    assert not page.locator("#map").is_visible()


# In JupyterLab ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_jupyterlab_draws_charts_of_a_notebook_that_it_does_not_trust(
    browser, tmp_path, monkeypatch, at
):
    """The charts are those of the script's renderer; nothing outside this machine is asked."""
    notebook(tmp_path, shown(at.portable_chart(line_chart([1, 3, 2]))))
    for name in ("HOME", *"JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR".split()):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    port = free_port()
    command = f"jupyterlab --no-browser --allow-root --port={port} --IdentityProvider.token="
    server = subprocess.Popen(
        [sys.executable, "-m", *command.split(), f"--ServerApp.root_dir={tmp_path}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert any("is running at" in line for line in server.stderr), "JupyterLab has ended"
        page = watched(browser, f"http://127.0.0.1:{port}/lab/tree/made.ipynb")
        canvas = page.locator(".jp-OutputArea-output canvas")
        canvas.wait_for(timeout=90_000)
        assert canvas.bounding_box()["width"] > 100
    finally:
        server.kill()  # asked to end, it may wait for its threads for ever; its kernel notices
        server.wait()
    here = (f"http://127.0.0.1:{port}/", f"ws://127.0.0.1:{port}/", "blob:")
    assert [url for url in page.asked if not url.startswith(here)] == []
