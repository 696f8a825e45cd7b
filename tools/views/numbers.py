"""Measured numbers that stand in sentences, and how the records give them.

A test finds each phrase, with `{}` for its number, once in its text. Where the sentence goes, its
entry goes. Better than an entry is a sentence without a number, beside a generated table.
"""

import math
import re

from tools.records import PROJECT
from tools.views.common import record

IN_WORDS = "no one two three four five six seven eight nine ten".split()


def highest_rate(warm_up: bool) -> float:
    """The highest rate by which all seeds learn to copy, with the norm first: Figure 17."""
    worst = {}
    for run in record("warmups")["runs"]:
        if run["norm first"] and run["warm-up"] == warm_up:
            worst[run["peak"]] = max(run["loss"], worst.get(run["peak"], 0))
    failing = [peak for peak, loss in worst.items() if loss >= 0.5]
    return max(peak for peak in worst if peak < min(failing, default=math.inf))


SENTENCES = {  # by file and phrase
    ("the_annotated_transformer.py", "What the warm-up allows is a rate {} times as high."): (
        lambda: IN_WORDS[round(highest_rate(warm_up=True) / highest_rate(warm_up=False))]
    ),
    ("pretrained/README.md", "| parameters | {} |"): (
        lambda: f"{record('runs/recipe-1')['summary']['parameters']:,}"
    ),
}


def fault_of(file: str, phrase: str) -> str:
    """What is wrong with a phrase in its text; empty if nothing is."""
    text = (PROJECT / file).read_text("utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"(?m)^# ?", "", text))  # of a cell, without line breaks
    found = re.findall(re.escape(phrase).replace(r"\{\}", r"(\S+)"), text)
    if len(found) != 1:
        return f"{phrase!r} stands {len(found)} times in {file}: if it is gone, delete its entry"
    given = SENTENCES[file, phrase]()
    return "" if found == [given] else f"{phrase!r} says {found[0]}, and the records {given}"
