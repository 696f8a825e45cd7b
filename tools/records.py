"""Records of docs/results, and what makes a finished view of them: caption, origin, hash of code.

A view is a table (`columns`, `rows`) or a chart for Vega-Lite (`chart`), with `caption` and
`measured`: date, machine and commits of the runs behind it, and `code`, the `code_hash` of what
they ran. Records of the first edition name no such hash; there it is null.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import symtable
import time
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
TESTS = {"test_2016_flickr": "test 2016", "test_2017_flickr": "test 2017"}


def read(name: str) -> dict:
    """A record of docs/results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, content: dict) -> None:
    """A record or a view, in one piece or not at all."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.with_suffix(".new").write_text(f"{text}\n", encoding="utf-8")
    path.with_suffix(".new").replace(path)


def circumstances(*packages: str) -> dict[str, str]:
    """Date, machine, versions, allocator and commit, to stand beside every number."""
    commit, cpu = "unknown", Path("/proc/cpuinfo")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        commit = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    model = re.search(r"model name\s*: (.+)", cpu.read_text()) if cpu.is_file() else None
    processor = model[1].strip() if model else platform.machine()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{processor}, {os.cpu_count()} CPU cores",
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "allocator": Path(os.environ.get("LD_PRELOAD") or "the system's").name,
        "commit": commit,
    }


def scorings() -> list[dict]:
    """The log of all scorings of the test splits."""
    with (RESULTS / "scorings.jsonl").open(encoding="utf-8") as log:
        return [json.loads(line) for line in log]


def summaries(runs: Iterable[str]) -> list[dict]:
    """What the records of some runs say about them, each run once."""
    return [read(f"runs/{run}")["summary"] for run in dict.fromkeys(runs)]


def finished(caption: str, made: Iterable[dict], **content) -> dict:
    """A view; `made` holds date, machine and commit of each run behind it."""
    made = list(made)
    dates = " and ".join(sorted({each["date"] for each in made}))
    bf16 = {each["machine"]: " with bf16" for each in made if each.get("bf16")}
    machines = (
        name + bf16.get(name, "") for name in dict.fromkeys(each["machine"] for each in made)
    )
    machine = "; ".join(machines).replace("(R)", "").replace(" Processor", "")
    names = sorted({each["commit"][:7] for each in made})
    commits = f"commit{'s' * (len(names) > 1)} {', '.join(names)}"
    codes = {each.get("code") for each in made}
    edition = "" if len(codes) == 1 else "different code, "
    edition = "the first edition's code, " if codes == {None} else edition
    code = codes.pop() if len(codes) == 1 else None
    caption = f"{caption}. {machine}, {dates}; measured with {edition}{commits}."
    if "chart" in content:  # its alt text also says where it comes from
        content["chart"]["description"] += f" {caption}"
    commits = edition.replace("the first edition's code", "first edition") + commits
    measured = {"date": dates, "machine": machine, "commit": commits, "code": code}
    return content | {"caption": caption, "measured": measured}


def tabulate(items: Iterable[dict], columns: dict[str, str]) -> dict:
    """A row for each item; `columns` maps a heading to the format of the cells below it."""
    rows = [[cell.format(**item) for cell in columns.values()] for item in items]
    return {"columns": list(columns), "rows": rows}


def with_range(values: Sequence[float], digits: int, middle: float | None = None) -> str:
    """The mean (or `middle`) and the range of the values, in one piece: no line break inside."""
    middle = mean(values) if middle is None else middle
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{middle:.{digits}f}" + (f"\u00a0({low}–\u2060{high})" if low != high else "")


def without_prose(source: str) -> list[str]:
    """The lines of a script, those of docstrings and comments left blank."""
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            lines[first:last] = [""] * (last - first)
    return lines


def names_in(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Names that a piece of code binds, and those that it looks up outside of its functions."""
    symbols = table.get_symbols()
    bound = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    inside = table.get_type() != "module"
    used = {s.get_name() for s in symbols if s.is_referenced() and (s.is_global() or not inside)}
    return bound, used.union(*(names_in(child)[1] for child in table.get_children()))


def code_hash(script: Path, roots: Iterable[str]) -> str:
    """A hash of all code that `roots`, such as train_model and beam_search, can reach in a script.

    From the roots it follows every name that is looked up to the statements that bind it: imports,
    functions, classes, constants, `NAME[...] = ...`. Only their source counts. So the hash changes
    with anything that training or scoring runs, and stays when prose, comments, docstrings, blank
    lines, figures or the order of cells change. It does not see bare calls such as
    `torch.set_num_threads(1)` at the top of a script, nor the versions of packages.
    ValueError for a root that the script does not bind.
    """
    source = script.read_text(encoding="utf-8")
    whole, bare, makers, uses = source.split("\n"), without_prose(source), defaultdict(set), {}
    for statement in ast.parse(source).body:
        first = min(n.lineno for n in [statement, *getattr(statement, "decorator_list", [])])
        lines = slice(first - 1, statement.end_lineno)
        text = "\n".join(filter(str.strip, bare[lines]))
        table = symtable.symtable("\n".join(whole[lines]), str(script), "exec")
        bound, uses[text] = names_in(table)
        for target in getattr(statement, "targets", []):
            while isinstance(target, ast.Subscript | ast.Attribute):
                target = target.value
            bound |= {target.id} if isinstance(target, ast.Name) else set()
        for name in bound:
            makers[name].add(text)
    todo, reached = set(roots), set()
    if missing := todo - makers.keys():
        raise ValueError(f"{script} does not define {', '.join(sorted(missing))}")
    while todo:
        new = makers.get(todo.pop(), set()) - reached
        reached |= new
        todo |= set().union(*(uses[text] for text in new))
    return hashlib.sha256("\n".join(sorted(reached)).encode()).hexdigest()[:16]
