"""Queries, keys and values: one colour each in the prose, the formulas and the code that make them.

The style sheet has the colours, which figures and drawings use, too.
"""

import html
import re
from itertools import takewhile

from bs4 import BeautifulSoup, NavigableString, Tag

from tools.page.markup import parsed

WORDS = {"query": "quer(?:y|ies)", "key": "keys?", "value": "values?"}  # by role
LETTERS = dict(zip("QqKkVv", ("query", "query", "key", "key", "value", "value"), strict=True))
PROSE = re.compile(  # but no sentence on the keys and values of a dictionary
    r"[^.]*\bdictionar[^.]*\.|"
    + "|".join(rf"\b(?P<{role}>{word})\b" for role, word in WORDS.items()),
    re.I,
)
CODE = re.compile(  # variables such as keys, W_q and to_q, not the method values()
    "|".join(
        rf"(?<![\w.])(?P<{role}>{word}|(?:[Ww]_|to_)?[{role[0]}{role[0].upper()}])\b"
        for role, word in WORDS.items()
    )
)
NO_PROSE = "code, pre, a, svg, script, h2, h3, h4, .katex, .playable > .stage"


def sections(article: BeautifulSoup, first: str, end: str) -> list[Tag]:
    """What stands below the heading `first`, up to the heading `end`."""
    heading = article.find(id=first)
    below = heading.find_next_siblings() if heading else []
    return list(takewhile(lambda each: each.get("id") != end, below))


def colour_text(tag: Tag, pattern: re.Pattern, unchanged: str) -> None:
    """Put each find of the pattern in a tag into a span with the name of its role."""

    def spanned(found: re.Match) -> str:
        return f'<span class="{found.lastgroup}">{found[0]}</span>' if found.lastgroup else found[0]

    for text in tag.find_all(string=pattern):
        if type(text) is NavigableString and not text.parent.css.closest(unchanged):
            text.replace_with(parsed(pattern.sub(spanned, html.escape(text, quote=False))))


def colour_formulas(tag: Tag) -> None:
    """Give letters their roles: q, not the k of a width d_k; a matrix W^Q as a whole."""
    for letter in tag.select(".katex-html .mathnormal"):
        role = LETTERS.get(letter.get_text())
        raised = letter.find_parent(class_="msupsub")
        if role and raised is None:
            letter["class"].append(role)
        elif role and raised.previous_sibling.get_text() == "W":
            raised.parent["class"].append(role)


def colour_roles(article: BeautifulSoup) -> None:
    """Colour formulas in Parts 1 and 2, prose and code where Part 1 explains attention."""
    for tag in sections(article, "attention", "training"):
        colour_formulas(tag)
    for tag in sections(article, "attention", "try-attention"):
        colour_text(tag, PROSE, NO_PROSE)
        for code in tag.select("pre > code"):
            colour_text(code, CODE, ".fold")  # where tables and charts are made
