"""The notebook: made from the script, brought back to it, executed and published."""

import base64
import io
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY, Mock

import nbformat
import pytest
from conftest import PROJECT
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from tools.page import build, execute, notebook

TUTORIAL = (PROJECT / "the_annotated_transformer.py").read_text("utf-8")
SMALL = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     name: python3
# ---

# %% [markdown]
# # A small text, $a + b$
#
# ![A circle](images/circle.svg) Look at the edge.
#
# <a id="figure-circle"></a>
# **Figure.** A circle. [Figure](#figure-square) is another.
#
# <a id="figure-square"></a>
# **Figure.** None, but like [Figure](#figure-circle).

# %% tags=["hide-input"]
import sys


# %%
def add(a: int, b: int) -> int:
    return a + b


# %%
print("one")
print("two", file=sys.stderr)
add(1, 2)
"""
CIRCLE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="80" height="80" viewBox="0 0 80 80">
<style>svg { --ink: #c00000 } circle { fill: var(--ink) }</style>
<circle cx="40" cy="40" r="40"/></svg>
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
    path = script.with_suffix(".ipynb")
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


def test_the_notebook_holds_its_images_and_has_the_same_bytes_each_time(script):
    first = notebook.to_notebook(SMALL, script.parent)
    assert first == notebook.to_notebook(SMALL, script.parent)
    source = nbformat.reads(first, as_version=4).cells[0].source
    assert "![A circle][images/circle.svg]" in source
    data = re.search(r'\[images/circle\.svg\]: data:image/png;base64,(\S+) "images/', source)[1]
    picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    assert picture.getpixel((60, 60)) == (192, 0, 0), "in its light colours"
    assert picture.getpixel((1, 1)) == (255, 255, 255), "on white"


def test_figures_are_numbered_while_building():
    texts = [
        "See [Figure](#figure-b), not [Figure](#figure-c) or [here](#figure-a).",
        '<a id="figure-a"></a>\n**Figure.** One.\n\n<a id="figure-b"></a>\n**Figure.** Two.',
    ]
    there = notebook.numbered(texts)
    assert "[Figure 2](#figure-b), not [Figure](#figure-c) or [here](#figure-a)" in there[0]
    assert there[1].split("**")[1::2] == ["Figure 1.", "Figure 2."]
    assert notebook.numbered(there) == there
    assert [notebook.unnumbered(text) for text in there] == texts


def test_edits_of_the_notebook_come_back_and_nothing_else(script, made):
    edit(made, 0, "the edge", "the *whole* edge")
    edited = made.read_text()
    with pytest.raises(ValueError, match="make py"):
        notebook.make_notebook(script, made)
    assert made.read_text() == edited
    assert notebook.main(["back", str(made), str(script)]) == 0
    assert script.read_text() == SMALL.replace("the edge", "the *whole* edge")
    edit(made, 2, "a + b", "b + a  # für alle")  # once more, without making the notebook anew
    notebook.make_script(made, script)
    assert "return b + a  # für alle\n" in script.read_text()
    notebook.make_notebook(script, made)  # the script has everything


@pytest.mark.parametrize("known", [True, False])
def test_edits_of_both_sides_are_refused(script, made, known):
    edit(made, 3, '"one"', '"three"')
    if not known:  # a notebook from elsewhere
        content = nbformat.read(made, as_version=4)
        del content.metadata["made_of"]
        nbformat.write(content, made)
    edited = made.read_text()
    ours = SMALL.replace("A small", "A short")
    script.write_text(ours)
    with pytest.raises(ValueError, match="by hand"):
        notebook.make_script(made, script)
    with pytest.raises(ValueError, match="make py"):
        notebook.make_notebook(script, made)
    assert script.read_text() == ours
    assert made.read_text() == edited


def test_a_notebook_without_edits_follows_the_script(script, made):
    newer = SMALL.replace("one", "four").replace("# %%\nprint", "# %%  \n\n\nprint")
    script.write_text(newer)
    for _ in range(2):  # the second time with a notebook of this script
        notebook.make_script(made, script)
        assert script.read_text() == newer, "not even its layout changes"
        notebook.make_notebook(script, made)
    assert "four" in made.read_text()


def test_set_up_is_folded_in_jupyter_and_colab_and_by_make_lab(script, made):
    cells = nbformat.read(made, as_version=4).cells
    assert [cell.metadata.get("cellView") for cell in cells] == [None, "form", None, None]
    config = PROJECT / "tools" / "lab" / "jupyter_server_config.py"
    lab = runpy.run_path(str(config), {"get_config": Mock()})
    manager = lab["FoldingContentsManager"](root_dir=str(script.parent))
    content = manager.get("small.py", type="notebook")["content"]
    for each in (cells, content["cells"]):
        folded = [cell["metadata"].get("jupyter", {}).get("source_hidden") for cell in each]
        assert folded == [None, True, None, None]
    (script.parent / "pyproject.toml").write_bytes((PROJECT / "pyproject.toml").read_bytes())
    manager.save({"type": "notebook", "format": "json", "content": content}, "small.py")
    assert "source_hidden" not in script.read_text()


def test_a_pasted_image_is_refused(made):
    content = nbformat.read(made, as_version=4)
    content.cells[0]["attachments"] = {"image.png": {"image/png": ""}}
    with pytest.raises(ValueError, match="cell 1 has a pasted image"):
        notebook.to_script(content, SMALL)


def test_the_tutorial_goes_to_a_notebook_and_back():
    content = nbformat.reads(notebook.to_notebook(TUTORIAL, PROJECT), as_version=4)
    assert len({cell["id"] for cell in content.cells}) == len(content.cells)
    assert notebook.to_script(content, TUTORIAL) == TUTORIAL


# Execution ----------------------------------------------------------------------------------------


def run(source: Path, target: Path) -> int:
    return execute.main(["run", str(source), str(target)])


def test_a_failing_cell_is_named_and_the_old_output_stays(script, made, monkeypatch, capsys):
    monkeypatch.chdir(script.parent)
    edit(made, 3, "add(1, 2)", "1 / 0")
    target = script.with_name("out.ipynb")
    target.write_text(nbformat.writes(new_notebook()))
    old = target.read_text()
    assert run(made, target) == 1
    told = capsys.readouterr().err
    assert '[4/4] print("one")' in told
    assert "ZeroDivisionError: division by zero" in told
    assert "execute.py" not in told, "no traceback of the tool"
    assert target.read_text() == old


EXAMPLES = """

# %%
FACTOR = 1
RAN = Path("ran")


# %%
@example
def train():
    TRAINED["train"] = FACTOR * torch.rand(())
    print("train", file=RAN.open("a"))


# %%
@example
def early():
    print("early", file=RAN.open("a"))
    return FACTOR


# %%
@example
def late():
    print("late", file=RAN.open("a"))
    return FACTOR + trained("train").item(), torch.rand(()).item()
"""


@pytest.fixture
def examples(tmp_path, monkeypatch) -> Callable[..., tuple[list[str], list[str]]]:
    """Run a notebook of three examples, with an edit; what ran, and what all cells show."""
    monkeypatch.chdir(tmp_path)
    set_up = TUTORIAL[: TUTORIAL.index("# %%", TUTORIAL.index("def trained"))]
    cells = set_up.split("# %%")
    text = "# %%".join(cell for cell in cells if not cell.startswith(" [markdown]")) + EXAMPLES

    def edited(old: str = "", new: str = "") -> tuple[list[str], list[str]]:
        nonlocal text
        assert old in text
        text = text.replace(old, new)
        Path("a.ipynb").write_text(notebook.to_notebook(text, tmp_path))
        Path("ran").write_text("")
        assert execute.main("run a.ipynb b.ipynb published.ipynb".split()) == 0
        outputs = nbformat.read("b.ipynb", as_version=4).cells[-2:]
        shown = [cell.outputs[0].data["text/plain"] for cell in outputs]
        return Path("ran").read_text().split(), shown

    return edited


def test_only_what_a_change_can_reach_runs_again(examples, monkeypatch):
    ran, shown = examples()
    assert ran == ["train", "early", "late"]
    assert examples("FACTOR = 1", "FACTOR = (1)  # as it was") == ([], shown)
    assert examples("FACTOR + ", "2 * ")[0] == ["late", "train"]
    assert examples("2 * ", "FACTOR + ") == (["late", "train"], shown), "as if all had run"
    ran, shown = examples("FACTOR = (1)", "FACTOR = 3")
    assert (ran, shown[0]) == (["train", "early", "late"], "3")


def counted(monkeypatch, source: Path, target: Path, *published: Path) -> int | None:
    """How many cells keep their outputs when a notebook runs; None if nothing runs."""
    kept = []
    monkeypatch.setattr(execute, "execute", lambda _, first: kept.append(first - 1))
    execute.run(source, target, *published)
    return kept[0] if kept else None


def test_everything_runs_where_model_records_corpus_or_level_differ(script, made, monkeypatch):
    monkeypatch.chdir(script.parent)
    target = script.with_name("out.ipynb")
    assert counted(monkeypatch, made, target) == 0
    assert counted(monkeypatch, made, target) is None
    records = "results/views/x.json", "results/learning.json"
    for name in ("pretrained/config.json", *records, ".data/multi30k/train.de"):
        (script.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (script.parent / name).touch()
        assert counted(monkeypatch, made, target) == 0, name
        assert counted(monkeypatch, made, target) is None, name
    monkeypatch.setenv("ANNOTATED_RUN", "laptop")
    assert counted(monkeypatch, made, target) == 0


def test_another_prose_keeps_published_outputs_without_the_corpus(script, made, monkeypatch):
    monkeypatch.chdir(script.parent)
    corpus = script.with_name("corpus")
    corpus.mkdir()
    (corpus / "train.de").touch()
    monkeypatch.setenv("MULTI30K_DIR", str(corpus))
    published, target = script.with_name("published.ipynb"), script.with_name("out.ipynb")
    versions = iter(["2.13.0+cpu"])  # then "2.13.0", the same PyTorch in the wheel of a Mac
    monkeypatch.setattr(execute.importlib.metadata, "version", lambda _: next(versions, "2.13.0"))
    assert counted(monkeypatch, made, published) == 0
    published.write_text(notebook.published(published))
    monkeypatch.delenv("MULTI30K_DIR")
    edit(made, 0, "the edge", "the whole edge")
    assert counted(monkeypatch, made, target, published) is None
    assert "the whole edge" in nbformat.read(target, as_version=4).cells[0].source
    edit(made, 3, "add(1, 2)", "add(1, 3)")
    assert counted(monkeypatch, made, target, published) == 0, "the early cells saw another corpus"


DRAWING = new_output("display_data", data={"application/vnd.vegalite.v5+json": {}})
TABLE = new_output("display_data", data={"text/html": "<table>"})
PASSED = new_output("stream", name="stdout", text="✓")
PROGRESS = new_output("stream", name="stderr", text="50%")


@pytest.mark.parametrize(
    ("code", "output", "kind", "name", "defines"),
    [
        ("@example\ndef rate_figure(): ...", DRAWING, "figure", "rate_figure", []),
        ("def a():\n    def b(): ...\n\n\nclass C: ...", PROGRESS, "set-up", "", ["a", "C"]),
        ("def f(): ...\n\n\n@example\ndef check(): ...", PASSED, "output", "check", ["f"]),
        ("@example\ndef check_f(): ...", PASSED, "check", "check_f", []),
        ('%time g()\ntext = "def f():"', PASSED, "output", "", []),
        ('published("steps")\nx = 1', TABLE, "table", "steps", []),
        ("@example\ndef what_this_page_was_made_from(): ...", PASSED, "facts", ANY, []),
    ],
)
def test_what_a_cell_is_depends_on_its_code_and_its_output(code, output, kind, name, defines):
    about = execute.about(new_code_cell(code, outputs=[output]))
    assert about == {"kind": kind, "name": name, "defines": defines}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_notebook_runs_alone_in_an_empty_folder(tmp_path, monkeypatch):
    alone, done = tmp_path / "alone.ipynb", tmp_path / "done.ipynb"
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
    picture = io.BytesIO()
    Image.effect_noise((300, 300), 10).convert("RGB").save(picture, "PNG")
    data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": "a chart"}
    cell = new_code_cell("show()", outputs=[new_output("display_data", data)])
    path = tmp_path / "run.ipynb"
    nbformat.write(new_notebook(cells=[cell]), path)
    [shown] = nbformat.reads(notebook.published(path), as_version=4).cells
    assert len(shown.outputs[0].data["image/png"]) < len(data["image/png"])
    assert shown.outputs[0].data["text/plain"] == "a chart"
