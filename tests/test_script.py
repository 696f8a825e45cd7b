"""The script as a text: names, line lengths and figures."""

import ast
import builtins
import io
import re
import symtable
import tokenize
from collections.abc import Iterator

import tokenizers
import torch
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


def test_figures_are_numbered_in_order_and_the_named_ones_exist():
    text = re.sub(r"\n# ?", " ", "\n".join(cells(prose=True)))
    numbers = [int(n) for n in re.findall(r"\*\*Figure (\d+)\.\*\*", text)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {int(n) for n in re.findall(r"\bfigures? (\d+)", text, flags=re.I)} == set(numbers)


# Names ------------------------------------------------------------------------------------------


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


def test_no_line_of_code_ends_in_a_question_mark():
    """IPython takes such a line, comments too, for a question about an object."""
    ends = [line for cell in cells(prose=False) for line in cell.splitlines() if line[-1:] == "?"]
    assert ends == []


def words_in_code() -> set[str]:
    """Names in the code of the script, and its strings, such as the name of a setting."""
    words = set()
    for token in tokenize.generate_tokens(io.StringIO(SCRIPT).readline):
        if token.type in (tokenize.NAME, tokenize.STRING):
            words.add(token.string.strip("\"'"))
    return words


def names_in(span: str) -> set[str]:
    """Names that a piece of Python uses; none where it is something else."""
    try:
        tree = ast.parse(span.replace("…", "..."))
    except SyntaxError:
        return set()
    found = {getattr(n, part, None) for n in ast.walk(tree) for part in ("id", "attr", "arg")}
    return found - {None}


def test_what_the_prose_sets_as_code_exists():
    """A renamed function, argument, option, target or file must not live on in the text."""
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    known = words_in_code() | {"B", "D", "help", "torchrun", "pandas", "read_json", "lines"}
    known |= {"make", "python", "mine", "Mine", "py"}
    torchs = (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.Tensor, torch.optim)
    for place in (builtins, str, tokenizers, *torchs):
        known |= set(dir(place))
    text = re.sub(r"(?s)```.*?```", "", "\n".join(cells(prose=True)))
    spans = set(re.findall(r"`([^`]+)`", re.sub(r"\n# ?>? ?", " ", text)))
    lost = []
    for span in spans - {".data/multi30k", ".venv/bin/python"}:
        if span.startswith("--"):
            exists = span[2:].split()[0].replace("-", "_") in known
        elif span.startswith("make "):
            exists = re.search(rf"(?m)^{span.split()[1]}:", makefile)
        elif re.fullmatch(r"[\w./-]+/[\w./-]*", span):
            exists = (PROJECT / span).exists()
        elif re.fullmatch(r"[\w.-]+\.(pt|json|jsonl|cff|safetensors|de|en|fr)", span):
            exists = True  # a file that a reader or a run has
        else:
            exists = names_in(span) <= known
        if not exists:
            lost.append(span)
    assert spans
    assert not lost, f"the text names what does not exist: {', '.join(lost)}"
