"""The page: what its builder refuses, how it lays cells out, and how it behaves in a browser."""

import base64
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import altair as alt
import build_page
import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

PROJECT = Path(__file__).resolve().parent.parent
PUBLISHED = PROJECT / "docs" / "index.html"
CHROMIUM = Path("/usr/bin/chromium")
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TITLE = new_markdown_cell("# A page\n\nIts first paragraph.")
FINISHED = {"corpus": "Multi30k", "finished_model": True, "level": "laptop"}


# Notebooks made for a test ------------------------------------------------------------------------


def shown(data: dict, code: str = "show()", metadata: dict | None = None, tags: tuple = ()):
    """A code cell with one output."""
    output = new_output("display_data", data=data, metadata=metadata or {})
    return new_code_cell(code, outputs=[output], metadata={"tags": list(tags)})


def chart(spec: dict):
    """A code cell that shows a chart, in the way of the script's renderer."""
    png = io.BytesIO()
    Image.new("P", (450, 300)).save(png, "PNG")
    picture = base64.b64encode(png.getvalue()).decode()
    return shown({"application/vnd.vegalite.v5+json": spec, "image/png": picture})


def line_chart(values: list) -> dict:
    data = pd.DataFrame({"x": range(len(values)), "y": values})
    drawn = alt.Chart(data, description="A line.", width=560).mark_line().encode(x="x:Q", y="y:Q")
    return drawn.to_dict()


def maps_chart() -> dict:
    """Heat maps of two kinds in two layers, packed into strings and unpacked by the chart."""
    rows = [
        {"kind": kind, "layer": layer, "head": head, "numbers": f"{100 * k + 10 * layer} 900 {h} 0"}
        for (k, kind), layer, (h, head) in itertools.product(
            enumerate(("self", "cross")), (1, 2), enumerate((1, 2, 3))
        )
    ]
    kind = alt.param(
        "chosen_kind", value="self", bind=alt.binding_select(options=["self", "cross"])
    )
    layer = alt.param("chosen_layer", value=1, bind=alt.binding_range(min=1, max=2, step=1))
    return (
        alt.Chart(
            pd.DataFrame(rows), description="Attention of three heads.", width=160, height=160
        )
        .mark_rect()
        .transform_filter("datum.kind == chosen_kind && datum.layer == chosen_layer")
        .transform_calculate(cell="split(datum.numbers, ' ')")
        .transform_flatten(["cell"])
        .transform_window(number="row_number()", groupby=["head"])
        .transform_calculate(
            weight="toNumber(datum.cell) / 1000",
            query="floor((datum.number - 1) / 2)",
            key="(datum.number - 1) % 2",
        )
        .encode(x="key:O", y="query:O", color="weight:Q", facet=alt.Facet("head:O", columns=3))
        .add_params(kind, layer)
        .to_dict()
    )


def page_of(folder: Path, *cells, title: bool = True) -> BeautifulSoup:
    """The page of a notebook made of these cells."""
    return BeautifulSoup(build_page.build(notebook(folder, *cells, title=title))[0], "html.parser")


def notebook(folder: Path, *cells, title: bool = True) -> Path:
    cells = [new_markdown_cell(c) if isinstance(c, str) else c for c in cells]
    path = folder / "made.ipynb"
    nbformat.write(new_notebook(cells=[TITLE, *cells] if title else cells), path)
    return path


# What the builder refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("A sum, $\\frac{1}{2$.", r"cell 2 .*formula does not parse"),
        ("$$\\unknown x$$", r"cell 2 .*formula does not parse"),
        ("![](images/attention.svg)", r"cell 2 .*attention\.svg has no alt text"),
        ("![a drawing](images/none.svg)", r"none\.svg does not exist"),
        ("![a drawing](https://example.org/a.png)", r"a\.png does not exist"),
        ('<img src="data:image/png;base64,AAAA">', "no alt text"),
        ('<img alt="x" src="https://example.org/a.png">', "fetched from elsewhere"),
        ("See [the end](#the-end).", r"anchor that does not exist: #the-end \(the end\)"),
        ("See [the tests](tests/test_page.py).", "not part of the page: tests/test_page.py"),
        ('<a id="x"></a>\n# X\n\n<a id="x"></a>\n# Y', "ids given twice: x"),
        (chart(line_chart([1.0, None, 2.0])), r"cell 2 .*null where a number .*'y' in row 1"),
        (chart(line_chart([1, 2]) | {"description": ""}), "no description"),
        (chart(line_chart([1]) | {"data": {"values": [{"n": "12 nan 3"}]}}), "null where a number"),
        (chart(line_chart([1]) | {"data": {"values": [{"n": [1, None]}]}}), "null where a number"),
        (shown({"image/png": "AAAA"}), "no alt text"),
        (
            new_code_cell(
                "1/0", outputs=[new_output("error", ename="ZeroDivisionError", evalue="!")]
            ),
            r"cell 2 \(1/0\): the cell ended with ZeroDivisionError",
        ),
    ],
)
def test_faults_fail_the_build(tmp_path, cell, message):
    with pytest.raises(build_page.BuildError, match=message):
        page_of(tmp_path, cell)


def test_a_page_needs_a_title(tmp_path):
    with pytest.raises(build_page.BuildError, match="no title"):
        page_of(tmp_path, "Text.", title=False)


def test_a_null_among_words_is_no_fault():
    spec = {"data": {"values": [{"word": None, "text": "none at all"}, {"word": "a", "text": "b"}]}}
    assert build_page.missing_numbers(spec) == []


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (None, "does not say which run"),
        (FINISHED | {"corpus": "built-in captions"}, "built-in captions"),
        (FINISHED | {"finished_model": False}, "without a finished model"),
        ({"corpus": "Multi30k"}, "without a finished model"),
        ({"finished_model": True}, "unnamed corpus"),
        (FINISHED, None),
    ],
)
def test_publishing_needs_a_finished_model_of_a_real_corpus(tmp_path, capsys, facts, message):
    cells = [shown({"text/plain": "{}"}, metadata={"annotated": facts})] if facts else []
    source, target = notebook(tmp_path, *cells), tmp_path / "page.html"
    assert build_page.main([str(source), str(target)]) == 0
    target.unlink()
    assert build_page.main([str(source), str(target), "--publish"]) == (1 if message else 0)
    assert target.exists() == (message is None)
    if message:
        assert message in capsys.readouterr().err
    else:
        assert "Multi30k at level laptop" in target.read_text("utf-8")


# How cells are laid out ---------------------------------------------------------------------------


def test_the_same_notebook_gives_the_same_bytes(tmp_path):
    source = notebook(tmp_path, "$x^2$", chart(maps_chart()), "![a](images/attention.svg)")
    assert build_page.build(source) == build_page.build(source)


def test_headings_have_one_title_and_no_gaps(tmp_path):
    text = '## Early\n\n# Part\n\n### Deep\n\n<a id="own"></a>\n## Section of $x$\n\n[up](#part)'
    page = page_of(tmp_path, text)
    found = [(tag.name, tag["id"]) for tag in page.article.find_all(re.compile(r"h\d"))]
    names = ["a-page", "early", "part", "deep", "own"]
    assert found == list(zip(["h1", "h2", "h2", "h3", "h3"], names, strict=True))
    assert [a["href"] for a in page.nav.find_all("a")] == [f"#{name}" for name in names[1:]]


def test_captions_join_what_they_describe(tmp_path):
    table = "| a |\n| --- |\n| 1 |\n\n**Table 1.** Above it."
    drawing = "![Multi-head attention.](images/multi-head.svg)\n\n**Figure 2.** The drawing."
    page = page_of(tmp_path, chart(line_chart([1, 2])), "**Figure 1.** The line.", table, drawing)
    first, second, third = page.find_all("figure")
    assert first.find(class_="chart") and first.figcaption.text == "Figure 1. The line."
    assert second.find().name == "figcaption" and second.table
    assert third.svg["aria-label"] == "Multi-head attention." and "drawing." in third.text
    assert not third.svg.find("title")


def test_a_drawing_shown_twice_has_unique_ids(tmp_path):
    page_of(tmp_path, "![once](images/attention.svg)", "![twice](images/attention.svg)")


def test_a_picture_inside_the_notebook_becomes_the_drawing_again(tmp_path):
    text = (
        '![drawing][attention.svg]\n\n[attention.svg]: data:image/png;base64,AAAA "attention.svg"'
    )
    assert page_of(tmp_path, text).figure.svg


def test_code_is_folded_where_it_is_plumbing_or_long(tmp_path):
    long = "def long():\n" + "    pass\n" * 45
    plumbing = new_code_cell("import os", metadata={"tags": ["hide-input"]})
    page = page_of(tmp_path, new_code_cell("x = 1"), new_code_cell(long), plumbing)
    assert [fold.summary.text for fold in page.find_all("details", class_="fold")] == [
        "Code: long 46 lines",
        "Plumbing 1 line",
    ]


def test_progress_and_warnings_are_not_shown(tmp_path):
    streams = [
        new_output("stream", name=name, text=text)
        for name, text in [("stdout", "✓ one\n"), ("stderr", "50%|##"), ("stdout", "✓ two\n")]
    ]
    page = page_of(tmp_path, new_code_cell("run()", outputs=streams))
    (output,) = page.find_all(class_="output")
    assert output.text == "✓ one\n✓ two" and "check" in output["class"]


def test_tables_of_pandas_lose_their_styling(tmp_path):
    frame = pd.DataFrame({"word": ["Hund", "Katze"], "count": [1200, 7]})
    named = frame.set_index("word").rename_axis(None)
    styled = frame.style.hide().set_caption("Counts.")
    cells = [shown({"text/html": f.to_html()}) for f in (frame, named, styled)]
    plain, rows, captioned = page_of(tmp_path, *cells).find_all("table")
    assert [cell.text for cell in plain.find_all(["th", "td"])][:4] == [
        "word",
        "count",
        "Hund",
        "1200",
    ]
    assert [cell.text for cell in plain.find_all(class_="num")] == ["count", "1200", "7"]
    assert not plain.find_all(style=True) and not rows.find_all("th", string="")
    assert [cell.text for cell in rows.find_all("th", scope="row")] == ["Hund", "Katze"]
    assert captioned.caption.text == "Counts."


# In a browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    """A page with one of everything."""
    text = (
        "<a id='model'></a>\n# Part 1\n\n## Section\n\n$$"
        + "x + " * 60
        + "x$$\n\nInline, $\\sqrt{x}$, "
        "`code` and [a link](#section).\n\n> **Why?** A remark with `code`.\n\n"
        "| | b |\n| --- | --- |\n"
        "| " + "wide " * 30 + " | unbreakable" + "x" * 60 + " |"
    )
    frame = pd.DataFrame([range(20)], columns=[f"column {i}" for i in range(20)])
    cells = [
        text,
        new_code_cell(
            'def f(x: int) -> str:  # comment\n    return f"{x}" + "long" * 9' + " + x" * 40
        ),
        shown({"text/plain": "word " * 60}, code="class A:\n    pass", tags=("hide-input",)),
        chart(line_chart([1, 3, 2])),
        "**Figure 1.** A line.",
        chart(maps_chart()),
        "**Figure 2.** Maps.\n\n![Attention](images/attention.svg)\n\n**Figure 3.** A drawing.",
        shown({"text/html": frame.to_html()}),
        "# Part 2\n\n## End\n\n" + "Last words. " * 400,
        shown({"text/plain": "{}"}, metadata={"annotated": FINISHED | {"finished_model": False}}),
    ]
    folder = tmp_path_factory.mktemp("page")
    assert build_page.main([str(notebook(folder, *cells)), str(folder / "page.html")]) == 0
    return folder / "page.html"


@pytest.fixture(params=["sample", pytest.param("published", marks=pytest.mark.slow)])
def any_page(request) -> Path:
    if request.param == "published" and not PUBLISHED.exists():
        pytest.skip("docs/index.html is not published yet")
    return PUBLISHED if request.param == "published" else request.getfixturevalue("sample")


def opened(browser, path: Path, width: int = 1360, theme: str = "light"):
    """The page, opened and scrolled through; `faults` collects requests and console errors."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.faults = []
    here = path.resolve().as_uri()
    wanted = (here, "data:")
    page.on("request", lambda r: r.url.startswith(wanted) or page.faults.append(r.url))
    page.on("console", lambda message: page.faults.append(message.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto(here)
    for chart_box in page.locator(".chart").all():
        chart_box.scroll_into_view_if_needed()
        chart_box.and_(page.locator("[data-drawn]")).wait_for()
    return page


def picture(page) -> str:
    return page.evaluate("document.querySelector('.chart:has(select) canvas').toDataURL()")


def wait_for_picture(page, wanted: str, same: bool) -> None:
    canvas = "document.querySelector('.chart:has(select) canvas')"
    test = f"([wanted, same]) => ({canvas}.toDataURL() === wanted) === same"
    page.wait_for_function(test, arg=[wanted, same], timeout=5000)


@pytest.mark.browser
def test_asks_nothing_of_the_network_and_draws_every_chart(browser, any_page):
    page = opened(browser, any_page)
    assert page.locator(".chart").count() == page.locator(".chart canvas").count() > 0
    assert page.faults == []
    page.close()


@pytest.mark.browser
def test_a_chart_is_drawn_only_when_it_comes_near(browser, sample):
    page = browser.new_page(viewport={"width": 1360, "height": 200})
    page.goto(sample.as_uri())
    page.wait_for_timeout(500)
    assert page.locator(".chart canvas").count() < page.locator(".chart").count()
    page.close()


@pytest.mark.browser
def test_choosers_change_the_picture_forth_and_back(browser, sample):
    page = opened(browser, sample)
    before = picture(page)
    page.get_by_label("chosen_kind").select_option("cross")
    wait_for_picture(page, before, same=False)
    cross = picture(page)
    page.get_by_label("chosen_layer").fill("2")
    wait_for_picture(page, cross, same=False)
    page.get_by_label("chosen_layer").fill("1")
    wait_for_picture(page, cross, same=True)
    page.get_by_label("chosen_kind").select_option("self")
    wait_for_picture(page, before, same=True)
    assert page.faults == []
    page.close()


@pytest.mark.browser
def test_the_theme_changes_persists_and_keeps_what_was_chosen(browser, sample):
    page = opened(browser, sample, theme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_label("chosen_kind").select_option("cross")
    page.get_by_role("button", name="Switch to the light theme").click()
    page.locator(".chart:has(select)[data-drawn=light]").wait_for()
    assert page.get_by_label("chosen_kind").input_value() == "cross"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.close()


@pytest.mark.browser
def test_the_contents_mark_the_section_in_view(browser, sample):
    page = opened(browser, sample)
    page.locator("nav a", has_text="Part 2").click()
    page.locator("nav a[aria-current]", has_text=re.compile("Part 2|End")).wait_for()
    page.close()


@pytest.mark.browser
def test_fits_a_phone(browser, any_page):
    page = opened(browser, any_page, width=360)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    # Scrolling sideways would also be needed where a box clips what it holds.
    stuck = """[...document.querySelectorAll('main p, main li, main h2, main h3, main summary')]
        .filter(e => e.getBoundingClientRect().right > 361 && !e.closest('.scroll')).length"""
    assert page.evaluate(stuck) == 0
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1360])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_has_no_accessibility_violation(browser, any_page, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(browser, any_page, width, theme)
    page.evaluate("document.querySelectorAll('.fold').forEach(fold => { fold.open = true })")
    page.wait_for_timeout(200)  # boxes that scroll now learn to take the focus
    violations = axe.Axe().run(page).response["violations"]
    assert [(v["id"], [node["html"][:150] for node in v["nodes"][:3]]) for v in violations] == []
    page.close()
