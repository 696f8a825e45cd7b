"""Measure how fast training and decoding are, beside others.

Training: beside `nn.Transformer`. Decoding: beside the plain loop, one sentence at a time, and
beside CTranslate2, an engine that is written for it.

    python -m tools.results.speed run      every case, in rounds, on the CPU; benchmark.json
    python -m tools.results.speed measure CASE FOLDER   one case once; a line of JSON

That takes half an hour. Every measurement has a process of its own, waits for a quiet machine, and
is kept in RUNS_DIR at once: after a stop the same command continues, at the same commit. Training
needs Multi30k; decoding needs CTranslate2 (`.venv/bin/python -m pip install ctranslate2==4.8.5`).
Then `make results` writes the tables.
"""

import functools
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

import the_annotated_transformer as at
from tools import records
from tools.results import ctranslate
from tools.results.flops import training_flops
from tools.results.outside import TorchModel

CPU = torch.device("cpu")
FAST = "bf16" if at.gains_from_bf16(CPU) else "fp32"  # the faster format of this CPU
ROUNDS = 5
WARM_UP = 3  # updates before a measurement
SECONDS = 6.0  # of a round
SMALL = at.Config(
    data="multi30k", vocab_size=0, share_embeddings=False, d_model=256, d_ff=1024, h=4, dropout=0.1,
    batch_tokens=2560,
)  # fmt: skip
BASE = replace(SMALL, N=6, d_model=512, d_ff=2048, h=8)
SIZES = {"small": SMALL, "base": BASE}


# Cases --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One measurement: what is run, and with how much of the machine."""

    task: str  # train, decode
    code: str  # ours, torch; to decode also plain, ctranslate2
    size: str = "small"  # of SIZES; "shipped" is the model of pretrained/
    dtype: str = "fp32"
    threads: int = 2
    beam: int = 1

    @property
    def name(self) -> str:
        how = f"beam{self.beam}" if self.task == "decode" else f"{self.threads}-threads"
        return "-".join([self.task, self.code, self.size, self.dtype, how])

    @property
    def config(self) -> at.Config:
        return replace(SIZES[self.size], precision=self.dtype, compile=False)


def all_cases() -> Iterator[Case]:
    formats = dict.fromkeys(("fp32", FAST))
    for size, code, dtype in itertools.product(("small", "base"), ("torch", "ours"), formats):
        yield Case("train", code, size, dtype)
    yield Case("decode", "plain", "shipped")
    for code, beam in itertools.product(("ours", "ctranslate2"), (1, 4)):
        yield Case("decode", code, "shipped", beam=beam)


CASES = {case.name: case for case in all_cases()}


# One measurement ----------------------------------------------------------------------------------


class Training:
    """A training. Every code has the same loss, optimizer and loop.

    The folder holds the text as ids; trainings of one size may share it.
    """

    def __init__(self, case: Case, folder: Path):
        config = case.config
        if not (folder / "config.json").is_file():
            folder.mkdir(parents=True)
            at.prepare(config, folder)
        worker = at.Worker(0, 1, CPU)
        run = at.open_run(folder, worker)
        self.config = config
        self.net = self.model = run.model
        self.autocast = run.autocast()
        self.words = len(run.translator.vocabularies[1])
        if case.code == "torch":
            self.net = self.model = TorchModel(run.model, config)
        criterion = at.LabelSmoothing(self.words, at.PAD, config.smoothing)
        self.loss_compute = at.SimpleLossCompute(self.model.generator, criterion)
        self.means = at.make_optimizer(self.model, 1.0, 1000)
        batches = at.batches_of_epoch(run.config, run.train, 1)
        loads = (at.load_batches(run.train, batches, worker) for _ in itertools.count())
        self.operations = 0  # of all batches so far, their padding among them
        self.batches = self.counted(itertools.chain.from_iterable(loads))  # for ever

    def counted(self, batches: Iterable[at.Batch]) -> Iterator[at.Batch]:
        sizes = self.config.N, self.config.d_model, self.config.d_ff
        for batch in batches:
            pairs, source = batch.src.shape
            lengths = source, batch.tgt.size(1)
            self.operations += pairs * training_flops(*sizes, self.words, *lengths)
            yield batch

    def updates(self, number: int) -> at.TrainState:
        """Make so many updates; what they were made of."""
        batches = itertools.islice(self.batches, number)
        given = batches, self.net, self.loss_compute, *self.means
        return at.run_epoch(*given, autocast=self.autocast)[1]

    def one_round(self, seconds: float) -> dict[str, float]:
        """Train for so long: real target tokens, seconds of an update, operations per second."""
        tokens = 0
        updates = 0
        operations = self.operations
        begin = time.perf_counter()
        while time.perf_counter() - begin <= seconds:
            state = self.updates(1)
            tokens += state.tokens
            updates += state.step
        seconds = time.perf_counter() - begin
        return {
            "tokens per second": tokens / seconds,
            "seconds per update": seconds / updates,
            "operations per second": (self.operations - operations) / seconds,
        }


def measure_training(case: Case, folder: Path) -> dict[str, float]:
    """A round of a training in a process that does nothing else, and its peak memory."""
    at.keep_freed_memory()
    training = Training(case, folder)
    training.updates(WARM_UP)
    return training.one_round(SECONDS) | {
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    }


def measure_decoding(case: Case) -> dict[str, float]:
    """Sentences of test 2016 per second, from text to text; the plain loop takes one at a time."""
    translator = at.load_trained_model("pretrained", CPU)
    sources = [source for source, _ in at.find_corpus("multi30k").pairs("test_2016_flickr")]
    if case.code == "ours":
        decode = functools.partial(at.beam_search, beam=case.beam)
    elif case.code == "ctranslate2":
        decode = ctranslate.decoder(translator, case.beam, case.threads)
    else:
        decode = at.greedy_decode
    groups = [[source] for source in sources] if case.code == "plain" else [sources]
    at.translate(translator, sources[:20], decode)
    begin = time.perf_counter()
    for group in groups:
        at.translate(translator, group, decode)
    seconds = time.perf_counter() - begin
    return {"sentences per second": len(sources) / seconds}


def measure_apart(case: Case) -> dict[str, float]:
    """Measure a case in a new process; RuntimeError if it fails."""
    environment = {"OMP_NUM_THREADS": str(case.threads), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, "measure", case.name, f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode != 0:
        raise RuntimeError(f"{case.name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: Literal[tuple(CASES)], folder: Path, /) -> None:
    """Measure one case once, in this process; a training writes its ids into the folder."""
    case = CASES[name]
    if case.task == "decode":
        numbers = measure_decoding(case)
    else:
        numbers = measure_training(case, folder)
    print(json.dumps(numbers))


# Rounds -------------------------------------------------------------------------------------------


def run() -> None:
    """Measure every case, round after round, and write them on record."""
    records.chosen_device()  # hides all GPUs
    made = records.made_with_shipped()
    path = at.runs_folder() / f"benchmark-{made['commit']}.json"
    rounds = json.loads(path.read_text()) if path.is_file() else {name: [] for name in CASES}
    for number, (name, measured) in itertools.product(range(ROUNDS), rounds.items()):
        if len(measured) == number:
            records.wait_for_quiet()
            measured.append(measure_apart(CASES[name]))
            records.write_text(path, json.dumps(rounds))
            print(f"round {number + 1}, {name}: {json.dumps(measured[-1])}", flush=True)
    words = len(at.learn_words(at.find_corpus(SMALL.data))[1])
    cases = [{"name": x} | asdict(CASES[x]) | {"rounds": each} for x, each in rounds.items()]
    content = {"rounds": ROUNDS, "words": words, "cases": cases, "made": made}
    records.write("benchmark", content)
    path.unlink()


main = records.command_line(run=run, measure=measure)

if __name__ == "__main__":
    sys.exit(main())
