"""The script as a text that is read from top to bottom, and as a notebook."""

import re
import symtable
from collections.abc import Iterator

from conftest import PROJECT

SCRIPT = (PROJECT / "the_annotated_transformer.py").read_text("utf-8")


def cells(prose: bool, text: str = SCRIPT) -> list[str]:
    """The cells of the script: those of prose, or those of code."""
    found = []
    for cell in re.split(r"(?m)^# %%", text)[1:]:
        head, _, body = cell.partition("\n")
        if ("[markdown]" in head) == prose:
            found.append(body)
    return found


def test_lines_of_code_have_at_most_100_columns():
    """Ruff cannot tell: lines of prose may be longer, such as rows of tables."""
    assert max(len(line) for cell in cells(prose=False) for line in cell.splitlines()) <= 100


def test_no_line_of_code_ends_in_a_question_mark():
    """IPython takes such a line, comments too, for a question about an object."""
    ends = [line for cell in cells(prose=False) for line in cell.splitlines() if line[-1:] == "?"]
    assert ends == []


def test_each_figure_that_the_text_names_exists():
    text = re.sub(r"\n# ?", " ", "\n".join(cells(prose=True)))
    anchors = re.findall(r'<a id="(figure-[^"]+)"></a>', text)
    assert set(re.findall(r"\(#(figure-[^)]+)\)", text)) <= set(anchors)
    assert len(anchors) == len(set(anchors))


def looked_up(table: symtable.SymbolTable) -> Iterator[str]:
    """Global names that a function or class looks up."""
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            yield symbol.get_name()
    for child in table.get_children():
        yield from looked_up(child)


def test_the_story_uses_no_name_before_the_cell_that_defines_it():
    first = {}  # the number of the cell that defines a name
    uses = []
    story = SCRIPT[: SCRIPT.index("\n# # The engine room")]
    for number, cell in enumerate(cells(prose=False, text=story)):
        table = symtable.symtable(cell, "cell", "exec")
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported():
                first.setdefault(symbol.get_name(), number)
        for user in table.get_children():
            uses += [(number, user.get_name(), name) for name in looked_up(user)]
    assert [(user, name) for number, user, name in uses if first.get(name, -1) > number] == []


def test_a_star_imports_names_that_exist(at):
    """As files for `--parts` begin."""
    assert [name for name in at.__all__ if not hasattr(at, name)] == []
