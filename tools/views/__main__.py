"""Write the tables of the texts, the charts of docs/results/views, and the first drawing.

    python -m tools.views

Nothing is trained: all comes from the records of docs/results, and from pretrained/. Tables stand
between marks in the script, in README and in pretrained/README; nothing else there is changed.
"""

import sys
from collections.abc import Callable

from tools import records
from tools.page.links import links
from tools.views import copying, inside, recipe, speed
from tools.views.common import Chart, Table, fill
from tools.views.picture import first_picture

SCRIPT = "the_annotated_transformer.py"
TABLES: tuple[Callable[[], Table], ...] = (
    recipe.results, copying.copied, recipe.lost, recipe.beam, recipe.averaging, recipe.steps,
    recipe.choices, speed.training_speed, speed.decoding_speed, speed.cost, inside.heads,
    inside.particles, speed.assembled, copying.planted, copying.planted_bleu, recipe.int8,
)  # fmt: skip
CHARTS: tuple[Callable[[], Chart], ...] = (
    copying.breaks, copying.warmups, speed.length_cost, recipe.training, inside.layers,
    copying.lengths,
)  # fmt: skip
SHOWN = (*TABLES, *CHARTS)


def name_of(make: Callable) -> str:
    """The name of a table or chart in the script and in docs/results/views."""
    return make.__name__.replace("_", "-")


def badges() -> str:
    """README's links to what runs and is read without a clone, if the project has an address."""
    urls = links()
    named = [f"[{name}]({urls[name]})" for name in ("Run it in Colab", "The notebook") if urls]
    return f"{' · '.join(named)}\n" if named else ""


# By file and mark, what stands between the marks.
GENERATED: dict[str, dict[str, Callable[[], str]]] = {
    SCRIPT: {f"results: {name_of(make)}": lambda make=make: make().block() for make in SHOWN},
    "README.md": {"address": badges, "results": recipe.for_readme, "speed": speed.for_readme},
    "pretrained/README.md": {"scores": lambda: recipe.int8().block()},
}


def kept(name: str, error: Exception) -> str:
    """Why something is not written; a KeyError comes from a record that lacks a part."""
    missing = "not on record: " if isinstance(error, KeyError) else ""
    return f"{name} stays as it was: {missing}{error}"


def filled(file: str, text: str) -> tuple[str, list[str]]:
    """A text with what the records give between its marks, and what could not be written."""
    errors = []
    for mark, make in GENERATED[file].items():
        try:
            text = fill(text, mark, make(), comment=file == SCRIPT)
        except (ValueError, KeyError) as error:
            errors.append(kept(f"{mark} of {file}", error))
    return text, errors


def write_text(file: str) -> list[str]:
    path = records.PROJECT / file
    before = path.read_text("utf-8")
    after, errors = filled(file, before)
    if after != before:
        records.write_text(path, after)
    return errors


def write_chart(make: Callable[[], Chart]) -> list[str]:
    name = f"views/{name_of(make)}"
    try:
        records.write(name, make().specification())
    except (ValueError, KeyError) as error:
        return [kept(name, error)]
    return []


def main() -> int:
    """Write what the records give; 1, and why, where something stays as it was."""
    records.write_text(records.PROJECT / "images" / "first-translation.svg", first_picture())
    errors = [error for make in CHARTS for error in write_chart(make)]
    errors += [error for file in GENERATED for error in write_text(file)]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
