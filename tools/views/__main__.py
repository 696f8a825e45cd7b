"""Write the tables of the texts, the charts of results/views, and two drawings.

    python -m tools.views

Nothing is trained: all comes from the records of results, and from pretrained/. Tables stand
between marks in the script, in README and in pretrained/README; nothing else there is changed.
"""

from collections.abc import Callable

from tools import records
from tools.page.links import links
from tools.views import ablation, copying, inside, recipe, speed
from tools.views.common import Chart, Table, block, fill, wrapped
from tools.views.picture import first_picture, next_token_picture

SCRIPT = "the_annotated_transformer.py"
TABLES: tuple[Callable[[], Table], ...] = (
    copying.copied, recipe.beam, recipe.averaging, recipe.steps, ablation.table_3,
    recipe.choices, speed.speed, speed.cost, inside.heads,
    inside.particles, speed.assembled, copying.planted, copying.planted_bleu,
)  # fmt: skip
CHARTS: tuple[Callable[[], Chart], ...] = (
    copying.warmups, speed.length_cost, recipe.training, copying.lengths,
)  # fmt: skip


def name_of(make: Callable) -> str:
    """The name of a table or chart in the script and in results/views."""
    return make.__name__.replace("_", "-")


def specification(make: Callable[[], Chart]) -> dict:
    """A chart for Vega-Lite. The docstring of its function is its text alternative."""
    description = " ".join(make.__doc__.split())
    return make().drawn.properties(description=description).to_dict()


def badges() -> str:
    """README's links to what runs and is read without a clone, if the project has an address."""
    urls = links()
    names = ("Run it in Colab", "The notebook") if urls else ()
    return " · ".join(f"[{name}]({urls[name]})" for name in names)


def generated() -> dict[str, dict[str, str]]:
    """What the records give, by file and mark."""
    script = {f"results: {name_of(make)}": block(make()) for make in (*TABLES, *CHARTS)}
    readme = {"address": badges(), "results": recipe.for_readme(), "speed": speed.for_readme()}
    script["results: int8"] = f"\n{wrapped(recipe.int8().caption)}\n\n"
    scores = {"scores": block(recipe.int8())}
    return {SCRIPT: script, "README.md": readme, "pretrained/README.md": scores}


def filled() -> dict[str, str]:
    """The texts by file, with what the records give between their marks."""
    texts = {}
    for file, contents in generated().items():
        texts[file] = (records.PROJECT / file).read_text("utf-8")
        for mark, content in contents.items():
            texts[file] = fill(texts[file], mark, content)
    return texts


def main() -> None:
    """Write everything; nothing where a record or a mark is missing."""
    charts = {name_of(make): specification(make) for make in CHARTS}
    for file, text in filled().items():
        records.write_text(records.PROJECT / file, text)
    for name, chart in charts.items():
        records.write(f"views/{name}", chart)
    drawings = {"first-translation": first_picture(), "next-token": next_token_picture()}
    for name, drawing in drawings.items():
        records.write_text(records.PROJECT / "images" / f"{name}.svg", drawing)


if __name__ == "__main__":
    main()
