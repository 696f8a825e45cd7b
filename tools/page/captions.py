"""Captions: joined to what they describe, cut to what must be in sight, listed at the end."""

import copy
import html
import re

from bs4 import BeautifulSoup, NavigableString, Tag

from tools.page.markup import parsed

LONG = 45  # words; of a longer caption only the first sentence is in sight
CAPTION = re.compile(r"Figure( \d+)?\.")
SENTENCE = re.compile(r"[^.?!]*[.?!](?=\s|$)")
PHRASE = re.compile(r"[^.:;?!(]*[^.:;?!(\s]")  # what a sentence begins with


def add_captions(article: BeautifulSoup) -> None:
    """Join each paragraph that begins with **Figure 1.** to what stands before it.

    An anchor before the number names the figure.
    """
    for caption in article.find_all("p"):
        number = caption.strong.get_text() if caption.strong else ""
        begins = CAPTION.fullmatch(number) and caption.get_text(strip=True).startswith(number)
        shown = caption.find_previous_sibling()
        fits = shown and (shown.name == "figure" or "table" in shown.get("class", []))
        if not begins or not fits:
            continue
        if shown.name != "figure":
            shown = shown.wrap(article.new_tag("figure"))
        elif shown.figcaption:
            shown.figcaption.decompose()
        caption.name = "figcaption"
        if anchor := caption.find("a", id=True):
            shown["id"] = anchor.extract()["id"]
        shown.insert(0, caption) if shown.find(class_="table") else shown.append(caption)
        if len(caption.get_text().split()) > LONG:
            fold_rest(article, caption)


def fold_rest(article: BeautifulSoup, caption: Tag) -> None:
    """Fold what follows the first sentence after the number."""
    for node in list(caption.strong.next_siblings):
        if isinstance(node, NavigableString) and (first := SENTENCE.match(node)):
            fold = article.new_tag("details")
            fold.append(article.new_tag("summary", string="How to read it"))
            fold.append(node[first.end() :].lstrip())
            fold.extend(list(node.next_siblings))
            node.replace_with(first[0])
            caption.append(fold)
            return


def entry(figure: Tag) -> str:
    """A figure in the list of all: its number, and the first phrase of its caption, as text."""
    caption = copy.copy(figure.figcaption)
    for tag in caption.select("details, .katex-html, annotation"):
        tag.decompose()
    number = caption.strong.extract().get_text().removeprefix("Figure ").removesuffix(".")
    phrase = html.escape(PHRASE.search(" ".join(caption.get_text().split()))[0], quote=False)
    played = " <small>to play with</small>" if figure.get("data-play") else ""
    return f'<li><a href="#{figure["id"]}"><b>{number}</b> <span>{phrase}{played}</span></a></li>'


def list_figures(article: BeautifulSoup) -> None:
    """At the end a folded list of all figures that have a name, by Part."""
    parts: dict[str, str] = {}
    for figure in article.select("figure[id]:has(> figcaption)"):
        heading = figure.find_previous("h2")
        title = html.escape(heading.get_text().strip(), quote=False) if heading else ""
        parts[title] = parts.get(title, "") + entry(figure)
    if parts:
        heading = '<summary><h2 id="figures">All figures</h2></summary>'
        listed = "".join(f"<li>{part}<ul>{entries}</ul></li>" for part, entries in parts.items())
        fold = f'<details class="fold section">{heading}<ul class="figures">{listed}</ul></details>'
        article.append(parsed(f"{fold}\n"))
