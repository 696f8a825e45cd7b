"""Lay an executed notebook out as one HTML file that needs no network.

Formulas become HTML here. A formula that does not parse, an image without alt text, a dead link and
a chart with a null where a number should be fail the build. The same notebook gives the same bytes.
"""

import html
import sys
from pathlib import Path

import nbformat
from bs4 import Tag

from tools import records
from tools.page import article as articles
from tools.page import assets
from tools.page.bundle import bundle
from tools.page.cells import Cells
from tools.page.links import links
from tools.page.margin import small_map
from tools.page.markup import HERE, BuildError, filled, parsed
from tools.page.notebook import published
from tools.page.playable import preview, side_file

LARGE = 12e6  # bytes of the page and the file beside it
IDEAS, WRAP = (
    f'<button type="button" data-switch="{key}" title="{told}">{text}</button>'
    for key, told, text in (
        (
            "ideas",
            "All code folded to a line each, or open",
            "<span>Ideas only</span><span>Show code</span>",
        ),
        ("wrap", "Break long lines of code", "Wrap code"),
    )
)
SWITCHES = f"{IDEAS}\n{WRAP}"
TO_FIGURES = '<a class="to-figures" href="#figures">All figures</a>'
FIRST_READING = "<span>For a first reading, all code can be folded to a line each.</span>"
SCRIPT = records.PROJECT / "the_annotated_transformer.py"


def publish_problem(run: dict) -> str | None:
    """Why a page of this run must not be published, or None."""
    corpus = run.get("corpus", "an unnamed corpus")
    if corpus.startswith(("built-in", "an unnamed")):
        return f"the page was made from {corpus}, which is not a real corpus"
    if run.get("model", "demonstration") == "demonstration":
        return "the page was made without a finished model"
    return None


def licence() -> str:
    """Authors and licence."""
    name, _, holders, *_ = (records.PROJECT / "LICENSE").read_text("utf-8").splitlines()
    return f"{holders.removeprefix('Copyright (c) ')} · {name}"


def wrap_first_screen(article: Tag) -> None:
    """Put title, lead and the figure after them into one box, which may show the figure first."""
    title = article.h1
    around = list(title.find_next_siblings(limit=2))
    if around and around[-1].get("data-play"):
        box = article.new_tag("div", attrs={"class": "first-screen"})
        title.insert_before(box)
        box.extend([title, *around])


def offer_at_the_start(article: Tag, offers: str, urls: dict[str, str]) -> None:
    """At the start offer what the contents do, too, and links to what the page is made of."""
    start = article.select_one("hgroup:has(#start)")
    if start:
        elsewhere = " · ".join(f'<a href="{url}">{name}</a>' for name, url in urls.items())
        start.insert_after(parsed(f'<p class="links">{elsewhere}</p>' if urls else ""))
        start.insert_after(parsed(f'<p class="switches">{offers} {FIRST_READING}</p>'))


def build(notebook: Path) -> tuple[str, dict]:
    """The page of an executed notebook, and what the notebook says about its run.

    Raises BuildError where the notebook holds something that must not reach a reader.
    """
    cells = Cells(nbformat.read(notebook, as_version=4))
    run = cells.run
    article = articles.lay_out(cells.html)
    lead = article.p.get_text() if article.p else ""
    lead = lead[: lead.rfind(".", 0, 300) + 1] or lead[:200]  # whole sentences
    about = draft = ""
    if run:
        about = f"The cells ran on {run.get('corpus')}."
        problem = publish_problem(run)
        draft = f'<p class="draft" role="note">A draft: {problem}.</p>' if problem else ""
    urls = links()
    at_home = f"{urls['The repository']}/raw/main/docs/" if urls else ""
    wrap_first_screen(article)
    offers = f"{SWITCHES}\n{TO_FIGURES}" if article.find(id="figures") else SWITCHES
    offer_at_the_start(article, offers, urls)
    values = {
        "title": html.escape(article.h1.get_text(strip=True), quote=False),
        "summary": html.escape(" ".join(lead.split())),
        "styles": assets.styles(),
        "later_styles": assets.later_styles(),
        "contents": articles.contents(article),
        "switches": offers,
        "ideas": IDEAS,
        "draft": draft,
        "preview": f"{at_home}preview.png",
        "article": str(article),
        "map": small_map(article),
        "about": html.escape(about),
        "licence": html.escape(licence()),
        "licences": assets.licences(),
        "script": bundle(HERE / "script/main.js"),
    }
    return filled("template.html", values), run


def write(page: str, output: Path) -> None:
    """Write a page, and what its figures need beside it."""
    texts = {output: page}
    if 'class="playable"' in page:
        texts[output.with_name("model.js")] = side_file()
    for path, text in texts.items():
        records.write_text(path, text)
        print(f"written: {path}, {len(text.encode()) / 1e6:.1f} MB")
    if (size := sum(len(text.encode()) for text in texts.values())) > LARGE:
        print(f"warning: {size / 1e6:.1f} MB open slowly", file=sys.stderr)


def make(executed: Path, output: Path, /) -> None:
    """Lay an executed notebook out."""
    page, _ = build(executed)
    write(page, output)


def publish(executed: Path, folder: Path, /) -> None:
    """Write page and notebook for readers; only of a finished model and a real corpus."""
    page, run = build(executed)
    if problem := publish_problem(run):
        raise BuildError(f"refusing to publish: {problem}")
    write(page, folder / "index.html")
    (folder / "preview.png").write_bytes(preview())
    records.write_text(folder / f"{SCRIPT.stem}.ipynb", published(executed))


main = records.command_line(make=make, publish=publish)

if __name__ == "__main__":
    sys.exit(main())
