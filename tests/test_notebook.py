"""The notebook: made from the script, merged back into it, executed and published."""

import base64
import io
import json
import os
import re
import runpy
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from conftest import PROJECT
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from tools.page import build, execute, notebook
from tools.page.article import lay_out
from tools.page.cells import Cells
from tools.page.pictures import png_of_drawing
from tools.page.playable import preview

TUTORIAL = (PROJECT / "the_annotated_transformer.py").read_text("utf-8")
SMALL = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# <a id="top"></a>
# # A small text
#
# A sum, $a + b$, and a drawing:
#
# ![A circle](images/circle.svg)
#
# **Figure 1.** Look at the edge.

# %% tags=["hide-input"]
import sys


# %%
def add(a: int, b: int) -> int:
    return a + b


# %%
print("0 %", end="\\r")
print("one")
print("two", file=sys.stderr)
add(1, 2)
"""
CIRCLE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="80" height="80" viewBox="0 0 80 80">
<style>svg { --ink: #c00000 } circle { fill: var(--ink) } @media x { svg { --ink: blue } }</style>
<a href="#top"><circle cx="40" cy="40" r="40"/></a></svg>
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A small script with one drawing, in a folder of its own."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "circle.svg").write_text(CIRCLE)
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    return path


@pytest.fixture
def made(script: Path) -> Path:
    """The notebook of the small script."""
    path = script.parent / "build" / "small.ipynb"
    notebook.make_notebook(script, path)
    return path


def edit(path: Path, cell: int, old: str, new: str) -> None:
    """Edit a cell of a notebook as Colab does, which adds metadata."""
    content = nbformat.read(path, as_version=4)
    assert old in content.cells[cell].source
    content.cells[cell].source = content.cells[cell].source.replace(old, new)
    content.cells[cell].metadata["colab"] = {"base_uri": "of no interest"}
    nbformat.write(content, path)


# From the script to the notebook and back ---------------------------------------------------------


def test_the_notebook_holds_its_images(script):
    first = notebook.to_notebook(SMALL, script.parent)
    assert first == notebook.to_notebook(SMALL, script.parent)
    source = nbformat.reads(first, as_version=4).cells[0].source
    assert "![A circle][images/circle.svg]" in source
    assert "](images/" not in source
    ends = r'\[images/circle\.svg\]: data:image/png;base64,\S+ "images/circle\.svg"$'
    assert re.search(ends, source)


def test_a_drawing_keeps_its_colours(script):
    image = Image.open(io.BytesIO(png_of_drawing(script.parent / "images" / "circle.svg")))
    image = image.convert("RGB")
    assert image.getpixel((60, 60)) == (192, 0, 0)
    assert image.getpixel((1, 1)) == (255, 255, 255)


def test_a_missing_image_is_an_error(script, capsys):
    (script.parent / "images" / "circle.svg").unlink()
    target = script.with_suffix(".ipynb")
    assert notebook.main(["make", str(script), str(target)]) == 1
    assert "images/circle.svg" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        SMALL.replace("# %%\nprint", "# %%  \n\n\nprint"),
        SMALL.split("---\n\n")[1],
        SMALL.removesuffix("\n"),
    ],
)
def test_an_unedited_notebook_gives_the_same_script(script, text):
    path = script.with_suffix(".ipynb")
    script.write_text(text)
    notebook.make_notebook(script, path)
    notebook.make_script(path, script)
    assert script.read_text() == text


def test_edits_of_the_notebook_come_back_and_nothing_else(script, made):
    edit(made, 0, "the edge", "the *whole* edge")
    edit(made, 2, "a + b", "b + a  # für alle")
    notebook.make_script(made, script)
    edited = SMALL.replace("the edge", "the *whole* edge")
    edited = edited.replace("n a + b\n", "n b + a  # für alle\n")
    assert script.read_text() == edited
    edit(made, 3, '"one"', '"three"')  # once more, without making the notebook anew
    notebook.make_script(made, script)
    assert script.read_text() == edited.replace('"one"', '"three"')
    notebook.make_notebook(script, made)  # the script has everything


def test_edits_of_both_sides_are_merged(script, made):
    edit(made, 3, '"one"', '"three"')
    edited = made.read_text()
    ours = SMALL.replace("a small", "A short").replace("Python 3 (ipykernel)", "Python")
    script.write_text(ours)
    with pytest.raises(ValueError, match="make py"):
        notebook.make_notebook(script, made)
    assert script.read_text() == ours
    assert made.read_text() == edited
    notebook.make_script(made, script)
    assert script.read_text() == ours.replace('"one"', '"three"')
    assert made.read_text() == edited


@pytest.mark.parametrize("known", [True, False])
def test_edits_of_the_same_lines_change_neither_file(script, made, capsys, known):
    edit(made, 3, '"one"', '"three"')
    theirs = made.read_text()
    ours = SMALL.replace('"one"', '"four"')
    script.write_text(ours)
    if not known:  # a notebook from elsewhere
        made.with_suffix(".agreed.py").unlink()
    assert notebook.main(["merge", str(made), str(script)]) == 1
    error = capsys.readouterr().err
    assert "same lines" in error
    assert "small.merged.py" in error
    assert script.read_text() == ours
    both = made.with_suffix(".merged.py").read_text()
    assert both.startswith(SMALL[:99])
    assert both.count("<<<<<<<") == 1, "only what differs is marked"
    assert '<<<<<<< script\nprint("four")\n' in both
    assert 'print("three")\n>>>>>>> notebook' in both
    with pytest.raises(ValueError):
        notebook.make_notebook(script, made)
    assert made.read_text() == theirs


def test_a_newer_script_replaces_an_unedited_notebook(script, made):
    newer = SMALL.replace("one", "four")
    script.write_text(newer)
    notebook.make_script(made, script)
    assert script.read_text() == newer
    notebook.make_notebook(script, made)
    assert "four" in made.read_text()


def test_a_notebook_that_has_not_changed_is_not_written_again(script, made):
    os.utime(made, (1e9, 1e9))
    notebook.make_notebook(script, made)
    assert made.stat().st_mtime == 1e9


def test_set_up_is_folded_in_jupyter_and_in_colab(script):
    text = notebook.to_notebook(SMALL, script.parent)
    cells = nbformat.reads(text, as_version=4).cells
    assert [cell.metadata.get("cellView") for cell in cells] == [None, "form", None, None]
    folded = [cell.metadata.get("jupyter", {}).get("source_hidden") for cell in cells]
    assert folded == [None, True, None, None]
    assert notebook.to_script(text, SMALL) == SMALL


def test_make_lab_folds_set_up_and_saves_nothing_of_it(script):
    config = PROJECT / "tools" / "lab" / "jupyter_server_config.py"
    lab = runpy.run_path(str(config), {"get_config": Mock()})
    manager = lab["FoldingContentsManager"](root_dir=str(script.parent))
    content = manager.get("small.py", type="notebook")["content"]
    folded = [cell["metadata"].get("jupyter", {}).get("source_hidden") for cell in content["cells"]]
    assert folded == [None, True, None, None]
    (script.parent / "pyproject.toml").write_bytes((PROJECT / "pyproject.toml").read_bytes())
    manager.save({"type": "notebook", "format": "json", "content": content}, "small.py")
    assert "source_hidden" not in script.read_text()


def test_a_pasted_image_is_refused(script):
    content = nbformat.reads(notebook.to_notebook(SMALL, script.parent), as_version=4)
    content.cells[0]["attachments"] = {"image.png": {"image/png": ""}}
    with pytest.raises(ValueError, match="cell 1 has a pasted image"):
        notebook.to_script(nbformat.writes(content), SMALL)


def test_the_tutorial_goes_to_a_notebook_and_back():
    text = notebook.to_notebook(TUTORIAL, PROJECT)
    assert "](images/" not in text
    assert notebook.to_script(text, TUTORIAL) == TUTORIAL
    content = nbformat.reads(text, as_version=4)
    assert len({cell["id"] for cell in content.cells}) == len(content.cells)
    # It holds no dead link, no id twice, no image without words, no formula that does not parse.
    execute.describe(content)
    lay_out(Cells(content).html)


# Execution ----------------------------------------------------------------------------------------


def run(source: Path, target: Path) -> int:
    return execute.main(["run", str(source), str(target)])


def test_execution_gives_the_same_bytes_each_time(script, made, monkeypatch, capsys):
    monkeypatch.chdir(script.parent)
    executed = [script.with_name("a.ipynb"), script.with_name("b.ipynb")]
    for path in executed:
        assert run(made, path) == 0
    progress = ["[2/4] import sys", "[3/4] def add(a: int, b: int) -> int:", "[4/4] print("]
    told = capsys.readouterr().err.splitlines()
    assert [line.partition('"')[0] for line in told] == progress * 2
    assert executed[0].read_bytes() == executed[1].read_bytes()
    last = json.loads(executed[0].read_text())["cells"][-1]
    outputs = [(output["output_type"], output.get("text")) for output in last["outputs"]]
    assert outputs == [("stream", ["one\n"]), ("stream", ["two\n"]), ("execute_result", None)]
    assert last["execution_count"] == 3
    assert last["metadata"] == {"annotated": {"kind": "output", "name": "", "defines": []}}
    assert "annotated" not in made.read_text()


def test_a_failing_cell_is_named_and_the_old_output_stays(script, monkeypatch, capsys):
    monkeypatch.chdir(script.parent)
    script.write_text(SMALL + "\n\n# %%\nvalue = 3\nvalue / 0\n")
    made = script.with_suffix(".ipynb")
    notebook.make_notebook(script, made)
    target = script.with_name("out.ipynb")
    target.write_text("old")
    assert run(made, target) == 1
    told = capsys.readouterr().err
    assert "[5/5] value = 3" in told
    assert "value / 0" in told
    assert "ZeroDivisionError: division by zero" in told
    assert "\x1b" not in told, "no colours"
    assert "execute.py" not in told, "no traceback of the tool"
    assert target.read_text() == "old"


@pytest.mark.parametrize(
    ("code", "defines"),
    [
        ("def f():\n    def g(): ...\n\n\nclass A:\n    def h(self): ...", ["f", "A"]),
        ('text = """\ndef f():\n"""', []),
        ("%time g()\ndef f(): ...", ["f"]),
        ("@cache\ndef f(): ...\n\n\n@example\ndef check_f(): ...", ["f"]),
    ],
)
def test_a_cell_defines_what_others_can_call(code, defines):
    assert execute.about(new_code_cell(code))["defines"] == defines


DRAWING = {"application/vnd.vegalite.v5+json": {}, "image/png": "", "text/plain": ""}


@pytest.mark.parametrize(
    ("output", "kind", "kind_of_check"),
    [
        (new_output("display_data", data=DRAWING), "figure", "figure"),
        (new_output("display_data", data={"text/html": "<table>"}), "table", "table"),
        (new_output("execute_result", data={"text/plain": "1"}), "output", "check"),
        (new_output("stream", name="stdout", text="✓"), "output", "check"),
        (new_output("stream", name="stderr", text="50%"), "set-up", "set-up"),
    ],
)
def test_the_kind_of_a_cell_depends_on_what_it_shows(output, kind, kind_of_check):
    cell = new_code_cell("show()", outputs=[output])
    assert execute.about(cell)["kind"] == kind
    cell.source = "@example\ndef check_f(): ..."
    assert execute.about(cell)["kind"] == kind_of_check
    cell.source = "@example\ndef what_this_page_was_made_from(): ..."
    assert execute.about(cell)["kind"] == "facts"


@pytest.mark.parametrize(
    ("code", "name", "source"),
    [
        ('published("steps")', "steps", "docs/results/views/steps.json"),
        ('published("steps")\nx = 1', "steps", None),
        ('published("steps")\n\n\n@example\ndef rate_figure(): ...', "steps", None),
        ("x = 1\n\n\n@example\ndef rate_figure(): ...", "rate_figure", None),
        ("published(name)", "", None),
        ("def steps(): ...", "", None),
    ],
)
def test_a_cell_has_the_name_of_its_first_example_or_view(code, name, source):
    about = execute.about(new_code_cell(code))
    assert about["name"] == name
    assert about.get("source") == source


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_notebook_runs_alone_in_an_empty_folder(tmp_path, monkeypatch):
    alone = tmp_path / "alone.ipynb"
    done = tmp_path / "done.ipynb"
    alone.write_text(notebook.to_notebook(TUTORIAL, PROJECT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNS_DIR")
    assert run(alone, done) == 0
    page, about = build.build(done)
    assert about["level"] == "smoke"
    assert "✓" in page
    assert 'class="chart"' in page


# The notebook that is published -------------------------------------------------------------------


def test_a_published_notebook_keeps_its_outputs_and_gets_small(tmp_path):
    data = {"image/png": base64.b64encode(preview()).decode(), "text/plain": "a chart"}
    cell = new_code_cell("show()", outputs=[new_output("display_data", data)])
    cell.metadata["annotated"] = {"kind": "figure"}
    path = tmp_path / "run.ipynb"
    nbformat.write(new_notebook(cells=[cell]), path)
    [shown] = nbformat.reads(notebook.published(path), as_version=4).cells
    assert len(shown.outputs[0].data["image/png"]) < len(data["image/png"])
    assert shown.outputs[0].data["text/plain"] == "a chart"
    assert "annotated" not in shown.metadata


def test_another_prose_keeps_the_outputs_and_another_code_does_not(script, made, tmp_path, capsys):
    content = nbformat.read(made, as_version=4)
    content.cells[-1].outputs = [new_output("stream", name="stdout", text="one\n")]
    content.cells[-1].execution_count = 3
    execute.describe(content)
    executed = tmp_path / "executed.ipynb"
    nbformat.write(content, executed)
    shown = tmp_path / "shown.ipynb"
    shown.write_text(notebook.published(executed))
    edit(made, 0, "the edge", "the whole edge")
    for earlier in (executed, shown):
        target = tmp_path / "kept.ipynb"
        assert execute.main(["keep", str(made), str(earlier), str(target)]) == 0
        kept = nbformat.read(target, as_version=4)
        assert "the whole edge" in kept.cells[0].source
        assert kept.cells[-1] == content.cells[-1]
    edit(made, 3, '"one"', '"three"')
    before = executed.read_text()
    assert execute.main(["keep", str(made), str(executed), str(executed)]) == 1
    assert "must be run" in capsys.readouterr().err
    assert executed.read_text() == before
