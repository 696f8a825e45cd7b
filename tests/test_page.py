"""The page: what its builder refuses, how it lays cells out, and how it behaves in a browser."""

import base64
import contextlib
import copy
import io
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import altair as alt
import build_page
import links
import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from conftest import BROWSERS, CHROMIUM
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

PROJECT = Path(__file__).resolve().parent.parent
PUBLISHED = PROJECT / "docs" / "index.html"
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
    drawn = alt.Chart(data, description="A line.", width=560).mark_line(point="transparent")
    drawn = drawn.encode(x="x:Q", y="y:Q", tooltip=["x", "y"])
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
        .encode(
            x="key:O",
            y="query:O",
            color="weight:Q",
            facet=alt.Facet("head:O", columns=3),
            tooltip=["query:O", "key:O", "weight:Q"],
        )
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
        ('<img src="data:image/png;base64,AAAA">', "cell 2 .*no alt text"),
        ('<img alt="x" src="https://example.org/a.png">', "cell 2 .*fetched from elsewhere"),
        ("See [the end](#the-end).", r"cell 2 .*anchor that does not exist: #the-end \(the end\)"),
        (shown({"text/markdown": "[a](#z)"}), r"cell 2 .*anchor that does not exist: #z \(a\)"),
        ("See [tests](tests/test_page.py).", "cell 2 .*part of the page: tests/test_page.py"),
        ('<a id="x"></a>\n# X\n\n<a id="x"></a>\n# Y', "cell 2 .*ids given twice: x"),
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


def test_another_process_gives_the_same_bytes(tmp_path):
    """Whatever the order of sets, which differs from process to process."""
    source = notebook(tmp_path, "$x^2$ and `B`", chart(maps_chart()), "![a](images/attention.svg)")
    pages = []
    for seed in ("0", "1"):
        output, environment = tmp_path / f"{seed}.html", os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, build_page.__file__, str(source), str(output)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        pages.append(output.read_bytes())
    assert pages[0] == pages[1]


def test_what_others_are_told_about_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "repository", lambda: "someone/a-name")
    lead = new_markdown_cell("# A page\n\nIts *first*\nparagraph, whole. And another " + "x " * 300)
    page = page_of(tmp_path, lead, title=False)
    told = {tag.get("name") or tag.get("property"): tag["content"] for tag in page.find_all("meta")
            if tag.get("content")}  # fmt: skip
    assert page.title.text == told["og:title"] == "A page"
    assert told["description"] == told["og:description"] == "Its first paragraph, whole."
    assert told["og:image"].startswith("https://github.com/someone/a-name/")
    assert page.find("link", rel="icon")["href"].startswith("data:image/svg")
    addresses = [a["href"] for a in page.find(class_="links").find_all("a")]
    assert addresses[0].startswith("https://colab.research.google.com/github/someone/a-name/")
    assert any("someone/a-name/raw" in address for address in addresses)


@pytest.mark.parametrize("limit", ["LIMIT", "ZIPPED"])
def test_a_page_that_is_too_large_is_refused(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(build_page, limit, 1000)
    with pytest.raises(build_page.BuildError, match=r"bytes.* the limit is 1,000"):
        page_of(tmp_path, "Text.")


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


def test_boxes_of_a_drawing_lead_to_their_sections(tmp_path):
    text = (
        "# Part\n\n<a id='feed-forward'></a>\n## Feed-forward\n\n![All.](images/architecture.svg)"
    )
    text = text.replace("'", '"')
    drawing = page_of(tmp_path, text).find("svg")
    links = {link["href"]: link.get_text(" ") for link in drawing.find_all("a")}
    assert list(links) == ["#feed-forward"] and "feed-forward" in links["#feed-forward"]
    assert drawing["role"] == "group" and drawing["aria-label"] == "All."
    alone = page_of(tmp_path, "# Part\n\n![All.](images/architecture.svg)").find("svg")
    assert alone["role"] == "img" and not alone.find_all("a")
    assert set(build_page.BOXES.values()) <= build_page_anchors(), "sections that exist"


def test_every_box_has_a_section():
    for name in ("architecture", "attention", "multi-head"):
        drawing = (PROJECT / "images" / f"{name}.svg").read_text("utf-8")
        boxes = set(re.findall(r'id="box-([\w-]+)"', drawing))
        assert len(boxes) > 5 and boxes <= set(build_page.BOXES)


def test_every_figure_has_an_anchor_that_its_number_does_not_decide(tmp_path):
    drawn = chart(line_chart([1, 2]))
    drawn.source = "@example\ndef loss_curve_figure():\n    ..."
    picture = "![Heads.](images/multi-head.svg)"
    again = copy.deepcopy(drawn)
    again.id = "another"
    view = hidden('published("first-map")', DRAWN)
    cells = drawn, "**Figure 1.** A.", picture, again, view
    figures = page_of(tmp_path, *cells).find_all("figure")
    names = ["figure-loss-curve", "figure-multi-head", "figure-loss-curve-again"]
    names.append("figure-first-map")
    assert [figure.get("id") for figure in figures] == names


def build_page_anchors() -> set[str]:
    return set(build_page.ANCHOR.findall(build_page.SCRIPT.read_text("utf-8").replace("# ", "")))


def test_a_picture_inside_the_notebook_becomes_the_drawing_again(tmp_path):
    text = (
        '![drawing][attention.svg]\n\n[attention.svg]: data:image/png;base64,AAAA "attention.svg"'
    )
    assert page_of(tmp_path, text).figure.svg


def hidden(code: str, *outputs):
    return new_code_cell(code, outputs=list(outputs), metadata={"tags": ["hide-input"]})


DRAWN = chart(line_chart([1, 2])).outputs[0]
LISTED = new_output("display_data", data={"text/html": pd.DataFrame({"a": [1]}).to_html()})
FIGURE, TABLE, SET_UP = "code of this figure", "code of this table", "set-up code"


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (hidden("show()", DRAWN), FIGURE),
        (hidden("show()", LISTED), TABLE),
        (hidden("show()", new_output("stream", text="a  b")), TABLE),
        (hidden("def bars(\n    rows,\n) -> int:\n    return alt.Chart(rows)"), FIGURE),
        (hidden("def row(frame):\n    return table(frame)"), TABLE),
        (hidden("def counts(frame):\n    return bar_chart(frame)", LISTED), TABLE),
        (hidden('NOUNS = """\ndog Hund\n"""'), SET_UP),
        (new_code_cell("def long():\n" + "    pass\n" * 45), None),
    ],
)
def test_only_what_is_tagged_is_folded_under_what_it_is_for(tmp_path, cell, label):
    fold = page_of(tmp_path, "# Part", cell).find("details", class_="fold")
    assert (fold and fold.summary.text.rpartition(" ")[0].rpartition(" ")[0]) == label


def test_before_the_first_part_everything_is_set_up_in_one_fold(tmp_path):
    cells = (
        hidden("def line_chart(rows):\n    return alt.Chart(rows)"),
        "*Tables.*",
        hidden("x = 1"),
    )
    [fold] = page_of(tmp_path, "Hello.", *cells, "# Part", "Prose.").find_all("details", "fold")
    assert fold.summary.text == SET_UP and len(fold.find_all("pre")) == 2
    assert "Tables." in fold.text and "Hello" not in fold.text and "Prose" not in fold.text


ROOM = (
    "# Part\n\nSee [faster](#faster), [quick](#quick), [deep](#deep).\n\n## Story",
    '<a id="engine-room"></a>\n# The engine room\n\n' + "Open what you need. " * 200,
    '<a id="faster"></a>\n<a id="quick"></a>\n## Faster\n\nProse.\n\n$$a$$',
    new_code_cell("def fast():\n    pass"),
    hidden("WORKERS = 2"),
    hidden("show()", DRAWN),
    '**Figure 1.** Times.\n\n<a id="deep"></a>\n### Deeper\n\nSaid deep inside.',
    "## Files\n\nThe end.",
)


def test_each_section_of_the_engine_room_is_folded_as_a_whole(tmp_path):
    page = page_of(tmp_path, *ROOM)
    faster, files = page.find_all("details", class_="section")
    assert [fold.summary.h3["id"] for fold in (faster, files)] == ["faster", "files"]
    assert [fold.summary.text for fold in (faster, files)] == ["Faster", "Files"]
    assert faster.summary.find(id="quick") and faster.find("h4", id="deep")
    assert faster.find("figure").figcaption and faster.find(class_="to-code")["href"] == "#code-1"
    assert [fold.summary.text for fold in faster.find_all("details")] == [f"{FIGURE} 1 line"]
    assert page.find(string="Story").find_parent("details", class_="section") is None
    assert page.find(id="engine-room").find_next("p").find_parent("details") is None
    assert [a.text for a in page.nav.find_all("a")][-3:] == ["The engine room", "Faster", "Files"]
    assert not page.find_all(class_="minutes")


def test_a_formula_leads_to_the_code_that_computes_it(tmp_path):
    cells = [
        "# Part\n\nFirst,\n\n$$a + b$$\n\nthen,\n\n$$c$$\n<!-- code: late -->",
        "And\n\n$$d$$\n<!-- code: none -->",
        new_code_cell("@example\ndef check_nothing():\n    pass"),
        new_code_cell("def add(a, b):\n    return a + b\n\n\n@example\ndef check_add():\n    pass"),
        new_code_cell("def late():\n    pass"),
        "The end,\n\n$$e$$",
    ]
    page = page_of(tmp_path, *cells)
    links = [(link["href"], link.code.text) for link in page.find_all(class_="to-code")]
    assert links == [("#code-2", "add"), ("#code-3", "late")]
    assert page.find(id="code-2").code.text.startswith("def add")
    with pytest.raises(build_page.BuildError, match=r"cell 2 .*should link to nowhere"):
        page_of(tmp_path, "# Part\n\n$$a$$\n<!-- code: nowhere -->")


def test_letters_of_the_notation_say_what_they_mean(tmp_path):
    table = (
        "# Notation\n\n| Letter | Meaning |\n| --- | --- |\n| `B` | sentences |\n"
        "| `d_k` | D/H |\n| `V` | words |\n"
    )
    text = '"""Maps (..., B, d_k)."""\nx = 1  # (B, H, d_k)\nB = 2  # B alone, d_k too'
    code = new_code_cell(text)
    prose = "In prose `B`, and `BK`; $B$ and $d_k$, but $K$, $V$ and $B^2$."
    page = page_of(tmp_path, table, prose, code)
    marked = [tag for tag in page.find_all("abbr") if tag.get("tabindex") == "0"]
    named = [tag.code.text if tag.code else tag.annotation.text for tag in marked]
    assert named == ["B", "d_k", "V", "B", "B", "d_k"]
    assert {tag["title"] for tag in marked} == {"sentences", "D/H", "words"}
    inside = [tag.text for tag in page.find(class_="code").find_all("abbr")]
    assert inside == ["B", "d_k"] * 2, "only where a comment or a docstring tells a shape"
    assert page.find(class_="code").code.text == code.source


def test_cells_know_their_line_in_the_script(tmp_path):
    script = build_page.SCRIPT.read_text("utf-8")
    source = script[script.index("def rate(") :].split("\n\n\n")[0]
    line = script[: script.index("def rate(")].count("\n") + 1
    page = page_of(tmp_path, new_code_cell(source), new_code_cell("nowhere = 1"))
    assert [tag.text for tag in page.find_all(class_="line")] == [f"line {line:,}"]


def test_a_short_note_stands_beside_the_code_before_it(tmp_path):
    short, long = "> **Why?** Short.", "> " + "long " * 100
    first, second = new_code_cell("x = 1"), new_code_cell("z = 3")
    checked = shown({"text/plain": "fine"}, code="y = 2")
    page = page_of(tmp_path, first, short, second, long, "Text.", short, checked, short)
    beside = page.find_all(class_="beside")
    assert [box.code.text for box in beside] == ["x = 1", "y = 2"]
    assert beside[1].find(class_="output") and all(box.find(class_="aside") for box in beside)
    notes = page.find_all(class_="note")
    assert len(notes) == 4, "each once, the long one and that after text where they are"
    assert [bool(note.find_parent(class_="beside")) for note in notes] == [True, False, False, True]


def test_parts_say_how_long_they_take(tmp_path):
    """220 words or 15 lines a minute: what is folded and what a docstring says do not count."""
    code = "\n\n".join(["x = 1", "# y"] * 30)
    quiet = hidden(code), new_code_cell('def f():\n    """' + "Says.\n" * 60 + '    """')
    prose = "# Part 1\n\n| " + "word " * 440 + "|\n| --- |\n\n" + "$a + b$ <b>x</b> " * 73
    page = page_of(tmp_path, prose + "\n\n# Part 2\n\nShort.", new_code_cell(code), *quiet)
    assert [tag.text for tag in page.find_all(class_="minutes")] == [
        "3 minutes to read",
        "2 minutes to read",
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
    cells = [shown({"text/html": f.to_html()}) for f in (named, styled)]
    rows, styled = page_of(tmp_path, *cells).find_all("table")
    assert [cell.text for cell in styled.find_all(["th", "td"])][:4] == [
        "word",
        "count",
        "Hund",
        "1200",
    ]
    assert [cell.text for cell in styled.find_all(class_="num")] == ["count", "1200", "7"]
    assert not styled.find_all(style=True) and not rows.find_all("th", string="")
    assert [cell.text for cell in rows.find_all("th", scope="row")] == ["Hund", "Katze"]
    assert styled.find_parent("figure").figcaption.text == "Counts."


# In a browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        assert "REQUIRE_BROWSER" not in os.environ, "a browser was promised, and there is none"
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)}")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
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
        *ROOM[1:],
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
    """The page, its engine room open, scrolled through; `faults` collects requests and errors."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.faults = []
    here = path.resolve().as_uri()
    wanted = (here, "data:")
    page.on("request", lambda r: r.url.startswith(wanted) or page.faults.append(r.url))
    page.on("console", lambda message: page.faults.append(message.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto(here)
    page.evaluate("document.querySelectorAll('.section').forEach(fold => { fold.open = true })")
    for chart_box in page.locator(".chart").all():
        chart_box.scroll_into_view_if_needed()
        chart_box.and_(page.locator("[data-drawn]")).wait_for()
    return page


def picture(chart) -> str:
    return chart.locator("canvas").evaluate("canvas => canvas.toDataURL()")


# Marks that come back may be drawn in another order, which changes single pixels a little.
SAME = """async ([canvas, wanted, same]) => {
  const pixels = async (url) => {
    const image = Object.assign(new Image(), { src: url });
    await image.decode();
    const { width, height } = image;
    const copy = Object.assign(document.createElement("canvas"), { width, height });
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, width, height).data;
  };
  const [now, before] = [await pixels(canvas.toDataURL()), await pixels(wanted)];
  const differing = now.filter((value, index) => Math.abs(value - before[index]) > 2).length;
  return (now.length === before.length && differing < 100) === same;
}"""


def wait_for_picture(chart, wanted: str, same: bool) -> None:
    canvas = chart.locator("canvas").element_handle()
    chart.page.wait_for_function(SAME, arg=[canvas, wanted, same], timeout=5000)


@pytest.mark.browser
def test_asks_nothing_of_the_network_and_draws_every_chart(browser, any_page):
    page = opened(browser, any_page)
    assert page.locator(".chart").count() == page.locator(".chart canvas").count() > 0
    assert page.faults == []
    page.close()


@pytest.mark.browser
def test_prints_to_pdf(browser, sample, tmp_path):
    """By a copy of the Makefile, so that nothing lands in the project."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    command = ["make", "pdf", f"PAGE={sample}", f"BROWSER={CHROMIUM}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    data = (tmp_path / "build" / "the_annotated_transformer.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(data) > 20_000
    found = subprocess.run(
        ["make", "pdf", "BROWSER="], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode and "install it, or print the page from your browser" in found.stdout


@pytest.mark.browser
def test_a_chart_is_drawn_only_when_it_comes_near(browser, sample):
    page = browser.new_page(viewport={"width": 1360, "height": 200})
    page.goto(sample.as_uri())
    page.wait_for_timeout(500)
    assert page.locator(".chart canvas").count() < page.locator(".chart").count()
    page.close()


# Where the marks of a chart that have a tooltip stand on the page: thirty at most.
SPOTS = """(canvas) => {
  const { view } = canvas.closest(".chart"), spots = [];
  const [left, top] = view.origin(), pad = view.padding(), box = canvas.getBoundingClientRect();
  const walk = (mark, x, y) => mark.items.forEach((item) => {
    if (mark.marktype === "group")
      return item.items.forEach((inner) => walk(inner, x + (item.x || 0), y + (item.y || 0)));
    if (mark.marktype === "line" || item.tooltip == null) return;
    const { x1, x2, y1, y2 } = item.bounds;
    spots.push([x + (x1 + x2) / 2, y + (y1 + y2) / 2]);
  });
  walk(view.scenegraph().root, box.x + left + pad.left, box.y + top + pad.top);
  const step = Math.max(1, Math.floor(spots.length / 30));
  return spots.filter((_, number) => number % step === 0).slice(0, 30);
}"""


def spots_of(canvas) -> list[tuple[float, float]]:
    canvas.evaluate("canvas => canvas.scrollIntoView({ block: 'center' })")
    return canvas.evaluate(SPOTS)


@pytest.mark.browser
def test_every_chart_shows_its_tooltip(browser, any_page):
    page = opened(browser, any_page)
    tooltip = page.locator("#vg-tooltip-element.visible")
    for number, canvas in enumerate(page.locator(".chart canvas").all(), start=1):
        spots = spots_of(canvas)
        if not spots:
            continue  # the beam's tree has all its words and numbers in the picture
        for x, y in spots:
            page.mouse.move(x, y)
            page.wait_for_timeout(50)
            if tooltip.count():
                break
        assert tooltip.count(), f"chart {number} shows no tooltip"
        told = tooltip.inner_text()
        assert told.strip() and not any(word in told for word in ("undefined", "NaN", "null"))
        page.mouse.move(1, 1)
        tooltip.wait_for(state="detached")
    page.close()


@pytest.mark.slow
@pytest.mark.browser
def test_pointing_at_a_map_of_the_explorer_lights_a_row_and_leaving_it_ends_that(browser):
    page = opened(browser, PUBLISHED)
    chart = page.locator(".chart:has([name=chosen_head])")
    x, y = spots_of(chart.locator("canvas"))[0]
    before = picture(chart)
    page.mouse.move(x, y)
    wait_for_picture(chart, before, same=False)
    page.mouse.move(1, 1)
    wait_for_picture(chart, before, same=True)
    page.close()


def values_of(chooser) -> tuple[str, list[str]]:
    """What a chooser says now, and what else it could say."""
    now = chooser.input_value()
    if chooser.evaluate("e => e.tagName") == "SELECT":
        others = chooser.locator("option").evaluate_all("all => all.map(one => one.value)")
    else:
        others = chooser.evaluate("e => [e.min, e.max]")
    return now, [value for value in others if value != now]


def choose(chooser, value: str) -> None:
    if chooser.evaluate("e => e.tagName") == "SELECT":
        chooser.select_option(value)
    else:
        chooser.fill(value)


@pytest.mark.browser
def test_every_chooser_changes_the_picture_forth_and_back(browser, any_page):
    page, tried = opened(browser, any_page), 0
    for chart in page.locator(".chart:has(select), .chart:has(input)").all():
        chart.scroll_into_view_if_needed()
        for chooser in chart.locator("select, input[type=range]").all():
            now, others = values_of(chooser)
            for value in others:
                before = picture(chart)
                choose(chooser, value)
                wait_for_picture(chart, before, same=False)
                choose(chooser, now)
                wait_for_picture(chart, before, same=True)
            tried += 1
    assert tried >= 2 and page.faults == []
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
@pytest.mark.parametrize("width", [360, 1900])
def test_fits_a_phone_and_a_wide_screen(browser, any_page, width):
    page = opened(browser, any_page, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Scrolling sideways would also be needed where a box clips what it holds.
    stuck = """width => [...document.querySelectorAll('main p, main li, main h2, main h3, summary')]
        .filter(e => e.getBoundingClientRect().right > width + 1 && !e.closest('.scroll')).length"""
    assert page.evaluate(stuck, width) == 0
    page.close()


@pytest.mark.browser
def test_every_formula_has_its_mathml(browser, any_page):
    page = browser.new_page()
    page.goto(any_page.resolve().as_uri())
    counts = page.locator(".katex").count(), page.locator(".katex math").count()
    assert counts[0] == counts[1] > 0
    page.close()


@pytest.mark.browser
def test_without_scripts_there_are_pictures(browser, any_page):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(any_page.resolve().as_uri())
    charts = page.locator(".chart").count()
    for summary in page.locator(".section > summary").all():
        summary.click()
    assert page.locator(".chart noscript img:visible").count() == charts > 0
    assert page.locator(".chart .view:visible").count() == 0
    above, below = page.locator("nav").bounding_box(), page.locator("h1").bounding_box()
    assert above["y"] + above["height"] <= below["y"], "the contents cover nothing"
    context.close()


@pytest.mark.browser
def test_paper_has_pictures_and_no_folds(browser, any_page):
    page = opened(browser, any_page, theme="dark")
    page.evaluate("document.querySelectorAll('.fold').forEach(fold => { fold.open = false })")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".chart > img:visible").count() == page.locator(".chart").count() > 0
    assert page.locator("details.fold:not([open])").count() == 0
    assert not page.locator("header").is_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator(".chart > img").count() == page.locator("details.fold[open]").count() == 0
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("scripts", [True, False])
def test_the_engine_room_opens(browser, sample, scripts):
    """By its summaries, and by itself for whoever is led into it."""
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.goto(sample.as_uri())
    inside, last = page.get_by_text("Said deep inside."), page.get_by_text("The end.")
    assert not inside.is_visible() and not last.is_visible()
    assert page.get_by_role("heading", name="Files").is_visible()
    page.locator("summary:has(#files)").press("Enter")
    assert last.is_visible() and not inside.is_visible()
    code = page.locator(".section .to-code").get_attribute("href")
    for address in ("#deep", code, "#faster", "#quick") if scripts else ("#deep", code):
        page.goto("about:blank")
        page.goto(sample.as_uri() + address)
        inside.wait_for()
        assert not last.is_visible()
    if scripts:
        page.goto(sample.as_uri())
        page.get_by_role("link", name="The engine room").click()
        page.get_by_role("link", name="Faster").click()
        inside.wait_for()
        page.locator("summary:has(#faster)").click()
        inside.wait_for(state="hidden")
        page.get_by_role("link", name="Faster").click()
        inside.wait_for()
        page.go_back()
        page.evaluate("document.querySelectorAll('.fold').forEach(fold => { fold.open = false })")
        page.go_forward()
        inside.wait_for()
    context.close()


@pytest.mark.browser
def test_code_is_copied(browser, sample):
    context = browser.new_context()
    page = context.new_page()
    page.goto(sample.resolve().as_uri())
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator(".code").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    block.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("def f(x: int) -> str:")
    context.close()


@pytest.mark.browser
def test_the_keyboard_is_enough(browser, sample):
    page, met = opened(browser, sample), []
    page.evaluate("scrollTo(0, 0)")
    for _ in range(80):
        page.keyboard.press("Tab")
        what = "e => [e.className || e.id || e.name || e.tagName, getComputedStyle(e).outlineStyle]"
        met.append(page.evaluate(f"({what})(document.activeElement)"))
        if met[-1][0] == "chosen_layer":
            break
    names = [name for name, _ in met]
    assert names[0] == "skip" and {"theme", "SUMMARY", "chosen_kind"} <= set(names)
    assert all(outline != "none" for name, outline in met), "the focus is seen"
    chart = page.locator(".chart:has(select)")
    before = picture(chart)
    page.keyboard.press("ArrowRight")
    wait_for_picture(chart, before, same=False)
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1360])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_has_no_accessibility_violation(browser, any_page, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(browser, any_page, width, theme)
    page.evaluate("document.querySelectorAll('.fold').forEach(fold => { fold.open = true })")
    page.wait_for_timeout(2000)  # boxes that scroll now learn to take the focus
    violations = axe.Axe().run(page).response["violations"]
    assert [(v["id"], [node["html"][:150] for node in v["nodes"][:3]]) for v in violations] == []
    page.close()


# In JupyterLab -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
def test_jupyterlab_draws_charts_of_a_notebook_that_it_does_not_trust(browser, tmp_path):
    """The charts are those of the script's renderer; nothing outside this machine is asked."""
    import the_annotated_transformer as tutorial

    bundle = tutorial.portable_chart(line_chart([1, 3, 2]))
    notebook(tmp_path, shown(bundle))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    server += ["--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}"]
    homes = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR")
    environment = os.environ | dict.fromkeys(homes, str(tmp_path / "home"))
    process = subprocess.Popen(server, env=environment, stderr=subprocess.DEVNULL)
    page, outside = browser.new_page(), []
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
        assert canvas.bounding_box()["width"] > 100 and outside == []
    finally:
        page.close()
        process.kill()  # asked to end, it may wait for its threads for ever; its kernel notices
        process.wait(timeout=30)
