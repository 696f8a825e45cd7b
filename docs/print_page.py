"""Print a page to PDF with a Chromium that is installed.

    python docs/print_page.py PAGE.html OUTPUT.pdf

The page's print style unfolds the code and puts pictures in the place of charts.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def find_browser() -> str:
    """A browser of the Chromium family; FileNotFoundError says how to get one."""
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    found += [str(MAC)] if MAC.is_file() else []
    if not found:
        way_out = (
            "install Chromium (on Debian and Ubuntu `apt install chromium`), or print the page"
        )
        raise FileNotFoundError(f"no {', '.join(BROWSERS[:3])} here: {way_out} from your browser")
    return found[0]


def print_page(page: Path, output: Path) -> None:
    """Write `output`, whole or not at all."""
    if not page.is_file():
        raise FileNotFoundError(f"there is no {page}: `make html` makes build/index.html")
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.partial").resolve()
    with tempfile.TemporaryDirectory() as profile:
        command = [find_browser(), "--headless", "--disable-gpu", "--no-pdf-header-footer"]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=20000"]
        command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command += [f"--print-to-pdf={partial}", page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode or not partial.is_file():
        raise OSError(f"{command[0]} could not print {page}: {done.stderr.strip()[-300:]}")
    os.replace(partial, output)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


def main(arguments: list[str]) -> int:
    """Command line; returns the exit status."""
    try:
        page, output = map(Path, arguments)
        print_page(page, output)
    except ValueError:
        print("usage: print_page.py PAGE.html OUTPUT.pdf", file=sys.stderr)
        return 2
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
