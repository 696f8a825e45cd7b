"""Turn the script into a notebook that stands alone, and bring its edits back.

A notebook remembers the script that it was made from, so neither overwrites edits of the other.
"""

import base64
import copy
import hashlib
import re
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from tools.page.pictures import png_of_drawing, smaller
from tools.records import command_line, write_text

PERCENT = "py:percent"
CAPTION = re.compile(r'(<a id="figure-([\w-]+)"></a>\n\*\*Figure)(?: \d+)?(?=\.\*\*)')
LINK = re.compile(r"\[Figure(?: \d+)?\]\(#figure-([\w-]+)\)")


def numbered(texts: list[str]) -> list[str]:
    """Markdown cells with a number in each caption of a figure, and in each link to one."""
    names = [name for text in texts for _, name in CAPTION.findall(text)]
    numbers = {name: f" {number}" for number, name in enumerate(names, 1)}

    def link(found: re.Match) -> str:
        return f"[Figure{numbers.get(found[1], '')}](#figure-{found[1]})"

    captioned = [CAPTION.sub(lambda found: found[1] + numbers[found[2]], text) for text in texts]
    return [LINK.sub(link, text) for text in captioned]


def unnumbered(text: str) -> str:
    """Undo `numbered` in one cell."""
    return LINK.sub(r"[Figure](#figure-\1)", CAPTION.sub(r"\1", text))


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
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    for cell, text in zip(prose, numbered([cell.source for cell in prose]), strict=True):
        cell.source = embed_images(text, folder)
    for number, cell in enumerate(notebook.cells, 1):
        cell["id"] = f"cell-{number:03d}"
        if "hide-input" in cell.metadata.get("tags", []):  # folded, in Jupyter and in Colab
            cell.metadata["jupyter"] = {"source_hidden": True}
            cell.metadata["cellView"] = "form"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = kernel
    notebook.metadata["made_of"] = checksum(laid_out(script))
    return nbformat.writes(notebook) + "\n"


def to_script(notebook: NotebookNode, header_of: str) -> str:
    """A notebook as a script's text, with the header of another script."""
    notebook = copy.deepcopy(notebook)
    for number, cell in enumerate(notebook.cells, 1):
        if cell.get("attachments"):
            raise ValueError(
                f"cell {number} has a pasted image, which a script cannot hold: save it under "
                "images/ and name it by ![description](images/…)"
            )
        if cell.cell_type == "markdown":
            cell.source = unnumbered(restore_images(cell.source))
    # Jupyter and Colab add metadata of their own; only a cell's tags belong to the script.
    filters = {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,-all"}
    notebook.metadata["jupytext"] = filters
    header = re.match(r"# ---\n(?:#.*\n)*?# ---\n\n?", header_of)
    return (header[0] if header else "") + jupytext.writes(notebook, PERCENT)


def laid_out(script: str) -> str:
    """A script as it comes back from its notebook, with jupytext's empty lines between cells."""
    return to_script(jupytext.reads(script, PERCENT), header_of=script)


def checksum(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()


def edits(notebook: NotebookNode, script: str) -> str | None:
    """A notebook as a script's text, if it was edited and the script has not got these edits."""
    edited = to_script(notebook, header_of=script)
    known = notebook.metadata.get("made_of"), checksum(laid_out(script))
    return None if checksum(edited) in known else edited


def make_notebook(script: Path, notebook: Path, /) -> None:
    """Write the notebook of a script, unless edits of the present notebook would be lost."""
    text = script.read_text("utf-8")
    if notebook.is_file() and edits(nbformat.read(notebook, as_version=4), text):
        raise ValueError(
            f"{notebook} has edits that {script} has not got: bring them back with `make py`, "
            "or delete the notebook"
        )
    write_text(notebook, to_notebook(text, script.parent))


def make_script(notebook: Path, script: Path, /) -> None:
    """Write the edits of a notebook into its script, unless the script was edited, too."""
    content = nbformat.read(notebook, as_version=4)
    text = script.read_text("utf-8")
    edited = edits(content, text)
    if edited is None:
        print(f"{script} has all edits of {notebook}")
        return
    if content.metadata.get("made_of") != checksum(laid_out(text)):
        raise ValueError(
            f"{script} has changed since {notebook} was made from it; both stay as they are. Copy "
            "your edits of the notebook into the script by hand, then delete the notebook"
        )
    write_text(script, edited)
    content.metadata["made_of"] = checksum(edited)
    write_text(notebook, nbformat.writes(content) + "\n")


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


main = command_line(make=make_notebook, back=make_script)

if __name__ == "__main__":
    sys.exit(main())
