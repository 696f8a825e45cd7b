"""Write the tables of the texts, the charts of results/views, and two drawings.

Nothing is trained: all comes from the records of results, and from pretrained/. What is written
stands between marks in script, READMEs and drawings; nothing else there is changed.
"""

from collections.abc import Callable

import altair as alt

from tools import records
from tools.page.links import links
from tools.views import bench, copying, picture, recipe, speed
from tools.views.common import fill


def address() -> str:
    """README's links to what runs and is read without a clone, if the project has an address."""
    urls = links()
    names = ("Run it in Colab", "The notebook") if urls else ()
    return " · ".join(f"[{name}]({urls[name]})" for name in names)


FILLED: dict[str, tuple[Callable[[], str], ...]] = {
    "the_annotated_transformer.py": (
        recipe.one_sequence, recipe.norm_orders,
        copying.parts, copying.highest_rates, copying.planted, copying.planted_bleu,
        recipe.beam, recipe.averaging, recipe.choices, recipe.steps, recipe.systems, recipe.heads,
        recipe.int8,
        speed.speed, speed.cost, bench.bench,
    ),
    "README.md": (address, recipe.summary),
    "pretrained/README.md": (recipe.int8,),
    "images/first-translation.svg": (picture.first_translation,),
    "images/next-token.svg": (picture.next_token,),
}  # fmt: skip
CHARTS: tuple[Callable[[], alt.TopLevelMixin], ...] = (
    copying.warmups, copying.reach, speed.length_cost, bench.changes,
)  # fmt: skip


def name_of(make: Callable) -> str:
    """The name of a table or chart in the texts and in results/views."""
    return make.__name__.replace("_", "-")


def filled(file: str) -> str:
    """A text with what the records give between its marks."""
    text = (records.PROJECT / file).read_text("utf-8")
    for make in FILLED[file]:
        text = fill(text, f"results: {name_of(make)}", make())
    return text


def specification(make: Callable[[], alt.TopLevelMixin]) -> dict:
    """A chart for Vega-Lite. The docstring of its function is its text alternative."""
    description = " ".join(make.__doc__.split())
    return make().properties(description=description).to_dict()


def write() -> None:
    """Write everything; nothing where a record or a mark is missing."""
    texts = {file: filled(file) for file in FILLED}
    charts = {name_of(make): specification(make) for make in CHARTS}
    for file, text in texts.items():
        records.write_text(records.PROJECT / file, text)
    for name, chart in charts.items():
        records.write(f"views/{name}", chart)
