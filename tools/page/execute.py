"""Execute a notebook, or keep earlier outputs; say in its metadata what each cell is."""

import ast
import hashlib
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

from tools.records import command_line, write_text


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

    A cell that only publishes a view of results has that as its source.
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
                    source = {"source": f"results/views/{view}.json"}
    name = names[0] if names else ""
    return {"kind": kind_of(cell, name), "name": name, "defines": defines, **source}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def describe(notebook: NotebookNode) -> None:
    """Say in the metadata of every code cell what it is, for the builder of the page."""
    for cell in code_cells(notebook):
        cell.metadata["annotated"] = about(cell)


SHOWN = "pretrained/*.json", "pretrained/*.safetensors", "results/views/*.json"


def shown_files() -> dict[str, str]:
    """A checksum of each file that outputs depend on, beside the code."""
    files = sorted(file for pattern in SHOWN for file in Path().glob(pattern))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files}


def with_outputs_of(source: Path, executed: Path) -> NotebookNode | None:
    """A notebook with the outputs of an executed one; None if code, model or charts differ."""
    notebook = nbformat.read(source, as_version=4)
    before = nbformat.read(executed, as_version=4)
    cells, cells_before = code_cells(notebook), code_cells(before)
    if [cell.source for cell in cells] != [cell.source for cell in cells_before]:
        return None
    if before.metadata.get("shown") != shown_files():
        return None
    for cell, cell_before in zip(cells, cells_before, strict=True):
        cell.outputs = cell_before.outputs
        cell.execution_count = cell_before.execution_count
    notebook.metadata = before.metadata
    return notebook


def write(notebook: NotebookNode, target: Path) -> None:
    describe(notebook)
    write_text(target, nbformat.writes(notebook) + "\n")


def keep(source: Path, executed: Path, target: Path, /) -> None:
    """Write a notebook with the outputs of an executed one, if nothing but prose has changed."""
    notebook = with_outputs_of(source, executed)
    if notebook is None:
        raise ValueError(
            f"code, model or charts have changed since {executed} was made: `make blog` runs it"
        )
    write(notebook, target)


def run(source: Path, target: Path, /, keep_outputs: bool = False) -> None:
    """Run all cells in the present folder by this very interpreter; only then write the target.

    The target also says what each cell is.

    Args:
        keep_outputs: run nothing if the target has the outputs of the same code
    """
    if keep_outputs and (notebook := with_outputs_of(source, target)):
        return write(notebook, target)
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
    notebook.metadata["shown"] = shown_files()
    write(notebook, target)


main = command_line(run=run, keep=keep)

if __name__ == "__main__":
    sys.exit(main())
