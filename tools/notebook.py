"""Turn the script into a notebook, bring a notebook's edits back, and execute a notebook.

    python tools/notebook.py to-notebook SCRIPT NOTEBOOK
    python tools/notebook.py to-script   NOTEBOOK SCRIPT
    python tools/notebook.py execute     NOTEBOOK EXECUTED
    python tools/notebook.py check       SCRIPT   FOLDER

The notebook stands alone: its images lie inside it. Every command gives the same bytes for the same
input, and leaves an existing output as it was when something fails.
"""

import argparse
import base64
import html
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

PROJECT = Path(__file__).resolve().parent.parent
PERCENT = "py:percent"


class NotebookError(Exception):
    """What the user should read instead of a traceback."""


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none: a reader never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    os.replace(partial, path)


# Images -----------------------------------------------------------------------------------------
# JupyterLab shows SVG from a data URI but not from an attachment; Colab shows neither, and no
# attachments at all. A PNG as data URI is what both show. It goes to the end of its cell, as a link
# definition under the file's name, so that the text above stays readable while it is edited:
#     ![alt](images/x.svg)   becomes   ![alt][x.svg] … [x.svg]: data:image/png;base64,… "x.svg"

IMAGE = re.compile(r"(!\[[^\]]*\])\(images/([^)\s]+)\)")
EMBEDDED = re.compile(r"(!\[[^\]]*\])\[([^\]]+)\]")
DEFINITION = re.compile(r'\n*^\[([^\]\n]+)\]: data:image/png;base64,\S+ "\1"$', flags=re.M)


def light_colours(svg: str) -> str:
    """The drawing with every var(--name) replaced, since the rasteriser does not know them.

    The first value of a name counts, which is the one for light pages.
    """
    values: dict[str, str] = {}
    for name, value in re.findall(r"(--[\w-]+)\s*:\s*([^;}]+)", svg):
        values.setdefault(name, value.strip())
    return re.sub(r"var\(\s*(--[\w-]+)[^)]*\)", lambda m: values.get(m[1], m[0]), svg)


def png_of(path: Path) -> bytes:
    """The image as a small PNG, on white: lines on nothing would vanish in a dark theme."""
    import vl_convert
    from PIL import Image

    data = path.read_bytes()
    if path.suffix == ".svg":
        data = vl_convert.svg_to_png(light_colours(data.decode()), scale=1.5)
    image = Image.open(io.BytesIO(data)).convert("RGBA")
    page = Image.new("RGBA", image.size, "white")
    page.alpha_composite(image)
    small = io.BytesIO()
    page.convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return small.getvalue()


def embed_images(source: str, folder: Path) -> str:
    """Put the images that a markdown cell names by path into the cell."""
    definitions = []
    for name in dict.fromkeys(name for _, name in IMAGE.findall(source)):
        path = folder / "images" / name
        if not path.is_file():
            raise NotebookError(f"the script shows images/{name}, and there is no {path}")
        data = base64.b64encode(png_of(path)).decode()
        definitions.append(f'[{name}]: data:image/png;base64,{data} "{name}"')
    return "\n\n".join([IMAGE.sub(r"\1[\2]", source), *definitions])


def restore_images(source: str) -> str:
    """Undo embed_images: name the images by path again. Other images stay as they are."""
    ours = set(DEFINITION.findall(source))
    source = DEFINITION.sub("", source)
    return EMBEDDED.sub(lambda m: f"{m[1]}(images/{m[2]})" if m[2] in ours else m[0], source)


# Script and notebook ----------------------------------------------------------------------------


HEADER = re.compile(r"# ---\n(?:#.*\n)*?# ---\n\n?")  # jupytext's own, in front of the first cell


def to_notebook(script: str, folder: Path) -> str:
    """The script's text as a notebook's text. `folder` holds images/."""
    notebook = jupytext.reads(script, PERCENT)
    for number, cell in enumerate(notebook.cells, 1):
        cell["id"] = f"cell-{number:03d}"
        if cell.cell_type == "markdown":
            cell.source = embed_images(cell.source, folder)
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return nbformat.writes(notebook) + "\n"


def content(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    """What a reader can edit in a notebook: of every cell its type, text and tags."""
    return [(c.cell_type, c.source, list(c.metadata.get("tags", []))) for c in notebook.cells]


def to_script(notebook_text: str, script: str) -> str:
    """The notebook's text as a script. Where nothing differs, `script` comes back byte for byte."""
    notebook = nbformat.reads(notebook_text, as_version=4)
    for number, cell in enumerate(notebook.cells, 1):
        if cell.get("attachments"):
            raise NotebookError(
                f"cell {number} has a pasted image, which a script cannot hold: save it under "
                "images/ and name it by ![description](images/…)"
            )
        if cell.cell_type == "markdown":
            cell.source = restore_images(cell.source)
    if script and content(notebook) == content(jupytext.reads(script, PERCENT)):
        return script
    # Jupyter and Colab add metadata of their own; of a cell only its tags belong to the script, and
    # the script's header stays as it is.
    notebook.metadata.setdefault("jupytext", {}).update(
        notebook_metadata_filter="-all", cell_metadata_filter="tags,-all"
    )
    header = HEADER.match(script)
    return (header[0] if header else "") + jupytext.writes(notebook, PERCENT)


# Script and notebook can both be edited. The script's text when the two last agreed lies beside the
# notebook, so that neither command overwrites edits that the other side does not have.


def agreed_path(notebook: Path) -> Path:
    return notebook.with_suffix(".agreed.py")


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def make_notebook(script: Path, notebook: Path) -> None:
    """Write the notebook of a script."""
    text, agreed = script.read_text(encoding="utf-8"), read_text(agreed_path(notebook))
    if agreed and notebook.is_file():
        edited = to_script(read_text(notebook), agreed)
        if edited != agreed and to_script(read_text(notebook), text) != text:
            raise NotebookError(
                f"{notebook} has edits that {script} does not have: bring them back with "
                "`make py`, or delete the notebook"
            )
    write_text(notebook, to_notebook(text, script.parent))
    write_text(agreed_path(notebook), text)


def make_script(notebook: Path, script: Path) -> None:
    """Bring the edits of a notebook back into its script."""
    text, agreed = read_text(script), read_text(agreed_path(notebook))
    edited = to_script(notebook.read_text(encoding="utf-8"), text)
    if edited == text:
        print(f"{script} has everything that {notebook} has")
    elif agreed and text != agreed and to_script(read_text(notebook), agreed) == agreed:
        print(f"{notebook} is unedited, and {script} is newer: nothing to bring back")
        return
    elif agreed and text != agreed:
        raise NotebookError(
            f"{script} and {notebook} were both edited since `make notebook`. What the script "
            f"had then lies in {agreed_path(notebook)}: put it back and run `make py`, or delete "
            "the notebook"
        )
    else:
        write_text(script, edited)
    write_text(agreed_path(notebook), edited)


# Execution --------------------------------------------------------------------------------------


def first_line(cell: NotebookNode) -> str:
    """The line that names the cell: its first one that says more than a decorator does."""
    lines = [line for line in cell.source.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("@")), "")


def run_cells(notebook: NotebookNode, folder: Path) -> None:
    """Run every code cell in a kernel of this very interpreter, working in `folder`."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    class OwnKernel(AsyncKernelManager):
        def _kernel_spec_manager_default(self) -> KernelSpecManager:
            return KernelSpecManager(parent=self, kernel_dirs=[])  # leaves this interpreter's own

    total, now = len(notebook.cells), {"number": 0, "cell": None, "start": time.monotonic()}

    def started(cell: NotebookNode, cell_index: int) -> None:
        now.update(number=cell_index + 1, cell=cell, start=time.monotonic())
        if cell.cell_type == "code":
            print(
                f"[{cell_index + 1}/{total}] {first_line(cell)[:72]}", file=sys.stderr, flush=True
            )

    def finished(cell: NotebookNode, cell_index: int, **_: object) -> None:
        if (seconds := time.monotonic() - now["start"]) >= 1:
            print(f"[{cell_index + 1}/{total}] {seconds:.0f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as ipython:
        # No kernel installed elsewhere, no start-up file of the user, no progress bars (their times
        # differ from run to run), one order of sets.
        environment = {
            "PYTHONHASHSEED": "0",
            "TQDM_DISABLE": "1",
            **os.environ,
            "IPYTHONDIR": ipython,
        }
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            kernel_manager_class=OwnKernel,
            timeout=None,
            extra_arguments=["--log-level=ERROR"],  # the kernel warns of its own loopback port
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
            on_cell_start=started,
            on_cell_executed=finished,
        )
        try:
            client.execute(env=environment)
        except (CellExecutionError, DeadKernelError) as error:
            cell = f"cell {now['number']} of {total}: {first_line(now['cell'])}"
            reason = re.sub(r"\x1b\[[0-9;]*m", "", getattr(error, "traceback", "") or str(error))
            raise NotebookError(f"{cell}\n\n{reason}\n\nfailed in {cell}") from None


def overwrite_lines(text: str) -> str:
    """What a terminal would show of a stream: a carriage return starts its line anew."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def without_traces(value: object) -> object:
    """Text without what changes from run to run: names of kernel files, addresses."""
    if isinstance(value, str):
        value = re.sub(r"\S*/ipykernel_\d+/\d+\.py", "<cell>", value)
        return re.sub(r"\bat 0x[0-9a-f]{6,}", "at 0x…", value)
    return [without_traces(item) for item in value] if isinstance(value, list) else value


def tidy(notebook: NotebookNode) -> None:
    """Make outputs the same from run to run: merged streams, counted executions, no traces."""
    count = 0
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        if cell.execution_count is not None:
            count += 1
            cell.execution_count = count
        outputs: list[NotebookNode] = []
        for output in cell.outputs:
            last = outputs[-1] if outputs else None
            if "execution_count" in output:
                output.execution_count = cell.execution_count
            if output.output_type != "stream":
                outputs.append(output)
            elif last and last.output_type == "stream" and last.name == output.name:
                last.text += output.text
            else:
                outputs.append(output)
        for output in outputs:
            if output.output_type == "stream":
                output.text = without_traces(overwrite_lines(output.text))
            elif output.output_type == "error":
                output.traceback = without_traces(output.traceback)
            elif "text/plain" in output.get("data", {}):
                output.data["text/plain"] = without_traces(output.data["text/plain"])
        cell.outputs = outputs


def execute(source: Path, target: Path, folder: Path) -> None:
    """Execute a notebook; the target is written only when every cell ran."""
    notebook = nbformat.reads(source.read_text(encoding="utf-8"), as_version=4)
    start = time.monotonic()
    run_cells(notebook, folder)
    tidy(notebook)
    write_text(target, nbformat.writes(notebook) + "\n")
    print(f"{target}: {time.monotonic() - start:.0f} s", file=sys.stderr)


# What is published ------------------------------------------------------------------------------


def check_published(script: Path, folder: Path) -> None:
    """NotebookError where the notebook or the page in a folder was made of an older script."""
    now = nbformat.reads(to_notebook(script.read_text("utf-8"), script.parent), as_version=4)
    path = folder / script.with_suffix(".ipynb").name
    notebook = nbformat.read(path, as_version=4)
    for cell in [*now.cells, *notebook.cells]:
        cell.source = restore_images(cell.source)
    page = (folder / "index.html").read_text("utf-8")
    blocks = re.findall(r'<div class="code"[^>]*><pre><code>(.*?)</code></pre>', page, flags=re.S)
    shown = {html.unescape(re.sub("<[^>]+>", "", block)) for block in blocks}
    older = [] if content(notebook) == content(now) else [str(path)]
    if not {cell.source for cell in now.cells if cell.cell_type == "code"} <= shown:
        older.append(str(folder / "index.html"))
    if older:
        raise NotebookError(f"older than {script}: {', '.join(older)}; `make blog` makes them anew")
    print(f"{folder} has what {script} has")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("to-notebook", "to-script", "check", "execute"):
        command = commands.add_parser(name)
        command.add_argument("source", type=Path)
        command.add_argument("target", type=Path)
    command.add_argument(
        "--folder", type=Path, default=PROJECT, help="where the cells run (default: the project)"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "to-notebook":
            make_notebook(options.source, options.target)
        elif options.command == "to-script":
            make_script(options.source, options.target)
        elif options.command == "check":
            check_published(options.source, options.target)
        else:
            execute(options.source, options.target, options.folder)
    except (NotebookError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
