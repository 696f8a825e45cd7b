"""How a percent-format script reads: lengths of cells, runs of code, prose per line of code."""

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell: its first line's number, whether it is prose, and its lines that are not blank."""

    start: int
    prose: bool
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Rhythm:
    """What the limits are about; all but `words` in lines of code that are not blank."""

    median: float  # of a code cell
    nine_in_ten: int  # cells are no longer than this
    longest: int  # cell
    longest_run: int  # of code without prose between
    words: float  # of prose per line of code


def cells(script: str) -> Iterator[Cell]:
    """The cells of a script. Rows of tables are neither prose nor code."""
    number = 1
    for chunk in re.split(r"(?m)^(?=# %%)", script):
        head, *body = chunk.split("\n")
        if head.startswith("# %%"):
            lines = [x for x in body if x.strip() not in ("", "#") and not x.startswith("# |")]
            yield Cell(number, "[markdown]" in head, tuple(lines))
        number += chunk.count("\n")


def simplify(script: str) -> str:
    """Every formula becomes one word; docstrings, neither prose nor code, go."""
    script = re.sub(r"(?s)\$\$.*?\$\$", "formula", script)
    script = re.sub(r"\$[^$\n]+\$", "formula", script)
    return re.sub(r'(?sm)^ *""".*?"""$', "", script)


def measure(script: str) -> Rhythm:
    """The rhythm of a script that has at least one code cell."""
    sizes, words, run, longest_run = [], 0, 0, 0
    for cell in cells(simplify(script)):
        if cell.prose:
            words += sum(len(re.findall(r"\w+", line)) for line in cell.lines)
            run = 0
        elif cell.lines:
            sizes.append(len(cell.lines))
            run += len(cell.lines)
            longest_run = max(longest_run, run)
    sizes.sort()
    return Rhythm(
        median=statistics.median(sizes),
        nine_in_ten=sizes[min(len(sizes) - 1, len(sizes) * 9 // 10)],
        longest=sizes[-1],
        longest_run=longest_run,
        words=words / sum(sizes),
    )
