"""Lay an executed notebook out as one HTML file that needs no network.

    python docs/build_page.py EXECUTED.ipynb OUTPUT.html [--publish]

Formulas become HTML while the page is built, so the page needs no script for them and a formula
that does not parse fails the build. So do an image without alt text, a link to an anchor that does
not exist, and a chart with a null where a number should be. The same notebook gives the same bytes.
"""

import argparse
import base64
import functools
import html
import json
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import quickjs
import vl_convert
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

DOCS = Path(__file__).resolve().parent
VENDOR = DOCS / "vendor"
VEGA_LITE = "6.4"
LONG_CELL = 40  # lines of code; longer cells are folded
LIMIT = 4_000_000  # bytes; a page must stay pleasant to load on a phone
CODE_STYLES = {"light": "github-light-high-contrast", "dark": "github-dark"}
TEXT_FONTS = (  # family, style, file
    ("Source Serif 4", "normal", "source-serif-4-latin-wght-normal"),
    ("Source Serif 4", "italic", "source-serif-4-latin-wght-italic"),
    ("Source Sans 3", "normal", "source-sans-3-latin-wght-normal"),
    ("Source Sans 3", "italic", "source-sans-3-latin-wght-italic"),
    ("JetBrains Mono", "normal", "jetbrains-mono-latin-wght-normal"),
)
ANCHOR = re.compile(r'<a id="([^"]+)">\s*</a>')
CAPTION = re.compile(r"\*\*(Figure|Table) [\w.]+\*\*")
NUMBER = re.compile(r"[-+−–]?[\d,.]*\d(e[+-]?\d+)?\s*[%×kM]?|NaN|[–—]?")


class BuildError(Exception):
    """Something in the notebook that must not reach a reader; the message says what and where."""


# Small tools ------------------------------------------------------------------------------------


def data_uri(kind: str, data: bytes) -> str:
    """The bytes as part of a page."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def spans(names: list[str]) -> str:
    """Places that links can point to."""
    return "".join(f'<span id="{name}"></span>' for name in names)


def walk(node: object) -> Iterator[dict]:
    """Every dictionary inside `node`."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from walk(child)


@functools.cache
def katex() -> quickjs.Object:
    """KaTeX's renderer as a Python function: (formula, is it displayed) -> HTML."""
    context = quickjs.Context()
    context.eval((VENDOR / "katex/katex.min.js").read_text("utf-8"))
    return context.eval(
        "(tex, displayMode) => katex.renderToString(tex, {displayMode, strict: 'error'})"
    )


def code_block(code: str, language: str = "python") -> str:
    """A block of code, coloured."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
        code = highlight(code, lexer, HtmlFormatter(nowrap=True)).rstrip("\n")
    except ClassNotFound:
        code = html.escape(code, quote=False)
    return f'<div class="code"><pre><code>{code}</code></pre></div>\n'


def printed(text: str) -> str:
    """Plain output of a cell; passed checks get their own look."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).strip("\n")
    passed = " check" if all(line.startswith("✓") for line in text.split("\n")) else ""
    return f'<pre class="output{passed}"><samp>{html.escape(text, quote=False)}</samp></pre>\n'


# Charts, tables and drawings --------------------------------------------------------------------


def missing_numbers(spec: dict) -> list[str]:
    """Places in a chart's data where a number should be and is not.

    A field holds numbers when the chart treats it as quantitative or when one of its values is a
    number. Numbers packed into a list or a string ("12 0 nan") are looked at too.
    """

    def absent(value: object) -> bool:
        if isinstance(value, list):
            return any(map(absent, value))
        return value is None or (isinstance(value, float) and not math.isfinite(value))

    def hidden(value: object) -> bool:
        words = value.lower().split() if isinstance(value, str) else []
        odd = {word for word in words if not re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", word)}
        return bool(odd) and len(odd) < len(words) and odd <= {"nan", "null", "none", "inf", "-inf"}

    drawn = {n.get("field") for n in walk(spec) if n.get("type") == "quantitative"}
    tables = list(spec.get("datasets", {}).values())
    tables += [n["data"].get("values") for n in walk(spec) if isinstance(n.get("data"), dict)]
    found = []
    for rows in (table for table in tables if isinstance(table, list)):
        rows = [row if isinstance(row, dict) else {"data": row} for row in rows]
        numbers = drawn | {k for row in rows for k, v in row.items() if type(v) in (int, float)}
        for i, row in enumerate(rows):
            for field, value in row.items():
                counts = field in numbers or isinstance(value, list)
                if hidden(value) or (counts and absent(value)):
                    found.append(f"{field!r} in row {i}")
    return found


def clean_table(source: str) -> str:
    """A pandas table without its styling: numbers to the right, no column that only counts rows."""
    table = BeautifulSoup(source, "html.parser").table
    for tag in [table, *table.find_all(True)]:
        tag.attrs = {k: v for k, v in tag.attrs.items() if k in ("colspan", "rowspan")}
    heads = [row.find_all("th") for row in table.thead.find_all("tr")] if table.thead else []
    rows = [row.find_all(["th", "td"]) for row in table.tbody.find_all("tr")]
    names = [row[0].get_text(strip=True) for row in rows if row[0].name == "th"]
    if len(heads) == 1 and rows and names == [str(i) for i in range(len(rows))]:
        for row in [*heads, *rows]:
            row.pop(0).extract()
    for cell in [cell for row in [*heads, *rows] for cell in row if cell.name == "th"]:
        if cell.get_text(strip=True):
            cell["scope"] = "col" if cell.find_parent("thead") else "row"
        else:
            cell.name = "td"  # an empty heading confuses screen readers
    for back in range(1, max(map(len, rows), default=0) + 1):  # a MultiIndex agrees on the right
        column = [row[-back] for row in rows if len(row) >= back]
        texts = [cell.get_text(strip=True) for cell in column]
        if any(texts) and all(map(NUMBER.fullmatch, texts)):
            for cell in column + [row[-back] for row in heads[-1:] if len(row) >= back]:
                cell["class"] = "num"
    return f'<div class="scroll table">{table}</div>\n'


def inline_svg(source: str, alt: str, prefix: str) -> str:
    """An SVG drawing as part of the page, its ids made unique by `prefix`."""
    svg = re.sub(r"<!--.*?-->|<title.*?</title>", "", source[source.index("<svg") :], flags=re.S)
    for name in sorted(set(re.findall(r'\bid="([^"]+)"', svg))):
        svg = svg.replace(f'id="{name}"', f'id="{prefix}{name}"')
        svg = re.sub(rf"#{re.escape(name)}(?![\w-])", f"#{prefix}{name}", svg)
    tag, rest = svg.split(">", 1)
    tag = re.sub(r'\s(?:role|aria-\w+|xmlns)="[^"]*"', "", tag)
    label = f'role="img" aria-label="{html.escape(alt)}"'
    return f'<div class="picture scroll">{tag} {label}>{rest.strip()}</div>\n'


# The page ---------------------------------------------------------------------------------------


@dataclass
class Block:
    """One piece of the page. A caption joins the media or the table right before it."""

    kind: str  # text, media, table or caption
    html: str
    note: str = ""  # caption of media that nobody wrote one for


class Page:
    """The blocks of a notebook, in order, and what was met on the way."""

    def __init__(self, notebook: NotebookNode, folders: list[Path]) -> None:
        self.folders = folders  # where images are looked for
        self.blocks: list[Block] = []
        self.headings: list[tuple[int, str, str]] = []  # depth, id, HTML without links
        self.outline: list[int] = []  # levels of the headings above the current one, as written
        self.runs: list[dict] = []  # what the notebook says about the run that made it
        self.charts = self.drawings = 0
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        self.ids = set(ANCHOR.findall(text))
        self.md = self.make_markdown()
        for number, cell in enumerate(notebook.cells, 1):
            first = next((line for line in cell.source.split("\n") if line.strip()), "")
            self.where = f"cell {number} ({first[:60]})"
            if cell.cell_type == "markdown":
                self.add_markdown(cell.source)
            elif cell.cell_type == "code" and cell.source.strip():
                self.add_code(cell)
        if not self.headings:
            raise BuildError("the notebook has no title: it needs a heading")

    def fail(self, message: str) -> None:
        """Stop the build, naming the cell."""
        raise BuildError(f"{self.where}: {message}")

    # Markdown

    def make_markdown(self) -> MarkdownIt:
        """The Markdown of Jupyter: CommonMark, tables, HTML and formulas between dollars."""
        md = MarkdownIt("commonmark", {"html": True, "typographer": True})
        md.enable(["table", "strikethrough", "smartquotes"])
        md.use(dollarmath_plugin, allow_labels=False, double_inline=True).use(amsmath_plugin)
        displayed = functools.partial(self.formula, display=True)
        rules = {
            "math_inline": self.formula,
            "math_inline_double": displayed,
            "math_block": displayed,
            "amsmath": displayed,
            "image": self.image,
            "fence": lambda token: code_block(token.content.rstrip(), token.info or "text"),
            "blockquote_open": lambda token: '<div class="note" role="note">\n',
            "blockquote_close": lambda token: "</div>\n",
            "table_open": lambda token: '<div class="scroll table"><table>\n',
            "table_close": lambda token: "</table></div>\n",
        }
        for name, rule in rules.items():
            md.add_render_rule(name, lambda _, tokens, i, *rest, rule=rule: rule(tokens[i]))
        return md

    def formula(self, token: Token, display: bool = False) -> str:
        """A formula as HTML and MathML."""
        tex = token.content.strip()
        try:
            rendered = katex()(tex, display)
        except quickjs.JSException as error:
            self.fail(f"formula does not parse: {tex!r}: {str(error).splitlines()[0]}")
        if display:
            return f'<span class="scroll display">{rendered}</span>'
        # A short formula is not broken over two lines.
        return f'<span class="short">{rendered}</span>' if len(tex) < 30 else rendered

    def image(self, token: Token) -> str:
        """An image of the project as part of the page."""
        source, title = token.attrs["src"], token.attrs.get("title", "")
        alt = self.md.renderer.renderInlineAsText(token.children or [], self.md.options, {}).strip()
        if embedded := source.startswith("data:"):  # by the notebook: a PNG, titled by the file
            source = f"images/{title}"
        if not alt:
            self.fail(f"image {source} has no alt text")
        path = next((f / source for f in self.folders if (f / source).is_file()), None)
        if path is not None and path.suffix == ".svg":
            self.drawings += 1
            return inline_svg(path.read_text("utf-8"), alt, f"{path.stem}-{self.drawings}-")
        if path is not None:
            kind = "image/jpeg" if path.suffix == ".jpg" else f"image/{path.suffix[1:]}"
            source = data_uri(kind, path.read_bytes())
        elif embedded:
            source = token.attrs["src"]
        else:
            self.fail(f"image {source} does not exist")
        return f'<img src="{source}" alt="{html.escape(alt)}">'

    def add_markdown(self, source: str) -> None:
        """Add the blocks of a Markdown cell. An anchor on its own names the block after it."""
        env: dict = {}
        tokens = self.md.parse(source, env)
        render = functools.partial(self.md.renderer.render, options=self.md.options, env=env)
        for opened, inline, closed in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if opened.type == "th_open" and not inline.content:
                opened.tag = closed.tag = "td"  # an empty heading confuses screen readers
        anchors: list[str] = []
        start = 0
        for end, token in enumerate(tokens, 1):
            if token.level or token.nesting > 0:
                continue  # inside a block: wait until it is closed
            block, start = tokens[start:end], end
            paragraph = block[1] if block[0].type == "paragraph_open" else None
            if paragraph and not ANCHOR.sub("", paragraph.content).strip():
                anchors += ANCHOR.findall(paragraph.content)
            elif block[0].type == "heading_open":
                self.add_heading(int(block[0].tag[1]), render(block[1:2]), anchors)
                anchors = []
            else:
                kind = "table" if block[0].type == "table_open" else "text"
                if paragraph and CAPTION.match(paragraph.content):
                    kind, block = "caption", [paragraph]
                elif paragraph and [t.type for t in paragraph.children or []] == ["image"]:
                    kind, block = "media", [paragraph]
                self.blocks.append(Block(kind, spans(anchors) + render(block)))
                anchors = []
        if anchors:
            self.blocks.append(Block("text", spans(anchors)))

    def add_heading(self, level: int, text: str, anchors: list[str]) -> None:
        """Add a heading. The first is the only h1; the others keep their order, without gaps."""
        if self.headings:
            while self.outline and self.outline[-1] >= level:
                self.outline.pop()
            self.outline.append(level)
        depth = min(len(self.outline) + 1, 6)
        if not anchors:
            plain = html.unescape(re.sub(r"<math.*?</math>|<[^>]+>", "", text, flags=re.S))
            slug = re.sub(r"\W+", "-", plain.lower()).strip("-") or "section"
            while slug in self.ids:
                slug += "-again"
            self.ids.add(slug)
            anchors = [slug]
        name, *others = anchors
        self.headings.append((depth, name, re.sub(r"</?a\b[^>]*>", "", text)))
        heading = f'{spans(others)}<h{depth} id="{name}">{text}</h{depth}>\n'
        self.blocks.append(Block("text", heading))

    # Code and its outputs

    def add_code(self, cell: NotebookNode) -> None:
        """Add a code cell, folded where it is plumbing or long, and what it printed or drew."""
        code = cell.source.strip("\n")
        lines, plumbing = code.count("\n") + 1, "hide-input" in cell.metadata.get("tags", [])
        block = code_block(code)
        if plumbing or lines > LONG_CELL:
            names = re.findall(r"^(?:def|class) (\w+)", code, flags=re.M)[:3]
            label = ", ".join(f"<code>{name}</code>" for name in names)
            label = ("Plumbing" if plumbing else "Code") + (": " if names else "") + label
            size = f"<small>{lines} line{'s' * (lines > 1)}</small>"
            block = f'<details class="fold"><summary>{label} {size}</summary>\n{block}</details>\n'
        self.blocks.append(Block("text", block))
        text = ""
        for output in [*cell.outputs, None]:
            if output is not None and output.output_type == "stream":
                # Progress bars and warnings go to stderr; they say nothing to a reader.
                text += output.text if output.name == "stdout" else ""
                continue
            if text.strip():
                self.blocks.append(Block("text", printed(text)))
            text = ""
            if output is not None:
                self.add_output(output)

    def add_output(self, output: NotebookNode) -> None:
        """Add one output: the richest form that the page can show without help from elsewhere."""
        if output.output_type == "error":
            self.fail(f"the cell ended with {output.ename}: {output.evalue}")
        if "annotated" in output.get("metadata", {}):  # the footer says it
            self.runs.append(dict(output.metadata["annotated"]))
            return
        data = output.get("data", {})
        chart = next((data[key] for key in sorted(data) if "vegalite" in key), None)
        if chart is not None:
            self.add_chart(chart, data.get("image/png", ""))
        elif "<table" in data.get("text/html", ""):
            self.blocks.append(Block("table", clean_table(data["text/html"])))
        elif "image/png" in data or "image/svg+xml" in data:
            self.fail("an image output has no alt text: draw it as a chart with a description")
        elif "text/markdown" in data:
            self.add_markdown(data["text/markdown"])
        elif data.get("text/plain", "").strip():
            self.blocks.append(Block("text", printed(data["text/plain"])))

    def add_chart(self, spec: dict, png: str) -> None:
        """Add a chart, drawn by the page's script; where scripts are off its picture is shown."""
        label = html.escape(spec.get("description", "").strip())
        if not label:
            self.fail("a chart has no description, which is its text alternative")
        if missing := missing_numbers(spec):
            self.fail(f"a chart has null where a number should be: {', '.join(missing[:3])}")
        if not png:
            self.fail("a chart has no picture (image/png) for readers without scripts")
        self.charts += 1
        picture = base64.b64decode(png)
        text = json.dumps(spec, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        text = text.replace("<", r"\u003c")  # so that it can stand inside a script element
        # The picture is 1.5 times as large as the chart will be: keep its place free.
        height = struct.unpack(">I", picture[20:24])[0] * 2 // 3
        view = f'<div class="scroll"><div class="view" style="min-height:{height}px"></div></div>'
        image = f'<img src="{data_uri("image/png", picture)}" alt="{label}">'
        script = f'<script type="application/json">{text}</script><noscript>{image}</noscript>'
        chart = f'<div class="chart"><div class="controls"></div>{view}{script}</div>\n'
        self.blocks.append(Block("media", chart, note=label))

    # Putting it together

    def article(self) -> str:
        """All blocks in order, figures with their captions."""
        parts: list[str] = []
        waiting: Block | None = None  # media or a table that may get a caption
        for block in [*self.blocks, Block("text", "")]:
            if waiting:
                note = block.html if block.kind == "caption" else waiting.note
                note = f"<figcaption>{note}</figcaption>" if note else ""
                whole = note + waiting.html if waiting.kind == "table" else waiting.html + note
                bare = waiting.kind == "table" and not note
                parts.append(whole if bare else f"<figure>{whole}</figure>\n")
            elif block.kind == "caption":
                parts.append(f"<p>{block.html}</p>\n")
            waiting = block if block.kind in ("media", "table") else None
            parts.append(block.html if block.kind == "text" else "")
        return "".join(parts)

    def contents(self) -> str:
        """Parts and their sections as a nested list of links."""
        items: list[tuple[str, list[str]]] = []
        for depth, name, text in self.headings:
            link = f'<a href="#{name}">{text}</a>'
            if depth == 2:
                items.append((link, []))
            elif depth == 3:
                items[-1][1].append(f"<li>{link}</li>")
        inner = (f"<ol>{''.join(below)}</ol>" if below else "" for _, below in items)
        listed = zip(items, inner, strict=True)
        return f"<ol>{''.join(f'<li>{link}{below}</li>' for (link, _), below in listed)}</ol>"


def check_links(soup: BeautifulSoup) -> None:
    """Refuse dead anchors, ids given twice, images without alt text and what asks the network."""
    ids = Counter(tag["id"] for tag in soup.find_all(id=True))
    if twice := [name for name, count in ids.items() if count > 1]:
        raise BuildError(f"ids given twice: {', '.join(twice)}")
    for tag in soup.find_all("a", href=True):
        name = f"{tag['href']} ({tag.get_text()})"
        if tag["href"].startswith("#") and tag["href"][1:] not in ids:
            raise BuildError(f"link to an anchor that does not exist: {name}")
        if not re.match(r"#|https?:|mailto:", tag["href"]):
            raise BuildError(f"link to a file that is not part of the page: {name}")
    for tag in soup.find_all(src=True):
        if not tag["src"].startswith("data:"):
            raise BuildError(f"<{tag.name}> would be fetched from elsewhere: {tag['src'][:80]}")
        if tag.name == "img" and not tag.get("alt", "").strip():
            raise BuildError(f"an image has no alt text: {tag['src'][:80]}")


def katex_styles(article: str) -> str:
    """KaTeX's style sheet with those of its fonts inside that the article's formulas use."""
    css = (VENDOR / "katex/katex.min.css").read_text("utf-8")
    classes = {name for names in re.findall(r'class="([^"]*)"', article) for name in names.split()}
    used = set()
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        family = re.search(r'font(?:-family)?:[^;]*?"?(KaTeX_\w+)', body)
        bold, italic = "font-weight:700" in body, "font-style:italic" in body
        for selector in selectors.split(","):
            if "." in selector and set(re.findall(r"\.([\w-]+)", selector)) <= classes:
                used.add((family[1] if family else "KaTeX_Main", bold, italic))

    def face(match: re.Match) -> str:
        family = re.search(r'font-family:"?(\w+)', match[0])[1]
        if (family, "weight:700" in match[0], "style:italic" in match[0]) not in used:
            return ""
        file = VENDOR / "katex" / re.search(r"url\(([^)]+\.woff2)\)", match[0])[1]
        source = f"src:url({data_uri('font/woff2', file.read_bytes())}) format('woff2')"
        return re.sub(r"src:[^}]*", source, match[0])

    return re.sub(r"@font-face\{[^}]*\}", face, css) if "katex" in classes else ""


def styles(article: str) -> str:
    """The style sheet: fonts, formulas, colours of code, and our own rules."""
    parts = []
    for family, style, file in TEXT_FONTS:
        source = data_uri("font/woff2", (VENDOR / f"fonts/{file}.woff2").read_bytes())
        parts.append(
            f"@font-face{{font-family:'{family}';font-style:{style};font-weight:200 900;"
            f"font-display:swap;src:url({source}) format('woff2')}}"
        )
    parts.append(katex_styles(article))
    for theme, name in CODE_STYLES.items():
        rules = HtmlFormatter(style=name).get_style_defs(f':root[data-theme="{theme}"] .code')
        parts += [line for line in rules.split("\n") if ".code ." in line and "color" in line]
    return "\n".join([*parts, (DOCS / "page.css").read_text("utf-8")])


def publish_problem(runs: list[dict]) -> str | None:
    """Why a page of these runs must not be published, or None."""
    if not runs:
        return "the notebook does not say which run it shows (no output has metadata “annotated”)"
    for run in runs:
        corpus = str(run.get("corpus", "an unnamed corpus"))
        if corpus.startswith(("built-in", "an unnamed")):
            return f"the page was made from {corpus}, which is not a real corpus"
        if run.get("finished_model") is not True:
            return "the page was made without a finished model"
    return None


def build(notebook: Path) -> tuple[str, list[dict]]:
    """The page of an executed notebook, and what the notebook says about its run.

    Raises BuildError where the notebook holds something that must not reach a reader.
    """
    page = Page(nbformat.read(notebook, as_version=4), [notebook.resolve().parent, DOCS.parent])
    article = page.article()
    soup = BeautifulSoup(article, "html.parser")
    check_links(soup)
    lead = soup.p.get_text(" ", strip=True) if soup.p else ""
    vega = ""
    if page.charts:
        vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
        if "</script" in vega or "<!--" in vega:
            raise BuildError("Vega's code cannot stand inside a script element")
    about = "".join(
        f"<p>This page shows a run on {html.escape(str(run.get('corpus')))} "
        f"at level {html.escape(str(run.get('level', 'unknown')))}.</p>"
        for run in page.runs[-1:]
    )
    problem = publish_problem(page.runs)
    draft = f'<p class="draft" role="note">A draft: {html.escape(problem)}.</p>' if problem else ""
    licences = [(VENDOR / name / "LICENSE").read_text("utf-8") for name in ("katex", "vega")]
    values = {
        "title": html.escape(soup.h1.get_text(strip=True), quote=False),
        "summary": html.escape(lead[:200].rsplit(" ", 1)[0]),
        "styles": styles(article),
        "contents": page.contents(),
        "draft": draft if page.runs else "",
        "article": article,
        "about": about,
        "licences": "\n".join(licences),
        "vega": f'<script type="module">{vega}</script>' if vega else "",
        "script": (DOCS / "page.js").read_text("utf-8"),
    }
    template = (DOCS / "template.html").read_text("utf-8")
    result = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)
    if (size := len(result.encode())) > LIMIT:
        raise BuildError(f"the page has {size:,} bytes; the limit is {LIMIT:,}")
    return result, page.runs


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Lay an executed notebook out as one HTML file.")
    parser.add_argument("notebook", type=Path, metavar="EXECUTED.ipynb")
    parser.add_argument("output", type=Path, metavar="OUTPUT.html")
    text = "refuse a page made from the built-in corpus or without a finished model"
    parser.add_argument("--publish", action="store_true", help=text)
    options = parser.parse_args(arguments)
    try:
        page, runs = build(options.notebook)
        if options.publish and (problem := publish_problem(runs)):
            raise BuildError(f"refusing to publish: {problem}")
    except BuildError as error:
        print(f"build_page: {error}", file=sys.stderr)
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page, encoding="utf-8", newline="\n")
    print(f"{options.output}: {len(page.encode()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
