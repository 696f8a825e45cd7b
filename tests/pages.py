"""Pages, notebooks and scripts that tests make: helpers of all that looks at the page."""

import contextlib
import inspect
import itertools
import re
from pathlib import Path

import altair as alt
import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.page import build, playable
from tools.page.article import lay_out
from tools.page.cells import Cells
from tools.page.execute import describe
from tools.records import PROJECT

TITLE = new_markdown_cell("# A page\n\nIts first paragraph.")
FINISHED = {"corpus": "Multi30k", "model": "recipe-1", "level": "laptop"}
UNFINISHED = FINISHED | {"model": "demonstration"}
# Where the boxes of a drawing lead.
SECTIONS = (
    '<a id="multi-head-attention"></a><a id="scaled-dot-product-attention"></a>\n# Part 1\n\n'
)


# Notebooks made for a test ------------------------------------------------------------------------


def shown(data: dict, code: str = "show()", tags: tuple = ()):
    """A code cell with one output."""
    output = new_output("display_data", data=data)
    return new_code_cell(code, outputs=[output], metadata={"tags": list(tags)})


def facts(about: dict):
    """The cell that says what a page was made from."""
    return shown({"text/plain": repr(about)}, "@example\ndef what_this_page_was_made_from(): ...")


def hidden(code: str, *outputs):
    return new_code_cell(code, outputs=list(outputs), metadata={"tags": ["hide-input"]})


def chart(spec: dict, code: str = "show()"):
    """A code cell that shows a chart, in the way of the script's renderer."""
    return shown({"application/vnd.vegalite.v5+json": spec}, code)


def line_chart(values: list) -> dict:
    data = pd.DataFrame({"x": range(len(values)), "y": values})
    drawn = alt.Chart(data, description="A line.", width=560).mark_line(point="transparent")
    return drawn.encode(x="x:Q", y="y:Q", tooltip=["x", "y"]).to_dict()


def rows_chart(*rows: dict) -> dict:
    """A chart that holds its rows as an explorer does."""
    return {"description": "Rows.", "layer": [{"data": {"values": list(rows)}, "title": None}]}


def heat_map() -> dict:
    data = pd.DataFrame(itertools.product(range(4), range(4)), columns=["x", "y"])
    data["weight"] = data["x"] * data["y"] / 9
    drawn = alt.Chart(data, description="Cells.", width=560, height=160).mark_rect()
    return drawn.encode(x="x:O", y="y:O", color="weight:Q").to_dict()


DRAWN = chart(line_chart([1, 2])).outputs[0]
ROOM = (  # cells with an engine room
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


def notebook(folder: Path, *cells) -> Path:
    """A notebook of these cells, under a title, as it is once they have run."""
    cells = [new_markdown_cell(c) if isinstance(c, str) else c for c in cells]
    made = new_notebook(cells=[TITLE, *cells])
    describe(made)
    path = folder / "made.ipynb"
    nbformat.write(made, path)
    return path


def built(folder: Path, *cells) -> Path:
    """A page of these cells in a file, beside the model."""
    written = folder / "page.html"
    build.make(notebook(folder, *cells), written)
    return written


def page_of(folder: Path, *cells) -> BeautifulSoup:
    """The article of a notebook made of these cells, without what surrounds it on the page."""
    return lay_out(Cells(nbformat.read(notebook(folder, *cells), as_version=4)).html)


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two #rrggbb colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


# The figures that readers play with ---------------------------------------------------------------

PLAYED = [about["name"] for about in playable.registry().values()]
CAPTION = "Ein kleines Mädchen hebt einen roten Ball auf."  # in the first picture of all


@contextlib.contextmanager
def drawn_by(chromium):
    """Inside, the browser computes first pictures: QuickJS would take half a minute."""
    tab = engine_in(chromium)
    draw = "([name, data]) => JSON.stringify(stills.still(model, name, JSON.parse(data)))"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playable, "still_from", lambda _, *given: tab.evaluate(draw, given))
        yield
    tab.close()


def example(name: str, data: dict):
    """The cell of an example that has shown this."""
    return shown(data, f"@example\ndef {name}(): ...")


def figures_in(folder: Path, at, chromium) -> Path:
    """A page with all figures, in a file beside the model."""
    plan = (PROJECT / "images/architecture.svg").read_text("utf-8")
    places = sorted({*re.findall(r'href="#([\w-]+)"', plan), "model"})
    by_hand = inspect.unwrap(at.attention_by_hand_figure)().to_dict()
    sentences = pd.DataFrame({"sentence": [at.SENTENCE]})
    maps = alt.Chart(sentences, description="Maps.").mark_point().encode(x="sentence").to_dict()
    vega = "application/vnd.vegalite.v5+json"
    table = {"text/html": "<table></table>"}
    with drawn_by(chromium):
        return built(
            folder,
            "![A translation.](images/first-translation.svg)",
            new_code_cell(inspect.getsource(at.attention)),
            example("attention_by_hand_figure", {vega: by_hand}),
            "![The plan.](images/architecture.svg)",
            "![A distribution.](images/next-token.svg)",
            *(example(name, table) for name in ("watch_it_learn", "cut_a_text", "one_search")),
            example("attention_of_a_copy_figure", {vega: maps}),
            example("attention_maps_figure", {vega: maps}),
            "".join(f'<a id="{name}"></a>\n# {name}\n\n' for name in places),
        )


def engine_in(chromium):
    """A window with the shipped model, as `model`, and no page."""
    tab = chromium.new_page()
    tab.add_script_tag(content=playable.engine())
    return tab


def watched(browser, page: Path | str, **settings):
    """A window with a page; `asked` has the files that it asks for, `faults` its errors.

    Playwright's `wait_for_function` evaluates text, which the page's policy forbids.
    """
    usual = {"viewport": {"width": 1360, "height": 900}, "bypass_csp": True}
    tab = browser.new_context(**usual | settings).new_page()
    tab.asked = []
    tab.faults = []
    tab.on("request", lambda r: r.url.startswith("data:") or tab.asked.append(r.url))
    tab.on("pageerror", lambda error: tab.faults.append(str(error)))
    tab.on("console", lambda told: told.type == "error" and tab.faults.append(told.text))
    tab.goto(page if isinstance(page, str) else page.as_uri())
    return tab


def figure(tab, name: str):
    """A figure, in sight; where scripts run it listens. The mouse rests beside it."""
    tab.mouse.move(1, 1)
    found = tab.locator(f"[data-play='{name}']")
    found.scroll_into_view_if_needed()
    if tab.evaluate("document.documentElement.classList.contains('scripts')"):
        found.and_(tab.locator("[data-awake]")).wait_for()
    return found
