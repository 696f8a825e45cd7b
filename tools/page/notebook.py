"""Turn the script into a notebook that stands alone, and bring its edits back.

The script from which a notebook was made is kept beside it, with the suffix .agreed.py; so we know
which of the two was edited since. If both were, nothing is written.
"""

import base64
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from tools.page.pictures import png_of_drawing, smaller
from tools.records import command_line, write_text

PERCENT = "py:percent"


def embed_images(source: str, folder: Path) -> str:
    """Put a markdown cell's images into it: ![alt](images/x.svg) becomes ![alt][images/x.svg], and
    at the end, not in the way of whoever edits the text, that name stands for a PNG: Jupyter shows
    no SVG that is attached, Colab shows none at all."""
    parts = [re.sub(r"\]\((images/[^)]+)\)", r"][\1]", source)]
    for name in dict.fromkeys(re.findall(r"\]\((images/[^)]+)\)", source)):
        data = base64.b64encode(png_of_drawing(folder / name)).decode()
        parts.append(f'[{name}]: data:image/png;base64,{data} "{name}"')
    return "\n\n".join(parts)


def restore_images(source: str) -> str:
    """Undo `embed_images`. Images of other kinds stay as they are."""
    source = re.sub(r"\n*^\[images/[^\]]+\]: data:.*$", "", source, flags=re.M)
    return re.sub(r"\]\[(images/[^\]]+)\]", r"](\1)", source)


def to_notebook(script: str, folder: Path) -> str:
    """The script's text as a notebook's text; `folder` holds images/."""
    notebook = jupytext.reads(script, PERCENT)
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


def to_script(notebook: NotebookNode, header_of: str) -> str:
    """A notebook as a script's text, with the header of another script."""
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


def edits(notebook: Path, script: str) -> str | None:
    """The notebook as a script's text if it has edits that the script lacks, else None."""
    agreed = notebook.with_suffix(".agreed.py")
    base = agreed.read_text("utf-8") if agreed.is_file() else script
    edited = to_script(nbformat.read(notebook, as_version=4), header_of=base)
    unedited = [to_script(jupytext.reads(text, PERCENT), header_of=text) for text in (base, script)]
    return None if edited in unedited else edited


def make_notebook(script: Path, notebook: Path, /) -> None:
    """Write the notebook of a script, unless edits of the older notebook would be lost."""
    text = script.read_text("utf-8")
    if notebook.is_file() and edits(notebook, text):
        raise ValueError(
            f"{notebook} has edits that {script} does not have: bring them back with `make py`, "
            "or delete the notebook"
        )
    made = to_notebook(text, script.parent)
    if not notebook.is_file() or notebook.read_text("utf-8") != made:  # for make, its date counts
        write_text(notebook, made)
    write_text(notebook.with_suffix(".agreed.py"), text)


def make_script(notebook: Path, script: Path, /) -> None:
    """Write the edits of a notebook into its script, unless the script was edited, too."""
    agreed = notebook.with_suffix(".agreed.py")
    text = script.read_text("utf-8")
    edited = edits(notebook, text)
    if edited is None:
        return
    if not agreed.is_file() or agreed.read_text("utf-8") != text:
        raise ValueError(
            f"{notebook} was not made from the present {script}; both stay as they are. Copy your "
            "edits of the notebook into the script by hand, then delete the notebook"
        )
    write_text(script, edited)
    write_text(agreed, edited)


def published(executed: Path) -> str:
    """The text of an executed notebook for readers who do not run it: with outputs, and small."""
    notebook = nbformat.read(executed, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("annotated", None)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                png = smaller(base64.b64decode(output.data["image/png"]))
                output.data["image/png"] = base64.b64encode(png).decode()
    return nbformat.writes(notebook) + "\n"


main = command_line(make=make_notebook, merge=make_script)

if __name__ == "__main__":
    sys.exit(main())
