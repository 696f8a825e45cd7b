"""What the views share: records, ranges, tables in Markdown, and the marks in a text."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from tools import records

NUMBER = re.compile(r"\(?[+−–]?[\d.,]*(e\d+)?%?\)?( [(M].*)?")  # also an empty cell, or a dash


def record(name: str) -> dict:
    """A record of results; ValueError where there is none."""
    if found := records.read(name):
        return found
    raise ValueError(f"not on record: {name}; `make results` makes what is missing")


def runs_that_compare(names: Iterable[str]) -> dict[str, dict]:
    """Records of training runs by name; ValueError where one is missing or they do not compare."""
    found = {name: record(f"runs/{name}") for name in names}
    records.check_comparable({name: run["summary"] for name, run in found.items()})
    return found


def check_shipped(*made: dict) -> None:
    """ValueError if the model of pretrained/ is another one than that which was measured."""
    name = json.loads((records.PRETRAINED / "config.json").read_bytes())["name"]
    for each in made:
        if each["model"] != name:
            way = "remove what is on record of the other, and `make results` measures this one"
            raise ValueError(f"pretrained/ is {name}, and {each['model']} was measured: {way}")


def with_range(values: Sequence[float], digits: int, middle: Callable = mean) -> str:
    """The mean or another middle of the values, and their range in brackets if they differ."""
    low, centre, high = (f"{pick(values):,.{digits}f}" for pick in (min, middle, max))
    return (f"{centre} ({low}–{high})" if low != high else centre).replace("-", "−")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with numbers to the right."""
    cells = zip(columns, *rows, strict=True)
    numbers = [all(map(NUMBER.fullmatch, each)) for _, *each in cells]
    rules = ["---:" if number else "---" for number in numbers]
    lines = "".join(f"| {' | '.join(line)} |\n" for line in (columns, rules, *rows))
    return f"\n{lines}\n"


def made_by(*made: dict) -> str:
    """Where and when measurements were made, and by which code, to stand under their table."""
    values = [each["machine"] for each in made], [each["date"] for each in made]
    commits = [each["commit"][:7] + each["commit"][40:] for each in made]  # and "-dirty"
    machines, dates, commits = (", ".join(dict.fromkeys(each)) for each in (*values, commits))
    return f"*{machines}; {dates}; commit {commits}*\n\n"


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
