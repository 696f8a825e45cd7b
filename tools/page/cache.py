"""A cache on disk for what takes seconds to compute, so that a second build is fast."""

import functools
import hashlib
import importlib.metadata
import inspect
import os
from collections.abc import Callable
from pathlib import Path

from tools.records import PROJECT

FOLDER = PROJECT / "build" / "cache"
PACKAGES = ("quickjs-ng", "vl-convert-python")  # what the cached functions compute with


def cached(function: Callable[..., str]) -> Callable[..., str]:
    """Cache a pure function: its result depends on its arguments, its module, and PACKAGES."""
    code = Path(inspect.getfile(function)).read_text("utf-8")
    versions = [importlib.metadata.version(name) for name in PACKAGES]

    @functools.wraps(function)
    def looked_up(*arguments: str) -> str:
        key = repr((code, versions, function.__name__, arguments))
        entry = FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.txt"
        if not entry.is_file():
            FOLDER.mkdir(parents=True, exist_ok=True)
            partial = entry.with_suffix(f".{os.getpid()}")  # another process may compute it, too
            partial.write_bytes(function(*arguments).encode())
            partial.replace(entry)
        return entry.read_bytes().decode()

    return looked_up
