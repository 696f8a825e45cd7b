"""What the views share: ranges, tables in Markdown, charts, and the marks in a text."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import altair as alt

from tools import records

NUMBER = re.compile(r"[+−–]?[\d.,]*(e\d+)?( [(%M].*)?")  # also an empty cell, or a dash


def record(name: str) -> dict:
    """A record of docs/results; ValueError where there is none."""
    if found := records.read(name):
        return found
    raise ValueError(f"not on record: {name}")


# Words and numbers --------------------------------------------------------------------------------


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: a, b and c; "none" if there are none."""
    *first, end = list(names) or ["none"]
    return f"{', '.join(first)} and {end}" if first else end


def with_range(values: Sequence[float], digits: int, middle: float | None = None) -> str:
    """The mean of the values, or `middle`, and their range in brackets if they differ."""
    middle = mean(values) if middle is None else middle
    low, centre, high = (f"{x:,.{digits}f}" for x in (min(values), middle, max(values)))
    return (f"{centre} ({low}–{high})" if low != high else centre).replace("-", "−")


def wrapped(text: str) -> str:
    return textwrap.fill(text, 98, break_long_words=False, break_on_hyphens=False)


def made_by(made: Sequence[dict]) -> str:
    """Where and when measurements were made, and by which code."""
    machines = dict.fromkeys(each["machine"] for each in made)
    dates = sorted({each["date"] for each in made})
    commits = sorted({each["commit"][:7] for each in made})
    facts = {"Machine": "; ".join(machines), "Date": listed(dates), "Commit": listed(commits)}
    return " ".join(f"{name}: {fact}." for name, fact in facts.items())


def folded(measured: str, made: Sequence[dict]) -> str:
    """How something was measured, for those who unfold it."""
    told = wrapped(f"{measured} {made_by(made)}")
    return f"\n<details><summary>How this was measured</summary>\n\n{told}\n\n</details>\n\n"


# Tables and charts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of results."""

    caption: str  # what it shows, in a sentence
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    measured: str  # how, in a few sentences
    made: Sequence[dict]  # with date, machine and commit of each measurement

    def markdown(self) -> str:
        """The table alone, with numbers to the right."""
        columns = zip(self.columns, *self.rows, strict=True)
        numbers = [all(map(NUMBER.fullmatch, cells)) for _, *cells in columns]
        rules = ["---:" if number else "---" for number in numbers]
        return "".join(f"| {' | '.join(line)} |\n" for line in (self.columns, rules, *self.rows))

    def block(self) -> str:
        """The table under its caption, and below it how it was measured."""
        return f"\n**{self.caption}**\n\n{self.markdown()}{folded(self.measured, self.made)}"


@dataclass(frozen=True)
class Chart:
    """A chart of results. Its caption stands in the text."""

    drawn: alt.TopLevelMixin
    description: str  # its text alternative
    measured: str
    made: Sequence[dict]

    def specification(self) -> dict:
        return self.drawn.properties(description=self.description).to_dict()

    def block(self) -> str:
        return folded(self.measured, self.made)


# Marks --------------------------------------------------------------------------------------------


def fill(text: str, mark: str, content: str, comment: bool = False) -> str:
    """The text with other content between `<!-- mark -->` and `<!-- end of mark -->`.

    With `comment` these lie in a comment of Python. ValueError unless both stand there once.
    """
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the text must have <!-- {mark} --> and its end once")
    if comment:
        content = "".join(f"# {line}".rstrip() + "\n" for line in content.splitlines())
        end = f"# {end}"
    before, _, rest = text.partition(begin)
    return before + begin + content + end + rest.partition(end)[2]
