"""Links to what the page is made of, if pyproject.toml names a repository."""

import tomllib
from pathlib import Path

from tools.records import PROJECT


def links(project: Path = PROJECT) -> dict[str, str]:
    """URLs of the project on GitHub by what they lead to; empty if it has no address."""
    about = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    home = about.get("urls", {}).get("Repository", "").rstrip("/")
    if not home:
        return {}
    name = home.removeprefix("https://github.com/")
    notebook = "blob/main/docs/the_annotated_transformer.ipynb"
    return {
        "Run it in Colab": f"https://colab.research.google.com/github/{name}/{notebook}",
        "The notebook": f"{home}/{notebook}",
        "The script": f"{home}/blob/main/the_annotated_transformer.py",
        "The repository": home,
    }
