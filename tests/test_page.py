"""The page: what its builder refuses, how it lays cells out, and how it behaves in a browser."""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from conftest import PROJECT
from forks import free_port
from nbformat.v4 import new_code_cell, new_output
from pages import (
    DRAWN,
    FINISHED,
    LISTED,
    PASSED,
    SECTIONS,
    UNFINISHED,
    built,
    chart,
    contrast,
    facts,
    hidden,
    line_chart,
    maps_chart,
    notebook,
    page_of,
    rows_chart,
    shown,
    visited,
)
from PIL import Image

from tools import records
from tools.page import build as build_page

PUBLISHED = PROJECT / "docs" / "index.html"


# What the builder refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("A sum, $\\frac{1}{2$.", r"cell 2 .*formula does not parse"),
        ("![](images/multi-head.svg)", r"cell 2 .*multi-head\.svg has no alt text"),
        ("![a drawing](images/none.svg)", r"cell 2 .*none\.svg does not exist"),
        ("![a box](images/multi-head.svg)", "cell 2 .*anchor that does not exist: #multi-head-att"),
        ('<img src="data:image/png;base64,AAAA">', "cell 2 .*no alt text"),
        ('<img alt="x" src="https://example.org/a.png">', "cell 2 .*fetched from elsewhere"),
        ("See [the end](#the-end).", r"cell 2 .*anchor that does not exist: #the-end \(the end\)"),
        ("See [tests](tests/test_page.py).", "cell 2 .*part of the page: tests/test_page.py"),
        ('<a id="x"></a>\n# X\n\n<a id="x"></a>\n# Y', "cell 2 .*ids given twice: x"),
        ("$$a$$\n<!-- code: nowhere -->", r"cell 2 .*should link to nowhere"),
        (chart(line_chart([1.0, None, 2.0])), r"cell 2 .*null where a number .*/1/y"),
        (chart(line_chart([1, 2]) | {"description": ""}), "no description"),
        (chart(rows_chart({"n": "12 3"}, {"n": "12 nan 3"})), "a number .*/data/values/1/n"),
        (shown({"image/png": "AAAA"}), "no alt text"),
        (
            new_code_cell("1/0", outputs=[new_output("error", ename="NoZero", evalue="!")]),
            r"cell 2 \(1/0\): the cell ended with NoZero",
        ),
    ],
)
def test_faults_fail_the_build(tmp_path, cell, message):
    with pytest.raises(build_page.BuildError, match=message):
        page_of(tmp_path, cell)


def test_a_chart_may_have_a_null_that_is_no_number():
    result = build_page.missing_numbers(rows_chart({"n": 1}))
    assert result == []


def test_a_page_needs_a_title(tmp_path):
    with pytest.raises(build_page.BuildError, match="no title"):
        build_page.build(notebook(tmp_path, "Text.", title=False))


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (None, "unnamed corpus"),
        (FINISHED | {"corpus": "built-in captions"}, "built-in captions"),
        (UNFINISHED, "without a finished model"),
        ({"corpus": "Multi30k"}, "without a finished model"),
        (FINISHED, None),
    ],
)
def test_publishing_needs_a_finished_model_of_a_real_corpus(tmp_path, capsys, about, message):
    cells = [facts(about)] if about else []
    source = notebook(tmp_path, *cells)
    target = tmp_path / "page.html"
    result = build_page.main(["make", str(source), str(target), "--publish"])
    assert result == (1 if message else 0)
    if message:
        assert message in capsys.readouterr().err
        assert not target.exists()
        assert build_page.main(["make", str(source), str(target)]) == 0
        assert ("A draft: " in target.read_text("utf-8")) == (about is not None)
    else:
        assert "Multi30k at level laptop" in target.read_text("utf-8")


def test_the_picture_of_a_link_shows_both_sentences_and_the_curves():
    picture = Image.open(io.BytesIO(build_page.preview())).convert("L")
    assert picture.size == (1200, 630)
    darkest = picture.getpixel((0, 0))
    for top, bottom in [(60, 120), (225, 280), (290, 460), (470, 525), (570, 600)]:
        # title, German, curves, English, what curves mean: all on a dark ground
        band = picture.crop((60, top, 1140, bottom))
        assert darkest < 40 < 100 < band.getextrema()[1]


# How cells are laid out ---------------------------------------------------------------------------


def test_the_same_notebook_gives_the_same_bytes(tmp_path):
    """In another process too, where sets have another order."""
    drawing = SECTIONS + "![a](images/multi-head.svg)"
    source = notebook(tmp_path, "$x^2$ and `B`", drawing)
    output = tmp_path / "page.html"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    command = [sys.executable, build_page.__file__, "make", str(source), str(output)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    expected = build_page.build(source)[0]
    assert output.read_text("utf-8") == expected


def test_headings_have_one_title(tmp_path):
    text = '# Early\n\n# Part\n\n## Deep\n\n<a id="own"></a>\n## Section of $x$\n\n[up](#part)'
    page = page_of(tmp_path, text)
    found = [(tag.name, tag["id"]) for tag in page.find_all(re.compile(r"h\d"))]
    names = ["a-page", "early", "part", "deep", "own"]
    expected = list(zip(["h1", "h2", "h2", "h3", "h3"], names, strict=True))
    assert found == expected
    contents = BeautifulSoup(build_page.contents(page), "html.parser")
    result = [a["href"] for a in contents.find_all("a")]
    expected = [f"#{name}" for name in names[1:]]
    assert result == expected
    result = [len(item.find_all("li")) for item in contents.select("ol")]
    assert result == [4, 2]


def test_anchors_alone_before_a_heading_become_part_of_it(tmp_path):
    picture = '<img alt="a dot" src="data:image/png;base64,AAAA">'
    text = f'<a id="one"></a><a id="two"></a>\n## Both\n\n{picture * 2}\n\n## Next\n\n'
    text += 'Words. <a id="inside"></a>\n\n## Last\n\n<a id="end"></a>\nThe end.'
    page = page_of(tmp_path, text)
    both, following, last = page.find_all("h3")
    assert both["id"] == "one"
    assert both.find(id="two")
    assert both.text == "Both"
    result = (following["id"], last["id"])
    assert result == ("next", "last")
    for name in ("inside", "end"):
        assert page.find(id=name).parent.name == "p"
    assert page.img.parent.name == "p"
    assert all(paragraph.contents for paragraph in page.find_all("p"))


def test_captions_join_what_they_describe(tmp_path):
    table = "| a |\n| --- |\n| 1 |\n\n**Table 1.** Above it."
    drawing = SECTIONS + "![A box.](images/multi-head.svg)\n\n**Figure 2.** Of it."
    page = page_of(tmp_path, chart(line_chart([1, 2])), "**Figure 1.** The line.", table, drawing)
    first, second, third = page.find_all("figure")
    assert first.find(class_="chart")
    assert first.figcaption.text == "Figure 1. The line."
    assert second.find().name == "figcaption"
    assert second.table
    assert third.svg["aria-label"] == "A box."
    assert third.figcaption.text == "Figure 2. Of it."
    bare = page_of(tmp_path, chart(line_chart([1, 2])), "**Bold** words.").figure
    assert bare.figcaption.text == "A line."


def test_a_drawing_keeps_its_links_and_has_ids_of_its_own(tmp_path):
    name = "images/multi-head.svg"
    embedded = f'![one][{name}]\n\n[{name}]: data:image/png;base64,AA "{name}"'
    for text in (f"![one]({name})", embedded):
        drawing = page_of(tmp_path, SECTIONS + text).svg
        marker = drawing.marker["id"]
        assert marker.startswith("multi-head-")
        assert not drawing.find("title")
        assert f"url(#{marker})" in drawing.style.text
        assert drawing.a["href"] == "#multi-head-attention"
        assert drawing["role"] == "group"
    assert 'role="img"' in build_page.inline_svg("<svg><path/></svg>", "No links.", "a-")


FIGURE = "code of this figure"
TABLE = "code of this table"
SET_UP = "set-up code"


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (hidden("show()", DRAWN), FIGURE),
        (hidden("show()", LISTED), TABLE),
        (hidden("def bars(\n    rows,\n) -> int:\n    return alt.Chart(rows)"), SET_UP),
        (hidden("def counts(frame):\n    return bar_chart(frame)", LISTED), TABLE),
        (hidden("@example\ndef check_it():\n    pass", PASSED), "code of this check"),
        (hidden("print(1)", PASSED), "code of this output"),
        (hidden("run()", new_output("stream", name="stderr", text="50%|##")), SET_UP),
        (hidden('NOUNS = """\ndog Hund\n"""'), SET_UP),
        (new_code_cell("def long():\n" + "    pass\n" * 45), None),
        (hidden('published("steps")', LISTED), None),
    ],
)
def test_only_what_is_tagged_is_folded_under_what_it_is_for(tmp_path, cell, label):
    fold = page_of(tmp_path, "# Part", cell).find("details", class_="fold")
    lines = f" {cell.source.count(chr(10)) + 1} line"
    result = fold and fold.summary.text.removesuffix("s")
    assert result == (label and label + lines)


def test_before_the_first_part_everything_is_set_up_in_one_fold(tmp_path):
    first = hidden("def line_chart(rows):\n    return alt.Chart(rows)")
    cells = first, "*Tables.*", hidden("x = 1")
    [fold] = page_of(tmp_path, "Hello.", *cells, "# Part", "Prose.").find_all("details", "fold")
    assert fold.summary.text == SET_UP
    assert len(fold.find_all("pre")) == 2
    assert "Tables." in fold.text
    assert "Hello" not in fold.text
    assert "Prose" not in fold.text


ROOM = (
    "# Part\n\nSee [faster](#faster), [quick](#quick), [deep](#deep).\n\n## Story",
    '<a id="engine-room"></a>\n# The engine room\n\n' + "Open what you need. " * 200,
    '<a id="faster"></a><a id="quick"></a>\n## Faster\n\nProse.\n\n$$a$$',
    new_code_cell("def fast():\n    pass"),
    hidden("WORKERS = 2"),
    hidden("show()", DRAWN),
    '**Figure 1.** Times.\n\n<a id="deep"></a>\n### Deeper\n\nSaid deep inside.',
    "## Files\n\nThe end.",
    '<a id="own"></a>\n# Your own\n\nIn sight.\n\n<a id="own-thing"></a>\n## A thing\n\n'
    + "Long. " * 900,
)


def test_the_engine_room_is_one_fold_without_folds_inside(tmp_path):
    page = page_of(tmp_path, *ROOM)
    [room] = page.find_all("details")
    assert room.summary.h2["id"] == "engine-room"
    assert "section" in room["class"]
    result = {"faster", "quick", "deep", "files"}
    expected = {tag["id"] for tag in room.find_all(id=True)}
    assert result <= expected
    assert len(room.find_all("pre")) == 3
    assert room.find("figure").figcaption
    assert room.find(class_="to-code")["href"] == "#code-1"
    for outside in ("Story", "In sight.", "A thing"):
        assert page.find(string=outside).find_parent("details") is None


def test_exercises_and_what_is_looked_up_are_folded_under_their_headings(tmp_path):
    text = '<a id="try-it"></a>\n## Try it\n\nDo.\n\n## Next\n\nOpen.'
    words = '<a id="glossary"></a>\n## Words'
    page = page_of(tmp_path, "# Part", text, words, hidden("x = 1"), "# Part 2\n\nStory.")
    exercise, words, code = page.find_all("details")
    assert exercise.summary.h3["id"] == "try-it"
    assert exercise.p.text == "Do."
    assert not exercise.summary.a, "a summary may hold no link"
    assert words.summary.h3["id"] == "glossary"
    assert words.details is code
    for said in ("Open.", "Story."):
        assert page.find(string=said).find_parent("details") is None


def test_headings_link_to_themselves_without_a_word(tmp_path):
    page = page_of(tmp_path, "# Part of $x$\n\n## Deep")
    for heading in page.find_all(["h2", "h3"]):
        [link] = heading.find_all("a")
        assert link["href"] == "#" + heading["id"]
        assert link.text == ""
        assert link["tabindex"] == "-1"


def test_only_what_is_coloured_has_an_element_in_code():
    code = '@a\ndef f(x):  # one\n    # two\n    return not x if x else "a\\n" f"{x}" + 1.5\n'
    block = BeautifulSoup(build_page.code_block(code), "html.parser").code
    assert block.text == code.rstrip()
    found = [(span["class"], span.text) for span in block.find_all("span")]
    assert (["c"], "# one\n    # two") in found
    assert (["k"], "return not") in found
    result = [kind[0] for kind, _ in found[:3]]
    assert result == ["d", "k", "f"]
    assert found[-1] == (["m"], "1.5")


def test_a_formula_leads_to_the_code_that_computes_it(tmp_path):
    cells = [
        "# Part\n\nFirst,\n\n$$a + b$$\n\nthen,\n\n$$c$$\n<!-- code: late -->",
        "And\n\n$$d$$\n<!-- code: none -->",
        new_code_cell("@example\ndef check_nothing():\n    pass"),
        new_code_cell("def add(a, b):\n    return a + b\n\n\n@example\ndef check_add():\n    pass"),
        new_code_cell("def early():\n    pass\n\n\ndef late():\n    pass"),
        "The end,\n\n$$e$$",
    ]
    page = page_of(tmp_path, *cells)
    links = [(link["href"], link.code.text) for link in page.find_all(class_="to-code")]
    assert links == [("#code-2", "add"), ("#code-3", "late")]
    assert page.find(id="code-2").code.text.startswith("def add")
    page = page_of(tmp_path, "# Part\n\n$$a$$", *cells[-2:])
    assert page.find(class_="to-code").code.text == "early", "the first of a cell"


def test_progress_and_warnings_are_not_shown(tmp_path):
    outputs = [PASSED, new_output("stream", name="stderr", text="50%|##")]
    (output,) = page_of(tmp_path, new_code_cell("run()", outputs=outputs)).find_all("pre", "output")
    assert output.text == "✓ it"


def test_a_check_has_its_look_by_its_name_not_by_what_it_prints(tmp_path):
    cells = [
        new_code_cell(f"@example\ndef {name}():\n    pass", outputs=[PASSED])
        for name in ("check_it", "grades_of_mine")
    ]
    first, second = page_of(tmp_path, *cells).find_all("pre", "output")
    assert "check" in first["class"]
    assert "check" not in second["class"]


def test_a_figure_has_the_name_of_its_example_or_view(tmp_path):
    codes = [
        "@example\ndef first_translation_of_ours():\n    pass",
        "x = 1\n\n\n@example\ndef rate_figure():\n    return alt.Chart(x)",
        'published("two-lines")',
        "def helper():\n    pass",
    ]
    page = page_of(tmp_path, *(chart(line_chart([1, 2]), code) for code in codes))
    names = ["figure-first-translation-of-ours", "figure-rate", "figure-two-lines", None]
    result = [figure.get("id") for figure in page.find_all("figure")]
    assert result == names


def test_a_finished_view_prints_its_caption_and_others_print_output(tmp_path):
    words = "Losses. A CPU @ 2.7GHz, 2026; commit ab."
    prints = new_output("stream", name="stdout", text=words + "\n")
    view = new_code_cell('published("losses")', outputs=[prints])
    other = new_code_cell("print(losses)", outputs=[prints])
    page = page_of(tmp_path, view, other)
    assert page.find(class_="caption").text.strip() == words
    assert page.find("pre", "output").text == words
    result = [block["id"] for block in page.find_all(class_="code")]
    assert result == ["code-1"]


def test_code_that_nobody_ran_is_refused(tmp_path):
    source = notebook(tmp_path, new_code_cell("x = 1"))
    bare = nbformat.read(source, as_version=4)
    del bare.cells[1].metadata["annotated"]
    nbformat.write(bare, source)
    with pytest.raises(build_page.BuildError, match=r"cell 2 \(x = 1\): nothing says what"):
        build_page.build(source)


def test_tables_of_pandas_lose_their_styling(tmp_path):
    frame = pd.DataFrame({"word": ["Hund", "Katze"], "count": [1200, -7]})
    styled = frame.style.hide().set_caption("Counts. A CPU, 2026.")
    [styled] = page_of(tmp_path, shown({"text/html": styled.to_html()})).find_all("table")
    texts = [cell.text for cell in styled.find_all(["th", "td"])]
    assert texts[:4] == ["word", "count", "Hund", "1200"]
    result = [cell.text for cell in styled.find_all(class_="num")]
    assert result == ["count", "1200", "−7"]
    assert not styled.find_all(style=True)
    assert styled.find_parent("figure").figcaption.text == "Counts. A CPU, 2026."


def test_the_picture_of_a_chart_has_the_colours_of_the_page():
    picture = re.search('base64,([^"]+)', build_page.chart_of(line_chart([1, 2])))[1]
    picture = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    assert (0x17, 0x63, 0x9C) in picture.get_flattened_data()
    assert picture.getpixel((0, 0)) == (255, 255, 255)


def test_groups_of_columns_stand_apart_and_ranges_are_numbers(tmp_path):
    names = [("", "step"), ("A", "x"), ("A", "y"), ("B", "x"), ("B", "y")]
    columns = pd.MultiIndex.from_tuples(names)
    frame = pd.DataFrame([["a", "37.9\xa0(37.6–38.2)", "–", "±0.3", "+1"]], columns=columns)
    [table] = page_of(tmp_path, shown({"text/html": frame.to_html(index=False)})).find_all("table")
    result = [cell.text for cell in table.find_all(class_="group")]
    assert result == ["A", "B"]
    row = table.tbody.tr.find_all("td")
    kinds = [["num", "first"], ["num"], ["num", "first"], ["num"]]
    assert [cell.get("class") for cell in row] == [None, *kinds]


# In a browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    """A page with one of everything."""
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
        "**Figure 1.** A line.",
        chart(maps_chart()),
        "**Figure 2.** Maps.\n\n![A box](images/multi-head.svg)\n\n**Figure 3.** A drawing.",
        shown({"text/html": frame.to_html()}),
        "# Part 2\n\n## Before\n\nIt.\n\n## End\n\n" + "Last words. " * 400,
        *ROOM[1:],
        facts(UNFINISHED),
    ]
    return built(tmp_path_factory.mktemp("page"), *cells)


@pytest.fixture(params=["sample", pytest.param("published", marks=pytest.mark.slow)])
def any_page(request) -> Path:
    if request.param == "published" and not PUBLISHED.exists():
        pytest.skip("docs/index.html is not published yet")
    return PUBLISHED if request.param == "published" else request.getfixturevalue("sample")


LAID_OUT = (
    "document.querySelectorAll('article > *').forEach(e => e.style.contentVisibility = 'visible')"
)


def draw(page, charts: str) -> None:
    for chart_box in page.locator(charts).all():
        chart_box.scroll_into_view_if_needed()
        chart_box.and_(page.locator("[data-drawn]")).wait_for()


def opened(browser, path: Path, width: int = 1360, theme: str = "light"):
    """The page, its engine room open, scrolled through; `faults` collects requests and errors."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.faults = []
    wanted = (path.as_uri(), "data:")
    page.on("request", lambda r: r.url.startswith(wanted) or page.faults.append(r.url))
    page.on("console", lambda message: page.faults.append(message.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('.section').forEach(fold => { fold.open = true })")
    page.evaluate(LAID_OUT)  # nothing moves any more
    draw(page, ".chart")
    return page


def picture(chart) -> str:
    return chart.locator("canvas").evaluate("canvas => canvas.toDataURL()")


def wait_for_another(chart, before: str) -> None:
    canvas = chart.locator("canvas").element_handle()
    other = "([canvas, before]) => canvas.toDataURL() !== before"
    chart.page.wait_for_function(other, arg=[canvas, before], timeout=5000)


@pytest.mark.browser
def test_asks_nothing_of_the_network_and_draws_every_chart(browser, any_page):
    page = opened(browser, any_page)
    assert page.locator(".chart").count() == page.locator(".chart canvas").count() > 0
    formulas = page.locator(".katex").count()
    named = page.locator(".katex math").count()
    assert formulas == named > 0, "every formula has its MathML"
    assert page.faults == []


@pytest.mark.browser
def test_a_chart_shows_its_tooltip(browser, sample):
    page = opened(browser, sample)
    page.locator(".chart:has(select) canvas").hover(position={"x": 100, "y": 100})
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert re.fullmatch(
        r"weight\s+[01](\.\d+)?\s*", page.locator("#vg-tooltip-element").inner_text()
    )


def choose(chooser, value: str) -> None:
    if chooser.evaluate("e => e.tagName") == "SELECT":
        chooser.select_option(value)
    else:
        chooser.fill(value)


@pytest.mark.browser
def test_every_chooser_changes_the_picture_forth_and_back(browser, any_page):
    page = opened(browser, any_page)
    tried = 0
    values = "e => e.options ? [...e.options].map(one => one.value) : [e.min, e.max]"
    for box in page.locator(".chart:has(select), .chart:has(input)").all():
        for chooser in box.locator("select, input[type=range]").all():
            now = chooser.input_value()
            for value in set(chooser.evaluate(values)) - {now}:
                for choice in (value, now):
                    before = picture(box)
                    choose(chooser, choice)
                    wait_for_another(box, before)
            tried += 1
        for switch in box.locator("input[type=checkbox]").all() * 2:  # on and off
            before = picture(box)
            switch.click()
            wait_for_another(box, before)
    assert tried >= 2
    assert page.faults == []


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


SHOWS_SCROLLING = ".scroll, .code pre, .output"


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 390, 768, 1360, 1920])
def test_fits_every_window(browser, any_page, width):
    page = opened(browser, any_page, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Scrolling sideways would also be needed where a box clips what it holds.
    stuck = """([width, boxes]) => [...document.querySelectorAll('main *')].filter(e =>
        e.getBoundingClientRect().right > width + 1 && !e.closest(`${boxes}, svg, .katex-mathml`)
    ).map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(stuck, [width, SHOWS_SCROLLING]) == []
    shaded = "e => getComputedStyle(e).backgroundImage.split('linear-gradient').length - 1"
    scrolls = "boxes => boxes.filter(e => e.scrollWidth > e.clientWidth).map(SHADED)"
    found = page.locator(SHOWS_SCROLLING).evaluate_all(scrolls.replace("SHADED", shaded))
    assert set(found) <= {4}
    assert found or width > 768


@pytest.mark.browser
def test_a_formula_that_its_late_font_widens_takes_the_focus(browser, sample):
    page = opened(browser, sample)
    short = "[...document.querySelectorAll('.display')].find(e => e.scrollWidth === e.clientWidth)"
    box = page.evaluate_handle(short).as_element()
    assert box.evaluate("e => e.tabIndex") == -1
    box.evaluate("e => { e.querySelector('.katex').style.paddingLeft = '900px' }")
    page.evaluate("document.fonts.dispatchEvent(new FontFaceSetLoadEvent('loadingdone'))")
    assert box.evaluate("e => e.tabIndex") == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1360])
def test_the_page_keeps_its_height_while_charts_are_drawn(browser, any_page, width):
    page = visited(browser, any_page.as_uri(), viewport={"width": width, "height": 900})
    page.evaluate(LAID_OUT)
    page.evaluate("document.fonts.ready.then(() => null)")
    height = "document.documentElement.scrollHeight"
    before = page.evaluate(height)
    draw(page, ".chart:not(.section *)")
    assert abs(page.evaluate(height) - before) <= 50
    kept = """views => views.map(view => [
        parseFloat(getComputedStyle(view).minHeight), view.querySelector("canvas").clientHeight])"""
    for room, drawn in page.locator(".view:has(canvas)").evaluate_all(kept):
        assert abs(room - drawn) <= 20


@pytest.mark.browser
def test_one_button_copies_and_every_canvas_has_a_label(browser, any_page):
    page = opened(browser, any_page)
    assert page.locator(".copy").count() == 1
    for canvas in page.locator("canvas").all():
        assert canvas.get_attribute("role") == "img"
        assert len(canvas.get_attribute("aria-label")) > 5


@pytest.mark.browser
def test_a_chart_is_drawn_when_the_reader_comes_near(browser, tmp_path):
    line = line_chart([1, 3, 2])
    page = visited(browser, built(tmp_path, chart(line), "Words. " * 3000, chart(line)).as_uri())
    first, second = page.locator(".chart").all()
    first.locator("canvas").wait_for()
    assert second.locator("canvas").count() == 0
    second.scroll_into_view_if_needed()
    second.locator("canvas").wait_for()


@pytest.mark.parametrize("scheme", [0, 1])
def test_marks_of_charts_stand_out_from_the_paper(scheme):
    """Lines, points and the strongest cells; cells of a weight of nothing may vanish."""
    css = (build_page.PARTS / "page.css").read_text("utf-8")
    values = {name: found[scheme].split() for name in ("paper", "series", "ramp", "diverging")
              if (found := re.findall(rf"--{name}: ([^;]+);", css))}  # fmt: skip
    marks = [*values["series"], values["ramp"][-1], values["diverging"][0], values["diverging"][-1]]
    for mark in marks:
        assert contrast(mark, *values["paper"]) >= 3, mark


@pytest.mark.browser
def test_without_scripts_there_are_pictures_and_sections_open(browser, any_page):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(any_page.as_uri())
    for summary in page.locator(".section > summary").all():
        summary.click()
    pictures = page.locator(".chart noscript img:visible").count()
    assert pictures == page.locator(".chart").count() > 0
    assert page.locator(".chart .view:visible").count() == 0
    assert not page.locator("nav").is_visible(), "closed until asked for"
    page.locator("#contents > summary").click()
    above = page.locator("nav").bounding_box()
    below = page.locator("h1").bounding_box()
    assert above["y"] + above["height"] <= below["y"], "the contents cover nothing"


@pytest.mark.browser
def test_paper_has_pictures_and_what_is_unfolded(browser, any_page):
    page = opened(browser, any_page, theme="dark")
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = false })")
    page.locator(".section").first.evaluate("fold => { fold.open = true }")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".chart > img:visible").count() > 0
    assert page.locator(".chart > img").count() == page.locator(".chart").count()
    assert page.locator(".section > :not(summary):visible").count() > 0
    assert page.locator(".fold:not(.section, .section *):visible").count() == 0, "set-up code"
    assert not page.locator("header").is_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator(".chart > img").count() == 0


SHIFTS = """self.shifted = 0;
const add = (entry) => { if (!entry.hadRecentInput) shifted += entry.value; };
new PerformanceObserver((list) => list.getEntries().forEach(add))
    .observe({ type: "layout-shift", buffered: true })"""


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width, slower", [(390, 1), (390, 4), (1360, 1)])
def test_nothing_moves_while_the_page_opens(browser, width, slower):
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.add_init_script(SHIFTS)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    page.goto(PUBLISHED.as_uri())
    page.wait_for_timeout(3000)
    assert page.evaluate("shifted") < 0.02


@pytest.mark.browser
def test_the_engine_room_opens(browser, sample):
    """By its summary, and by itself for whoever is led into it."""
    page = visited(browser, sample.as_uri())
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
    page.locator("summary:has(#engine-room)").click(position={"x": 5, "y": 25})
    inside.wait_for(state="hidden")
    page.locator("nav a", has_text="Faster").evaluate("link => link.click()")  # folded meanwhile
    inside.wait_for()
    page.go_back()
    page.evaluate("document.querySelectorAll('.fold').forEach(fold => { fold.open = false })")
    page.go_forward()
    inside.wait_for()


@pytest.mark.browser
@pytest.mark.parametrize("slow", [1, 2, 4, 6])
def test_the_contents_mark_what_is_in_sight_and_nothing_in_a_closed_fold(browser, sample, slow):
    page = visited(browser, f"{sample.as_uri()}#own-thing")
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": slow})
    page.locator("nav a[aria-current]", has_text="A thing").wait_for()
    assert page.locator("nav a[aria-current]").all_text_contents() == ["A thing"]


@pytest.mark.browser
def test_the_contents_of_a_phone_name_the_section_and_close_after_a_choice(browser, sample):
    page = visited(browser, sample.as_uri(), viewport={"width": 390, "height": 800})
    contents = page.locator("#contents > summary")
    contents.click()
    end = page.get_by_role("link", name="End", exact=True)
    assert not end.is_visible()
    page.get_by_role("button", name="Sections of Part 2").click()
    end.click()
    end.wait_for(state="hidden")
    page.locator("#here:text('End')").wait_for()
    top = page.locator("#end").bounding_box()["y"]
    assert contents.bounding_box()["y"] + 20 < top < 200, "below the bar, not under it"


@pytest.mark.browser
def test_the_keyboard_is_enough(browser, sample):
    page = opened(browser, sample)
    met = []
    page.evaluate("scrollTo(0, 0)")
    what = "(e => [e.className || e.id || e.name || e.tagName, getComputedStyle(e).outlineStyle])"
    while len(met) < 80 and "chosen_layer" not in dict(met):
        page.keyboard.press("Tab")
        met.append(page.evaluate(f"{what}(document.activeElement)"))
    assert met[0][0] == "skip"
    assert {"theme", "SUMMARY", "chosen_kind"} <= set(dict(met))
    assert all(outline != "none" for _, outline in met), "the focus is seen"
    chart = page.locator(".chart:has(select)")
    before = picture(chart)
    page.keyboard.press("ArrowRight")
    wait_for_another(chart, before)


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1360])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_has_no_accessibility_violation(browser, any_page, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(browser, any_page, width, theme)
    page.evaluate("document.querySelectorAll('.fold').forEach(fold => { fold.open = true })")
    page.wait_for_timeout(2000)  # boxes that scroll now learn to take the focus
    violations = axe.Axe().run(page).response["violations"]
    result = [(v["id"], [node["html"][:150] for node in v["nodes"][:3]]) for v in violations]
    assert result == []


@pytest.mark.slow
@pytest.mark.browser
def test_jupyterlab_draws_charts_of_a_notebook_that_it_does_not_trust(browser, tmp_path, at):
    """The charts are those of the script's renderer; nothing outside this machine is asked."""
    notebook(tmp_path, shown(at.portable_chart(line_chart([1, 3, 2]))))
    port = free_port()
    server = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    server += ["--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}"]
    homes = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR")
    environment = os.environ | dict.fromkeys(homes, str(tmp_path / "home"))
    process = subprocess.Popen(server, env=environment, stderr=subprocess.DEVNULL)
    page = browser.new_page()
    outside = []
    here = (f"http://127.0.0.1:{port}/", f"ws://127.0.0.1:{port}/", "data:", "blob:")
    page.on("request", lambda r: r.url.startswith(here) or outside.append(r.url))
    try:
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.5)
        page.goto(f"http://127.0.0.1:{port}/lab/tree/made.ipynb")
        canvas = page.locator(".jp-OutputArea-output canvas")
        canvas.wait_for(timeout=90_000)
        assert canvas.bounding_box()["width"] > 100
        assert outside == []
    finally:
        process.kill()  # asked to end, it may wait for its threads for ever; its kernel notices
        process.wait(timeout=30)


@pytest.mark.parametrize(
    "address", ["https://github.com/someone/a-name.git", "git@github.com:someone/a-name", "/disk"]
)
def test_the_page_links_to_where_git_says_that_it_lives(tmp_path, monkeypatch, address):
    for command in (["init", "-q"], ["remote", "add", "origin", address]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    monkeypatch.setattr(build_page, "PROJECT", tmp_path)
    page = BeautifulSoup(build_page.build(notebook(tmp_path))[0], "html.parser")
    links = [link["href"] for link in page.select(".links a")]
    assert len(links) == (0 if address == "/disk" else 4)
    assert all("/someone/a-name" in link for link in links)
    [picture] = page.select("meta[property='og:image']")
    assert picture["content"].startswith("https://raw") == (address != "/disk")


@pytest.mark.browser
def test_prints_to_pdf(browser, any_page, tmp_path):
    """By a copy of the Makefile, so that nothing lands in the project."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    command = ["make", "pdf", f"PAGE={any_page}", f"BROWSER={records.CHROMIUM}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    data = (tmp_path / "build" / "the_annotated_transformer.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert len(data) > 20_000
    assert 0 < len(re.findall(rb"/Type */Page\b", data)) < 80
    without = subprocess.run(["make", "pdf", "BROWSER="], cwd=tmp_path, capture_output=True)
    assert without.returncode
    assert b"or print the page from your browser" in without.stdout


@pytest.mark.browser
def test_code_is_copied(browser, sample):
    context = browser.new_context()
    page = context.new_page()
    page.goto(sample.as_uri())
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator(".code").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    block.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def f(x: int) -> str:")


def test_a_model_that_the_page_cannot_compute_is_refused(tmp_path, monkeypatch):
    about = json.loads((build_page.MODEL / "config.json").read_bytes())
    about["model"]["attention"] = "rotary"
    (tmp_path / "config.json").write_text(json.dumps(about))
    monkeypatch.setattr(build_page, "MODEL", tmp_path)
    with pytest.raises(build_page.BuildError, match="computes with attention plain"):
        build_page.side_file.__wrapped__()
