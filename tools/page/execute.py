"""Execute a notebook; keep the outputs of examples that nothing has changed for.

Cells are compared by their syntax trees: a comment or another layout runs nothing. After a change
of code all definitions run again, and of the examples the changed one, those after it, and the
trainings that they ask for. Where model, records, corpus, PyTorch or level differ, everything runs.
The metadata of the executed notebook say what each cell is.
"""

import ast
import hashlib
import importlib.metadata
import itertools
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from tools.records import command_line, without_suffix, write_text


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


def tree(cell: NotebookNode) -> ast.Module:
    """The syntax tree of a code cell; a reader's own may hold %time."""
    return ast.parse(TransformerManager().transform_cell(cell.source))


def about(cell: NotebookNode) -> dict:
    """What a code cell is: its kind, what it defines, and the name of what it shows.

    A cell that only publishes a view of results has that as its source.
    """
    statements = tree(cell).body
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
                    source = {"source": f"results/views/{view}.json"}
    name = names[0] if names else ""
    return {"kind": kind_of(cell, name), "name": name, "defines": defines, **source}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def describe(notebook: NotebookNode) -> None:
    """Say in the metadata of every code cell what it is, for the builder of the page."""
    for cell in code_cells(notebook):
        cell.metadata["annotated"] = about(cell)


SHOWN = (
    "pretrained/*.json",
    "pretrained/*.safetensors",
    "results/views/*.json",
    "results/demonstration.json",
    "results/learning.json",
)


def checksums(folder: Path, *patterns: str) -> dict[str, str]:
    """A checksum of each file of a folder that one of the patterns fits."""
    files = sorted(file for pattern in patterns for file in folder.glob(pattern))
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        for file in files
        if file.is_file()
    }


def circumstances() -> dict:
    """What outputs depend on, beside the code."""
    return {
        "level": os.environ.get("ANNOTATED_RUN", "laptop"),
        "torch": without_suffix(importlib.metadata.version("torch")),
        "corpus": checksums(Path(os.environ.get("MULTI30K_DIR") or ".data/multi30k"), "*"),
        "shown": checksums(Path(), *SHOWN),
    }


def same_code(cell: NotebookNode, other: NotebookNode) -> bool:
    if cell.source == other.source:
        return True
    try:
        return ast.dump(tree(cell)) == ast.dump(tree(other))
    except SyntaxError:  # it will be met when the cell runs
        return False


def kept(notebook: NotebookNode, earlier: NotebookNode) -> int:
    """How many code cells, from the first on, keep the outputs of an earlier run."""
    cells = code_cells(notebook)
    pairs = zip(cells, code_cells(earlier), strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: same_code(*pair), pairs))
    then, now = earlier.metadata.get("made_with", {}), circumstances()
    if same == len(cells) and not now["corpus"]:  # a corpus that is not here has not changed
        then = then | {"corpus": {}}
    return same if then == now else 0


def execute(notebook: NotebookNode, first: int) -> None:
    """Run a notebook in the present folder by this very interpreter.

    Of the code cells before the first one, counted from 1, only the definitions run.
    """

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
        switch = {"ANNOTATED_FIRST": str(first)}  # the script's `example` looks at it
        try:
            client.execute(env=os.environ | same | switch, cleanup_kc=True)
        except (CellExecutionError, DeadKernelError) as error:
            raise ValueError(re.sub(r"\x1b\[[0-9;]*m", "", str(error))) from None
        except AssertionError:  # of nbclient, after Ctrl-C has ended its kernel
            if client.km is None:
                raise KeyboardInterrupt from None
            raise


def run(source: Path, target: Path, published: Path | None = None, /) -> None:
    """Write the executed notebook; run what neither its last version nor the published one has.

    If a cell fails, the target stays as it is.
    """
    notebook = nbformat.read(source, as_version=4)
    cells = code_cells(notebook)
    paths = [path for path in (published, target) if path and path.is_file()]
    versions = [nbformat.read(path, as_version=4) for path in paths]
    earlier = max(versions, key=lambda version: kept(notebook, version), default=new_notebook())
    count = kept(notebook, earlier)
    print(f"{count} of {len(cells)} cells keep their outputs", file=sys.stderr)
    made_with = earlier.metadata.get("made_with")
    if count < len(cells):
        execute(notebook, first=count + 1)
        made_with = circumstances()
    for cell, before in list(zip(cells, code_cells(earlier), strict=False))[:count]:
        cell.outputs = before.outputs
        cell.execution_count = before.execution_count
    notebook.metadata["made_with"] = made_with
    describe(notebook)
    write_text(target, nbformat.writes(notebook) + "\n")


main = command_line(run=run)

if __name__ == "__main__":
    sys.exit(main())
