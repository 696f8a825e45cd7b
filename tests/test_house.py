"""The house around the script: targets, packages, size, the notebook, rhythm of the text."""

import ast
import contextlib
import importlib.metadata
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
import rhythm
from conftest import PROJECT
from nbformat.v4 import new_code_cell, new_output
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from PIL import Image

from tools.page import build as build_page
from tools.page import notebook as tool

SCRIPT = PROJECT / "the_annotated_transformer.py"
TOKENS = 36_000  # of code in the script
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
def small(tmp_path: Path) -> Path:
    """A project of one small script with one drawing; the notebook's place is build/small.ipynb."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "circle.svg").write_text(CIRCLE)
    (tmp_path / "small.py").write_text(SMALL)
    return tmp_path


@pytest.fixture(scope="module")
def script() -> str:
    return SCRIPT.read_bytes().decode()


def notebook_command(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tools.page.notebook", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)


def tracked(*patterns: str) -> list[Path]:
    """Files of the project, those too that are not committed yet."""
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout")
    ask = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(ask, cwd=PROJECT, capture_output=True, text=True).stdout.split("\0")
    return [PROJECT / name for name in set(listed) if (PROJECT / name).is_file()]


# Targets, packages and size ---------------------------------------------------------------------


def make(*arguments: str, **environment: str) -> str:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    outer = ("MAKE", "MFLAGS", "TORCH_INDEX")  # what a `make test` says that this may run in
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    command = ["make", "--no-print-directory", *arguments]
    options = {"cwd": PROJECT, "env": inherited | environment, "capture_output": True}
    return subprocess.run(command, text=True, check=True, **options).stdout


def test_translating_installs_what_it_needs_and_no_more(tmp_path):
    """And PyTorch's build for CPUs on a Linux machine without an NVIDIA GPU."""
    dry = ("-n", "-B", f"VENV={tmp_path}/venv")
    translate = make("translate", *dry)
    test = make("test", *dry)
    assert "-r requirements.txt" in test
    assert "-r requirements.txt" not in translate
    for_cpu = sys.platform == "linux" and not shutil.which("nvidia-smi")
    assert ("--index-url https://download.pytorch.org/whl/cpu" in translate) == for_cpu
    (tmp_path / "nvidia-smi").symlink_to(sys.executable)
    assert "--index-url" not in make("translate", *dry, PATH=f"{tmp_path}:{os.environ['PATH']}")
    first = (PROJECT / "requirements.txt").read_text().partition("\n\n")[0]
    assert re.findall(r"^(\w+)==", first, re.M) == ["torch", "tokenizers", "safetensors", "tyro"]


def test_help_lists_every_target_with_a_line():
    makefile = (PROJECT / "Makefile").read_text().replace("\\\n", "")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.M)[1].split()
    result = {"html", "test", "train", "translate", "notebook", "py"}
    assert result < set(targets)
    expected = sorted(re.findall(r"^ +make ([a-z-]+) +\S", make("help"), flags=re.M))
    assert sorted(targets) == expected
    expected = sorted(re.findall(r"^([a-z-]+):(?!=)", makefile, flags=re.M))
    assert sorted(targets) == expected


@pytest.mark.parametrize("index", [[], ["TORCH_INDEX="], ["TORCH_INDEX=https://index"]])
@pytest.mark.parametrize("target", ["setup", "test-all", "blog", "pdf", "results", "lock", "clean"])
def test_the_shell_understands_each_recipe(tmp_path, target, index):
    """As on a machine where nothing is installed yet."""
    commands = make("--dry-run", "--always-make", target, f"VENV={tmp_path}", *index)
    assert commands.strip()
    assert subprocess.run(["bash", "-n"], input=commands, text=True).returncode == 0


@pytest.mark.parametrize(
    "sentence", ["Ein „Hund“ läuft für 5 $ weg.", """it's "$HOME" `id` $(id) \\n #""", "-x; true"]
)
def test_a_sentence_reaches_the_program_as_it_was_typed(tmp_path, sentence):
    echo = tmp_path / "echo.py"
    echo.write_text("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
    # SPEAKS= : nothing is installed; PY and SCRIPT: our echo takes the program's place.
    replaced = ("translate", "SPEAKS=", f"PY={sys.executable}", f"SCRIPT={echo}")
    assert make(*replaced, f"TEXT={sentence}") == sentence + "\n"
    assert make(*replaced, TEXT=sentence) == sentence + "\n"


def requirements() -> dict[str, str]:
    text = (PROJECT / "requirements.txt").read_text()
    lines = [line.partition("#")[0].strip() for line in text.split("\n")]
    pins = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.]+)", line) for line in lines if line]
    assert all(pins), "every requirement is an exact pin"
    return {pin[1]: pin[2] for pin in pins}


def test_requirements_are_exact_pins_of_what_is_installed():
    pins = requirements()
    installed = {name: importlib.metadata.version(name).partition("+")[0] for name in pins}
    assert installed == pins


def test_what_the_requirements_need_in_turn_is_pinned_for_every_system():
    lines = map(Requirement, (PROJECT / "constraints.txt").read_text().splitlines())
    locked = {canonicalize_name(line.name): str(line.specifier) for line in lines}
    assert all(re.fullmatch(r"==[\w.]+", pin) for pin in locked.values()), "exact, and no address"
    for name, version in requirements().items():
        assert locked[canonicalize_name(name)] == f"=={version}"
    missing = [
        need
        for name in locked
        for need in map(
            Requirement, importlib.metadata.requires(name) or [] if installed(name) else []
        )
        if not need.marker or need.marker.evaluate({"extra": ""})
        if canonicalize_name(need.name) not in locked
    ]
    assert missing == []


def installed(name: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def test_the_package_asks_for_what_the_requirements_pin():
    """In ranges that hold the pins; what the script imports, no tool of page or tests."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(need) for need in project["dependencies"]]
    pins = requirements()
    assert all(pins[need.name] in need.specifier for need in needs)
    wanted = re.search(r'^PACKAGES = """$(.*?)^"""$', SCRIPT.read_text("utf-8"), flags=re.M | re.S)[
        1
    ]
    wanted = {pin.partition("==")[0] for pin in wanted.split()} | {"torch", "tyro", "filelock"}
    assert {need.name for need in needs} == wanted
    versions = (".".join(map(str, sys.version_info[:2])), "3.13", "3.14")
    assert all(version in SpecifierSet(project["requires-python"]) for version in versions)


@pytest.mark.slow
def test_what_pip_installs_translates_and_writes_where_one_works(tmp_path):
    source = tmp_path / "source"
    names = "the_annotated_transformer.py pyproject.toml README.md LICENSE pretrained".split()
    for name in names:
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(PROJECT / name, source / name)
    target = tmp_path / "lib" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*pip, "--target", target, source], check=True)
    code = """if True:
        import the_annotated_transformer as at
        print(at.translate(at.load_trained_model("pretrained"), ["Ein Hund rennt."]))
        print(at.runs_folder())"""
    (tmp_path / "elsewhere").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("RUNS_DIR", None)
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "elsewhere",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.stdout == f"['A dog runs.']\n{tmp_path / 'elsewhere' / 'runs'}\n", result.stderr
    assert (target / "bin" / "annotated-transformer").is_file()


def test_the_script_installs_the_versions_of_the_requirements(script):
    pins = requirements()
    named = re.search(r'^PACKAGES = """$(.*?)^"""$', script, flags=re.M | re.S)[1].split()
    expected = [f"{name}=={pins[name]}" for name in (pin.split("==")[0] for pin in named)]
    assert named == expected
    assert "torchtext==0.6.0" in named
    assert not any(pin.startswith("torch=") for pin in named)


def test_files_speak_of_the_project_only():
    words = re.compile("/" + "work/|" + r"\b" + "sess" + r"ions?\b", flags=re.I)
    kinds = "*.py *.md *.toml *.txt *.cff *.yml *.json *.svg Makefile .ci".split()
    files = [path for path in tracked(*kinds) if "vendor" not in path.parts]
    texts = {path: path.read_text("utf-8").replace('scope="sess' + 'ion"', "") for path in files}
    result = [path for path, text in texts.items() if words.search(text)]
    assert result == []


def test_what_readme_links_to_lies_here():
    found = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (PROJECT / "README.md").read_text("utf-8"))
    assert len(found) > 3
    result = [path for path in found if not (PROJECT / path).exists()]
    assert result == []


# The notebook and its way back ------------------------------------------------------------------


def edit(notebook: Path, cell: int, old: str, new: str) -> None:
    content = nbformat.read(notebook, as_version=4)
    assert old in content.cells[cell].source
    content.cells[cell].source = content.cells[cell].source.replace(old, new)
    content.cells[cell].metadata["colab"] = {"base_uri": "of no interest"}
    nbformat.write(content, notebook)


def test_the_notebook_stands_alone_and_is_the_same_each_time(small):
    first = tool.to_notebook(SMALL, small)
    assert first == tool.to_notebook(SMALL, small)
    source = nbformat.reads(first, as_version=4).cells[0].source
    assert "![A circle][images/circle.svg]" in source
    assert "](images/" not in source
    ends = r'\[images/circle\.svg\]: data:image/png;base64,\S+ "images/circle\.svg"$'
    assert re.search(ends, source)


def test_a_drawing_keeps_its_colours(small):
    image = Image.open(io.BytesIO(tool.png_of(small / "images" / "circle.svg"))).convert("RGB")
    result = image.getpixel((60, 60))
    assert result == (192, 0, 0)
    result = image.getpixel((1, 1))
    assert result == (255, 255, 255)


def test_a_missing_image_is_an_error(small, capsys):
    (small / "images" / "circle.svg").unlink()
    result = tool.main(["make", str(small / "small.py"), str(small / "small.ipynb")])
    assert result == 1
    assert "images/circle.svg" in capsys.readouterr().err
    assert not (small / "small.ipynb").exists()


def test_an_unedited_notebook_gives_the_same_script(small):
    path = small / "small.py"
    notebook = small / "build" / "small.ipynb"
    spaces = SMALL.replace("# %%\nprint", "# %%  \n\n\nprint")
    for odd in (SMALL, spaces, SMALL.split("---\n\n")[1], SMALL.removesuffix("\n")):
        path.write_text(odd)
        tool.make_notebook(path, notebook)
        tool.make_script(notebook, path)
        assert path.read_text() == odd


def test_edits_of_the_notebook_come_back_and_nothing_else(small):
    path = small / "small.py"
    notebook = small / "build" / "small.ipynb"
    tool.make_notebook(path, notebook)
    edit(notebook, 0, "the edge", "the *whole* edge")
    edit(notebook, 2, "a + b", "b + a  # für alle")
    tool.make_script(notebook, path)
    edited = SMALL.replace("the edge", "the *whole* edge")
    edited = edited.replace("n a + b\n", "n b + a  # für alle\n")
    assert path.read_text() == edited
    edit(notebook, 3, '"one"', '"three"')  # once more, without making the notebook anew
    tool.make_script(notebook, path)
    assert path.read_text() == edited.replace('"one"', '"three"')
    tool.make_notebook(path, notebook)  # the script has everything


def test_edits_of_both_sides_are_merged(small):
    path = small / "small.py"
    notebook = small / "build" / "small.ipynb"
    tool.make_notebook(path, notebook)
    edit(notebook, 3, '"one"', '"three"')
    edited = notebook.read_text()
    ours = SMALL.replace("a small", "A short").replace("Python 3 (ipykernel)", "Python")
    path.write_text(ours)
    with pytest.raises(ValueError, match="make py"):
        tool.make_notebook(path, notebook)
    result = (path.read_text(), notebook.read_text())
    assert result == (ours, edited), "refused and unchanged"
    tool.make_script(notebook, path)
    assert path.read_text() == ours.replace('"one"', '"three"')
    assert notebook.read_text() == edited


@pytest.mark.parametrize("known", [True, False])
def test_edits_of_the_same_lines_stay_where_they_are(small, capsys, known):
    path = small / "small.py"
    notebook = small / "build" / "small.ipynb"
    tool.make_notebook(path, notebook)
    edit(notebook, 3, '"one"', '"three"')
    ours = SMALL.replace('"one"', '"four"')
    theirs = notebook.read_text()
    path.write_text(ours)
    if not known:  # a notebook from elsewhere
        notebook.with_suffix(".agreed.py").unlink()
    result = tool.main(["merge", str(notebook), str(path)])
    assert result == 1
    assert "same lines" in (told := capsys.readouterr().err)
    assert "small.merged.py" in told
    result = (path.read_text(), notebook.read_text())
    assert result == (ours, theirs)
    both = notebook.with_suffix(".merged.py").read_text()
    assert both.startswith(SMALL[:99]) and both.count("<<<<<<<") == 1, "only what differs is marked"
    assert '<<<<<<< script\nprint("four")\n' in both
    assert 'print("three")\n>>>>>>> notebook' in both
    with pytest.raises(ValueError):
        tool.make_notebook(path, notebook)
    assert notebook.read_text() == theirs


def test_a_script_that_is_newer_than_an_unedited_notebook_stays(small):
    path = small / "small.py"
    notebook = small / "build" / "small.ipynb"
    tool.make_notebook(path, notebook)
    path.write_text(SMALL.replace("one", "four"))
    tool.make_script(notebook, path)
    assert path.read_text() == SMALL.replace("one", "four")
    tool.make_notebook(path, notebook)
    assert "four" in notebook.read_text()


def test_set_up_is_folded_in_jupyter_in_colab_and_by_make_lab(small):
    """And what folds it does not come back into the script."""
    notebook = tool.to_notebook(SMALL, small)
    cells = nbformat.reads(notebook, as_version=4).cells
    result = [cell.metadata.get("cellView") for cell in cells]
    expected = [None, "form", None, None]
    assert result == expected
    hidden = [cell.metadata.get("jupyter", {}).get("source_hidden") for cell in cells]
    assert hidden == [None, True, None, None]
    assert tool.to_script(notebook, SMALL) == SMALL
    config = PROJECT / "tools" / "lab" / "jupyter_server_config.py"
    lab = runpy.run_path(str(config), {"get_config": Mock()})
    manager = lab["FoldingContentsManager"](root_dir=str(small))
    opened = manager.get("small.py", type="notebook")
    cells = opened["content"]["cells"]
    hidden = [cell["metadata"].get("jupyter", {}).get("source_hidden") for cell in cells]
    assert hidden == [None, True, None, None]
    (small / "pyproject.toml").write_bytes((PROJECT / "pyproject.toml").read_bytes())
    manager.save({"type": "notebook", "format": "json", "content": opened["content"]}, "small.py")
    assert "source_hidden" not in (small / "small.py").read_text()


def test_a_pasted_image_is_refused(small):
    notebook = nbformat.reads(tool.to_notebook(SMALL, small), as_version=4)
    notebook.cells[0]["attachments"] = {"image.png": {"image/png": ""}}
    with pytest.raises(ValueError, match="cell 1 has a pasted image"):
        tool.to_script(nbformat.writes(notebook), SMALL)


def test_the_tutorial_goes_to_a_notebook_and_back(script):
    notebook = tool.to_notebook(script, PROJECT)
    assert "](images/" not in notebook
    assert tool.to_script(notebook, script) == script
    content = nbformat.reads(notebook, as_version=4)
    result = len({cell["id"] for cell in content.cells})
    assert result == len(content.cells)
    content.cells[0].source += "\n\nOne more sentence."
    first, second, rest = script.split("\n\n# %%", 2)
    expected = "\n\n# %%".join([first, second + "\n#\n# One more sentence.", rest])
    assert tool.to_script(nbformat.writes(content), script) == expected


def test_the_page_takes_the_text_of_the_tutorial(script):
    """No dead link, no id given twice, no image without words, no formula that does not parse."""
    content = nbformat.reads(tool.to_notebook(script, PROJECT), as_version=4)
    tool.describe(content)
    build_page.lay_out(build_page.Cells(content).html)


# Execution --------------------------------------------------------------------------------------


def test_execution_gives_the_same_bytes_each_time(small):
    notebook = small / "small.ipynb"
    executed = [small / "a.ipynb", small / "b.ipynb"]
    tool.make_notebook(small / "small.py", notebook)
    for path in executed:
        result = notebook_command("execute", notebook, path, cwd=small)
        assert result.returncode == 0, result.stderr
    progress = ["[2/4] import sys", "[3/4] def add(a: int, b: int) -> int:", "[4/4] print("]
    assert [line.partition('"')[0] for line in result.stderr.splitlines()] == progress
    text = executed[0].read_text()
    assert text == executed[1].read_text()
    expected = json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert text == expected
    last = json.loads(text)["cells"][-1]
    assert [o["output_type"] for o in last["outputs"]] == ["stream", "stream", "execute_result"]
    assert [o.get("text") for o in last["outputs"]] == [["one\n"], ["two\n"], None]
    assert last["outputs"][-1]["execution_count"] == last["execution_count"] == 3
    expected = {"annotated": {"kind": "output", "name": "", "defines": []}}
    assert last["metadata"] == expected
    assert "annotated" not in notebook.read_text(), "what is published has no such marks"


DRAWING = {"application/vnd.vegalite.v5+json": {}, "image/png": "", "text/plain": ""}


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
    assert tool.about(new_code_cell(code))["defines"] == defines


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (new_output("display_data", data=DRAWING), "figure"),
        (new_output("display_data", data={"text/html": "<table>"}), "table"),
        (new_output("execute_result", data={"text/plain": "1"}), "output"),
        (new_output("stream", name="stdout", text="✓"), "output"),
        (new_output("stream", name="stderr", text="50%"), "set-up"),
    ],
)
def test_what_a_cell_is_says_what_it_shows(output, kind):
    cell = new_code_cell("show()", outputs=[output])
    assert tool.about(cell)["kind"] == kind
    cell.source = "@example\ndef check_f(): ..."
    check = "check" if kind == "output" else kind
    assert tool.about(cell)["kind"] == check
    cell.source = "@example\ndef what_this_page_was_made_from(): ..."
    assert tool.about(cell)["kind"] == "facts"


def test_a_cell_that_only_publishes_has_a_source():
    about = tool.about(new_code_cell('published("steps")'))
    assert about["source"] == "docs/results/views/steps.json"
    assert about["name"] == "steps"
    for more in ('published("steps")\nx = 1', "published(name)", "steps()"):
        assert "source" not in tool.about(new_code_cell(more))


def test_a_cell_has_the_name_of_what_it_shows_first():
    example = "x = 1\n\n\n@example\ndef rate_figure(): ..."
    assert tool.about(new_code_cell(example))["name"] == "rate_figure"
    result = tool.about(new_code_cell('published("two-lines")\n' + example))["name"]
    assert result == "two-lines"
    assert tool.about(new_code_cell("def f(): ..."))["name"] == ""


def test_a_failing_cell_is_named_and_the_old_output_stays(small):
    (small / "small.py").write_text(SMALL + "\n\n# %%\nvalue = 3\nvalue / 0\n")
    tool.make_notebook(small / "small.py", small / "small.ipynb")
    (small / "out.ipynb").write_text("old")
    result = notebook_command("execute", "small.ipynb", "out.ipynb", cwd=small)
    assert result.returncode == 1
    assert "[5/5] value = 3" in result.stderr
    assert "value / 0" in result.stderr
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert "\x1b" not in result.stderr
    assert "notebook.py" not in result.stderr, "a reader needs no traceback of the tool"
    assert (small / "out.ipynb").read_text() == "old"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_notebook_runs_alone_in_an_empty_folder(script, tmp_path):
    (tmp_path / "alone.ipynb").write_text(tool.to_notebook(script, PROJECT))
    environment = {k: v for k, v in os.environ.items() if k not in ("MULTI30K_DIR", "RUNS_DIR")}
    environment["ANNOTATED_RUN"] = "smoke"
    result = notebook_command("execute", "alone.ipynb", "done.ipynb", cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr[-5000:]
    executed = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    outputs = [o for cell in executed.cells for o in cell.get("outputs", [])]
    texts = [o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs]
    assert any("✓" in text for text in texts)
    assert any("application/vnd.vegalite.v5+json" in o.get("data", {}) for o in outputs)
    assert (tmp_path / "done.ipynb").stat().st_size < 5e6
    begin = time.process_time()
    page, _ = build_page.build(tmp_path / "done.ipynb")
    assert time.process_time() - begin < 40, "seconds to lay it out"
    assert page.count('class="chart"') >= 9  # the others are played with


# The text ---------------------------------------------------------------------------------------


def test_the_story_uses_no_name_before_the_cell_that_defines_it(script):
    story = script[: script.index("\n# # The engine room")]
    assert rhythm.used_early(story) == []


def test_the_code_is_not_dense(script):
    """Of the script, of its Parts 1 to 4, of the tools and of the tests; and no more than fits."""
    parts = script.index("\n# # Part 1. "), script.index("\n# # Part 5. ")
    result = rhythm.density(rhythm.code_of(script[slice(*parts)])).mean
    assert result <= 12
    assert sum(rhythm.tokens_by_line(rhythm.code_of(script)).values()) <= TOKENS
    sources = {folder: tracked(f"{folder}/*.py") for folder in ("tools", "tests")}
    codes = {name: "\n".join(map(Path.read_text, paths)) for name, paths in sources.items()}
    for name, code in {"script": rhythm.code_of(script), **codes}.items():
        found = rhythm.density(code)
        assert found.mean <= 11, name
        assert found.dense <= 0.12, name
        assert found.packed <= 10, name


def test_lines_of_code_fit(script):
    code = [cell for cell in rhythm.cells(script) if not cell.prose]
    result = max(len(line) for cell in code for line in cell.lines)
    assert result <= 100


def prose(script: str) -> str:
    return "\n".join(line for cell in rhythm.cells(script) if cell.prose for line in cell.lines)


def test_figures_are_numbered_in_order(script):
    numbers = [int(n) for n in re.findall(r"\*\*Figure (\d+)\.\*\*", prose(script))]
    expected = list(range(1, len(numbers) + 1))
    assert numbers == expected
    assert numbers
    named = {int(n) for n in re.findall(r"\bfigures? (\d+)", prose(script), flags=re.I)}
    assert named <= set(numbers)


# Where the paper is -----------------------------------------------------------------------------

WHOLE = {f"Table {n}" for n in range(1, 5)} | {f"Figure {n}" for n in range(1, 6)} | {"Abstract"}
WHOLE |= {f"§{n}" for n in (1, 2, 3, *"3.1 3.2 3.2.1 3.2.2 3.2.3 3.3 3.4 3.5".split())}
WHOLE |= {f"§{n}" for n in (4, *"5.1 5.2 5.3 5.4 6.1 6.2 6.3".split(), 7)}


def named(text: str) -> list[str]:
    """Abstract, sections, tables and figures that a text names; of figures also a range."""
    found = re.findall(r"\bAbstract\b|§\d(?:\.\d)*", text)
    number = r"\b(Table|Figure)s? (\d+)(?:(?:, \d+)* (?:and|to) (\d+))?"
    for kind, first, last in re.findall(number, text):
        found += [f"{kind} {n}" for n in range(int(first), int(last or first) + 1)]
    return found


def test_everything_in_the_paper_has_its_place(script):
    sections = dict(re.findall(r'(?s)<a id="([^"]+)"></a>(.*?)(?=<a id=|\Z)', script))
    rows = re.findall(r"(?m)^# \| ([^|]+) \| (.+) \|$", sections["paper-map"])[2:]
    listed = [each for paper, _ in rows for each in named(paper)]
    assert set(listed) == WHOLE and len(set(listed)) == len(listed) - 1, "Figure 2 is in two halves"
    for paper, here in rows:
        text = " ".join(sections[anchor] for anchor in re.findall(r"\(#([^)]+)\)", here))
        text = re.sub(r"(?<!paper's )Figure \d+", "", re.sub(r"\n# ?(> )?", " ", text))  # of ours
        assert set(named(paper)) <= set(named(text)), paper


def test_a_training_gets_processes_and_options():
    replaced = ("train", "-n", "READY=", "PY=python", "ARGS=--epochs 1")
    train = "the_annotated_transformer.py train --epochs 1"
    assert make(*replaced).split() == ["python", *train.split()]
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    assert make(*replaced, "RANKS=2").strip() == f"python {torchrun} {train}"


def test_every_package_is_imported_or_called():
    modules = set()
    for path in tracked("*.py"):
        text = path.read_text("utf-8")
        modules |= set(re.findall(r'importorskip\("(\w+)', text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module.partition(".")[0])
    owners = importlib.metadata.packages_distributions()
    imported = {name.lower() for module in modules for name in owners.get(module, [])}
    unused = {name for name in requirements() if name.lower().replace("_", "-") not in imported}
    assert unused == set(CALLED)
    for name, (file, line) in CALLED.items():
        assert re.search(line, (PROJECT / file).read_text("utf-8"), flags=re.M), name


def test_make_says_whether_the_script_is_newer_than_the_page(small):
    for name in ("Makefile", "the_annotated_transformer.py"):
        shutil.copy(PROJECT / name, small)
    (small / "docs").mkdir()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A title")])
    nbformat.write(notebook, small / "empty.ipynb")
    (small / "docs" / "index.html").write_text(build_page.build(small / "empty.ipynb")[0])
    make("check-published", "-C", str(small))
    with (small / "the_annotated_transformer.py").open("a") as script:
        script.write("# more\n")
    with pytest.raises(subprocess.CalledProcessError) as told:
        make("check-published", "-C", str(small))
    assert "make blog makes it anew" in told.value.stdout


CALLED = {  # of packages that nothing imports: where the line stands that needs them, and the line
    "jupyterlab": ("Makefile", r"^\t.*\$\(PY\) -m jupyterlab "),
    "ruff": ("Makefile", r"^\t\$\(PY\) -m ruff "),
    "ipykernel": ("tools/notebook.py", r"KernelSpecManager\(kernel_dirs=\[\]\)"),  # its own kernel
    "setuptools": ("the_annotated_transformer.py", r"^ *import GPUtil"),  # which needs distutils
    "accessible-pygments": ("tools/build_page.py", r'^[^#]*"github-light-high-contrast"'),
    "pytest-xdist": ("Makefile", r"^WORKERS .*--numprocesses "),
    "pytest-timeout": ("pyproject.toml", r"^timeout = "),
}
