"""Links of README and page follow one setting."""

import re
import subprocess
from pathlib import Path

import links
import pytest
from conftest import PROJECT


def project(folder: Path, address: str = "") -> Path:
    text = f'[tool.annotated-transformer]\nrepository = "{address}"\n'
    (folder / "pyproject.toml").write_text(text)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.mark.parametrize(
    "address", ["https://github.com/someone/a-name", "https://github.com/someone/a-name.git"]
)
def test_the_setting_comes_first(tmp_path, address):
    here = project(tmp_path, address)
    ask = ["git", "-C", str(here), "remote", "add", "origin", "git@github.com:other/name.git"]
    subprocess.run(ask, check=True)
    assert links.repository(here) == "someone/a-name"
    project(tmp_path)
    assert links.repository(here) == "other/name", "else git knows"


def test_without_an_address_there_are_no_links_to_elsewhere(tmp_path):
    assert links.repository(project(tmp_path)) is None
    ask = ["git", "-C", str(tmp_path), "remote", "add", "origin", "/somewhere/on/this/disk"]
    subprocess.run(ask, check=True)
    assert links.repository(tmp_path) is None
    assert links.links(None) == {}


def test_another_address_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"is not https://github\.com/OWNER/NAME"):
        links.repository(project(tmp_path, "https://example.org/x"))


def test_readme_follows_the_address():
    text = (PROJECT / "README.md").read_text("utf-8")
    moved = links.readme_with_links(text, "someone/a-name")
    assert "https://colab.research.google.com/github/someone/a-name/blob/main/docs/" in moved
    assert "someone" not in links.readme_with_links(moved, None)
    assert links.readme_with_links(moved, "someone/a-name") == moved, "twice is once"
    with pytest.raises(ValueError, match="no links between"):
        links.readme_with_links("# Title", None)


def test_what_readme_links_to_lies_here():
    found = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (PROJECT / "README.md").read_text("utf-8"))
    assert len(found) > 3
    assert not [path for path in found if not (PROJECT / path).exists()]
