"""What the tools share: records of docs/results, circumstances, a command line."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
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
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write(name: str, content: dict) -> None:
    """Write a record."""
    path = RESULTS / f"{name}.json"
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}")


def circumstances(device: str = "cpu", dtype: str = "fp32") -> dict[str, str]:
    """When, where and with what something is measured, to stand beside every number."""
    command = ["git", "-C", str(PROJECT), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": graphics_card() if device == "cuda" else processor(),
        "allocator": Path(os.environ.get("LD_PRELOAD") or "the system's").name,
        "commit": commit,
        "torch": importlib.metadata.version("torch"),
        "device": device,
        "format": dtype,
    }


def processor() -> str:
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpu.read_text()) if cpu.is_file() else None
    return f"{model[1].strip() if model else platform.machine()}, {os.cpu_count()} CPU cores"


def graphics_card() -> str:
    """The GPU that CUDA_VISIBLE_DEVICES names; ValueError without one."""
    import torch

    if not os.environ.get("CUDA_VISIBLE_DEVICES") or not torch.cuda.is_available():
        raise ValueError("no NVIDIA GPU: CUDA_VISIBLE_DEVICES must name one that PyTorch sees")
    return torch.cuda.get_device_name()


def check_comparable(made: dict[str, dict]) -> None:
    """ValueError unless all were made with one version of PyTorch, device and number format.

    Records of the third edition have no version. They compare with each other.
    """
    for what in ("torch", "device", "format"):
        values = {
            name: each[what] if "torch" in each else "not recorded" for name, each in made.items()
        }
        if len({*values.values()}) > 1:
            raise ValueError(f"numbers of one table share {what}, and here are {values}")


def finished(caption: str, made: Iterable[dict], **content) -> dict:
    """A table (`columns`, `rows`) or a `chart`, with a caption that says where it comes from.

    `made` holds date, machine and commit of each measurement behind it.
    """
    made = list(made)
    machines = dict.fromkeys(each["machine"] for each in made)
    dates = sorted({each["date"] for each in made})
    commits = sorted({each["commit"][:7] for each in made})
    caption += f". {'; '.join(machines)}, {' and '.join(dates)}; commit {', '.join(commits)}."
    if "chart" in content:  # its alt text also says where it comes from
        content["chart"]["description"] += f" {caption}"
    return content | {"caption": caption}


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
        sys.path.insert(0, str(PROJECT))
        from the_annotated_transformer import UserError

        expected = (UserError, ValueError, OSError, RuntimeError, ArithmeticError)
        try:
            tyro.extras.subcommand_cli_from_dict(commands, args=arguments)
        except (*expected, KeyboardInterrupt) as error:
            print(f"error: {str(error) or 'interrupted'}", file=sys.stderr)
            return 1
        return 0

    return main
