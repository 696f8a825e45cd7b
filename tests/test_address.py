"""Where the project lives: said once, followed by page, README and notebook."""

import functools
import hashlib
import http.server
import json
import re
import shutil
import threading
from pathlib import Path

import nbformat
import pooch  # noqa: F401  now, so that its log goes to a stream that stays open
import pytest
from conftest import PROJECT
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.address import address
from tools.page import notebook as tool
from tools.views import views

URLS = '[project]\nname = "x"\nversion = "1"\n[project.urls]\n'
SCRIPT = (PROJECT / "the_annotated_transformer.py").read_text("utf-8")


def project(folder: Path, settings: str = "", origin: str = "") -> Path:
    """A folder with what says an address, and with what is fetched from there."""
    (folder / "pyproject.toml").write_text(settings)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {origin}\n' * bool(origin))
    for name in ("images", "pretrained", "docs/results/views"):
        shutil.copytree(PROJECT / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "settings, origin",
    [
        (URLS + 'Repository = "https://github.com/some-one/a.name"\n', ""),
        (
            URLS + 'Repository = "https://github.com/some-one/a.name/"\n',
            "git@github.com:other/x.git",
        ),
        ("", "git@github.com:some-one/a.name.git"),
        ("", "https://github.com/some-one/a.name"),
    ],
)
def test_the_address_is_told_or_that_of_git(tmp_path, settings, origin):
    found = address(project(tmp_path, settings, origin))
    assert found.home == "https://github.com/some-one/a.name"
    assert found.files == "https://raw.githubusercontent.com/some-one/a.name/main/"
    readme = (PROJECT / "README.md").read_text("utf-8")
    told = views.badges(address(tmp_path, ask_git=False))
    assert ("colab.research" in told) == bool(settings), "git knows its own checkout only"
    assert told not in readme or not told


@pytest.mark.parametrize("origin", ["", "/disk", "https://elsewhere.example/x/y"])
def test_without_an_address_there_is_no_link_and_the_notebook_is_that_of_the_script(
    tmp_path, origin
):
    folder = project(tmp_path, origin=origin)
    assert not any(vars(address(folder)).values())
    assert views.badges(address(folder)) == ""
    assert tool.FETCHES not in tool.to_notebook(SCRIPT, folder)


@pytest.fixture
def served(tmp_path):
    """A project whose address is a local server, the paths asked of it, and an empty folder."""
    (there := tmp_path / "there").mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=there)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/"
        project(there, f'{URLS}Files = "{place}"\n')
        (here := tmp_path / "here").mkdir()
        yield there, asked, here
        server.shutdown()


def fetch(there: Path, here: Path) -> list[str]:
    """Run the notebook's cell that fetches, in an empty folder; the names of the files it wants."""
    made = nbformat.reads(tool.to_notebook(SCRIPT, there), as_version=4)
    [cell] = [cell for cell in made.cells if cell.source.startswith(tool.FETCHES)]
    assert cell.metadata["jupyter"]["source_hidden"]
    assert cell.metadata["tags"] == ["hide-input"]
    names = {"HERE": here, "Path": Path}
    exec(cell.source, names)
    return list(names["SUMS"])


def test_the_notebook_fetches_model_and_results_once_and_checked(served, capsys):
    there, asked, here = served
    wanted = fetch(there, here)
    assert wanted[2] == "pretrained/config.json", "without it the model does not count"
    for name in wanted:
        assert (here / name).read_bytes() == (PROJECT / name).read_bytes()
    assert asked == [f"/{name}" for name in wanted]
    fetch(there, here)
    assert len(asked) == len(wanted), "nothing twice"
    assert "could not" not in capsys.readouterr().out


def test_another_file_than_the_notebook_was_made_with_is_refused(served, capsys):
    there, _, here = served
    before = tool.to_notebook(SCRIPT, there)
    (there / "pretrained" / "config.json").write_text("{}")
    sum_before = hashlib.sha256((PROJECT / "pretrained" / "config.json").read_bytes()).hexdigest()
    assert sum_before in before
    made = nbformat.reads(before, as_version=4)
    [cell] = [cell for cell in made.cells if cell.source.startswith(tool.FETCHES)]
    exec(cell.source, {"HERE": here, "Path": Path})
    assert (
        "pretrained/config.json could not be fetched: this notebook goes on"
        in capsys.readouterr().out
    )
    assert not (here / "pretrained" / "config.json").exists()


def test_the_cell_that_fetches_is_no_edit_of_the_script(served):
    there, _, _ = served
    made = tool.to_notebook(SCRIPT, there)
    assert tool.to_script(made, header_of=SCRIPT) == SCRIPT


# The notebook that is looked at -------------------------------------------------------------------


def test_a_published_notebook_keeps_its_outputs_and_gets_small(tmp_path):
    picture = views.build_page.preview()
    data = {"image/png": tool.base64.b64encode(picture).decode(), "text/plain": "a chart"}
    cell = new_code_cell("show()", outputs=[new_output("display_data", data)])
    cell.metadata["annotated"] = {"kind": "figure"}
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "run.ipynb")
    assert tool.main(["publish", str(tmp_path / "run.ipynb"), str(tmp_path / "shown.ipynb")]) == 0
    [shown] = nbformat.read(tmp_path / "shown.ipynb", as_version=4).cells
    smaller = shown.outputs[0].data["image/png"]
    assert len(smaller) < 0.5 * len(data["image/png"])
    assert shown.outputs[0].data["text/plain"] == "a chart"
    assert "annotated" not in shown.metadata


def test_the_published_notebook_shows_what_it_computed():
    path = PROJECT / "docs" / "the_annotated_transformer.ipynb"
    notebook = json.loads(path.read_text("utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    charts = sum(any("vegalite" in kind for kind in output.get("data", {})) for output in outputs)
    assert pictures == charts > 10
    assert not re.search(r"/(home|root|tmp|work)/", json.dumps(outputs))
