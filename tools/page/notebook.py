"""Turn the script into a notebook that stands alone, and merge its edits back.

The same input gives the same bytes; an existing output stays as it was when something fails.
"""

import base64
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat

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


def to_script(notebook_text: str, header_of: str) -> str:
    """The notebook's text as a script's text, with the header of another script."""
    notebook = nbformat.reads(notebook_text, as_version=4)
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
    if not notebook.is_file() or notebook.read_text("utf-8") != made:  # for make, its date counts
        write_text(notebook, made)
    write_text(notebook.with_suffix(".agreed.py"), to_script(made, header_of=text))


def make_script(notebook: Path, script: Path, /) -> None:
    """Merge the edits of a notebook into its script."""
    text, agreed = merge(script, notebook)
    write_text(script, text)
    write_text(notebook.with_suffix(".agreed.py"), agreed)


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
