"""Lay an executed notebook out as one HTML file that needs no network.

    python tools/build_page.py EXECUTED.ipynb OUTPUT.html [--publish]

Formulas become HTML while the page is built, so the page needs no script for them and a formula
that does not parse fails the build. So do an image without alt text, a link to an anchor that does
not exist, and a chart with a null where a number should be. The same notebook gives the same bytes.
"""

import argparse
import base64
import functools
import gzip
import html
import io
import json
import math
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import links
import nbformat
import quickjs
import vl_convert
from bs4 import BeautifulSoup
from fontTools import subset
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

PROJECT = Path(__file__).resolve().parent.parent
PARTS = PROJECT / "tools/page"  # template, style, script
VENDOR = PARTS / "vendor"
VEGA_LITE = "6.4"
SHORT_NOTE = 90  # words; a note that is no longer stands in the margin where there is one
LIMIT, ZIPPED = 4_000_000, 1_500_000  # bytes; a page must stay pleasant to load on a phone
WORDS, LINES = 220, 15  # that a reader takes in within a minute, of prose and of code
ENGINE = "engine-room"  # the heading from which on everything is folded
SCRIPT = PROJECT / "the_annotated_transformer.py"
CODE_STYLES = {"light": "github-light-high-contrast", "dark": "github-dark"}
TEXT_FONTS = (  # family, style, file
    ("Source Serif 4", "normal", "source-serif-4-latin-wght-normal"),
    ("Source Serif 4", "italic", "source-serif-4-latin-wght-italic"),
    ("Source Sans 3", "normal", "source-sans-3-latin-wght-normal"),
    ("Source Sans 3", "italic", "source-sans-3-latin-wght-italic"),
    ("JetBrains Mono", "normal", "jetbrains-mono-latin-wght-normal"),
)
SVG = "{http://www.w3.org/2000/svg}"
BOXES = {  # where the boxes of the drawings lead
    **dict.fromkeys(("source-ids", "target-ids"), "batches"),
    **dict.fromkeys(("source-embedding", "target-embedding"), "embeddings"),
    **dict.fromkeys(("self-attention", "cross-attention"), "three-uses"),
    **dict.fromkeys(("masked-self-attention", "mask"), "causal-mask"),
    **dict.fromkeys(("feed-forward", "decoder-feed-forward"), "feed-forward"),
    **dict.fromkeys(("encoder-final-norm", "decoder-final-norm"), "layer-norm"),
    **dict.fromkeys([f"norm-{number}" for number in range(1, 6)], "layer-norm"),
    **dict.fromkeys(("generator-linear", "log-softmax"), "generator"),
    **dict.fromkeys(("queries", "keys", "values", "input", "split"), "multi-head-attention"),
    **dict.fromkeys(("concat", "output-linear"), "multi-head-attention"),
    **dict.fromkeys(("query-linear", "key-linear", "value-linear"), "multi-head-attention"),
    **dict.fromkeys(("heads", "softmax", "weighted-mean"), "scaled-dot-product-attention"),
    **{"norm-order": "residual", "scores": "why-scale", "memory": "three-uses"},
}
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


def with_meanings(code: str, letters: dict[str, str]) -> str:
    """Coloured code; shapes in its comments and docstrings, (B, H, T, d_k), explain themselves."""

    def explain(comment: re.Match) -> str:
        def shape(found: re.Match) -> str:
            return re.sub(r"\b(?:[A-Z]|d_k)\b", lambda m: letter(m[0], letters), found[0])

        return re.sub(r"\((?:\.{3}|d_k|[A-Z0-9])[\w·+,. ]*\)", shape, comment[0])

    return re.sub(r'<span class="(?:c1|sd)">.*?</span>', explain, code, flags=re.S)


def letter(name: str, letters: dict[str, str], shown: str = "", more: str = "") -> str:
    """A letter of the notation, with its meaning for whoever points at it; other text as it is."""
    meaning, shown = letters.get(name), shown or name
    return f'<abbr title="{html.escape(meaning)}"{more}>{shown}</abbr>' if meaning else shown


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


def clean_table(source: str) -> tuple[str, str]:
    """A pandas table without its styling, numbers to the right; and its caption."""
    table = BeautifulSoup(source, "html.parser").table
    caption = table.caption.extract().decode_contents() if table.caption else ""
    for tag in [table, *table.find_all(True)]:
        tag.attrs = {k: v for k, v in tag.attrs.items() if k in ("colspan", "rowspan")}
    heads = [row.find_all("th") for row in table.thead.find_all("tr")] if table.thead else []
    rows = [row.find_all(["th", "td"]) for row in table.tbody.find_all("tr")]
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
    return f'<div class="scroll table">{table}</div>\n', caption


def linked_boxes(svg: str, ids: set[str]) -> str:
    """The drawing with each box of BOXES a link to its section, where the page has that section."""
    ElementTree.register_namespace("", SVG[1:-1])
    root = ElementTree.fromstring(svg)
    for group in root.iter(f"{SVG}g"):
        section = BOXES.get(group.get("id", "").rpartition("box-")[2])
        if section in ids:
            children = list(group)
            link = ElementTree.Element(f"{SVG}a", {"href": f"#{section}"})
            link.extend(children)
            group[:] = [link]
            root.set("role", "group")  # what is an image to a screen reader hides its links
    return ElementTree.tostring(root, encoding="unicode")


def inline_svg(source: str, alt: str, prefix: str, ids: set[str]) -> str:
    """An SVG drawing as part of the page, its ids made unique by `prefix`, its boxes linked."""
    svg = re.sub(r"<!--.*?-->|<title.*?</title>", "", source[source.index("<svg") :], flags=re.S)
    for name in sorted(set(re.findall(r'\bid="([^"]+)"', svg))):
        svg = svg.replace(f'id="{name}"', f'id="{prefix}{name}"')
        svg = re.sub(rf"#{re.escape(name)}(?![\w-])", f"#{prefix}{name}", svg)
    tag, rest = linked_boxes(svg, ids).split(">", 1)
    role = "group" if 'role="group"' in tag else "img"
    tag = re.sub(r'\s(?:role|aria-\w+|xmlns)="[^"]*"', "", tag)
    label = f'role="{role}" aria-label="{html.escape(alt)}"'
    return f'<div class="picture scroll">{tag} {label}>{rest.strip()}</div>\n'


# The page ---------------------------------------------------------------------------------------


@dataclass
class Block:
    """One piece of the page. A caption joins the media or the table right before it."""

    kind: str  # text, media, table or caption
    html: str
    note: str = ""  # a caption of its own, where the text has none
    name: str = ""  # what the anchor of a figure is called
    minutes: float = 0  # that a part takes to read, at its heading


class Page:
    """The blocks of a notebook, in order, and what was met on the way."""

    def __init__(self, notebook: NotebookNode, folders: list[Path]) -> None:
        self.folders = folders  # where images are looked for
        self.blocks: list[Block] = []
        self.headings: list[tuple[int, str, str]] = []  # depth, id, HTML without links
        self.outline: list[int] = []  # levels of the headings above the current one, as written
        self.runs: list[dict] = []  # what the notebook says about the run that made it
        self.charts = self.drawings = self.codes = 0
        self.part = Block("text", "")  # heading of the present part, where its minutes are added up
        self.engine = False  # are we in the engine room?
        self.formulas: list[int] = []  # displayed ones that wait for the code that computes them
        self.code_of: dict[int, str] = {}  # by formula: what computes it
        self.defined: dict[str, str] = {}  # by name: the anchor of the cell that defines it
        self.script = SCRIPT.read_text("utf-8") if SCRIPT.is_file() else ""
        self.place = 0  # in the script, where the last cell was found
        self.cells: dict[str, NotebookNode] = {}  # by the names that errors give them
        self.repository = links.repository()
        self.links = links.links(self.repository)
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        self.ids = set(ANCHOR.findall(text))
        self.letters = notation_of(text)
        self.md = self.make_markdown()
        for number, cell in enumerate(notebook.cells, 1):
            first = next((line for line in cell.source.split("\n") if line.strip()), "")
            self.where = f"cell {number} ({first[:60]})"
            self.cells[self.where] = cell
            if cell.cell_type == "markdown":
                self.add_markdown(cell.source)
            elif cell.cell_type == "code" and cell.source.strip():
                self.add_code(cell)
        if not self.headings:
            raise BuildError("the notebook has no title: it needs a heading")

    def fail(self, message: str) -> None:
        """Stop the build, naming the cell."""
        raise BuildError(f"{self.where}: {message}")

    def cell_with(self, text: str) -> str:
        """The first cell whose source or output has a text, to be named in an error."""
        for place, cell in self.cells.items():
            if text in cell.source or text in str(cell.get("outputs", "")):
                return place
        return "the page"

    def unique(self, name: str) -> str:
        """A name for an anchor that no other has."""
        while name in self.ids:
            name += "-again"
        self.ids.add(name)
        return name

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
            "blockquote_open": lambda token: f'<div class="{token.meta["class"]}" role="note">\n',
            "blockquote_close": lambda token: "</div>\n",
            "table_open": lambda token: '<div class="scroll table"><table>\n',
            "table_close": lambda token: "</table></div>\n",
            "code_inline": self.inline_code,
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
            number = len(self.formulas) + len(self.code_of)
            self.formulas.append(number)
            return f'<span class="scroll display">{rendered}</span><!--code of formula {number}-->'
        if tex in self.letters and tex != "V":  # in formulas it may be the matrix of values
            return letter(tex, self.letters, rendered, ' tabindex="0"')
        # A short formula is not broken over two lines.
        return f'<span class="short">{rendered}</span>' if len(tex) < 30 else rendered

    def inline_code(self, token: Token) -> str:
        """Code in a line; a letter of the notation says what it means, on hover or focus."""
        shown = f"<code>{html.escape(token.content, quote=False)}</code>"
        return letter(token.content, self.letters, shown, ' tabindex="0"')

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
            prefix = f"{path.stem}-{self.drawings}-"
            return inline_svg(path.read_text("utf-8"), alt, prefix, self.ids)
        if not embedded:
            self.fail(f"image {source} does not exist as a drawing (SVG)")
        return f'<img src="{token.attrs["src"]}" alt="{html.escape(alt)}">'

    def add_markdown(self, source: str) -> None:
        """Add the blocks of a Markdown cell. An anchor on its own names the block after it."""
        env: dict = {}
        tokens = self.md.parse(source, env)
        render = functools.partial(self.md.renderer.render, options=self.md.options, env=env)
        for opened, inline, closed in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if opened.type == "th_open" and not inline.content:
                opened.tag = closed.tag = "td"  # an empty heading confuses screen readers
        anchors: list[str] = []
        start, lines = 0, source.split("\n")
        for end, token in enumerate(tokens, 1):
            if token.level or token.nesting > 0:
                continue  # inside a block: wait until it is closed
            block, start = tokens[start:end], end
            paragraph = block[1] if block[0].type == "paragraph_open" else None
            words = sum(len(t.content.split()) for t in block if t.type == "inline")
            block[0].meta["class"] = "note" + " aside" * (words <= SHORT_NOTE)
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
                image = block[-1].children[0].attrs if kind == "media" else {}
                name = Path(image.get("title") or image.get("src", "")).stem
                name = f"figure-{name}" if name else ""
                self.blocks.append(Block(kind, spans(anchors) + render(block), name=name))
                anchors = []
            first, last = block[0].map
            self.part.minutes += words_of("\n".join(lines[first:last])) / WORDS
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
            anchors = [self.unique(slug)]
        name, *others = anchors
        self.headings.append((depth, name, re.sub(r"</?a\b[^>]*>", "", text)))
        heading = f'{spans(others)}<h{depth} id="{name}">{text}</h{depth}>\n'
        self.blocks.append(Block("text", heading))
        self.engine = self.engine or name == ENGINE
        if depth == 2:
            self.part = Block("text", "") if self.engine else self.blocks[-1]

    # Code and its outputs

    def placed_code(self, code: str) -> str:
        """A block of code with its line in the script; formulas that wait for code get it."""
        self.codes += 1
        names = re.findall(r"^(?:def|class) (\w+)", code, flags=re.M)
        for name in names:
            self.defined.setdefault(name, f"code-{self.codes}")
        story = re.split("^@example", code, flags=re.M)[0]  # what follows only tries it
        if computes := re.search(r"^(?:def|class) (\w+)", story, flags=re.M):
            self.code_of |= dict.fromkeys(self.formulas, computes[1])
            self.formulas = []
        self.place = max(self.place, self.script.find(code, self.place))
        found = self.script.startswith(code, self.place) if code else False
        line = self.script.count("\n", 0, self.place) + 1
        block = with_meanings(code_block(code), self.letters)
        block = block.replace('class="code"', f'class="code" id="code-{self.codes}"', 1)
        told = f"line {line:,}" if found else ""
        if told and self.links:
            told = f'<a href="{self.links["The script"]}#L{line}">{told}</a>'
        told = f'<span class="line">{told}</span>' if told else ""
        return block.removesuffix("</div>\n") + told + "</div>\n"

    def add_code(self, cell: NotebookNode) -> None:
        """Add a code cell and what it printed or drew."""
        text, first = "", len(self.blocks)
        self.blocks.append(Block("text", self.placed_code(cell.source.strip("\n"))))
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
        if "hide-input" in cell.metadata.get("tags", []):
            block, *shown = self.blocks[first:]
            label = self.purpose(cell.source, {other.kind for other in shown})
            lines = cell.source.strip("\n").count("\n") + 1
            label += f" <small>{lines} line{'s' * (lines > 1)}</small>"
            fold = f'<details class="fold"><summary>{label}</summary>\n{block.html}</details>\n'
            if not self.outline:
                block.html = f"<!--set-up-->{block.html}<!--end-->"  # all of it is folded as one
            elif not (self.engine and label.startswith("set-up")):  # there sections are folded
                block.html = fold
        else:
            self.part.minutes += lines_of(cell.source) / LINES

    def purpose(self, code: str, kinds: set[str]) -> str:
        """What a folded cell is for: the figure or table that it shows or helps with, or set-up."""
        if "media" in kinds or (not kinds and re.search(r"\balt\.|_map\(|_chart\(", code)):
            return "code of this figure"
        lists = kinds or re.search(r"\bpd\.|\btable\(", code)
        return "code of this table" if lists else "set-up code"

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
            table, caption = clean_table(data["text/html"])
            self.blocks.append(Block("table", table, note=caption))
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
        picture, smaller = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
        picture.convert("RGB").save(smaller, "WEBP", lossless=True, method=6)
        text = json.dumps(spec, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        text = text.replace("<", r"\u003c")  # so that it can stand inside a script element
        # The picture is 1.5 times as large as the chart will be: keep its place free.
        height = picture.height * 2 // 3
        view = f'<div class="scroll"><div class="view" style="min-height:{height}px"></div></div>'
        image = f'<img src="{data_uri("image/webp", smaller.getvalue())}" alt="{label}">'
        script = f'<script type="application/json">{text}</script><noscript>{image}</noscript>'
        chart = f'<div class="chart"><div class="controls"></div>{view}{script}</div>\n'
        source = self.cells[self.where].source
        shows = r'(?m)(?:^@example\ndef |^published\(")([\w-]+?)(?:[_-]figure)?["(]'
        name = re.search(shows, source)
        name = f"figure-{name[1].replace('_', '-')}" if name else "figure"
        self.blocks.append(Block("media", chart, note=label, name=name))

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
                anchor = f' id="{self.unique(waiting.name)}"' if waiting.name else ""
                parts.append(whole if bare else f"<figure{anchor}>{whole}</figure>\n")
            elif block.kind == "caption":
                parts.append(f"<p>{block.html}</p>\n")
            waiting = block if block.kind in ("media", "table") else None
            if block.kind == "text" and block.html.startswith('<div class="note aside"'):
                parts.append(self.beside(parts, block.html))
            else:
                parts.append(block.html if block.kind == "text" else "")
            if minutes := round(block.minutes):
                told = f"{minutes} minute{'s' * (minutes > 1)} to read"
                parts.append(f'<p class="minutes">{told}</p>\n')
        waits = r"<!--code of formula (\d+)-->(?:(\s*</p>)?\s*<!-- code: (\w+) -->)?"
        article = re.sub(waits, self.link_to_code, "".join(parts))
        return folded_engine_room(folded_set_up(article))

    def beside(self, parts: list[str], note: str) -> str:
        """A short note with the code or figure right before it, which leave `parts`."""
        taken: list[str] = []
        while parts and (not parts[-1] or parts[-1].startswith('<pre class="output')):
            taken.insert(0, parts.pop())
        if parts and parts[-1].startswith(('<div class="code"', "<figure")):
            return f'<div class="beside"><div>{parts.pop()}{"".join(taken)}</div>{note}</div>\n'
        parts += taken
        return note.replace("note aside", "note", 1)

    def link_to_code(self, formula: re.Match) -> str:
        """The link below a displayed formula: to the next code, or to what a comment names."""
        number, closing, named = formula.groups()
        name = named or self.code_of.get(int(number), "none")
        if name == "none":
            return closing or ""
        if name not in self.defined:
            place = self.cell_with(f"code: {name} ")
            raise BuildError(f"{place}: a formula should link to {name}, which no cell defines")
        link = f'<a class="to-code" href="#{self.defined[name]}">in code: <code>{name}</code></a>'
        return link + (closing or "")

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


def folded_set_up(article: str) -> str:
    """The article with its set-up, cells and the words between them, under one fold."""
    fold = r'<details class="fold"><summary>set-up code</summary>\n\1</details>\n'
    return re.sub("<!--set-up-->(.*)<!--end-->", fold, article, flags=re.S)


def folded_engine_room(article: str) -> str:
    """The article with each section of the engine room folded under its heading."""
    story, heading, room = article.partition(f'<h2 id="{ENGINE}">')
    title = r'(?:<span id="[^"]+"></span>)*<h3 .*?</h3>'
    fold = r'<details class="fold section"><summary>\1</summary>\2</details>\n'
    room = re.sub(rf"({title})(.*?)(?={title}|\Z)", fold, room, flags=re.S)
    return story + heading + room


def notation_of(text: str) -> dict[str, str]:
    """Letters and what they mean, from the table under the heading Notation."""
    table = text.partition("# Notation")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = re.findall(r"^\|? *`(\w+)` *\| *([^|]+?) *\|", table, flags=re.M)
    return {name: meaning.replace("`", "") for name, meaning in rows}


def words_of(text: str) -> int:
    """Words of prose; a formula is one, an address of a link none."""
    text = re.sub(r"\$[^$\n]+\$|<[^>\n]+>", "x", re.sub(r"\]\([^)\n]*\)", "]", text))
    return len(re.findall(r"\w[\w'’-]*", text))


def lines_of(code: str) -> int:
    """Lines of code, without blank ones, docstrings and comments that stand alone."""
    return len(re.findall(r"(?m)^ *[^\s#]", re.sub(r'(?ms)^ *""".*?"""$', "", code)))


def check_links(soup: BeautifulSoup, cell_with: Callable[[str], str]) -> None:
    """Refuse dead anchors, ids given twice, images without alt text and what asks the network."""

    def refuse(target: str, message: str) -> None:
        raise BuildError(f"{cell_with(target)}: {message}")

    ids = Counter(tag["id"] for tag in soup.find_all(id=True))
    for name in (name for name, count in ids.items() if count > 1):
        refuse(f'"{name}"', f"ids given twice: {name}")
    for tag in soup.find_all("a", href=True):
        target, name = tag["href"], f"{tag['href']} ({tag.get_text()})"
        if target.startswith("#") and target[1:] not in ids:
            refuse(target, f"link to an anchor that does not exist: {name}")
        if not re.match(r"#|https?:|mailto:", target):
            refuse(target, f"link to a file that is not part of the page: {name}")
    for tag in soup.find_all(src=True):
        source = tag["src"][:80]
        if not source.startswith("data:"):
            refuse(source, f"<{tag.name}> would be fetched from elsewhere: {source}")
        if tag.name == "img" and not tag.get("alt", "").strip():
            refuse(source, f"an image has no alt text: {source}")


def font_uri(file: Path, text: str) -> str:
    """A font cut to the characters of a text, as part of a page."""
    options, data = subset.Options(flavor="woff2", recalc_timestamp=False), io.BytesIO()
    options.layout_features += ["lnum", "tnum"]  # figures of one width, in tables
    font, cut = subset.load_font(file, options), subset.Subsetter(options)
    cut.populate(unicodes=set(map(ord, text)))  # a set: the article has millions of characters
    cut.subset(font)
    font.save(data)
    return data_uri("font/woff2", data.getvalue())


def katex_styles(article: str) -> str:
    """KaTeX's style sheet with those of its fonts inside that the article's formulas use."""
    css = (VENDOR / "katex/katex.min.css").read_text("utf-8")
    classes = {name for names in re.findall(r'class="([^"]*)"', article) for name in names.split()}
    used, text = set(), html.unescape(article)
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
        source = f"src:url({font_uri(file, text)}) format('woff2')"
        return re.sub(r"src:[^}]*", source, match[0])

    return re.sub(r"@font-face\{[^}]*\}", face, css) if "katex" in classes else ""


def styles(article: str) -> str:
    """The style sheet: fonts, formulas, colours of code, and our own rules."""
    parts, around = [], (PARTS / "template.html", PARTS / "page.js", PARTS / "page.css")
    text = html.unescape(article + "".join(file.read_text("utf-8") for file in around))
    for family, style, file in TEXT_FONTS:
        source = font_uri(VENDOR / f"fonts/{file}.woff2", text + string.printable)
        parts.append(
            f"@font-face{{font-family:'{family}';font-style:{style};font-weight:200 900;"
            f"font-display:block;src:url({source}) format('woff2')}}"
        )
    parts.append(katex_styles(article))
    for theme, name in CODE_STYLES.items():
        rules = HtmlFormatter(style=name).get_style_defs(f':root[data-theme="{theme}"] .code')
        parts += [line for line in rules.split("\n") if ".code ." in line and "color" in line]
    return "\n".join([*parts, (PARTS / "page.css").read_text("utf-8")])


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
    page = Page(nbformat.read(notebook, as_version=4), [notebook.resolve().parent, PROJECT])
    article = page.article()
    soup = BeautifulSoup(article, "html.parser")
    check_links(soup, page.cell_with)
    lead = soup.p.get_text() if soup.p else ""
    lead = lead[: lead.rfind(".", 0, 300) + 1] or lead[:200]  # whole sentences
    vega = ""
    if page.charts:
        vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
        if "</script" in vega or "<!--" in vega:
            raise BuildError("Vega's code cannot stand inside a script element")
    about = "".join(
        f"This page shows a run on {html.escape(str(run.get('corpus')))} "
        f"at level {html.escape(str(run.get('level', 'unknown')))}."
        for run in page.runs[-1:]
    )
    problem = publish_problem(page.runs)
    draft = f'<p class="draft" role="note">A draft: {html.escape(problem)}.</p>' if problem else ""
    known = (f'<a href="{address}">{title}</a>' for title, address in page.links.items())
    elsewhere = " · ".join(known)
    licences = [(VENDOR / name / "LICENSE").read_text("utf-8") for name in ("katex", "vega")]
    values = {
        "title": html.escape(soup.h1.get_text(strip=True), quote=False),
        "summary": html.escape(" ".join(lead.split())),
        "styles": styles(article),
        "contents": page.contents(),
        "draft": draft if page.runs else "",
        "preview": links.preview(page.repository),
        "links": f'<p class="links">{elsewhere}</p>' if elsewhere else "",
        "article": article,
        "about": about,
        "licences": "\n".join(licences),
        "vega": f'<script type="module">{vega}</script>' if vega else "",
        "script": (PARTS / "page.js").read_text("utf-8"),
    }
    template = (PARTS / "template.html").read_text("utf-8")
    result = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)
    if (size := len(result.encode())) > LIMIT:
        raise BuildError(f"the page has {size:,} bytes; the limit is {LIMIT:,}")
    if (size := len(gzip.compress(result.encode(), mtime=0))) > ZIPPED:
        raise BuildError(f"the page has {size:,} bytes when gzipped; the limit is {ZIPPED:,}")
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
