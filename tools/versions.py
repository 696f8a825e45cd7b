"""Carry the versions of requirements.txt to where else they stand; `make lock` calls it.

    python -m tools.versions

The first two blocks of requirements.txt are what the script imports. A notebook that stands alone
installs them (without torch, which it never touches), so the script repeats their pins. In
pyproject.toml they allow later releases of the same series.
"""

import re

from tools.records import PROJECT, write_text


def pins(blocks: int | None = None) -> dict[str, str]:
    """Packages and versions of so many blocks of requirements.txt; of all by default."""
    text = (PROJECT / "requirements.txt").read_text("utf-8")
    lines = "\n".join(text.split("\n\n")[:blocks])
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", lines))


def requirement(name: str, version: str) -> str:
    """What pip is asked for; a later torchtext is compiled against an older PyTorch."""
    series = ".".join(version.split(".")[:2])
    return f'"{name}=={version}"' if name == "torchtext" else f'"{name}~={series}"'


def rewritten() -> dict[str, str]:
    """The text of each file that repeats the versions, by its name."""
    of_script = pins(blocks=2)
    listed = "\n".join(f"{n}=={v}" for n, v in of_script.items() if n != "torch")
    needed = "".join(f"    {requirement(*pin)},\n" for pin in of_script.items())
    blocks = {
        "the_annotated_transformer.py": (r'(PACKAGES = """\n).*?(\n""")', listed),
        "pyproject.toml": (r"(\ndependencies = \[\n).*?(\]\n)", needed),
    }
    texts = {}
    for name, (pattern, block) in blocks.items():
        text = (PROJECT / name).read_text("utf-8")
        texts[name], found = re.subn(pattern, rf"\g<1>{block}\2", text, flags=re.S)
        if found != 1:
            raise ValueError(f"{name} has no list of packages that begins with {pattern!r}")
    return texts


if __name__ == "__main__":
    for name, text in rewritten().items():
        write_text(PROJECT / name, text)
