"""Turn the script into a notebook that stands alone, merge its edits back, and execute it.

The same input gives the same bytes; an existing output stays as it was when something fails.
"""

import ast
import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
import vl_convert
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from PIL import Image

from tools.address import address
from tools.page.pictures import on_white
from tools.records import command_line, write_text

PERCENT = "py:percent"


def png_of(drawing: Path) -> bytes:
    """An SVG drawing as a small PNG, in its light colours and on white."""
    svg = drawing.read_text("utf-8")
    for name, value in re.findall(r"(--[\w-]+):\s*([^;}]+)", svg):  # those for light pages first
        svg = svg.replace(f"var({name})", value.strip())  # unknown to the rasteriser
    small = io.BytesIO()
    page = on_white(vl_convert.svg_to_png(svg, scale=1.5))
    page.quantize(256).save(small, "PNG", optimize=True)
    return small.getvalue()


def embed_images(source: str, folder: Path) -> str:
    """Put a markdown cell's images into it: ![alt](images/x.svg) becomes ![alt][images/x.svg], and
    at the end, not in the way of whoever edits the text, that name stands for a PNG: Jupyter shows
    no SVG that is attached, Colab shows none at all."""
    parts = [re.sub(r"\]\((images/[^)]+)\)", r"][\1]", source)]
    for name in dict.fromkeys(re.findall(r"\]\((images/[^)]+)\)", source)):
        data = base64.b64encode(png_of(folder / name)).decode()
        parts.append(f'[{name}]: data:image/png;base64,{data} "{name}"')
    return "\n\n".join(parts)


def restore_images(source: str) -> str:
    """Undo `embed_images`. Images of other kinds stay as they are."""
    source = re.sub(r"\n*^\[images/[^\]]+\]: data:.*$", "", source, flags=re.M)
    return re.sub(r"\]\[(images/[^\]]+)\]", r"](\1)", source)


FETCHED = "pretrained/model.safetensors pretrained/tokenizer.json pretrained/config.json".split()
FETCHES = "# What lies beside the script at its address"  # how the cell that fetches it begins
FETCH = """{fetches}, where it is missing here.
# Each file is checked by its SHA-256 sum.
import pooch

FILES_AT = {files!r}
SUMS = {sums}

try:
    for name, known in SUMS.items():
        if not (HERE / name).is_file():
            place = (HERE / name).parent
            pooch.retrieve(FILES_AT + name, f"sha256:{{known}}", Path(name).name, place)
except (OSError, ValueError) as error:
    print(f"{{name}} could not be fetched: this notebook goes on without. ({{error}})")
"""


def fetching_cell(folder: Path) -> NotebookNode | None:
    """A cell that fetches model (config.json last) and results, where there is an address."""
    files = address(folder).files
    views = sorted(folder.glob("docs/results/views/*.json"))
    names = [*FETCHED, *(view.relative_to(folder).as_posix() for view in views)]
    if not files or not all((folder / name).is_file() for name in names):
        return None
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    text = FETCH.format(fetches=FETCHES, files=files, sums=json.dumps(sums, indent=4))
    return new_code_cell(text.rstrip("\n"), metadata={"tags": ["hide-input"]})


def to_notebook(script: str, folder: Path) -> str:
    """The script's text as a notebook's text. `folder` holds images/ and what is to be fetched."""
    notebook = jupytext.reads(script, PERCENT)
    set_up = [n for n, cell in enumerate(notebook.cells, 1) if "IN_NOTEBOOK = " in cell.source]
    if set_up and (cell := fetching_cell(folder)):
        notebook.cells.insert(set_up[0], cell)
    for number, cell in enumerate(notebook.cells, 1):
        cell["id"] = f"cell-{number:03d}"
        if cell.cell_type == "markdown":
            cell.source = embed_images(cell.source, folder)
        elif "hide-input" in cell.metadata.get("tags", []):  # folded, in Jupyter and in Colab
            cell.metadata["jupyter"] = {"source_hidden": True}
            cell.metadata["cellView"] = "form"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = kernel
    return nbformat.writes(notebook) + "\n"


def to_script(notebook_text: str, header_of: str) -> str:
    """The notebook's text as a script's text, with the header of another script."""
    notebook = nbformat.reads(notebook_text, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith(FETCHES)]
    for number, cell in enumerate(notebook.cells, 1):
        if cell.get("attachments"):
            raise ValueError(
                f"cell {number} has a pasted image, which a script cannot hold: save it under "
                "images/ and name it by ![description](images/…)"
            )
        if cell.cell_type == "markdown":
            cell.source = restore_images(cell.source)
    # Jupyter and Colab add metadata of their own; only a cell's tags belong to the script.
    filters = {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,-all"}
    notebook.metadata["jupytext"] = filters
    header = re.match(r"# ---\n(?:#.*\n)*?# ---\n\n?", header_of)
    return (header[0] if header else "") + jupytext.writes(notebook, PERCENT)


def merge(script: Path, notebook: Path) -> tuple[str, str]:
    """The script's text with the edits of a notebook, and the text of the notebook alone.

    An edit is what differs from the text when both last agreed, which lies beside the notebook.
    ValueError where both edit the same lines; the script then stays as it is.
    """
    agreed = notebook.with_suffix(".agreed.py")
    both = notebook.with_suffix(".merged.py")
    ours = script.read_text("utf-8")
    edited = notebook.read_text("utf-8")
    agreed.touch()  # empty where nothing was agreed on
    base = agreed.read_text("utf-8")
    theirs = to_script(edited, header_of=base or ours)
    if theirs in (base, ours):
        return ours, theirs
    write_text(both, theirs)
    command = "git merge-file -p -L script -L agreed -L notebook".split()
    result = subprocess.run([*command, script, agreed, both], capture_output=True, encoding="utf-8")
    write_text(both, result.stdout)
    if result.returncode:
        raise ValueError(
            f"{script} and {notebook} edit the same lines, and stay as they are. {both} has both "
            f"versions: choose there, copy it over {script}, and delete {notebook}. {result.stderr}"
        )
    both.unlink()
    return result.stdout, theirs


def make_notebook(script: Path, notebook: Path, /) -> None:
    """Write the notebook of a script, unless edits of the older notebook would be lost."""
    text = script.read_text("utf-8")
    if notebook.is_file() and merge(script, notebook)[0] != text:
        raise ValueError(
            f"{notebook} has edits that {script} does not have: bring them back with `make py`, "
            "or delete the notebook"
        )
    made = to_notebook(text, script.parent)
    write_text(notebook, made)
    write_text(notebook.with_suffix(".agreed.py"), to_script(made, header_of=text))


def make_script(notebook: Path, script: Path, /) -> None:
    """Merge the edits of a notebook into its script."""
    text, agreed = merge(script, notebook)
    write_text(script, text)
    write_text(notebook.with_suffix(".agreed.py"), agreed)


def kind_of(cell: NotebookNode, name: str) -> str:
    """What a code cell is: figure, table, check, output, or set-up where it shows nothing.

    `name` is that of its example; one of them tells the builder of the page facts about it. What
    goes to stderr is not shown.
    """
    if name == "what_this_page_was_made_from":
        return "facts"
    shown = [output for output in cell.outputs if output.get("name") != "stderr"]
    types = {mime for output in shown for mime in output.get("data", {})}
    if any("vegalite" in mime for mime in types):
        return "figure"
    if "text/html" in types:
        return "table"
    if not shown:
        return "set-up"
    return "check" if name.startswith("check_") else "output"


def about(cell: NotebookNode) -> dict:
    """What a code cell is: its kind, what it defines, and the name of what it shows.

    A cell that only publishes a view of docs/results has that as its source.
    """
    code = TransformerManager().transform_cell(cell.source)  # a reader's own cell may hold %time
    statements = ast.parse(code).body
    defines = []
    names = []
    source = {}
    for statement in statements:
        match statement:
            case ast.FunctionDef(decorator_list=[ast.Name("example"), *_]):
                names.append(statement.name)
            case ast.FunctionDef() | ast.ClassDef():
                defines.append(statement.name)
            case ast.Expr(ast.Call(ast.Name("published"), [ast.Constant(str(view))])):
                names.append(view)
                if len(statements) == 1:
                    source = {"source": f"docs/results/views/{view}.json"}
    name = names[0] if names else ""
    return {"kind": kind_of(cell, name), "name": name, "defines": defines, **source}


def describe(notebook: NotebookNode) -> None:
    """Say in the metadata of every code cell what it is, for the builder of the page."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata["annotated"] = about(cell)


def execute(source: Path, target: Path, /) -> None:
    """Run all cells in the present folder by this very interpreter; only then write the target.

    It also says what each cell is. The notebook that was run stays without this.
    """
    notebook = nbformat.read(source, as_version=4)

    def announce(cell: NotebookNode, cell_index: int) -> None:
        name = re.sub(r"^(@.*\n)*", "", cell.source.strip()).split("\n")[0]
        print(f"[{cell_index + 1}/{len(notebook.cells)}] {name}", file=sys.stderr, flush=True)

    client = NotebookClient(
        notebook,
        AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[])),
        coalesce_streams=True,
        record_timing=False,
        on_cell_execute=announce,
        extra_arguments=["--log-level=CRITICAL"],  # it warns of its port, complains of Ctrl-C
    )
    with tempfile.TemporaryDirectory() as settings:  # no start-up files of the user
        # Progress bars show times, and sets have an order: both differ from run to run.
        same = {"PYTHONHASHSEED": "0", "TQDM_DISABLE": "1", "IPYTHONDIR": settings}
        try:
            client.execute(env=os.environ | same, cleanup_kc=True)
        except (CellExecutionError, DeadKernelError) as error:
            raise ValueError(re.sub(r"\x1b\[[0-9;]*m", "", str(error))) from None
        except AssertionError:  # of nbclient, after Ctrl-C has ended its kernel
            if client.km is None:
                raise KeyboardInterrupt from None
            raise
    describe(notebook)
    write_text(target, nbformat.writes(notebook) + "\n")


def smaller(picture: str) -> str:
    """A PNG, as a notebook holds it, in few colours and on white."""
    small = io.BytesIO()
    page = on_white(base64.b64decode(picture))
    page.quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def publish(executed: Path, target: Path, /) -> None:
    """Write an executed notebook as it is shown by those who run none: with outputs, and small."""
    notebook = nbformat.read(executed, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("annotated", None)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    write_text(target, nbformat.writes(notebook) + "\n")


main = command_line(make=make_notebook, merge=make_script, execute=execute, publish=publish)

if __name__ == "__main__":
    sys.exit(main())
