"""What stands around the script: make, lists of packages, what pip installs, what texts promise."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import PROJECT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.mark.parametrize(
    "sentence", ["Ein „Hund“ läuft für 5 $ weg.", """it's "$HOME" `id` $(id) \\n #""", "-x; true"]
)
def test_a_sentence_reaches_the_program_as_it_was_typed(tmp_path, sentence):
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    echo = tmp_path / "echo.py"
    echo.write_text("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
    # CAN_TRANSLATE= : nothing is installed; PY and SCRIPT: our echo takes the program's place.
    command = ["make", "-s", "translate", "CAN_TRANSLATE=", f"PY={sys.executable}"]
    outer = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # of a `make test`
    for option, environment in (([f"TEXT={sentence}"], outer), ([], outer | {"TEXT": sentence})):
        arguments = [*command, f"SCRIPT={echo}", *option]
        told = subprocess.check_output(arguments, cwd=PROJECT, env=environment, text=True)
        assert told == sentence + "\n"


@pytest.mark.parametrize(
    "folder", ["", "docs", "docs/course", "exercises", "pretrained", "tools/page"]
)
def test_what_texts_link_to_lies_here(folder):
    for path in (PROJECT / folder).glob("*.md"):
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
        assert [link for link in links if not (path.parent / link).exists()] == [], path.name


def pins(text: str) -> dict[str, str]:
    """Packages and their versions."""
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", text))


def test_all_lists_of_packages_agree(at):
    text = (PROJECT / "requirements.txt").read_text("utf-8")
    of_script = pins("\n".join(text.split("\n\n")[:2]))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    for listed in (project["dependencies"], ["torch", *at.PACKAGES.split()]):
        wanted = {each.name: each.specifier for each in map(Requirement, listed)}
        assert wanted.keys() == of_script.keys()
        for name, version in of_script.items():
            assert wanted[name].contains(version), f"{name} {version} is not {wanted[name]}"
    locked = map(Requirement, (PROJECT / "constraints.txt").read_text("utf-8").splitlines())
    versions = {canonicalize_name(each.name): str(each.specifier) for each in locked}
    for name, version in pins(text).items():
        assert versions[canonicalize_name(name)] == f"=={version}", f"{name}: run `make lock`"


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
def test_the_python_of_using_runs(small_run, tmp_path):
    """Every block as it stands, in a folder with a run."""
    shutil.copytree(small_run, tmp_path / "runs" / "toy")
    text = (PROJECT / "docs" / "using.md").read_text("utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        command = [sys.executable, "-c", code]
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
