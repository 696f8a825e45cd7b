"""Lay an executed notebook out as one HTML file that needs no network.

Formulas become HTML while the page is built, so the page needs no script for them and a formula
that does not parse fails the build. So do an image without alt text, a link to an anchor that does
not exist, and a chart with a null where a number should be. The same notebook gives the same bytes.
"""

import ast
import base64
import copy
import functools
import hashlib
import html
import io
import json
import re
import sys
import zlib
from collections.abc import Iterable
from itertools import dropwhile, groupby, takewhile
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import quickjs
import vl_convert
from bs4 import BeautifulSoup, Tag
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode
from PIL import Image
from pygments.lexers import get_lexer_by_name
from pygments.styles import get_style_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String

from tools import records
from tools.address import Address, address
from tools.page import bundle
from tools.page.pictures import on_white

PROJECT = records.PROJECT
PARTS = Path(__file__).parent  # template, style, script
VENDOR = PARTS / "vendor"
FIGURES = PARTS / "figures"  # scripts of figures that can be played with
MODEL = PROJECT / "pretrained"  # the model that plays in them
PLAYABLE = {  # figures of the notebook, and what takes their place on the page
    "figure-first-translation": "translator",
    "figure-attention-by-hand": "by-hand",
    "figure-architecture": "map",
    "figure-one-search": "tree",
}
KNOWN = {  # the parts that its translator can compute with
    "attention": "plain",
    "feed_forward": "relu",
    "norm": "layer",
    "positions": "sinusoids",
    "encoder_layer": "plain",
    "decoder_layer": "plain",
    "bias": True,
    "norm_first": True,
    "share_embeddings": True,
}
SCRIPT = PROJECT / "the_annotated_transformer.py"
OWN_LICENCE = PROJECT / "LICENSE"
VEGA = ("window.vegaEmbed = vegaEmbed;", "6.4")  # what the page calls, version of Vega-Lite
ROOMS = (330, 880)  # pixels; widths of a chart on a phone and beside the contents
LICENCES = ("katex/LICENSE", "vega/LICENSE", "preact/LICENSE", "preact/LICENSE-htm")
SHORT_NOTE = 120  # words; a note that is no longer stands in the margin where there is one
ENGINE = "engine-room"  # the heading from which on everything is folded
EXERCISE = "try-"  # how the names of their sections begin, which are folded, too
LOOKED_UP = {"paper-map", "older-code", "failures", "glossary", "references"}  # folded sections
CODE_STYLES = {"light": "github-light-high-contrast", "dark": "github-dark"}
CODE_INKS = {  # what is coloured in code: class, kinds of tokens
    "c": [Comment],
    "s": [String],
    "k": [Keyword, Operator.Word],
    "f": [Name.Function, Name.Class],
    "d": [Name.Decorator],
    "m": [Number],
}
FACES = "Main-Regular Main-Bold Main-Italic Math-Italic Caligraphic-Regular"  # of formulas
FACES = {*FACES.split(), *(f"Size{size}-Regular" for size in (1, 2, 3, 4))}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
NUMBER = re.compile(r"[-+−–—±\d.,;()\s\u2060]*(e[+-]?\d+)?\s*[%×kM]?|NaN")  # a range, too

parsed = functools.partial(BeautifulSoup, features="html.parser")
vega_bundle = functools.cache(vl_convert.javascript_bundle)


class BuildError(ValueError):
    """Something in the notebook that must not reach a reader; the message says what and where."""


def data_uri(kind: str, data: bytes) -> str:
    """The bytes as part of a page."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def links(at: Address) -> str:
    """Links to what the page is made of, where the project has an address."""
    named = {
        "Run it in Colab": at.colab,
        "The notebook": at.notebook,
        "The script": at.script,
        "The repository": at.home,
    }
    return " · ".join(f'<a href="{url}">{name}</a>' for name, url in named.items() if url)


@functools.cache
def katex() -> quickjs.Object:
    """KaTeX's renderer as a Python function: (formula, is it displayed) -> HTML as JSON."""
    context = quickjs.Context()
    context.eval((VENDOR / "katex/katex.min.js").read_text("utf-8"))
    return context.eval(
        "(tex, displayMode) =>"
        " JSON.stringify(katex.renderToString(tex, { displayMode, strict: 'error' }))"
    )


def code_block(code: str, language: str = "python", name: str = "") -> str:
    """A block of code, coloured, under a name; neighbours of one colour share an element."""
    pieces = []
    ink = ""
    for token, text in get_lexer_by_name(language, stripnl=False).get_tokens(code):
        if not text.isspace():
            kinds = (k for k, tokens in CODE_INKS.items() if any(token in t for t in tokens))
            ink = next(kinds, "")
        pieces.append((ink, html.escape(text, quote=False)))
    coloured = ""
    for ink, group in groupby(pieces, key=lambda piece: piece[0]):
        text = "".join(text for _, text in group)
        seen = text.rstrip()
        coloured += f'<span class="{ink}">{seen}</span>{text[len(seen) :]}' if ink else text
    address = f' id="{name}"' if name else ""
    code = coloured.rstrip("\n")
    return f'<div class="code"{address}><pre><code>{code}</code></pre></div>\n'


def missing_numbers(node: object, place: str = "") -> list[str]:
    """Places in a chart's data with null, NaN or infinity, alone or among numbers in a string."""
    if isinstance(node, dict | list):
        children = node.items() if isinstance(node, dict) else enumerate(node)
        return [at for key, child in children for at in missing_numbers(child, f"{place}/{key}")]
    packed = r"[-+.\de ]*\b(nan|inf)\b[-+.\de naif]*"
    missing = node is None or re.fullmatch(packed, str(node).lower())
    return [place] if missing and ("/datasets/" in place or "/data/values/" in place) else []


@functools.cache
def dressing() -> quickjs.Object:
    """What the page does before it draws a chart: (chart as JSON, pixels) -> chart as JSON."""
    light, _dark = (PARTS / "page.css").read_text("utf-8").split(':root[data-theme="dark"]', 1)
    values = dict(re.findall(r"--(\w+): ([^;]+);", light))
    values["sans"] = "Liberation Sans"  # the converter has this one, not the page's
    context = quickjs.Context()
    context.eval(bundle.bundle(PARTS / "script/fit.js", "fit"))
    context.eval(f"const values = {json.dumps(values)};")
    return context.eval(
        "(text, room) => JSON.stringify(fit.dressed(text, room, (name) => values[name]))"
    )


def chart_of(spec: dict) -> str:
    """A chart that the page's script draws; where scripts are off, its picture is shown."""
    label = html.escape(spec.get("description", "").strip())
    if not label:
        raise BuildError("a chart has no description, which is its text alternative")
    if missing := missing_numbers(spec):
        raise BuildError(f"a chart has null where a number should be: {', '.join(missing[:3])}")
    text = json.dumps(spec, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", r"\u003c")  # so that it can stand inside a script element
    drawn = [vl_convert.vegalite_to_svg(dressing()(text, room), VEGA[1]) for room in ROOMS]
    narrow, wide = (round(float(ElementTree.fromstring(svg).get("height"))) for svg in drawn)
    heights = f"--if-narrow:{narrow}px;--if-wide:{wide}px"  # the place that is kept free for it
    picture = on_white(vl_convert.svg_to_png(drawn[1], scale=1.5))
    picture = picture.quantize(64, dither=Image.Dither.NONE).convert("RGB")
    picture.save(smaller := io.BytesIO(), "WEBP", lossless=True, method=6)
    view = f'<div class="scroll"><div class="view" style="{heights}"></div></div>'
    image = f'<img src="{data_uri("image/webp", smaller.getvalue())}" alt="{label}">'
    script = f'<script type="application/json">{text}</script><noscript>{image}</noscript>'
    bound = text.count('"bind":{')  # and for its choosers, in rows
    rows = f' style="--if-narrow:{max(1, bound - 1)};--if-wide:{(bound + 2) // 3}"' if bound else ""
    chart = f'<div class="chart"><div class="controls"{rows}></div>{view}{script}</div>\n'
    return f"{chart}<figcaption>{label}</figcaption>"


def clean_table(source: str, address: str = "") -> str:
    """A pandas table without its styling, numbers to the right, groups of columns apart."""
    table = parsed(source).table
    caption = table.caption.extract().decode_contents() if table.caption else ""
    for tag in [table, *table.find_all(True)]:
        tag.attrs = {k: v for k, v in tag.attrs.items() if k in ("colspan", "rowspan")}
    headings = len(table.thead.find_all("tr"))
    rows = [row.find_all(["th", "td"]) for row in table.find_all("tr")][headings - 1 :]
    # From the right, since an index of several levels has rows of several lengths.
    if headings > 1:
        place = 0
        for group in reversed(table.tr.find_all(["th", "td"])):
            place += int(group.get("colspan", 1))
            if "colspan" in group.attrs:
                group["class"] = "group" if group.get_text(strip=True) else "first"
                for row in rows:
                    row[-place]["class"] = "first"
    for heading, *column in zip(*map(reversed, rows), strict=False):
        texts = [cell.get_text(strip=True) for cell in column]
        if any(texts) and all(map(NUMBER.fullmatch, texts)):
            for cell in [heading, *column]:
                cell["class"] = ["num", *cell.get_attribute_list("class", [])]
            for number in filter(None, (cell.string for cell in column)):
                number.replace_with(re.sub(r"(?<![e\d])-", "−", number))
    caption = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure{address}>{caption}<div class="scroll table">{table}</div></figure>\n'


def inline_svg(source: str, alt: str, prefix: str) -> str:
    """An SVG drawing as part of the page, its ids made unique by `prefix`."""
    svg = re.sub(r"<!--.*?-->|<title.*?</title>", "", source[source.index("<svg") :], flags=re.S)
    for name in re.findall(r'\bid="([^"]+)"', svg):
        svg = re.sub(rf'(\bid="|#){re.escape(name)}(?![\w-])', rf"\1{prefix}{name}", svg)
    svg = re.sub(r'\s(?:role|aria-\w+|xmlns)="[^"]*"', "", svg)
    role = "group" if "<a " in svg else "img"  # what is an image to a screen reader hides its links
    label = f'role="{role}" aria-label="{html.escape(alt)}"'
    return f'<div class="picture scroll">{svg.replace("<svg", f"<svg {label}", 1).strip()}</div>'


# The cells, as HTML -------------------------------------------------------------------------------


class Cells:
    """The cells of a notebook as HTML, each in an element <cell name=… defines=…>.

    What a code cell is says its metadata, written when it was run.
    """

    def __init__(self, notebook: NotebookNode) -> None:
        self.runs: list[dict] = []  # what the notebook says about the run that made it
        self.codes = 0
        self.md = self.make_markdown()
        cells = [pair for pair in enumerate(notebook.cells, 1) if pair[1].source.strip()]
        self.html = "".join(self.cell(number, cell) for number, cell in cells)

    def cell(self, number: int, cell: NotebookNode) -> str:
        """One cell, under the name by which errors call it."""
        name = f"cell {number} ({cell.source.strip().splitlines()[0][:60]})"
        defines = " ".join(cell.metadata.get("annotated", {}).get("defines", []))
        defines = f' defines="{defines}"' if defines else ""
        try:
            inner = self.code(cell) if cell.cell_type == "code" else self.md.render(cell.source)
        except BuildError as error:
            raise BuildError(f"{name}: {error}") from None
        return f'<cell name="{html.escape(name)}"{defines}>{inner}</cell>'

    # Prose

    def make_markdown(self) -> MarkdownIt:
        """The Markdown of Jupyter: CommonMark, tables, HTML and formulas between dollars."""
        md = MarkdownIt("commonmark", {"html": True, "typographer": True})
        md.enable(["table", "strikethrough", "smartquotes"])
        md.use(dollarmath_plugin, allow_labels=False, double_inline=True)
        displayed = functools.partial(self.formula, display=True)
        rules = {
            "math_inline": self.formula,
            "math_inline_double": displayed,
            "math_block": displayed,
            "image": self.image,
            "fence": lambda token: code_block(token.content.rstrip(), token.info or "text"),
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
            rendered = json.loads(katex()(tex, display))
        except quickjs.JSException as error:
            told = str(error).splitlines()[0]
            raise BuildError(f"formula does not parse: {tex!r}: {told}") from None
        if display:
            return f'<span class="scroll display">{rendered}</span>'
        # A short formula is not broken over two lines.
        return f'<span class="short">{rendered}</span>' if len(tex) < 30 else rendered

    def image(self, token: Token) -> str:
        """A drawing of the project as part of the page."""
        # Inside a notebook it is a PNG, which has the drawing's name as its title.
        title = token.attrs.get("title")
        source = f"images/{Path(title).name}" if title else token.attrs["src"]
        if not token.content.strip():
            raise BuildError(f"image {source} has no alt text")
        path = PROJECT / source
        if not path.is_file():
            raise BuildError(f"image {source} does not exist")
        drawing = inline_svg(path.read_text("utf-8"), token.content, f"{path.stem}-")
        return f'<figure id="figure-{path.stem}">{drawing}</figure>\n'

    # Code and its outputs

    def code(self, cell: NotebookNode) -> str:
        """A code cell with its outputs."""
        about = cell.metadata.get("annotated")
        if about is None:
            raise BuildError("nothing says what this cell is: run it with tools/notebook.py")
        outputs = "".join(self.output(output, about) for output in cell.outputs)
        if "source" in about:
            return outputs  # the call that shows it tells a reader nothing
        self.codes += 1
        source = cell.source.strip("\n")
        block = code_block(source, name=f"code-{self.codes}")
        if "hide-input" not in cell.metadata.get("tags", []):
            return block + outputs
        kind = about["kind"]
        purpose = "set-up code" if kind in ("set-up", "facts") else f"code of this {kind}"
        lines = source.count("\n") + 1
        label = f"{purpose} <small>{lines} line{'s' * (lines > 1)}</small>"
        return f'<details class="fold"><summary>{label}</summary>\n{block}</details>\n{outputs}'

    def output(self, output: NotebookNode, about: dict) -> str:
        """One output: the richest form that the page can show without help from elsewhere."""
        if output.output_type == "error":
            raise BuildError(f"the cell ended with {output.ename}: {output.evalue}")
        if output.output_type == "stream":
            # Progress bars and warnings go to stderr; they say nothing to a reader.
            return self.printed(output.text, about) if output.name == "stdout" else ""
        data = output.get("data", {})
        if about["kind"] == "facts":  # the footer says them
            self.runs.append(ast.literal_eval(data["text/plain"]))
            return ""
        charts = [data[kind] for kind in sorted(data) if "vegalite" in kind]
        name = about["name"].replace("_", "-").removesuffix("-figure")
        address = f' id="figure-{name}"' if name else ""
        if charts:
            return f"<figure{address}>{chart_of(charts[0])}</figure>\n"
        if "<table" in data.get("text/html", ""):
            played = f"figure-{name}" in PLAYABLE
            return clean_table(data["text/html"], address if played else "")
        if "image/png" in data or "image/svg+xml" in data:
            raise BuildError("an image output has no alt text: draw it as a chart")
        return self.printed(data.get("text/plain", ""), about)

    def printed(self, text: str, about: dict) -> str:
        """Plain output of a cell; a view has a caption there, a check a look of its own."""
        text = html.escape(text.strip("\n"), quote=False)
        if not text.strip():
            return ""
        if "source" in about:
            return f'<div class="caption">{text}</div>\n'
        passed = " check" if about["kind"] == "check" else ""
        return f'<pre class="output{passed}"><samp>{text}</samp></pre>\n'


# Figures to play with -----------------------------------------------------------------------------


@functools.cache
def side_file() -> str:
    """The shipped model as a script for the page: checksum, settings and subwords, weights."""
    config = json.loads((MODEL / "config.json").read_bytes())["model"]
    for name, known in KNOWN.items():
        if config[name] != known:
            raise BuildError(f"{MODEL.name}: the page computes with {name} {known} only")
    tokenizer = json.loads((MODEL / "tokenizer.json").read_bytes())["model"]
    words = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    merges = [" ".join(pair) for pair in tokenizer["merges"]]
    settings = json.dumps({"config": config, "words": words, "merges": merges})
    weights = base64.b64encode((MODEL / "model.safetensors").read_bytes()).decode()
    check = zlib.adler32((settings + weights).encode())
    return f"self.translatorFiles = {json.dumps([check, settings, weights])};\n"


def engine() -> str:
    """A script with the model of the side file, and what the build asks of the figures."""
    model = "const model = stills.finish(stills.readingModel(translatorFiles));"
    return side_file() + bundle.bundle(FIGURES / "stills.js", "stills") + model


@functools.cache
def still_pictures() -> quickjs.Object:
    """The figures' own drawing of what is seen before they are touched: (name, data) -> JSON."""
    context = quickjs.Context()
    context.eval("globalThis.self = globalThis")
    context.eval(engine())
    return context.eval(
        "(name, data) => JSON.stringify(stills.still(model, name, JSON.parse(data)))"
    )


def make_playable(figure: Tag, name: str) -> None:
    """Put the still picture of a figure that can be played with in the place of the notebook's."""
    spec = figure.find("script", type="application/json")
    if spec:  # of a chart: its rows
        [data] = json.loads(spec.string)["datasets"].values()
    else:
        data = str(figure.svg)
    still = json.loads(still_pictures()(name, json.dumps(data, ensure_ascii=False)))
    figure["class"] = "playable"
    figure["data-play"] = name
    scene = json.dumps(still["scene"], ensure_ascii=False, separators=(",", ":"))
    scene = scene.replace("<", r"\u003c")  # so that it can stand inside a script element
    script = f'<script type="application/json">{scene}</script>'
    old = figure.find(class_=["chart", "picture", "table"])
    old.replace_with(parsed(f'<div class="stage">{still["html"]}</div>{script}'))


# The article --------------------------------------------------------------------------------------


def refuse(tag: Tag, message: str) -> None:
    """Stop the build, naming the cell."""
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
    """Refuse dead anchors, ids given twice, images without alt text and what asks the network."""
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


def add_captions(article: BeautifulSoup) -> None:
    """Join each paragraph that begins with **Figure 1** or **Table 1** to what stands before it."""
    for number in article.select("p > strong:first-child"):
        caption = number.parent
        shown = number.parent.find_previous_sibling()
        named = number.text.startswith(("Figure ", "Table "))
        begins = caption.contents[0] is number and named
        fits = shown and (shown.name == "figure" or "table" in shown.get("class", []))
        if not begins or not fits:
            continue
        if shown.name != "figure":
            shown = shown.wrap(article.new_tag("figure"))
        elif shown.figcaption:
            shown.figcaption.decompose()
        caption.name = "figcaption"
        shown.insert(0, caption) if shown.find(class_="table") else shown.append(caption)


def place_notes(article: BeautifulSoup) -> None:
    """Set our remarks apart; a short one stands beside the code or figure right before it."""
    for note in article.find_all("blockquote"):
        note.name = "div"
        note["class"] = "note"
        note["role"] = "note"
        outputs = list(takewhile(lambda tag: tag.name == "pre", note.find_previous_siblings()))
        shown = (outputs or [note])[-1].find_previous_sibling()
        beside = shown and (shown.name == "figure" or "code" in shown.get("class", []))
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
    for cell in article.find_all("cell"):
        cell.unwrap()
    for figure in article.find_all("figure", id=set(PLAYABLE)):
        make_playable(figure, PLAYABLE[figure["id"]])
    add_captions(article)
    place_notes(article)
    fold_sections(article)
    link_headings(article)
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
    """Show the code in a fold without folds of its own."""
    for cell in fold.select("details.fold:not(.section)"):
        cell.summary.decompose()
        cell.unwrap()


def fold_sections(article: BeautifulSoup) -> None:
    """Fold the set-up, exercises, what is there to be looked up, and the engine room."""
    start = takewhile(lambda each: each.name != "h2", article.children)
    set_up = list(dropwhile(lambda each: each.name != "details", start))
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


FIRST_FACES = ("source-sans-3-latin-wght-normal", "source-serif-4-latin-wght-normal")


def faces(names: Iterable[str]) -> str:
    """Rules for fonts, with the fonts in them."""
    rules = []
    for name in names:
        family, style = name.replace("-", " ").split(" latin wght ")
        data = (VENDOR / f"fonts/{name}.woff2").read_bytes()
        rules.append(
            f"@font-face{{font-family:'{family}';font-style:{style};font-weight:200 900;"
            f"font-display:block;src:url({data_uri('font/woff2', data)})}}"
        )
    return "\n".join(rules)


def styles() -> str:
    """The style sheet: fonts of the first screen, colours of code, our own."""
    rules = [faces(FIRST_FACES)]
    for theme, name in CODE_STYLES.items():
        for ink, [token, *_] in CODE_INKS.items():
            colour = get_style_by_name(name).style_for_token(token)["color"]
            rules.append(f':root[data-theme="{theme}"] .code .{ink}{{color:#{colour}}}')
    css = (VENDOR / "katex/katex.min.css").read_text("utf-8")
    rules.append(re.sub(r"@font-face\{[^}]*\}", "", css))
    own = (PARTS / "page.css", *sorted(FIGURES.glob("*.css")))
    return "\n".join([*rules, *(file.read_text("utf-8") for file in own)])


def later_styles() -> str:
    """The other fonts, half of the weight of all styles; the first screen does without them."""
    files = {file.stem for file in (VENDOR / "fonts").glob("*.woff2")}

    def embedded(rule: str) -> str:
        file = VENDOR / "katex" / re.search(r"url\((.*?\.woff2)\)", rule)[1]
        source = f"src:url({data_uri('font/woff2', file.read_bytes())})"
        return re.sub(r"src:[^}]*", source, rule) if file.stem[6:] in FACES else ""

    css = (VENDOR / "katex/katex.min.css").read_text("utf-8")
    rules = map(embedded, re.findall(r"@font-face\{[^}]*\}", css))
    return "\n".join([faces(sorted(files - {*FIRST_FACES})), *rules])


def preview() -> bytes:
    """The picture that is shown beside a link to the page: its first translation, as a PNG."""
    drawn = json.loads(still_pictures()("picture", "null"))["html"]
    frame = (PARTS / "preview.svg").read_text("utf-8")
    return vl_convert.svg_to_png(frame.replace("{{drawing}}", parsed(drawn).svg.decode_contents()))


def publish_problem(runs: list[dict]) -> str | None:
    """Why a page of these runs must not be published, or None."""
    run = runs[-1] if runs else {}
    corpus = str(run.get("corpus", "an unnamed corpus"))
    if corpus.startswith(("built-in", "an unnamed")):
        return f"the page was made from {corpus}, which is not a real corpus"
    if run.get("model", "demonstration") == "demonstration":
        return "the page was made without a finished model"
    return None


def build(notebook: Path) -> tuple[str, list[dict]]:
    """The page of an executed notebook, and what the notebook says about its run.

    Raises BuildError where the notebook holds something that must not reach a reader.
    """
    cells = Cells(nbformat.read(notebook, as_version=4))
    article = lay_out(cells.html)
    lead = article.p.get_text() if article.p else ""
    lead = lead[: lead.rfind(".", 0, 300) + 1] or lead[:200]  # whole sentences
    about = draft = ""
    if cells.runs:
        run = cells.runs[-1]
        problem = publish_problem(cells.runs)
        about = f"This page shows a run on {run.get('corpus')} at level {run.get('level')}."
        draft = f'<p class="draft" role="note">A draft: {problem}.</p>' if problem else ""
    home = address(PROJECT)
    licence, _, holders, *_ = OWN_LICENCE.read_text("utf-8").splitlines()
    byline = f"{holders.removeprefix('Copyright (c) ')} · {licence}"
    elsewhere = f'<p class="links">{" · ".join(filter(None, [byline, links(home)]))}</p>'
    picture = f"{home.files}docs/preview.png" if home.files else "preview.png"
    if article.p:
        article.p.insert_after(parsed(elsewhere))
    values = {
        "made_of": hashlib.sha256(SCRIPT.read_bytes()).hexdigest(),  # for make check-published
        "title": html.escape(article.h1.get_text(strip=True), quote=False),
        "summary": html.escape(" ".join(lead.split())),
        "styles": styles(),
        "later_styles": later_styles(),
        "contents": contents(article),
        "draft": draft,
        "preview": picture,
        "article": str(article),
        "about": html.escape(about),
        "licences": "\n".join((VENDOR / name).read_text("utf-8") for name in LICENCES),
        "vega": vega_bundle(*VEGA) if article.find(class_="chart") else "",
        "script": bundle.bundle(PARTS / "script/main.js"),
    }
    template = (PARTS / "template.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template), cells.runs


def make_page(executed: Path, output: Path, /, publish: bool = False) -> None:
    """Lay an executed notebook out; to publish it asks for a real corpus and a finished model."""
    page, runs = build(executed)
    if publish and (problem := publish_problem(runs)):
        raise BuildError(f"refusing to publish: {problem}")
    records.write_text(output, page)
    print(f"written: {output}, {len(page.encode()):,} bytes")
    if 'class="playable"' in page:
        records.write_text(output.parent / "model.js", side_file())
        (output.parent / "preview.png").write_bytes(preview())


main = records.command_line(make=make_page)

if __name__ == "__main__":
    sys.exit(main())
