"""What every test stands on: toy data, runs in a folder of their own, one thread, no network.

Set before the script is imported, so that processes which the tests start inherit it.
"""

import atexit
import dataclasses
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BROWSERS = "chromium", "chromium-browser", "google-chrome"
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
PROJECT = Path(__file__).resolve().parent.parent
OUTSIDE = "OUTSIDE_MULTI30K_DIR"  # the reader's MULTI30K_DIR, for the tests that ask for it
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
NOWHERE = "http://127.0.0.1:9"  # nothing listens at the port for discarding

os.environ["ANNOTATED_RUN"] = "smoke"
os.environ["OMP_NUM_THREADS"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the same device on every machine
if folder := os.environ.pop("MULTI30K_DIR", None):
    os.environ[OUTSIDE] = str(Path(folder).resolve())
os.environ["RUNS_DIR"] = tempfile.mkdtemp(prefix="runs-")
atexit.register(shutil.rmtree, os.environ["RUNS_DIR"], ignore_errors=True)
for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
    os.environ[name] = NOWHERE
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"


MISSING = {  # what tests ask for by a fixture, and why it is not here
    "chromium": "" if CHROMIUM else f"no browser: none of {', '.join(BROWSERS)}",
    "multi30k": "" if OUTSIDE in os.environ else "MULTI30K_DIR is not set",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skip what needs a thing that is not here; its mark is for continuous integration."""
    for item in items:
        for name in MISSING.keys() & set(item.fixturenames):
            item.add_marker("needs")
            if MISSING[name]:
                item.add_marker(pytest.mark.skip(reason=MISSING[name]))


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    """The script looks for itself in the present folder."""
    monkeypatch.chdir(PROJECT)


@pytest.fixture(scope="session")
def at() -> ModuleType:
    """The script as a module."""
    import the_annotated_transformer

    return the_annotated_transformer


@pytest.fixture(scope="session", autouse=True)
def one_cpu(at) -> Iterator[Callable]:
    """One thread of the CPU, in fp32, on every machine: results are compared bit for bit."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at, "choose_device", lambda: torch.device("cpu"))
        really = at.gains_from_bf16
        patch.setattr(at, "gains_from_bf16", lambda device: False)
        yield really


@pytest.fixture(scope="session")
def shipped(at):
    """The model of the page, as the script reads it."""
    import torch

    return at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)


@pytest.fixture
def browser(chromium) -> Iterator:
    """A browser whose windows are closed after the test."""
    yield chromium
    for context in chromium.contexts:
        context.close()


@pytest.fixture
def multi30k() -> str:
    """The folder of Multi30k that MULTI30K_DIR named outside."""
    return os.environ[OUTSIDE]


@pytest.fixture
def fresh_corpora(at):
    """`corpus_at_hand` remembers; a test that changes what it could find must not see that."""
    at.corpus_at_hand.cache_clear()
    yield
    at.corpus_at_hand.cache_clear()


def write_pairs(folder: Path, languages: tuple[str, str], **splits: list[tuple[str, str]]) -> Path:
    """Write splits as a reader would: one file for each split and language, one sentence a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        for language, side in zip(languages, zip(*pairs, strict=True), strict=True):
            path = folder / f"{split}.{language}"
            path.write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    return folder


@pytest.fixture(scope="package")
def small_corpus(at, tmp_path_factory) -> Path:
    """A folder with 120 German–English captions to train on, 12 for validation, 12 to test."""
    pairs = list(at.builtin_corpus()["train"][:144])
    splits = {"train": pairs[:120], "val": pairs[120:132], "test": pairs[132:]}
    return write_pairs(tmp_path_factory.mktemp("corpus"), ("de", "en"), **splits)


@pytest.fixture(scope="package")
def small_config(at, small_corpus):
    """Settings of a training that takes a second."""
    return at.Config(
        data=str(small_corpus), N=1, d_model=16, d_ff=32, h=2, dropout=0.1, attention_dropout=0.1,
        max_len=16, min_freq=1, vocab_size=0, share_embeddings=False, batch_tokens=128,
        accum_iter=2, warmup=1, factor=0.1, epochs=2, schedule="inverse_sqrt", precision="fp32",
    )  # fmt: skip


@pytest.fixture(scope="package")
def small_run(at, small_config, tmp_path_factory) -> Path:
    """The folder of a finished run of one epoch, with 16 positions."""
    folder = tmp_path_factory.mktemp("finished") / "small"
    at.train_model(dataclasses.replace(small_config, epochs=1), folder)
    return folder


@pytest.fixture(scope="package")
def whole(at, small_config, tmp_path_factory) -> Path:
    """The folder of a run of two epochs that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    at.train_model(small_config, folder)
    return folder


def options_of(config) -> list[str]:
    """Settings as the command line takes them."""
    options = []
    for field in dataclasses.fields(config):
        option = field.name.replace("_", "-")
        value = getattr(config, field.name)
        if field.type is bool:
            options.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            options.append(f"--{option}={value}")
    return options


def train_one_epoch(config, folder: Path) -> None:
    """The first epoch of a run that has more of them."""
    import the_annotated_transformer as at

    assert at.train_model(config, folder, minutes=1e-9) == "stopped"


def saved(folder: Path) -> dict:
    """What a run goes on from: history, model, optimizer, updates."""
    import torch

    return torch.load(folder / "last.pt", weights_only=True)


def log_of(folder: Path) -> list[dict]:
    """The log of a run, without what depends on the clock."""
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    clock = ("minutes", "tokens_per_second", "gpu")
    return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in lines]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_run(one: Path, other: Path) -> None:
    """The same weights, moments, schedule, scores and files, bit for bit; nothing half-written."""
    import torch

    ours, theirs = saved(one), saved(other)
    for part in ("model", "optimizer", "updates"):
        torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0)
    assert log_of(one) == log_of(other)
    assert len(log_of(one)) == len(ours["history"]) == len(theirs["history"])
    files = contents(one), contents(other)
    assert files[0].keys() == files[1].keys()
    for name in files[0].keys() - {"config.json", "log.jsonl", "last.pt"}:
        assert files[0][name] == files[1][name], name
    about = [json.loads(content["config.json"]) | {"name": ""} for content in files]
    assert about[0] == about[1]


@pytest.fixture(scope="package")
def stopped_run(at, small_config, tmp_path_factory) -> Path:
    """The folder of the same run as `whole`, stopped after the first of its two epochs."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    train_one_epoch(small_config, folder)
    return folder


@pytest.fixture(scope="module")
def figures_page(at, chromium, tmp_path_factory) -> Path:
    """A page with all figures that readers play with, built once for all modules."""
    from pages import figures_in

    folder = tmp_path_factory.getbasetemp() / "figures"
    if not (folder / "page.html").is_file():
        folder.mkdir(exist_ok=True)
        figures_in(folder, at, chromium)
    return folder / "page.html"
