"""What stands around the script: make's targets, versions, packages, and what pip installs."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import versions


def make(*arguments: str, **environment: str) -> str:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    outer = ("MAKE", "MFLAGS", "TORCH_INDEX")  # what a `make test` says that this may run in
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    command = ["make", "--no-print-directory", *arguments]
    options = {"cwd": PROJECT, "env": inherited | environment, "capture_output": True}
    return subprocess.run(command, text=True, check=True, **options).stdout


# Targets ------------------------------------------------------------------------------------------


def test_translating_installs_what_it_needs_and_no_more(tmp_path):
    """And PyTorch's build for CPUs on a Linux machine without an NVIDIA GPU."""
    dry = ("-n", "-B", f"VENV={tmp_path}/venv")
    translate = make("translate", *dry)
    assert "-r requirements.txt" in make("test", *dry)
    assert "-r requirements.txt" not in translate
    for_cpu = sys.platform == "linux" and not shutil.which("nvidia-smi")
    assert ("--index-url https://download.pytorch.org/whl/cpu" in translate) == for_cpu
    (tmp_path / "nvidia-smi").symlink_to(sys.executable)
    assert "--index-url" not in make("translate", *dry, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert set(versions.pins(blocks=1)) == {"torch", "tokenizers", "safetensors", "tyro"}


def test_help_lists_every_target():
    makefile = (PROJECT / "Makefile").read_text().replace("\\\n", "")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.M)[1].split()
    listed = re.findall(r"^ +make ([a-z-]+) +\S", make("help"), flags=re.M)
    assert sorted(listed) == sorted(set(phony) - {"FORCE"})


@pytest.mark.parametrize("target", ["setup", "test-all", "html", "blog", "page", "pdf", "results"])
def test_the_shell_understands_each_recipe(tmp_path, target):
    """As on a machine where nothing is installed yet."""
    commands = make("--dry-run", "--always-make", target, f"VENV={tmp_path}")
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


def test_a_training_gets_processes_and_options():
    replaced = ("train", "-n", "READY=", "PY=python", "ARGS=--epochs 1")
    train = "the_annotated_transformer.py train --epochs 1"
    assert make(*replaced).split() == ["python", *train.split()]
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
    assert make(*replaced, "RANKS=2").strip() == f"python {torchrun} {train}"


STUB = """\
#!/bin/sh
# In the place of Python: notes the command, and writes the file that it names last.
shift
for word; do case $word in --*) flag=" $word" ;; *) file=$word ;; esac; done
echo "$1 $2$flag" >> called
[ "$2" = make ] && [ -f "$file" ] && [ "$1" = tools.page.notebook ] && exit 0
mkdir -p "$(dirname "$file")" && touch "$file"
"""


def test_only_what_has_changed_is_made_again(tmp_path):
    """Another style lays the page out, another prose keeps the outputs, all else runs the code."""
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    sources = "tools/page/page.css images/x.svg pretrained/config.json results/views/x.json"
    for name in ("pyproject.toml", "LICENSE", *sources.split()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("Makefile", "requirements.txt"):
        shutil.copy(PROJECT / name, tmp_path)

    def called(*changed: str, level: str = "laptop") -> list[str]:
        """The commands of `make html` after a change of some files."""
        for path in tmp_path.rglob("*"):
            os.utime(path, (1e9, 1e9))
        for name in changed:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        (tmp_path / "called").write_text("")
        make("html", "-C", str(tmp_path), "READY=", f"PY={stub}", ANNOTATED_RUN=level)
        lines = (tmp_path / "called").read_text().splitlines()
        return [line.removeprefix("tools.page.") for line in lines]

    nothing = ["notebook make"]
    everything = ["notebook make", "execute run", "build make"]
    assert called() == everything
    assert called() == nothing
    assert called("build/the_annotated_transformer.ipynb") == [
        "notebook make", "execute run --keep-outputs", "build make",
    ]  # fmt: skip
    for name in ("tools/page/page.css", "images/x.svg", "pyproject.toml"):
        assert called(name) == ["notebook make", "build make"]
    for name in ("pretrained/config.json", "results/views/x.json", ".data/multi30k/train.de"):
        assert called(name) == everything
    assert called(level="smoke") == everything
    assert called(level="smoke") == nothing
    text = (tmp_path / "requirements.txt").read_text()
    (tmp_path / "requirements.txt").write_text(text.replace("torch==", "torch==9"))
    assert called(level="smoke") == everything


def test_lock_installs_nothing_of_the_new_versions(tmp_path):
    """They contradict constraints.txt until it is written."""
    for name in (".ready", ".translates"):
        (tmp_path / name).touch()
    commands = make("lock", "-n", "-W", "requirements.txt", f"VENV={tmp_path}")
    assert "uv pip compile" in commands
    assert "-r requirements.txt" not in commands


def test_what_readme_and_contributing_link_to_lies_here():
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (PROJECT / name).read_text("utf-8")
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        assert [path for path in links if not (PROJECT / path).exists()] == []


# Versions and packages ----------------------------------------------------------------------------


def test_every_file_has_the_versions_of_the_requirements():
    for name, text in versions.rewritten().items():
        assert (PROJECT / name).read_text("utf-8") == text, f"{name}: run `make lock`"
    lines = map(Requirement, (PROJECT / "constraints.txt").read_text().splitlines())
    locked = {canonicalize_name(line.name): str(line.specifier) for line in lines}
    for name, version in versions.pins().items():
        assert locked[canonicalize_name(name)] == f"=={version}", f"{name}: run `make lock`"
        assert importlib.metadata.version(name).partition("+")[0] == version


CALLED = {  # packages that nothing imports: the file and the line that needs them
    "jupyterlab": ("Makefile", r"^\t.*\$\(PY\) -m jupyterlab "),
    "ruff": ("Makefile", r"^\t\$\(PY\) -m ruff "),
    "ipykernel": ("tools/page/execute.py", r"KernelSpecManager\(kernel_dirs=\[\]\)"),
    "setuptools": ("the_annotated_transformer.py", r"^ *import GPUtil"),  # which needs distutils
    "accessible-pygments": ("tools/page/highlight.py", r'^[^#]*"github-light-high-contrast"'),
    "pytest-xdist": ("Makefile", r"^WORKERS .*--numprocesses "),
    "pytest-rerunfailures": ("tests/test_ranks.py", r"^pytestmark = pytest.mark.flaky"),
    "pytest-timeout": ("pyproject.toml", r"^timeout = "),
}


def test_every_package_is_imported_or_called():
    modules = set()
    for path in [
        PROJECT / "the_annotated_transformer.py",
        *(
            path
            for folder in ("tests", "tools", "exercises")
            for path in (PROJECT / folder).rglob("*.py")
        ),
    ]:
        text = path.read_text("utf-8")
        modules |= set(re.findall(r'importorskip\("(\w+)', text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    owners = importlib.metadata.packages_distributions()
    imported = {canonicalize_name(name) for module in modules for name in owners.get(module, [])}
    unused = {name for name in versions.pins() if canonicalize_name(name) not in imported}
    assert unused == set(CALLED)
    for name, (file, line) in CALLED.items():
        assert re.search(line, (PROJECT / file).read_text("utf-8"), flags=re.M), name


@pytest.mark.slow
def test_what_pip_installs_translates_and_writes_where_one_works(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    names = "the_annotated_transformer.py pyproject.toml README.md LICENSE pretrained".split()
    for name in names:
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, source / name)
    target = tmp_path / "lib" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*pip, "--target", target, source], check=True)
    code = """if True:
        import the_annotated_transformer as at
        print(at.translate(at.load_trained_model("pretrained"), ["Ein Hund rennt."])[0])
        print(at.runs_folder())"""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = os.environ | {"PYTHONPATH": str(target)}
    environment.pop("RUNS_DIR", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    translation, runs = done.stdout.splitlines()
    assert "dog" in translation
    assert Path(runs) == elsewhere / "runs"
    assert (target / "bin" / "annotated-transformer").is_file()


@pytest.mark.slow
def test_the_python_of_using_runs(tmp_path):
    """Every block, in an empty folder, as it stands."""
    text = (PROJECT / "docs" / "using.md").read_text("utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        command = [sys.executable, "-c", code]
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
