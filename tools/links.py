"""Where the project lives, and the links that follow from it: python tools/links.py

The address stands once, in pyproject.toml. Where that line is empty, it is the address of git's
remote "origin", if that is on GitHub. README has the links between two marks; the command writes
them anew. The page takes them from here too.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
README = PROJECT / "README.md"
SCRIPT, NOTEBOOK = "the_annotated_transformer.py", "docs/the_annotated_transformer.ipynb"
BEGIN, END = "<!-- links: tools/links.py -->\n", "<!-- end of links -->"
PREVIEW = "docs/preview.png"  # made from images/preview.svg
COLAB = "https://colab.research.google.com"
GITHUB = re.compile(r"(?:https://github\.com/|git@github\.com:)([\w.-]+/[\w.-]+?)(?:\.git)?/?")


def repository(project: Path = PROJECT) -> str | None:
    """OWNER/NAME on GitHub, or None where no address is known; ValueError for another address."""
    settings = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    address = settings.get("tool", {}).get("annotated-transformer", {}).get("repository", "")
    if address:
        found = GITHUB.fullmatch(address)
        if not found:
            raise ValueError(f"pyproject.toml: {address!r} is not https://github.com/OWNER/NAME")
        return found[1]
    ask = ["git", "-C", str(project), "config", "--get", "remote.origin.url"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git here
        return None
    found = GITHUB.fullmatch(answer)
    return found[1] if found else None


def links(home: str | None) -> dict[str, str]:
    """Title and address of each link; without a home on GitHub there is none."""
    if home is None:
        return {}
    return {
        "Open the notebook in Colab": f"{COLAB}/github/{home}/blob/main/{NOTEBOOK}",
        "Download the notebook": f"https://github.com/{home}/raw/main/{NOTEBOOK}",
        "The script": f"https://github.com/{home}/blob/main/{SCRIPT}",
    }


def preview(home: str | None) -> str:
    """Address of the picture that others show beside a link to the page."""
    return f"https://github.com/{home}/raw/main/{PREVIEW}" if home else Path(PREVIEW).name


def readme_with_links(text: str, home: str | None) -> str:
    """README with its links between the two marks; ValueError where the marks are missing."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"README.md has no links between {BEGIN!r} and {END!r}")
    known = links(home) or {"The notebook": NOTEBOOK, "The script": SCRIPT}
    row = " · ".join(f"[{title}]({address})" for title, address in known.items())
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{row}\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Write README's links; returns the exit status."""
    try:
        home = repository()
        text = readme_with_links(README.read_text("utf-8"), home)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    README.write_text(text, encoding="utf-8", newline="\n")
    print(f"README.md: links to {home or 'files of this folder, since no address is known'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
