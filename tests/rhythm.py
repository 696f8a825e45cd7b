"""How a percent-format script reads: the size of its cells, minutes, and names used too early."""

import ast
import collections
import io
import re
import statistics
import symtable
import tokenize
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    prose: bool
    folded: bool  # on the page, and so not read
    source: str

    @property
    def lines(self) -> list[str]:
        """Lines that are not blank. Rows of tables are neither prose nor code."""
        lines = self.source.split("\n")
        return [x for x in lines if x.strip() not in ("", "#") and not x.startswith("# |")]


def cells(script: str) -> Iterator[Cell]:
    for chunk in re.split(r"(?m)^(?=# %%)", script)[1:]:
        head, _, body = chunk.partition("\n")
        yield Cell("[markdown]" in head, "hide-input" in head, body)


def measure(script: str) -> tuple[float, int, int, int, float]:
    """Lines of code: of the median cell, the 90th in 100, the longest, the longest run without
    prose between; words of prose per line. A formula is a word, docstrings are nothing."""
    script = re.sub(r"(?s)\$\$.*?\$\$|\$[^$\n]+\$", "formula", script)
    script = re.sub(r'(?sm)^ *""".*?"""$', "", script)
    sizes = []
    words = 0
    run = 0
    longest = 0
    for cell in cells(script):
        if cell.prose:
            words = words + sum(len(re.findall(r"\w+", line)) for line in cell.lines)
            run = 0
        elif cell.lines:
            sizes.append(len(cell.lines))
            run += sizes[-1]
            longest = max(longest, run)
    sizes.sort()
    ninth = sizes[min(len(sizes) - 1, len(sizes) * 9 // 10)]
    return statistics.median(sizes), ninth, sizes[-1], longest, words / sum(sizes)


def words_of(line: str) -> int:
    line = re.sub(r"\$[^$]+\$|<[^>]+>", "x", re.sub(r"\]\([^)]*\)", "]", line.lstrip("# ")))
    return len(re.findall(r"\w[\w'’-]*", line))


def code_of(script: str) -> str:
    """All code cells of a script, one below the other."""
    return "\n".join(cell.source for cell in cells(script) if not cell.prose)


def tokens_by_line(source: str) -> dict[int, int]:
    """Names, numbers, strings and operators of each line; neither docstrings nor comments."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
    seen = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
    counts: dict[int, int] = collections.Counter()
    open_ = 0  # f-strings, which Python 3.12 and later cut into pieces; each is one string to us
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
        kind = tokenize.tok_name[token.type]
        if (kind == "FSTRING_START" and not open_) or (token.type in seen and not open_):
            counts[token.start[0]] += 1
        open_ += (kind == "FSTRING_START") - (kind == "FSTRING_END")
    return counts


class Density(typing.NamedTuple):
    """Tokens of a line in the mean, share of lines over 20, assignments such as `a, b = x, y`."""

    mean: float
    dense: float
    packed: int


def density(source: str) -> Density:
    counts = tokens_by_line(source).values()
    packed = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            packed += isinstance(node.targets[0], ast.Tuple)
    dense = [count for count in counts if count > 20]
    return Density(statistics.mean(counts), len(dense) / len(counts), packed)


def minutes(script: str) -> dict[str, float]:
    """Of each Part: 220 words of prose a minute, 0.4 seconds for a token of code in sight."""
    part = ""
    spent = {}
    for cell in cells(script):
        for line in cell.source.splitlines() if cell.prose else ():
            part = line.removeprefix("# # ") if line.startswith("# # ") else part
            spent[part] = spent.get(part, 0) + words_of(line) / 220
        if not cell.prose and not cell.folded:
            tokens = sum(tokens_by_line(cell.source).values())
            spent[part] = spent.get(part, 0) + tokens * 0.4 / 60
    return spent


def used_early(script: str) -> list[tuple[str, str]]:
    """(function or class, name) where a name is looked up before the cell that first binds it."""

    def looked_up(table: symtable.SymbolTable) -> set[str]:
        names = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
        return names.union(*map(looked_up, table.get_children()))

    bound = {}
    uses = []
    for place, cell in enumerate(cell for cell in cells(script) if not cell.prose):
        table = symtable.symtable(cell.source, "cell", "exec")
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported():
                bound.setdefault(symbol.get_name(), place)
        users = table.get_children()
        uses += [(place, user.get_name(), name) for user in users for name in looked_up(user)]
    return sorted((user, name) for place, user, name in uses if bound.get(name, -1) > place)


if __name__ == "__main__":
    text = Path("the_annotated_transformer.py").read_text(encoding="utf-8")
    code = code_of(text)
    print(f"{sum(tokens_by_line(code).values()):,} tokens of code, {density(code)}")
    print("median, nine in ten, longest cell, longest run, words a line:", *measure(text))
    for part, spent in minutes(text).items():
        print(f"{spent:5.0f} minutes  {part}")
    print("used early:", used_early(text) or "nothing")
