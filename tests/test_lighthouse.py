"""What Lighthouse thinks of the published page, served with gzip as a host would serve it."""

import gzip
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import CHROMIUM

PAGE = Path(__file__).resolve().parent.parent / "docs" / "index.html"
LIGHTHOUSE = "lighthouse@12.8.2"
CATEGORIES = ("performance", "accessibility", "best-practices")


@pytest.fixture
def address() -> Iterator[str]:
    body = gzip.compress(PAGE.read_bytes(), mtime=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path == "/"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            if found:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body) if found else 0))
            self.end_headers()
            self.wfile.write(body if found else b"")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def run(*command: str, timeout: float = 300) -> subprocess.CompletedProcess:
    environment = os.environ | {"CHROME_PATH": str(CHROMIUM)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


@pytest.mark.slow
def test_lighthouse_is_content(address, tmp_path):
    """The best of three: what else the machine does can only make a page look slower."""
    if "LIGHTHOUSE" not in os.environ:
        pytest.skip("`make lighthouse` runs this: it fetches Lighthouse and measures time")
    if CHROMIUM is None or shutil.which("npx") is None:
        pytest.skip("Lighthouse needs Chromium and npm")
    npx = ("npx", "--yes", LIGHTHOUSE)
    if (fetched := run(*npx, "--version")).returncode:
        pytest.skip(f"{LIGHTHOUSE} cannot be fetched: {fetched.stderr[-200:]}")
    best = dict.fromkeys(CATEGORIES, 0.0)
    for _ in range(3):
        flags = "--chrome-flags=--headless=new --no-sandbox --disable-gpu"
        only = f"--only-categories={','.join(CATEGORIES)}"
        report = tmp_path / "report.json"
        done = run(*npx, address, "--preset=desktop", "--output=json", f"--output-path={report}",
                   "--quiet", only, flags)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(report.read_text())["categories"]
        best = {name: max(best[name], found[name]["score"]) for name in CATEGORIES}
        print({name: found[name]["score"] for name in CATEGORIES})
        if min(best.values()) >= 0.95:
            break
    assert min(best.values()) >= 0.95, best
