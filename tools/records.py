"""What the tools share: records of docs/results, circumstances, a hash of code, a command line."""

import ast
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import tyro

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = PROJECT / "docs" / "results"
BROWSERS = "chromium", "chromium-browser", "google-chrome"
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
BUSY = 15  # per cent of the cores that others may use while something is timed


def read(name: str) -> dict:
    """A record of docs/results; empty where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece or not at all: a reader never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)


def write(name: str, content: dict) -> None:
    """Write a record."""
    path = RESULTS / f"{name}.json"
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}")


def circumstances() -> dict[str, str]:
    """Date, machine and commit, to stand beside every number; the commit pins all versions."""
    command = ["git", "-C", str(PROJECT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpu.read_text()) if cpu.is_file() else None
    processor = model[1].strip() if model else platform.machine()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{processor}, {os.cpu_count()} CPU cores",
        "allocator": Path(os.environ.get("LD_PRELOAD") or "the system's").name,
        "commit": commit,
    }


def finished(caption: str, made: Iterable[dict], **content) -> dict:
    """A table (`columns`, `rows`) or a `chart`, with a caption that says where it comes from.

    `made` holds date, machine and commit of each run behind it, and the hash of its code; records
    of the first edition have no such hash.
    """
    made = list(made)
    codes = {each.get("code") for each in made}
    machines = dict.fromkeys(each["machine"] for each in made)
    dates = sorted({each["date"] for each in made})
    commits = sorted({each["commit"][:7] for each in made})
    edition = "the first edition's code, " if None in codes else ""
    edition = "partly " + edition if len(codes) > 1 and edition else edition
    caption += (
        f". {'; '.join(machines)}, {' and '.join(dates)}; measured with {edition}"
        f"commit {', '.join(commits)}."
    )
    if "chart" in content:  # its alt text also says where it comes from
        content["chart"]["description"] += f" {caption}"
    return content | {"caption": caption, "code": None if edition else ", ".join(sorted(codes))}


def wait_for_quiet(patience: float = 60.0) -> None:
    """Return when the machine is quiet; ValueError when it is not after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (percent := psutil.cpu_percent(interval=2)) > BUSY:
        if time.monotonic() >= deadline:
            raise ValueError(f"others use {percent:.0f} % of the cores, so nothing can be timed")


def markdown(view: dict) -> str:
    """A finished table in Markdown."""
    lines = [view["columns"], ["---"] * len(view["columns"]), *view["rows"]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def between_marks(text: str, mark: str, content: str) -> str:
    """The text with other content between `<!-- mark -->` and `<!-- end of mark -->`."""
    before, begin, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- end of {mark} -->")
    if not begin or not end:
        raise ValueError(f"there is no <!-- {mark} --> with its end in the text")
    return before + begin + content + end + after


def command_line(**commands: Callable) -> Callable[[list[str] | None], int]:
    """A main function that runs the command named by its arguments. An error has no traceback."""

    def main(arguments: list[str] | None = None) -> int:
        try:
            tyro.extras.subcommand_cli_from_dict(commands, args=arguments)
        except (ValueError, OSError, RuntimeError, ArithmeticError, KeyboardInterrupt) as error:
            print(f"error: {str(error) or 'interrupted'}", file=sys.stderr)
            return 1
        return 0

    return main


def code_hash(script: Path, roots: Iterable[str]) -> str:
    """A hash of the code that `roots`, such as train_model and beam_search, can reach in a script.

    It follows every name that a statement reads to the statements that bind it, and changes with
    anything that they run. It stays when prose, comments, docstrings, figures or the order of
    cells change. ValueError for a root that the script does not bind.
    """
    makers, uses = defaultdict(set), {}
    for statement in ast.parse(script.read_text(encoding="utf-8")).body:
        bound = {getattr(statement, "name", "")}
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        target = getattr(statement, "target", None)  # `NAME: type = …` has one, `NAME = …` several
        targets = [target] if target else getattr(statement, "targets", [])
        for target in targets or getattr(statement, "names", []):  # names of an import
            names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
            bound.update(names or [target.asname or target.name])
        code = ast.unparse(statement)  # without comments, in one layout
        uses[code] = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        for name in bound:
            makers[name].add(code)
    if missing := set(roots) - makers.keys():
        raise ValueError(f"{script} does not define {', '.join(sorted(missing))}")
    todo, reached = set(roots), set()
    while todo:
        new = makers[todo.pop()] - reached
        reached |= new
        todo.update(*(uses[code] for code in new))
    return hashlib.sha256("\n".join(sorted(reached)).encode()).hexdigest()[:16]
