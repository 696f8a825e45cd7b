"""Measure how fast training and decoding are, beside others.

Training: beside `nn.Transformer`. Decoding: beside the plain loop, one sentence at a time, and
beside CTranslate2, an engine that is written for it. On a GPU: training.

    python -m tools.results.speed run      every case, in rounds; benchmark.json or gpu.json
    python -m tools.results.speed measure CASE FOLDER   one case once, on the CPU; a line of JSON

If CUDA_VISIBLE_DEVICES names a GPU, that is measured, in four minutes; else the CPU, in half an
hour. On the CPU every measurement has a process of its own, waits for a quiet machine, and is kept
in RUNS_DIR at once: after a stop the same command continues, at the same commit. Training needs
Multi30k; decoding needs CTranslate2, too: `.venv/bin/python -m pip install ctranslate2==4.8.5`.
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import the_annotated_transformer as at
from tools import records
from tools.results import ctranslate, plan
from tools.results.flops import training_flops

CPU = torch.device("cpu")
DEVICE = records.chosen_device()
FAST = "bf16" if at.gains_from_bf16(CPU) else "fp32"  # the faster format of this CPU
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDS = 5
WARM_UP = {"cpu": 3, "cuda": 20}  # updates before a measurement
AT_ONCE = {"cpu": 1, "cuda": 20}  # updates from one look at the clock to the next
SECONDS = {"cpu": 6.0, "cuda": 2.0}  # of a round
SIDE = 8192  # of the matrices whose product is taken for a GPU's peak
SMALL = at.Config(
    data="multi30k", vocab_size=0, share_embeddings=False, d_model=256, d_ff=1024, h=4, dropout=0.1,
    batch_tokens=2560,
)  # fmt: skip
BASE = replace(SMALL, N=6, d_model=512, d_ff=2048, h=8)
SIZES = {
    "small": SMALL,
    "base": BASE,
    "base-25000": replace(BASE, batch_tokens=25_000),  # as large as the batches of the paper
    "recipe": plan.RUNS["recipe-1"],
}


# Cases --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One measurement: what is run, and with how much of the machine."""

    task: str  # train, decode
    code: str  # ours, ours compiled, torch; to decode also plain, ctranslate2
    size: str = "small"  # of SIZES; "shipped" is the model of pretrained/
    dtype: str = "fp32"
    threads: int = 2
    beam: int = 1

    @property
    def name(self) -> str:
        how = f"beam{self.beam}" if self.task == "decode" else f"{self.threads}-threads"
        return "-".join([self.task, self.code, self.size, self.dtype, how]).replace(" ", "-")

    @property
    def config(self) -> at.Config:
        config = SIZES[self.size]
        return replace(config, precision=self.dtype, compile=self.code == "ours compiled")


def cases_of_cpu() -> Iterator[Case]:
    formats = dict.fromkeys(("fp32", FAST))
    for size, code, dtype in itertools.product(("small", "base"), ("torch", "ours"), formats):
        yield Case("train", code, size, dtype)
    yield Case("decode", "plain", "shipped")
    for code, beam in itertools.product(("ours", "ctranslate2"), (1, 4)):
        yield Case("decode", code, "shipped", beam=beam)


def cases_of_gpu() -> Iterator[Case]:
    for code, dtype in itertools.product(("torch", "ours"), FORMATS):
        yield Case("train", code, "base-25000", dtype)
    yield Case("train", "ours compiled", "base-25000", "bf16")
    yield Case("train", "ours", "recipe", "bf16")
    yield Case("train", "ours compiled", "recipe", "bf16")


def by_name(cases: Iterable[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


CASES = by_name(cases_of_cpu())
GPU_CASES = by_name(cases_of_gpu())


# One measurement ----------------------------------------------------------------------------------


class TorchModel(nn.Module):
    """nn.Transformer between our embeddings and our generator, called like our model."""

    def __init__(self, vocabularies: Sequence, config: at.Config):
        super().__init__()
        D = config.d_model
        dropout = config.dropout
        source, target = map(len, vocabularies)
        self.core = nn.Transformer(
            D, config.h, config.N, config.N, config.d_ff, dropout,
            layer_norm_eps=1e-6, batch_first=True, norm_first=True,
        )  # fmt: skip
        for module in self.core.modules():  # without this dropout, a fused kernel works on CPUs
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = config.attention_dropout
        positions = at.PositionalEncoding(D, dropout)
        self.src_embed = nn.Sequential(at.Embeddings(D, source), positions)
        self.tgt_embed = nn.Sequential(at.Embeddings(D, target), positions)
        self.generator = at.Generator(D, target)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        closed = ~src_mask.squeeze(1)
        causal = ~at.subsequent_mask(tgt.size(1))[0].to(tgt.device)  # hides a target's padding, too
        return self.core(
            self.src_embed(src), self.tgt_embed(tgt), tgt_mask=causal,
            src_key_padding_mask=closed, memory_key_padding_mask=closed, tgt_is_causal=True,
        )  # fmt: skip


class Training:
    """A training. Every code has the same loss, optimizer and loop.

    The folder holds the text as ids; trainings of one size may share it.
    """

    def __init__(self, case: Case, worker: at.Worker, folder: Path):
        config = case.config
        if not (folder / "config.json").is_file():
            at.begin_run(config, folder)
        run = at.Run(folder, worker)
        vocabularies = run.translator.vocabularies
        self.worker = worker
        self.planned = run.updates
        self.config = config
        self.net = run.net
        self.model = run.model
        self.loss_compute = run.loss_compute
        if case.code == "torch":
            self.net = self.model = TorchModel(vocabularies, config).to(worker.device)
            criterion = at.LabelSmoothing(len(vocabularies[1]), at.PAD, config.smoothing)
            self.loss_compute = at.SimpleLossCompute(self.model.generator, criterion)
            if config.precision == "bf16":
                self.net = at.MixedPrecision(self.net, worker.device)
                self.loss_compute = run.autocast()(self.loss_compute)
        self.words = len(vocabularies[1])
        self.means = at.make_optimizer(self.model, 1.0, 1000)
        numbers = itertools.cycle(at.batches_of_epoch(run.config, run.train, 1))
        batches = at.load_batches(run.train, numbers, worker, config.max_len)
        self.operations = 0  # of all batches so far, their padding among them
        self.batches = self.counted(batches)  # for ever

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
        return at.run_epoch(*given)[1]

    def one_round(self, seconds: float) -> dict[str, float]:
        """Train for so long: real target tokens, seconds of an update, operations per second."""
        tokens = 0
        updates = 0
        operations = self.operations
        begin = time.perf_counter()
        while time.perf_counter() - begin <= seconds:
            state = self.updates(AT_ONCE[self.worker.device.type])  # waits for the device
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
    with at.join_workers() as worker:
        training = Training(case, worker, folder)
        training.updates(WARM_UP["cpu"])
        found = training.one_round(SECONDS["cpu"])
    return found | {"peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure_decoding(case: Case) -> dict[str, float]:
    """Sentences of test 2016 per second, from text to text; the plain loop takes one at a time."""
    translator = at.load_trained_model("pretrained", CPU)
    how = {}
    if case.code == "ours":
        decode = functools.partial(at.beam_search, beam=case.beam)
    elif case.code == "ctranslate2":
        decode = ctranslate.decoder(translator, case.beam, case.threads)
    else:
        how = {"batch_tokens": 1}
        decode = at.greedy_decode
    pairs = at.find_multi30k(translator.languages).pairs("test_2016_flickr")
    sources = [source for source, _ in pairs]
    at.translate(translator, sources[:20], decode, **how)
    begin = time.perf_counter()
    at.translate(translator, sources, decode, **how)
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


def with_cases(rounds: dict[str, list[dict]], cases: dict[str, Case]) -> list[dict]:
    """Each case with its rounds, as they go on record."""
    return [{"name": x} | asdict(cases[x]) | {"rounds": each} for x, each in rounds.items()]


def run_on_cpu() -> None:
    """Every measurement in processes of its own; what an earlier command measured is kept."""
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
    content = {"rounds": ROUNDS, "words": words, "cases": with_cases(rounds, CASES), "made": made}
    records.write("benchmark", content)
    path.unlink()


def peak(dtype: str) -> float:
    """Operations a second of a product of two large matrices; "fp32" is TF32, as in training."""
    from torch.utils.benchmark import Timer

    one, other = torch.randn(2, SIDE, SIDE, device="cuda", dtype=FORMATS[dtype])
    product = Timer("one @ other", globals={"one": one, "other": other}).timeit(20)
    return 2 * SIDE**3 / product.mean


def run_on_gpu() -> None:
    """All trainings in one process: a start takes longer than a round."""
    records.graphics_card()  # ValueError without one
    torch._dynamo.config.recompile_limit = 64  # two compiled trainings share their code
    trainings = {}
    held = {}  # memory of each while it waits for its turn
    rounds = {name: [] for name in GPU_CASES}
    with at.join_workers() as worker, tempfile.TemporaryDirectory() as folder:
        peaks = {dtype: peak(dtype) for dtype in FORMATS}
        for name, case in GPU_CASES.items():
            before = torch.cuda.memory_allocated()
            how = f"{case.size}-{case.dtype}-{case.config.compile}"
            trainings[name] = Training(case, worker, Path(folder) / how)
            trainings[name].updates(WARM_UP["cuda"])
            held[name] = torch.cuda.memory_allocated() - before
        for number, name in itertools.product(range(ROUNDS), GPU_CASES):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            measured = trainings[name].one_round(SECONDS["cuda"])
            memory = held[name] + torch.cuda.max_memory_allocated() - before
            measured["peak MB"] = memory / 2**20
            highest = peaks[GPU_CASES[name].dtype]
            measured["share of peak"] = measured["operations per second"] / highest
            rounds[name].append(measured)
            print(f"round {number + 1}, {name}: {json.dumps(measured)}", flush=True)
    content = {
        "peak": peaks,
        "rounds": ROUNDS,
        "updates": trainings[Case("train", "ours", "recipe", "bf16").name].planned,  # of the recipe
        "cases": with_cases(rounds, GPU_CASES),
        "made": records.circumstances("cuda"),
    }
    records.write("gpu", content)


def run() -> None:
    """Measure every case of this device, round after round, and write them on record."""
    if DEVICE == "cuda":
        run_on_gpu()
    else:
        run_on_cpu()


main = records.command_line(run=run, measure=measure)

if __name__ == "__main__":
    sys.exit(main())
