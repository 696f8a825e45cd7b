"""A cache on disk for what takes seconds to compute, so that a second build is fast."""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable
from pathlib import Path

from tools.records import PROJECT, write_text

FOLDER = PROJECT / "build" / "cache"
PACKAGES = ("pillow", "quickjs-ng", "vl-convert-python")  # what the cached functions compute with


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cached(function: Callable[..., str]) -> Callable[..., str]:
    """Cache a pure function: its result depends on its arguments, its module, and PACKAGES."""
    code = Path(inspect.getfile(function)).read_text("utf-8")
    versions = [importlib.metadata.version(name) for name in PACKAGES]

    @functools.wraps(function)
    def looked_up(*arguments: str) -> str:
        name = digest(repr((code, versions, function.__name__, arguments)))
        with contextlib.suppress(OSError, ValueError):  # missing or damaged
            check, text = (FOLDER / name).read_bytes().decode().split("\n", 1)
            if check == digest(text):
                return text
        text = function(*arguments)
        with contextlib.suppress(OSError):  # another process may write the same entry
            write_text(FOLDER / name, f"{digest(text)}\n{text}")
        return text

    return looked_up
