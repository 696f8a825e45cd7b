"""What the views share: ranges, tables in Markdown, charts, and the marks in a text."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import altair as alt

from tools import records

NUMBER = re.compile(r"\(?[+−–]?[\d.,]*(e\d+)?%?\)?( [(M].*)?")  # also an empty cell, or a dash


def record(name: str) -> dict:
    """A record of results; ValueError where there is none."""
    if found := records.read(name):
        return found
    raise ValueError(f"not on record: {name}")


def runs_that_compare(names: Iterable[str]) -> dict[str, dict]:
    """Records of training runs by name; ValueError where one is missing or they do not compare."""
    found = {name: record(f"runs/{name}") for name in names}
    records.check_comparable({name: run["summary"] for name, run in found.items()})
    return found


def listed(names: Iterable[str], joint: str = "and") -> str:
    """Names as a sentence lists them: a, b and c; "none" if there are none."""
    *first, end = list(names) or ["none"]
    return f"{', '.join(first)} {joint} {end}" if first else end


def with_range(values: Sequence[float], digits: int, middle: Callable = mean) -> str:
    """The mean or another middle of the values, and their range in brackets if they differ."""
    low, centre, high = (f"{pick(values):,.{digits}f}" for pick in (min, middle, max))
    return (f"{centre} ({low}–{high})" if low != high else centre).replace("-", "−")


def without_range(cell: str) -> str:
    """The number of a cell alone."""
    return cell.partition(" (")[0]


def wrapped(text: str) -> str:
    return textwrap.fill(text, 98, break_long_words=False, break_on_hyphens=False)


def made_by(made: Sequence[dict]) -> str:
    """Where and when measurements were made, and by which code."""
    machines = dict.fromkeys(each["machine"] for each in made)
    dates = sorted({each["date"] for each in made})
    commits = sorted({each["commit"][:7] for each in made})
    return f"Machine: {'; '.join(machines)}. Date: {listed(dates)}. Commit: {listed(commits)}."


def in_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with numbers to the right."""
    cells = zip(columns, *rows, strict=True)
    numbers = [all(map(NUMBER.fullmatch, each)) for _, *each in cells]
    rules = ["---:" if number else "---" for number in numbers]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, rules, *rows))


@dataclass(frozen=True)
class Table:
    """A table of results."""

    caption: str  # what it shows, in a sentence
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    measured: str  # how, in a few sentences
    made: Sequence[dict] = ()  # of times: date, machine and commit of each measurement


@dataclass(frozen=True)
class Chart:
    """A chart of results. Its caption stands in the text."""

    drawn: alt.TopLevelMixin
    measured: str
    made: Sequence[dict] = ()


def block(shown: Table | Chart) -> str:
    """What stands in a text: a table under its caption, and how table or chart was measured."""
    table = ""
    if isinstance(shown, Table):
        table = f"\n**{shown.caption}**\n\n{in_markdown(shown.columns, shown.rows)}"
    made = f" {made_by(shown.made)}" if shown.made else ""
    measured = wrapped(f"{shown.measured}{made}")
    summary = "<details><summary>How this was measured</summary>"
    return f"{table}\n{summary}\n\n{measured}\n\n</details>\n\n"


def fill(text: str, mark: str, content: str) -> str:
    """The text with other content between `<!-- mark -->` and `<!-- end of mark -->`.

    Where the marks lie in a comment of Python, the content does, too.
    """
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the text must have <!-- {mark} --> and its end once")
    before, _, rest = text.partition(begin)
    prefix = "# " if before.endswith("# ") else ""
    lines = [f"{prefix}{line}".rstrip() + "\n" for line in content.splitlines()]
    return before + begin + "".join(lines) + prefix + end + rest.partition(end)[2]
