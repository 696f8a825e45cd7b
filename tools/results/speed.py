"""Measure how fast training and decoding are, beside others.

Training: beside `nn.Transformer`, and beside the way of 2022. Decoding: beside the plain loop, one
sentence at a time, and beside CTranslate2, an engine that is written for it.

    python tools/bench.py run            every case, five rounds in turn; writes benchmark.json
    python tools/bench.py measure CASE   one case once, as a line of JSON

`run` refuses a busy machine. Every measurement has new processes and is kept in RUNS_DIR at once:
after a stop the same command goes on, at the same commit. It needs Multi30k, and CTranslate2, which
`make bench` installs.
"""

import functools
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import Tensor, nn

from tools import records
from tools.results import ctranslate
from tools.results import recipe as results

at = results.at
FAST = results.fast_format()  # what a training takes here
ROUNDS = 5
WARM_UP = 3
SECONDS = 6.0  # of training: updates before a measurement, and its length
SMALL = at.Config(  # words as tokens, so that the feed of 2022 has the same vocabulary
    data="multi30k", vocab_size=0, share_embeddings=False, d_model=256, d_ff=1024, h=4, dropout=0.1,
    batch_tokens=2560,
)  # fmt: skip
SIZES = {"small": SMALL, "base": replace(SMALL, N=6, d_model=512, d_ff=2048, h=8)}


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


def batches_of_2022(corpus: at.Corpus, vocabularies: Sequence[at.Vocabulary]) -> Iterator[at.Batch]:
    """Batches of 32 pairs, for ever, padded to 72 tokens, cut into words when they are made."""
    size = 32
    length = 72
    tokenizers = at.load_tokenizers(corpus.languages)
    order = random.Random(1)
    pairs = list(corpus.pairs("train"))

    def ids(text: str, side: int) -> list[int]:
        words = [token.text for token in tokenizers[side](text)][: length - 2]
        known = [vocabularies[side].index.get(word, at.UNKNOWN) for word in words]
        return [at.START, *known, at.END] + [at.PAD] * (length - 2 - len(words))

    while True:
        order.shuffle(pairs)
        for group in at.grouped(pairs, size):
            src, tgt = (torch.tensor([ids(pair[side], side) for pair in group]) for side in (0, 1))
            yield at.Batch(src, tgt)


def loss_by_table(self: at.LabelSmoothing, log_probs: Tensor, target: Tensor) -> Tensor:
    """The same loss, from the whole target distribution."""
    table = self.distribution(target.flatten()).to(log_probs.device)  # (tokens, V)
    return nn.functional.kl_div(log_probs.flatten(0, -2), table, reduction="sum")


def unsorted_batches(lengths, budget: int, order) -> list[list[int]]:
    """As many sentences a batch as a sorted one has on average, in any order."""
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    return list(at.grouped(numbers, len(lengths) * budget // sum(map(max, lengths))))


GAINS = {  # what each is worth: the same training with something else in its place
    "dropout from random bytes": (at.FastDropout, "forward", nn.Dropout.forward),
    "loss without a table": (at.LabelSmoothing, "forward", loss_by_table),
    "fused layer norm": (nn.LayerNorm, "forward", at.LayerNorm.forward),
    "batches alike in length": (at, "token_batches", unsorted_batches),
}
NOT_IN_2022 = ("dropout from random bytes", "loss without a table", "fused layer norm")
ACCUMULATED = 10  # batches to an update of 2022


@dataclass(frozen=True)
class Case:
    """One measurement: what is run, and with how much of the machine."""

    task: str  # train, without (train without a gain), decode
    code: str = "ours"  # whose: also 2022, torch; to decode plain, ctranslate2
    size: str = "small"  # of SIZES; "shipped" is the model of pretrained/
    dtype: str = "fp32"
    ranks: int = 1
    threads: int = 2  # of each rank
    beam: int = 1
    change: tuple[str, ...] = ()  # the gain that is missing

    @property
    def name(self) -> str:
        how = f"beam{self.beam}" if self.task == "decode" else f"{self.ranks}x{self.threads}"
        return "-".join([self.task, self.code, self.size, self.dtype, how, *self.change])


def all_cases() -> Iterator[Case]:
    yield Case("train", "2022")
    formats = dict.fromkeys(("fp32", FAST))
    for size, code, dtype in itertools.product(SIZES, ("torch", "ours"), formats):
        yield Case("train", code, size, dtype)
    for size in SIZES:
        yield Case("train", "ours", size, FAST, ranks=2, threads=1)
    yield Case("decode", "plain", "shipped")
    for code, beam in itertools.product(("ours", "ctranslate2"), (1, 4)):
        yield Case("decode", code, "shipped", beam=beam)
    for gain in GAINS:
        yield Case("without", dtype=FAST, change=(gain,))


CASES = {case.name: case for case in all_cases()}


@dataclass
class Training:
    """What is trained, and this rank's batches, for ever."""

    net: nn.Module
    loss_compute: at.SimpleLossCompute
    means: tuple  # optimizer and schedule
    batches: Iterator[at.Batch]
    accum_iter: int
    autocast: Callable

    def updates(self, number: int) -> at.TrainState:
        """Make so many updates; what they were made of."""
        batches = itertools.islice(self.batches, number * self.accum_iter)
        loss = self.loss_compute
        how = {"accum_iter": self.accum_iter, "autocast": self.autocast}
        return at.run_epoch(batches, self.net, loss, *self.means, **how)[1]


def training_of(case: Case, config: at.Config, worker: at.Worker, folder: Path) -> Training:
    """A training in a folder; every code has the same loss, optimizer and loop."""
    if case.code == "2022":
        config = replace(config, attention_dropout=config.dropout, accum_iter=ACCUMULATED)
    run = results.open_run(replace(config, precision=case.dtype), folder, worker)
    model = run.model
    vocabularies = run.translator.vocabularies
    if case.code == "torch":
        model = TorchModel(vocabularies, config).to(worker.device)
    loss_compute = at.SimpleLossCompute(model.generator, run.loss_compute.criterion)
    numbers = itertools.cycle(at.batches_of_epoch(run.config, run.train, 1))
    batches = at.load_batches(run.train, numbers, worker)
    if case.code == "2022":
        batches = batches_of_2022(at.find_corpus(config.data), vocabularies)
    net = model if case.code == "torch" else run.net
    means = at.make_optimizer(model, 1.0, 1000)
    return Training(net, loss_compute, means, batches, config.accum_iter, run.autocast)


def measure_training(case: Case, folder: Path) -> dict[str, float]:
    """Real target tokens per second, and peak memory, of all ranks together."""
    for gain in NOT_IN_2022 if case.code == "2022" else case.change:
        setattr(*GAINS[gain])
    with at.join_workers() as worker:
        training = training_of(case, SIZES[case.size], worker, folder)
        training.updates(WARM_UP)
        tokens = 0
        begin = time.perf_counter()
        while not any(at.gather(time.perf_counter() - begin > SECONDS, worker)):
            tokens += training.updates(1).tokens * worker.ranks
        seconds = time.perf_counter() - begin
        peak = sum(at.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, worker))
    return {"tokens per second": tokens / seconds, "peak MB": peak}


def measure_decoding(case: Case) -> dict[str, float]:
    """Sentences of test 2016 per second, from text to text; the plain loop takes one at a time."""
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    size = 100
    if case.code == "ours":
        decode = functools.partial(at.beam_search, beam=case.beam)
    elif case.code == "ctranslate2":
        decode = ctranslate.decoder(translator, case.beam, case.threads)
    else:
        size = 1
        decode = at.greedy_decode
    pairs = at.find_multi30k(translator.languages).pairs("test_2016_flickr")
    sources = [source for source, _ in pairs]
    at.translate(translator, sources[:20], decode, size)
    begin = time.perf_counter()
    at.translate(translator, sources, decode, size)
    seconds = time.perf_counter() - begin
    return {"sentences per second": len(sources) / seconds}


def measure_apart(case: Case) -> dict[str, float]:
    """Measure a case in new processes, one for each rank; RuntimeError if they fail."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    launcher = [sys.executable, *(torchrun if case.ranks > 1 else [])]
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, "-m", __spec__.name, "measure", case.name]
        command += ["--folder", f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{case.name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: Literal[tuple(CASES)], /, folder: Path | None = None) -> None:
    """Measure one case once, in processes of its own.

    Args:
        folder: of a training; with it this process is one of those that measure
    """
    case = CASES[name]
    if folder is None:
        numbers = measure_apart(case)
    elif case.task == "decode":
        numbers = measure_decoding(case)
    else:
        numbers = measure_training(case, folder)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(numbers))


def run(name: str = "benchmark") -> None:
    """Measure every case, round after round, and write the medians to docs/results/NAME.json."""
    made = results.made_with_shipped()
    path = at.runs_folder() / f"{name}-{made['commit'][:7]}.json"
    rounds = json.loads(path.read_text()) if path.is_file() else {name: [] for name in CASES}
    for number, (case, measured) in itertools.product(range(ROUNDS), rounds.items()):
        if len(measured) == number:
            records.wait_for_quiet()
            measured.append(measure_apart(CASES[case]))
            records.write_text(path, json.dumps(rounds))
            print(f"round {number + 1}, {case}: {json.dumps(measured[-1])}", flush=True)
    cases = []
    for case, measured in rounds.items():
        medians = {unit: median(each[unit] for each in measured) for unit in measured[0]}
        cases.append({"name": case, **asdict(CASES[case]), **medians, "rounds": measured})
    words = len(at.learn_words(at.find_corpus(SMALL.data))[1])
    content = {"rounds": ROUNDS, "words": words, "format": FAST, "cases": cases}
    records.write(name, content | {"made": made})
    path.unlink()


main = records.command_line(run=run, measure=measure)

if __name__ == "__main__":
    sys.exit(main())
