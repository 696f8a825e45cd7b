"""The cells of an executed notebook as HTML."""

import ast
import functools
import html
import json
from pathlib import Path

import quickjs
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode

from tools.page import javascript, outputs
from tools.page.bare import bare
from tools.page.highlight import code_block
from tools.page.markup import VENDOR, BuildError, json_script
from tools.page.playable import registry
from tools.records import PROJECT

BARE = "<!-- the bare model -->"


@functools.cache
def bare_model() -> str:
    """The bare model in a fold."""
    source = bare((PROJECT / "the_annotated_transformer.py").read_text("utf-8")).strip()
    block = code_block(source, name="code-bare")
    label = f"transformer.py <small>{source.count(chr(10)) + 1} lines</small>"
    return f'<details class="fold"><summary>{label}</summary>\n{block}</details>\n'


@functools.cache
def katex() -> str:
    return (VENDOR / "katex/katex.min.js").read_text("utf-8")


def purpose(about: dict) -> str:
    """What is in a folded cell: what it defines, or else what it shows."""
    if about["kind"] not in ("set-up", "facts"):
        return f"code of this {about['kind']}"
    return f"code: {defined(about)}" if about["defines"] else "set-up code"


def defined(about: dict) -> str:
    """What a cell defines, in short."""
    names = [f"<code>{name}</code>" for name in about["defines"]]
    others = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + others or about["name"].replace("_", " ") or "code"


def figure(name: str, shown: str) -> str:
    """What a cell shows, under a name by which another figure may take its place."""
    return f'<figure data-name="{name}">{shown}</figure>\n'


class Cells:
    """Each cell in an element <cell name=… defines=…>.

    The metadata of a code cell says what it is; they are written when it was run.
    """

    def __init__(self, notebook: NotebookNode) -> None:
        self.run: dict = {}  # what the notebook says about the run that made it
        self.codes = 0
        self.markdown = self.make_markdown()
        cells = [pair for pair in enumerate(notebook.cells, 1) if pair[1].source.strip()]
        self.html = "".join(self.cell(number, cell) for number, cell in cells)

    def cell(self, number: int, cell: NotebookNode) -> str:
        """One cell, under the name that error messages use."""
        name = f"cell {number} ({cell.source.strip().splitlines()[0][:60]})"
        defines = " ".join(cell.metadata.get("annotated", {}).get("defines", []))
        defines = f' defines="{defines}"' if defines else ""
        is_code = cell.cell_type == "code"
        try:
            inner = self.code(cell) if is_code else self.prose(cell.source)
        except BuildError as error:
            raise BuildError(f"{name}: {error}") from None
        return f'<cell name="{html.escape(name)}"{defines}>{inner}</cell>'

    # Prose

    def prose(self, source: str) -> str:
        """Markdown as HTML; where a comment asks for the bare model, it stands folded."""
        return self.markdown.render(source).replace(BARE, bare_model())

    def make_markdown(self) -> MarkdownIt:
        """The Markdown of Jupyter: CommonMark, tables, HTML and formulas between dollars."""
        markdown = MarkdownIt("commonmark", {"html": True, "typographer": True})
        markdown.enable(["table", "strikethrough", "smartquotes"])
        markdown.use(dollarmath_plugin, allow_labels=False, double_inline=True)
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
            markdown.add_render_rule(name, lambda _, tokens, i, *rest, rule=rule: rule(tokens[i]))
        return markdown

    def formula(self, token: Token, display: bool = False) -> str:
        """A formula as HTML and MathML."""
        tex = token.content.strip()
        render = "(tex, displayMode) => katex.renderToString(tex, { displayMode, strict: 'error' })"
        try:
            rendered = json.loads(javascript.call(katex(), render, tex, display))
        except quickjs.JSException as error:
            reason = str(error).splitlines()[0]
            raise BuildError(f"formula does not parse: {tex!r}: {reason}") from None
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
        drawing = outputs.drawing(path.read_text("utf-8"), token.content, f"{path.stem}-")
        return figure(path.stem, drawing)

    # Code and its outputs

    def code(self, cell: NotebookNode) -> str:
        """A code cell with its outputs."""
        about = cell.metadata.get("annotated")
        if about is None:
            raise BuildError("nothing says what this cell is: run it with tools/page/execute.py")
        shown = "".join(self.output(output, about) for output in cell.outputs)
        if "source" in about:
            return shown  # the call that shows it tells a reader nothing
        self.codes += 1
        source = cell.source.strip("\n")
        block = code_block(source, name=f"code-{self.codes}")
        lines = source.count("\n") + 1
        length = f"<small>{lines} line{'s' * (lines > 1)}</small>"
        if "hide-input" in cell.metadata.get("tags", []):
            label = f"<summary>{purpose(about)} {length}</summary>"
            return f'<details class="fold">{label}\n{block}</details>\n{shown}'
        if about["kind"] == "check" and not any(name[0].isupper() for name in about["defines"]):
            passed = about["name"].removeprefix("check_").replace("_", " ")
            label = f'<summary class="good">✓ {passed} {length}</summary>'
            return f'<details class="cell" open>{label}\n{block}{shown}</details>\n'
        label = f"<summary>{defined(about)} {length}</summary>"  # seen where only ideas are
        return f'<details class="cell" open>{label}\n{block}</details>\n{shown}'

    def output(self, output: NotebookNode, about: dict) -> str:
        """One output: the richest form that needs no network."""
        if output.output_type == "error":
            raise BuildError(f"the cell ended with {output.ename}: {output.evalue}")
        if output.output_type == "stream":
            # Progress bars and warnings go to stderr; they say nothing to a reader.
            return self.printed(output.text, about) if output.name == "stdout" else ""
        data = output.get("data", {})
        if about["kind"] == "facts":  # the footer says them
            self.run = ast.literal_eval(data["text/plain"])
            return ""
        name = about["name"].replace("_", "-").removesuffix("-figure")
        for kind in sorted(data):
            if "vegalite" in kind and name in registry():
                [rows] = data[kind]["datasets"].values()
                return figure(name, json_script(rows))
            if "vegalite" in kind:
                return figure(name, outputs.chart(data[kind]))
        if "<table" in data.get("text/html", ""):
            return figure(name, outputs.table(data["text/html"]))
        if "image/png" in data or "image/svg+xml" in data:
            raise BuildError("an image output has no alt text: draw it as a chart")
        return self.printed(data.get("text/plain", ""), about)

    def printed(self, text: str, about: dict) -> str:
        """Plain output of a cell."""
        text = html.escape(text.strip("\n"), quote=False)
        if not text.strip():
            return ""
        passed = " check" if about["kind"] == "check" else ""
        return f'<pre class="output{passed}"><samp>{text}</samp></pre>\n'
