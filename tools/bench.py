"""Measure how fast training and decoding are, beside others.

Training: beside `nn.Transformer`, and beside the way of 2022. Decoding: beside the plain loop, one
sentence at a time, and beside CTranslate2, an engine that is written for it.

    python tools/bench.py run            every case, five rounds in turn; writes benchmark.json
    python tools/bench.py measure CASE   one case once, as a line of JSON

`run` refuses a busy machine. Every measurement has new processes and is kept in RUNS_DIR at once:
after a stop the same command goes on, if code, processor and allocator are the same. It needs
Multi30k, and CTranslate2, which `make bench` installs.
"""

import functools
import hashlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import ctranslate
import records
import results
import torch
from torch import Tensor, nn

at = results.at
FAST = "bf16" if at.gains_from_bf16(torch.device("cpu")) else "fp32"  # what a training takes here
DECODING = ["translate", "beam_search", "greedy_decode", "dequantise"]
ROUNDS = 5
WARM_UP = 3
SECONDS = 6.0  # of training: updates before a measurement, and its length
SMALL = at.Config(  # words as tokens, so that the feed of 2022 has the same vocabulary
    data="multi30k", vocab_size=0, share_embeddings=False, d_model=256, d_ff=1024, h=4, dropout=0.1,
    batch_tokens=2560,
)  # fmt: skip
SIZES = {"small": SMALL, "base": replace(SMALL, N=6, d_model=512, d_ff=2048, h=8)}


class TorchModel(nn.Module):
    """nn.Transformer between our embeddings and a linear map: a batch -> its loss, summed."""

    def __init__(self, vocabularies: Sequence, config: at.Config, autocast=None):
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
        self.smoothing = config.smoothing
        self.autocast = autocast

    def forward(self, batch: at.Batch) -> Tensor:
        closed = ~batch.src_mask.squeeze(1)
        real = batch.tgt_y != at.PAD
        causal = ~at.subsequent_mask(batch.tgt.size(1))[0]  # hides a target's padding, too
        causal = causal.to(batch.src.device)
        device = batch.src.device.type
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            states = self.core(
                self.src_embed(batch.src), self.tgt_embed(batch.tgt), tgt_mask=causal,
                src_key_padding_mask=closed, memory_key_padding_mask=closed, tgt_is_causal=True,
            )  # fmt: skip
            logits = self.generator.proj(states[real]).float()  # (tokens, V)
        wanted = batch.tgt_y[real]
        return nn.functional.cross_entropy(
            logits, wanted, label_smoothing=self.smoothing, reduction="sum"
        )


def batches_of_2022(corpus: at.Corpus, vocabularies: Sequence[at.Vocabulary]) -> Iterator[at.Batch]:
    """Batches of 32 pairs, for ever, padded to 72 tokens, cut into words when they are made."""
    size = 32
    length = 72
    tokenizers = at.load_tokenizers(corpus.languages)
    order = random.Random(1)
    pairs = list(corpus.splits["train"])

    def ids(text: str, side: int) -> list[int]:
        words = [token.text for token in tokenizers[side](text)][: length - 2]
        known = [vocabularies[side].index.get(word, at.UNKNOWN) for word in words]
        return [at.START, *known, at.END] + [at.PAD] * (length - 2 - len(words))

    while True:
        order.shuffle(pairs)
        for group in at.grouped(pairs, size):
            src, tgt = (torch.tensor([ids(pair[side], side) for pair in group]) for side in (0, 1))
            yield at.Batch(src, tgt)


def loss_at_once(loss_model: at.ModelWithLoss, batch: at.Batch, chosen: Tensor) -> Tensor:
    """The loss from the log-probabilities of the chosen positions, all in one table."""
    with torch.autocast("cpu", loss_model.autocast, enabled=loss_model.autocast is not None):
        states = loss_model.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = loss_model.model.generator(states[chosen])
        return loss_model.criterion(log_probs, batch.tgt_y[chosen])


def loss_of_all(loss_model: at.ModelWithLoss, batch: at.Batch) -> Tensor:
    return loss_at_once(loss_model, batch, torch.ones_like(batch.tgt_y, dtype=torch.bool))


def loss_of_real(loss_model: at.ModelWithLoss, batch: at.Batch) -> Tensor:
    return loss_at_once(loss_model, batch, batch.tgt_y != at.PAD)


def unsorted_batches(lengths, budget: int, order) -> list[list[int]]:
    """As many sentences a batch as a sorted one has on average, in any order."""
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    return list(at.grouped(numbers, len(lengths) * budget // sum(map(max, lengths))))


GAINS = {  # what each is worth: the same training with something else in its place
    "dropout from random bytes": (at.FastDropout, "forward", nn.Dropout.forward),
    "loss without a table": (at.FastLabelSmoothing, "forward", at.LabelSmoothing.forward),
    "loss in chunks": (at.ModelWithLoss, "forward", loss_of_real),
    "loss in chunks, real tokens only": (at.ModelWithLoss, "forward", loss_of_all),
    "fused layer norm": (at.FusedLayerNorm, "forward", at.LayerNorm.forward),
    "batches alike in length": (at, "token_batches", unsorted_batches),
}
NOT_IN_2022 = (
    "dropout from random bytes",
    "loss without a table",
    "loss in chunks, real tokens only",
    "fused layer norm",
)  # beside its batches
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
    allocator: bool = True  # of LD_PRELOAD, else the system's

    @property
    def name(self) -> str:
        how = f"beam{self.beam}" if self.task == "decode" else f"{self.ranks}x{self.threads}"
        memory = [] if self.allocator else ["system's allocator"]
        return "-".join([self.task, self.code, self.size, self.dtype, how, *self.change, *memory])


def all_cases() -> Iterator[Case]:
    yield Case("train", "2022")
    formats = dict.fromkeys(("fp32", FAST))
    for size, code, dtype in itertools.product(SIZES, ("torch", "ours"), formats):
        yield Case("train", code, size, dtype)
    for size in SIZES:
        yield Case("train", "ours", size, FAST, ranks=2, threads=1)
    yield Case("train", "ours", "small", FAST, allocator=False)
    yield Case("decode", "plain", "shipped")
    for code, beam in itertools.product(("ours", "ctranslate2"), (1, 4)):
        yield Case("decode", code, "shipped", beam=beam)
    for gain in GAINS:
        yield Case("without", dtype=FAST, change=(gain,))


CASES = {case.name: case for case in all_cases()}


def training_of(case: Case, config: at.Config, worker: at.Worker) -> tuple:
    """What is trained, its optimizer and schedule, and this rank's batches, for ever."""
    autocast = torch.bfloat16 if case.dtype == "bf16" else None
    if case.code == "2022":
        config = replace(config, attention_dropout=config.dropout, accum_iter=ACCUMULATED)
    corpus = at.find_corpus(config.data)
    data = at.encode_corpus(corpus, config)
    config = at.resolve(config, data)
    if case.code == "torch":
        model = TorchModel(data.vocabularies, config, autocast).to(worker.device)
        loss_model = model
    else:
        model = at.new_model(config, data.vocabularies).to(worker.device)
        criterion = at.LabelSmoothing(len(data.vocabularies[1]), at.PAD, config.smoothing)
        loss_model = at.ModelWithLoss(model, at.make_fast(criterion), autocast)
    updates = itertools.cycle(at.updates_of_epoch(config, data, 0))
    updates = ([at.share_of(data.train, batch, worker) for batch in update] for update in updates)
    if case.code == "2022":
        updates = at.grouped(batches_of_2022(corpus, data.vocabularies), ACCUMULATED)
    return at.on_all_ranks(loss_model, worker), at.make_optimizer(model, 1.0, 1000), updates


def measure_training(case: Case) -> dict[str, float]:
    """Real target tokens per second, and peak memory, of all ranks together."""
    for gain in NOT_IN_2022 if case.code == "2022" else case.change:
        setattr(*GAINS[gain])
    with at.join_workers() as worker:
        loss_model, means, updates = training_of(case, SIZES[case.size], worker)
        for update in itertools.islice(updates, WARM_UP):
            at.train_step(loss_model, update, *means)
        tokens = 0
        stops = 0
        begin = time.perf_counter()
        while stops == 0:  # all ranks stop when one would
            due = time.perf_counter() - begin > SECONDS
            done = at.train_step(loss_model, next(updates), *means, stop=due)
            tokens += done.tokens
            stops = done.stops
        seconds = time.perf_counter() - begin
        [peak] = at.total_over_ranks(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"tokens per second": tokens / seconds, "peak MB": peak}


def measure_decoding(case: Case) -> dict[str, float]:
    """Sentences of test 2016 per second, from text to text; the plain loop takes one at a time."""
    translator = at.load_trained_model("pretrained", torch.device("cpu"))
    size = 100
    if case.code == "ours":
        at.make_fast(translator.model)
        decode = functools.partial(at.beam_search, beam=case.beam)
    elif case.code == "ctranslate2":
        decode = ctranslate.decoder(translator, case.beam, case.threads)
    else:
        size = 1
        decode = at.greedy_decode
    pairs = at.find_multi30k(translator.languages).splits["test_2016_flickr"]
    sources = [source for source, _ in pairs]
    with torch.autocast("cpu", torch.bfloat16, enabled=case.dtype == "bf16"):
        at.translate(translator, sources[:20], decode, size)
        begin = time.perf_counter()
        at.translate(translator, sources, decode, size)
        seconds = time.perf_counter() - begin
    return {"sentences per second": len(sources) / seconds}


def measure_apart(case: Case) -> dict[str, float]:
    """Measure a case in new processes, one for each rank; RuntimeError if they fail."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    launcher = [sys.executable, *(torchrun if case.ranks > 1 else [])]
    command = [*launcher, str(Path(__file__).resolve()), "measure", case.name, "--here"]
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads), "CUDA_VISIBLE_DEVICES": ""}
    if not case.allocator:
        environment.pop("LD_PRELOAD", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{case.name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: Literal[tuple(CASES)], /, here: bool = False) -> None:
    """Measure one case once, in processes of its own or `here`, as one of them."""
    case = CASES[name]
    how = measure_decoding if case.task == "decode" else measure_training
    numbers = how(case) if here else measure_apart(case)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(numbers))


def run(name: str = "benchmark") -> None:
    """Measure every case, round after round, and write the medians to docs/results/NAME.json."""
    if not os.environ.get("LD_PRELOAD"):
        raise ValueError("no LD_PRELOAD: some cases compare its allocator with the system's")
    made = results.made_with_shipped(training=results.TRAINING, decoding=DECODING)
    texts = [Path(file).read_text("utf-8") for file in (__file__, ctranslate.__file__)]
    decides = [made["code"], made["machine"], made["allocator"], *texts]
    code = hashlib.sha256(f"{decides}".encode()).hexdigest()[:16]
    path = at.runs_folder() / f"{name}-{code}.json"
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
    words = len(at.encode_corpus(at.find_corpus(SMALL.data), SMALL).vocabularies[1])
    content = {"rounds": ROUNDS, "words": words, "format": FAST, "cases": cases}
    records.write(name, content | {"made": made})
    path.unlink()


main = records.command_line(run=run, measure=measure)

if __name__ == "__main__":
    sys.exit(main())
