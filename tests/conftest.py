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
from records import BROWSERS, CHROMIUM

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


def javascript(**modules: str):
    """The page's model without a browser, with modules of tools/page/figures by name."""
    import build_page
    import bundle
    import quickjs

    context = quickjs.Context()
    context.eval("globalThis.self = globalThis")
    context.eval(build_page.engine())
    for name, path in modules.items():
        context.eval(bundle.bundle(build_page.FIGURES / path, name))
    return context


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


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        assert "REQUIRE_BROWSER" not in os.environ, "a browser was promised, and there is none"
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)}")
    with driver.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)


@pytest.fixture
def browser(chromium) -> Iterator:
    """A browser whose windows are closed after the test."""
    yield chromium
    for context in chromium.contexts:
        context.close()


DRAWN = "document.querySelector('.stage').__k"  # a figure that Preact has drawn listens


def visited(browser, address: str, **settings):
    """A window with a page, and in `asked` all that it has asked for."""
    tab = browser.new_context(**settings).new_page()
    tab.asked = []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.goto(address)
    return tab


@pytest.fixture
def multi30k() -> str:
    """The folder of Multi30k that MULTI30K_DIR named outside."""
    if OUTSIDE not in os.environ:
        pytest.skip("MULTI30K_DIR is not set")
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
        accum_iter=2, warmup=1, factor=0.1, epochs=2, schedule="inverse_sqrt", keep=1,
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
    for name, value in dataclasses.asdict(config).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            options.append(f"--{option}={value}")
    return options


def train_one_epoch(config, folder: Path, parts=()) -> None:
    """The first epoch of a run that has more of them."""
    import the_annotated_transformer as at

    with pytest.MonkeyPatch.context() as patch:
        train_epoch = at.train_epoch

        def only_the_first(*arguments):
            return None if arguments[6] > 0 else train_epoch(*arguments)

        patch.setattr(at, "train_epoch", only_the_first)
        at.train_model(config, folder, parts=parts)


def saved(folder: Path) -> dict:
    """The content of a run's last checkpoint, and its history."""
    import the_annotated_transformer as at

    history = at.read_run(folder).history
    return at.load_checkpoint(folder, history) | {"history": history}


def log_of(folder: Path) -> list[dict]:
    """The history of a run, without what depends on the clock."""
    entries = json.loads((folder / "run.json").read_bytes())["history"]
    clock = ("minutes", "tokens_per_second", "gpu")
    return [{k: v for k, v in entry.items() if k not in clock} for entry in entries]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock, which has no content."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_run(one: Path, other: Path) -> None:
    """The same weights, moments, schedule, scores and files, bit for bit; nothing half-written."""
    import torch

    ours = saved(one)
    theirs = saved(other)
    assert ours["scheduler"] == theirs["scheduler"]
    for name, weights in ours["model"].items():
        assert torch.equal(weights, theirs["model"][name]), name
    for number, moments in ours["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, theirs["optimizer"]["state"][number][name]), name
    files = contents(one), contents(other)
    assert files[0].keys() == files[1].keys()
    assert ".part" not in "".join(files[0])
    for name in files[0]:
        if name.startswith("epoch-") and not name.endswith("config.json"):
            assert files[0][name] == files[1][name], name
    assert log_of(one) == log_of(other)
    assert len(log_of(one)) == len(ours["history"]) == len(theirs["history"])
    runs = [json.loads(files[n]["run.json"]) for n in range(2)]
    for name in ("status", "ids", "corpus", "parameters", "settings"):
        assert runs[0][name] == runs[1][name]
