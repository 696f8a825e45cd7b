"""Lay the article out: headings, links, captions, notes, folds, contents."""

import copy
import re
from itertools import dropwhile, takewhile

from bs4 import BeautifulSoup, Tag

from tools.page.captions import add_captions, list_figures
from tools.page.links import links
from tools.page.margin import set_marks
from tools.page.markup import BuildError, parsed
from tools.page.playable import make_playable
from tools.page.roles import colour_roles

SHORT_NOTE = 120  # words; a note that is no longer stands in the margin where there is one
ENGINE = "engine-room"  # the heading from which on everything is folded
EXERCISE = "try-"  # how the names of their sections begin, which are folded, too
COURSE = "docs/course"  # a folder beside the script, not beside a page
LOOKED_UP = {"paper-map", "failures", "glossary", "references"}  # folded sections
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
PART = re.compile(r"(Part \d+)\. ")


def refuse(tag: Tag, message: str) -> None:
    """Stop the build with an error that names the cell."""
    cell = tag.find_parent("cell")
    raise BuildError(f"{cell['name']}: {message}")


def name_headings(article: BeautifulSoup) -> None:
    """Make the first heading the only h1, and name each.

    A heading is named by the anchor before it, or else by its words; others stay as anchors in it.
    """
    headings = article.find_all(HEADINGS)
    if not headings:
        raise BuildError("the notebook has no title: it needs a heading")
    for number, heading in enumerate(headings):
        heading.name = f"h{int(heading.name[1]) + min(number, 1)}"
        before = heading.find_previous_sibling()
        if before and before.name == "p" and not before.get_text(strip=True):
            anchors = before.find_all(recursive=False)
            if all(tag.name == "a" for tag in anchors):
                heading.insert(0, *anchors)
                before.next_sibling.extract()  # the end of its line
                before.decompose()
        if anchor := heading.find("a", id=True):
            heading["id"] = anchor.extract()["id"]
        else:
            heading["id"] = re.sub(r"\W+", "-", heading.get_text().lower()).strip("-")


def link_formulas(article: BeautifulSoup) -> None:
    """Below each displayed formula a link to the code that computes it.

    That is the next function or class, unless a comment names another: <!-- code: name -->.
    """
    places = {"none": ""}  # by name: the block of code that defines it
    for cell in article.select("cell[defines]"):
        block = cell.find(class_="code")
        names = cell["defines"].split()
        block["data-computes"] = names[0]  # figures look for the code that they play
        for name in names:
            places.setdefault(name, block["id"])
    for formula in article.find_all(class_="display"):
        comment = formula.find_next(string=lambda text: text.startswith(" code: "))
        following = formula.find_next("cell", defines=True)
        name = following["defines"].split()[0] if following else "none"
        if comment and comment.find_previous(class_="display") is formula:
            name = comment.split()[1]
        if name not in places:
            refuse(formula, f"a formula should link to {name}, which no cell defines")
        if name != "none":
            link = f'<a class="to-code" href="#{places[name]}">in code: <code>{name}</code></a>'
            formula.insert_after(parsed(link))


def check_links(article: BeautifulSoup) -> None:
    """Refuse dead links, ids given twice, images without alt text, and network requests."""
    ids: set[str] = set()
    for tag in article.find_all(id=True):
        if tag["id"] in ids:
            refuse(tag, f"ids given twice: {tag['id']}")
        ids.add(tag["id"])
    for tag in article.find_all("a", href=True):
        target = tag["href"]
        name = f"{tag['href']} ({tag.get_text()})"
        if target.startswith("#") and target[1:] not in ids:
            refuse(tag, f"link to an anchor that does not exist: {name}")
        if not target.startswith(("#", "http:", "https:", "mailto:")):
            refuse(tag, f"link to a file that is not part of the page: {name}")
    for tag in article.find_all(src=True):
        if not tag["src"].startswith("data:"):
            refuse(tag, f"<{tag.name}> would be fetched from elsewhere: {tag['src'][:80]}")
        if tag.name == "img" and not tag.get("alt", "").strip():
            refuse(tag, f"an image has no alt text: {tag['src'][:80]}")


def link_course(article: BeautifulSoup) -> None:
    """Link the folder of the course; paragraphs that name it leave where it has no address."""
    home = links().get("The repository")
    for name in article.find_all("code", string=COURSE):
        if home:
            name.wrap(article.new_tag("a", href=f"{home}/tree/main/{COURSE}"))
        else:
            name.find_parent("p").decompose()


def place_notes(article: BeautifulSoup) -> None:
    """Set our remarks apart; a short one stands beside the code or figure right before it."""
    for note in article.find_all("blockquote"):
        note.name = "div"
        note["class"] = "note"
        note["role"] = "note"
        outputs = list(takewhile(lambda tag: tag.name == "pre", note.find_previous_siblings()))
        shown = (outputs or [note])[-1].find_previous_sibling()
        classes = set(shown.get("class", [])) if shown else set()
        beside = shown and (shown.name == "figure" or classes & {"code", "cell"})
        if beside and len(note.get_text().split()) <= SHORT_NOTE:
            left = shown.wrap(article.new_tag("div"))
            left.extend(reversed(outputs))
            left.wrap(article.new_tag("div", attrs={"class": "beside"})).append(note)


def lay_out(cells: str) -> BeautifulSoup:
    """The article of the cells that `Cells` has written."""
    article = parsed(cells)
    for figure in article.select("p > figure"):
        figure.parent.unwrap()
    for heading in article.find_all("th"):
        if not heading.get_text(strip=True):
            heading.name = "td"  # an empty heading confuses screen readers
    name_headings(article)
    link_formulas(article)
    check_links(article)
    link_course(article)
    for cell in article.find_all("cell"):
        cell.unwrap()
    for figure in article.find_all("figure", attrs={"data-name": True}):
        make_playable(figure)
        del figure["data-name"]
    add_captions(article)
    place_notes(article)
    set_marks(article)
    colour_roles(article)
    fold_sections(article)
    link_headings(article)
    open_parts(article)
    list_figures(article)
    return article


def fold_section(article: BeautifulSoup, heading: Tag, end: tuple[str, ...]) -> Tag:
    """Fold a section under its heading; it ends before the next heading of the kinds in `end`."""
    section = list(takewhile(lambda each: each.name not in end, heading.next_siblings))
    summary = heading.wrap(article.new_tag("summary"))
    fold = summary.wrap(article.new_tag("details", attrs={"class": "fold section"}))
    fold.extend(section)
    fold.insert_after("\n")
    return fold


def unfold_cells(fold: Tag) -> None:
    """Show the code in a fold, as outside of it."""
    for cell in fold.select("details.fold:not(.section)"):
        cell["class"], cell["open"] = "cell", ""


def fold_sections(article: BeautifulSoup) -> None:
    """Fold the set-up, exercises, reference sections and the engine room."""
    start = takewhile(lambda each: each.name != "h2", article.children)
    set_up = list(
        dropwhile(lambda each: "fold" not in getattr(each, "attrs", {}).get("class", []), start)
    )
    if set_up:
        fold = article.new_tag("details", attrs={"class": "fold"})
        set_up[0].insert_before(fold)
        fold.extend(set_up)
        unfold_cells(fold)
        fold.insert(0, article.new_tag("summary", string="set-up code"))
    for heading in article.find_all("h3", recursive=False):
        if heading["id"] in LOOKED_UP or heading["id"].startswith(EXERCISE):
            fold_section(article, heading, end=("h2", "h3"))
    if engine := article.find("h2", id=ENGINE):
        unfold_cells(fold_section(article, engine, end=("h2",)))


def link_headings(article: BeautifulSoup) -> None:
    """Give each heading a link to itself.

    A summary may hold none; folds.js shows the address of a section that is unfolded.
    """
    for heading in article.find_all(HEADINGS[1:]):
        if heading.parent.name != "summary":
            link = {"class": "self", "href": f"#{heading['id']}", "aria-hidden": "true"}
            heading.append(article.new_tag("a", attrs=link | {"tabindex": "-1"}))


def sections_of_paper(article: BeautifulSoup) -> dict[str, list[str]]:
    """Sections of the paper in marks such as (§3.1), by the id of the h2 that they are under.

    Of §3.2 and §3.2.1 only the first is given.
    """
    found: dict[str, set[str]] = {}
    part = ""
    for tag in article.find_all(["h2", "p"]):
        if tag.name == "h2":
            found[part := tag["id"]] = set()
        elif part:
            marks = " ".join(re.findall(r"\(§[^)]*\)", tag.get_text()))
            found[part].update(re.findall(r"§(\d+(?:\.\d+)*)", marks))
    return {
        part: sorted(one for one in all_ if not any(one.startswith(f"{o}.") for o in all_))
        for part, all_ in found.items()
    }


def open_parts(article: BeautifulSoup) -> None:
    """Give each Part an opening: its number, its title, the sections of the paper in it."""
    sections = sections_of_paper(article)
    for heading in article.find_all("h2"):
        numbered = PART.match(heading.get_text())
        if numbered:
            title = heading.find(string=PART)
            title.replace_with(title.removeprefix(numbered[0]))
            number = f'<span class="part">{numbered[1]}</span><span class="dot">. </span>'
            heading.insert(0, parsed(number))
        if heading.parent is not article:
            continue
        opening = heading.wrap(article.new_tag("hgroup"))
        if numbered and (restated := sections[heading["id"]]):
            named = re.sub(r", (?=\S+$)", " and ", ", ".join(f"§{each}" for each in restated))
            opening.append(article.new_tag("p", string=f"Draws on {named} of the paper"))


def contents(article: BeautifulSoup) -> str:
    """Parts and their sections as a nested list of links."""
    listed = ""
    for heading in article.find_all(["h2", "h3"]):
        words = copy.copy(heading)
        for link in words.find_all("a"):
            link.unwrap()
        link = f'<li><a href="#{heading["id"]}">{words.decode_contents()}</a>'
        listed += f"</ol></li>{link}<ol>" if heading.name == "h2" else f"{link}</li>"
    return f"<ol>{listed.removeprefix('</ol></li>')}</ol></li></ol>".replace("<ol></ol>", "")
