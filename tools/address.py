"""Where the project lives on the network, if anywhere: said in one place, for page and notebook.

[project.urls] of pyproject.toml says it as Repository = "https://github.com/OWNER/NAME"; without it
git's remote "origin" does. Files = "https://…/" names another place from which single files come.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.records import PROJECT

GITHUB = re.compile(r"github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
ORIGIN = re.compile(r'\[remote "origin"\][^\[]*?url = (\S+)')
NOTEBOOK = "docs/the_annotated_transformer.ipynb"
SCRIPT = "the_annotated_transformer.py"


@dataclass(frozen=True)
class Address:
    """Addresses that readers are given; each may be empty."""

    home: str = ""  # the repository
    files: str = ""  # where the path of a file begins
    script: str = ""
    notebook: str = ""  # to be looked at
    colab: str = ""  # where it runs


def address(project: Path = PROJECT, ask_git: bool = True) -> Address:
    """The address of a project, all empty where none is set; git knows that of its checkout."""
    settings = project / "pyproject.toml"
    told = tomllib.loads(settings.read_text("utf-8")) if settings.is_file() else {}
    urls = told.get("project", {}).get("urls", {})
    git = project / ".git" / "config"
    origin = ORIGIN.search(git.read_text("utf-8")) if ask_git and git.is_file() else None
    home = urls.get("Repository") or (origin[1] if origin else "")
    found = GITHUB.search(home)
    if not found:
        return Address(urls.get("Repository", ""), urls.get("Files", ""))
    name = found[1]
    return Address(
        home=f"https://github.com/{name}",
        files=urls.get("Files", f"https://raw.githubusercontent.com/{name}/main/"),
        script=f"https://github.com/{name}/blob/main/{SCRIPT}",
        notebook=f"https://github.com/{name}/blob/main/{NOTEBOOK}",
        colab=f"https://colab.research.google.com/github/{name}/blob/main/{NOTEBOOK}",
    )
