"""Measure how fast training and decoding are, beside the baselines of docs/baselines.py.

    python docs/bench.py run            every case, round by round; writes benchmark.json
    python docs/bench.py table          the table of README.md from that file
    python docs/bench.py measure CASE   one case once, as a line of JSON
    python docs/bench.py profile CASE   where its time goes, by operation, as a line of JSON
    python docs/bench.py list           the names of the cases

The machine must be quiet: `run` looks before each case, and refuses. Cases take turns, five rounds
of them, each time in a new process, so that a machine whose speed changes changes it for all.
Each number is the median of the rounds; the curves, where one process repeats each step at least
five times, have one round. Each measurement is kept in RUNS_DIR at once: after a stop the same
command goes on, if the code is the same. Where a target is missed, the case is profiled. Multi30k
is needed.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import baselines
import results

at = baselines.at
RESULTS, README = Path("docs/results/benchmark.json"), Path("README.md")
EARLIER = RESULTS.with_name("benchmark-xeon.json")  # of another machine; its ratios stand beside
ROUNDS, SECONDS, WARM_UP = 5, 6.0, 3  # rounds; seconds of a measurement; updates before it
BUDGET = 2560  # positions of one side of a batch, in each process
CURVES = ("scale", "peak")  # tasks that repeat what they measure in one process
BUSY = 0.15  # share of the cores that others may use

# The sizes of the benchmark: words as symbols, so that the feed of 2022 has the same vocabulary.
SIZES = {
    "small": at.Config(N=3, d_model=256, d_ff=1024, h=4, dropout=0.1),
    "base": at.Config(N=6, d_model=512, d_ff=2048, h=8, dropout=0.1),
}


# Cases ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One measurement: what is run, and with how much of the machine."""

    task: str  # train, without, decode, scale, position, peak
    code: str = "ours"  # whose code
    size: str = "small"  # of SIZES; "shipped" is the model of pretrained/
    dtype: str = "fp32"
    ranks: int = 1
    threads: int = 2  # of each rank
    beam: int = 1
    change: tuple = ()  # what is varied, and its value

    @property
    def name(self) -> str:
        how = f"beam{self.beam}" if self.task == "decode" else f"{self.ranks}x{self.threads}"
        parts = self.task, self.code, self.size, self.dtype, how, *map(str, self.change)
        return "-".join(parts)


def training_cases() -> Iterator[Case]:
    for size in SIZES:
        yield Case("train", "feed2022", size)
        for code, dtype in itertools.product(("ours", "torch", "torch+ours"), ("fp32", "bf16")):
            yield Case("train", code, size, dtype)
            if code != "torch+ours":
                yield Case("train", code, size, dtype, ranks=2, threads=1)
        yield from (Case("train", "ours", size, d, threads=1) for d in ("fp32", "bf16"))


def decoding_cases() -> Iterator[Case]:
    yield Case("decode", "plain", "shipped")
    for beam in (1, 4):
        for code, dtype in (("ours", "fp32"), ("ours", "bf16"), ("ctranslate2", "fp32"),
                            ("ctranslate2", "int8")):  # fmt: skip
            yield Case("decode", code, "shipped", dtype, beam=beam)


def other_cases() -> Iterator[Case]:
    for dtype in ("fp32", "bf16"):
        yield Case("peak", "matmul", "2048", dtype)
    for code, B in itertools.product(("ours", "plain"), (1, 8)):
        yield Case("position", code, change=("sentences", B))
    yield from (Case("without", dtype="bf16", change=(name,)) for name in GAINS)
    variations = {
        "tokens": (320, 640, 1280, 2560, 5120, 10240),
        "length": (8, 16, 32, 64, 128, 256, 512),
        "N": (1, 2, 3, 4, 6),
        "d_model": (128, 256, 384, 512),
    }
    for name, values in variations.items():
        yield from (Case("scale", dtype="bf16", change=(name, value)) for value in values)
    for code, V in itertools.product(("ours", "whole loss"), (2000, 8000, 32_000)):
        yield Case("scale", code, dtype="bf16", change=("V", V))
    for tokens in variations["tokens"]:
        yield Case("scale", "whole loss", dtype="bf16", change=("tokens", tokens))


# What each gain is worth: the same training without it ------------------------------------------


def separate_products(attn, query, key, value) -> tuple:
    return tuple(one(x) for one, x in zip(attn.linears, (query, key, value), strict=False))


def whole_loss(loss_model, src, tgt, src_mask, tgt_mask, tgt_y) -> torch.Tensor:
    with at.mixed_precision(src.device, loss_model.autocast):
        states = loss_model.model(src, tgt, src_mask, tgt_mask)
        return loss_model.criterion(loss_model.model.generator(states), tgt_y)


def attention_to_read(query, key, value, mask=None, dropout=0.0) -> torch.Tensor:
    return at.attention(query, key, value, mask)[0]


def norm_to_read(norm, x) -> torch.Tensor:
    return at.layer_norm(x, norm.scale, norm.shift, norm.eps)


def adam_to_read(parameters, **settings) -> torch.optim.Adam:
    return ADAM(parameters, **settings | {"fused": False})


def unsorted_batches(lengths, budget: int, order, ranks: int = 1) -> list[list[int]]:
    """As many sentences a batch as a sorted one has on average, in any order."""
    order, numbers = order or random.Random(0), list(range(len(lengths)))
    size = len(lengths) * budget // sum(map(max, lengths))
    order.shuffle(numbers)
    return list(at.grouped(numbers, size))


ADAM = torch.optim.Adam
GAINS = {  # what is replaced, by what
    "one product for several maps": (at.MultiHeadedAttention, "project", separate_products),
    "dropout from random bytes": (at.Dropout, "forward", nn.Dropout.forward),
    "loss in chunks, real symbols only": (at.SummedLoss, "forward", whole_loss),
    "fused attention": (at, "fast_attention", attention_to_read),
    "fused layer norm": (at.LayerNorm, "forward", norm_to_read),
    "fused Adam": (torch.optim, "Adam", adam_to_read),
    "batches alike in length": (at, "pooled_batches", unsorted_batches),
    "another allocator": (os, "environ", os.environ),  # see run_case
}


CASES = {case.name: case for case in (*training_cases(), *decoding_cases(), *other_cases())}


# A quiet machine --------------------------------------------------------------------------------


def cpu_times() -> tuple[int, int]:
    """Ticks of all cores since the start of the machine: at work, in all."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = list(map(int, fields))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def share_in_use(seconds: float = 2.0) -> float:
    """Share of all cores that somebody uses at this moment."""
    work, total = cpu_times()
    time.sleep(seconds)
    work_now, total_now = cpu_times()
    return (work_now - work) / max(1, total_now - total)


def wait_for_quiet(patience: float = 60.0, look: Callable[[], float] = share_in_use) -> None:
    """Return when the machine is quiet; ValueError when it is not after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (share := look()) > BUSY:
        at.require(
            time.monotonic() < deadline,
            f"{share:.0%} of this machine's cores are in use by others, so nothing can be measured:"
            " stop what runs beside, and try again",
        )


# Training ---------------------------------------------------------------------------------------


@functools.cache
def encoded_words() -> at.Encoded:
    """Multi30k as ids of words, kept in a file so that a case begins quickly."""
    config = at.Config()
    corpus = at.find_multi30k(config.languages)
    key = hashlib.sha256(repr((config.min_freq, config.max_len)).encode()).hexdigest()[:8]
    path = Path(tempfile.gettempdir()) / f"annotated-bench-{os.getuid()}-{key}.json"
    if not path.is_file():
        encoded = at.encode_corpus("multi30k", config.languages, config.min_freq, config.max_len)
        words = [vocabulary.saved() for vocabulary in encoded.vocabularies]
        at.write_atomically(path, json.dumps([words, encoded.splits]).encode())
    words, splits = json.loads(path.read_text())
    return at.Encoded(corpus, at.restore_vocabularies(words), splits)


def endless(loader) -> Iterator[at.Batch]:
    """Epoch after epoch."""
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def parts_of(case: Case, worker: at.Worker) -> tuple[nn.Module, Iterator[at.Batch]]:
    """The model with its loss, and its batches."""
    encoded, config = encoded_words(), SIZES[case.size]
    sizes = tuple(map(len, encoded.vocabularies))
    autocast = torch.bfloat16 if case.dtype == "bf16" else None
    if case.code == "feed2022":
        feed = baselines.feed_of_2022(encoded.corpus, encoded.vocabularies)
        return baselines.MaterialisedModel(sizes, config), feed
    loader, _ = at.create_dataloaders(encoded, BUDGET, worker.rank, worker.ranks, 1)
    if case.code == "ours":
        model = at.model_from(config, encoded.vocabularies)
        criterion = at.LabelSmoothing(sizes[1], at.PAD, baselines.SMOOTHING)
        loss_model = at.SummedLoss(model, criterion, autocast)
    else:
        ours_too = case.code == "torch+ours"
        loss_model = baselines.TorchModel(sizes, config, autocast, ours_too)
    if worker.ranks > 1:
        parcels = {"bucket_cap_mb": 3, "gradient_as_bucket_view": True}
        loss_model = nn.parallel.DistributedDataParallel(loss_model, **parcels)
    return loss_model, endless(loader)


def measure_training(case: Case) -> dict:
    """Real target tokens per second of all ranks, and the largest memory of each."""
    torch.manual_seed(1)
    if case.task == "without":
        setattr(*GAINS[case.change[0]])
    with at.join_workers() as worker:
        loss_model, batches = parts_of(case, worker)
        optimizer, scheduler = at.make_optimizer(loss_model, SIZES[case.size].d_model, 1.0, 1000)
        step = lambda: at.train_step(loss_model, [next(batches)], optimizer, scheduler)  # noqa: E731
        for _ in range(WARM_UP):
            begin = time.perf_counter()
            step()
        once = time.perf_counter() - begin
        updates = at.from_first_rank(lambda: max(3, round(SECONDS / once)), worker)
        begin = time.perf_counter()
        tokens = sum(step()["tokens"] for _ in range(updates))
        seconds = time.perf_counter() - begin
        peak = at.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, worker)
    return {"tokens per second": tokens / seconds, "peak MB": max(peak), "updates": updates}


# Scale ------------------------------------------------------------------------------------------


def measure_scale(case: Case) -> dict:
    """A step on random symbols, with one thing varied: time, memory, arithmetic.

    Without another change sentences have 16 symbols on both sides, and a batch 2,560.
    """
    what, value = case.change
    sizes = {what: value} if what in ("N", "d_model") else {}
    if what == "d_model":
        sizes |= {"d_ff": 4 * value, "h": value // 64}
    config = dataclasses.replace(SIZES[case.size], **sizes)
    length, V = value if what == "length" else 16, value if what == "V" else 5000
    if case.code == "whole loss":
        at.SummedLoss.forward = whole_loss
    B = max(1, (value if what == "tokens" else BUDGET) // length)
    torch.manual_seed(1)
    model = at.make_model(V, V, config.N, config.d_model, config.d_ff, config.h, config.dropout,
                          attention_dropout=0.0, share_embeddings=True)  # fmt: skip
    criterion = at.LabelSmoothing(V, at.PAD, baselines.SMOOTHING)
    loss_model = at.SummedLoss(model, criterion, torch.bfloat16 if case.dtype == "bf16" else None)
    optimizer, scheduler = at.make_optimizer(model, config.d_model, 1.0, 1000)
    ids = torch.randint(len(at.SPECIALS), V, (B, length + 1))
    batch, before = at.Batch(ids[:, :-1], ids), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    while len(times) < WARM_UP + 5 or sum(times) < SECONDS / 2:
        begin = time.perf_counter()
        at.train_step(loss_model, [batch], optimizer, scheduler)
        times.append(time.perf_counter() - begin)
    seconds = median(times[WARM_UP:])
    flops = B * at.training_flops(config.N, config.d_model, config.d_ff, V, length, length)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    speeds = {"tokens per second": B * length / seconds, "GFLOP/s": flops / seconds / 1e9}
    return {"milliseconds": 1000 * seconds, "peak MB": grown / 1024} | speeds


def measure_peak(case: Case) -> dict:
    """What the machine reaches in one large matrix product."""
    size, times = int(case.size), []
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float32
    a, b = torch.randn(2, size, size).to(dtype)
    while len(times) < 10 or sum(times) < 2:
        begin = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - begin)
    return {"GFLOP/s": 2 * size**3 / median(times) / 1e9}


def measure_positions(case: Case, longest: int = 512) -> dict:
    """Milliseconds of one decoding step at growing positions, for one sentence or several."""
    config, (_, B) = SIZES[case.size], case.change
    torch.manual_seed(1)
    model = at.make_model(5000, 5000, config.N, config.d_model, config.d_ff, config.h).eval()
    src = torch.randint(len(at.SPECIALS), 5000, (B, 32))
    mask, tgt = at.Batch(src).src_mask, torch.randint(len(at.SPECIALS), 5000, (B, longest))
    times, places = {}, [2**n for n in range(4, 10) if 2**n <= longest]
    with torch.no_grad():
        memory = model.encode(src, mask)
        if case.code == "ours":
            decoder, each = at.CachedDecoder(model, memory, mask, longest + 8), []
            for position in range(longest + 8):
                begin = time.perf_counter()
                decoder.step(tgt[:, position % longest : position % longest + 1])
                each.append(1000 * (time.perf_counter() - begin))
            times = {str(place): median(each[place - 8 : place + 8]) for place in places}
        for place in places if case.code == "plain" else ():
            each, causal = [], at.subsequent_mask(place)
            for _ in range(4):
                begin = time.perf_counter()
                model.generator(model.decode(memory, mask, tgt[:, :place], causal)[:, -1])
                each.append(1000 * (time.perf_counter() - begin))
            times[str(place)] = median(each[1:])
    return times


# Decoding ---------------------------------------------------------------------------------------


def shipped() -> at.Translator:
    """The model of pretrained/."""
    return at.load_pretrained(device=torch.device("cpu"))


def source_batches(translator: at.Translator, size: int = 100) -> list[list[list[int]]]:
    """Test 2016 as ids, batches of sentences alike in length."""
    corpus = at.find_multi30k(translator.config.languages)
    sources = [source for source, _ in corpus.splits["test_2016_flickr"]]
    ids = [ids for _, ids in at.source_parts(translator, sources)]
    return list(at.grouped(sorted(ids, key=len), size))


def decode_ours(case: Case) -> Callable[[list], int]:
    """A function from a batch of ids to the number of symbols written."""
    translator = shipped()
    dtype = torch.bfloat16 if case.dtype == "bf16" else None

    def decode(rows: list[list[int]]) -> int:
        batch = at.Batch(at.pad_ids(rows))
        cap = at.length_cap(batch.src.size(1), translator.config.max_len)
        with at.mixed_precision(batch.src.device, dtype):
            found = at.beam_search(
                translator.model, batch.src, batch.src_mask, cap, at.START, case.beam
            )
        return int((found != at.PAD).sum())

    return decode


def decode_plain(case: Case) -> Callable[[list], int]:
    """One sentence at a time, by the loop that computes the prefix again."""
    return functools.partial(baselines.plain_decoding, shipped())


def decode_ctranslate2(case: Case) -> Callable[[list], int]:
    """The same batches through CTranslate2; its length penalty is its own."""
    translator = shipped()
    compute = {"fp32": "float32", "int8": "int8"}[case.dtype]
    folder = Path(tempfile.mkdtemp(prefix="ctranslate2-"))
    engine = baselines.ctranslate2_model(translator, folder, compute, case.threads)
    words = translator.vocabularies[0].words
    settings = {"beam_size": case.beam, "length_penalty": 0.6 if case.beam > 1 else 0.0}

    def decode(rows: list[list[int]]) -> int:
        tokens = [[words[number] for number in row] for row in rows]
        cap = at.length_cap(len(rows[-1]), translator.config.max_len)
        found = engine.translate_batch(
            tokens, max_decoding_length=cap, max_batch_size=0, **settings
        )
        return sum(len(each.hypotheses[0]) for each in found)

    return decode


def measure_decoding(case: Case) -> dict:
    """Sentences per second over test 2016; of the slow plain loop every fifth sentence."""
    make = {"ours": decode_ours, "plain": decode_plain, "ctranslate2": decode_ctranslate2}
    decode, batches = make[case.code](case), source_batches(shipped())
    if case.code == "plain":
        batches = [batch[::5] for batch in batches]
    decode(batches[0][:20])
    begin = time.perf_counter()
    symbols = sum(map(decode, batches))
    seconds = time.perf_counter() - begin
    sentences = sum(map(len, batches))
    return {"sentences per second": sentences / seconds, "symbols": symbols}


# Rounds -----------------------------------------------------------------------------------------


def measure(case: Case) -> dict:
    torch.set_num_threads(case.threads)
    tasks = {"decode": measure_decoding, "scale": measure_scale}
    tasks |= {"peak": measure_peak, "position": measure_positions}
    return tasks.get(case.task, measure_training)(case)


def profile(case: Case, most: int = 8) -> dict:
    """Share of the processor's time that each operation takes, the largest ones first."""
    from torch.profiler import ProfilerActivity

    global SECONDS
    SECONDS = 0.0  # as few updates as possible: a profile grows with each operation
    torch.set_num_threads(case.threads)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        measure(case)
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return {event.key: event.self_cpu_time_total / total for event in events[:most]}


def run_case(case: Case, how: str = "measure") -> dict:
    """Measure or profile a case in processes of its own; RuntimeError if it fails."""
    command = [sys.executable]
    if case.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(case.ranks), "--"]
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads), "CUDA_VISIBLE_DEVICES": ""}
    if case.change == ("another allocator",):
        environment.pop("LD_PRELOAD", None)
    command += [str(Path(__file__).resolve()), how, case.name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{case.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def run(names: list[str], rounds: int, output: Path) -> None:
    """Measure the cases in turn, round after round, and write the medians."""
    made, code = at.circumstances(), hashlib.sha256()
    for path in (at.SCRIPT, Path(__file__), Path(baselines.__file__)):
        code.update(path.read_bytes())
    kept = at.runs_folder() / f"bench-{code.hexdigest()[:10]}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict]] = {name: [] for name in names}
    for line in kept.read_text().splitlines() if kept.is_file() else ():
        entry = json.loads(line)
        found.setdefault(entry["case"], []).append(entry["measured"])
    for number, name in itertools.product(range(rounds), names):
        if len(found[name]) > number or (number and CASES[name].task in CURVES):
            continue
        wait_for_quiet()
        measured = run_case(CASES[name])
        with kept.open("a") as file:
            file.write(json.dumps({"case": name, "measured": measured}) + "\n")
        found[name].append(measured)
        print(f"round {number + 1}, {name}: {json.dumps(measured)}", flush=True)
    found, cases = {name: found[name] for name in names}, []
    for name, each in found.items():
        medians = {key: median(one[key] for one in each) for key in each[0]}
        settings = dataclasses.asdict(CASES[name]) | {"label": CODES.get(CASES[name].code)}
        cases.append({"name": name} | settings | medians | {"rounds": each})
    content = {"made": made, "rounds": rounds, "budget": BUDGET, "data": facts()}
    content["ratios"] = ratios({case["name"]: case for case in cases})
    missed = {row["case"] for row in content["ratios"] if not row["reached"]}
    content["profiles"] = {name: run_case(CASES[name], "profile") for name in sorted(missed)}
    content["cases"] = cases
    at.write_atomically(output, f"{json.dumps(content, indent=1)}\n".encode())


def facts() -> dict:
    """Sizes of the models and of the vocabularies, and the version of what is compared."""
    words = dict(zip(("source", "target"), map(len, encoded_words().vocabularies), strict=True))
    sizes = {"N": "N", "D": "d_model", "F": "d_ff", "H": "h"}
    models = {
        name: {letter: getattr(config, field) for letter, field in sizes.items()}
        for name, config in SIZES.items()
    }
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        words["CTranslate2"] = importlib.metadata.version("ctranslate2")
    return {"models": models, "words": words}


# Tables -----------------------------------------------------------------------------------------

CODES = {
    "feed2022": "the feed of 2022",
    "torch": "nn.Transformer, F.cross_entropy",
    "torch+ours": "nn.Transformer, our loss in its form to read",
    "ours": "ours",
    "plain": "plain loop, one sentence at a time",
    "ctranslate2": "CTranslate2",
}
SLOW = ("feed2022", "fp32", "1x2")
TARGETS = (  # what is compared, and what was aimed at: ours at least so many times the other
    ("bf16 on two ranks against the feed of 2022", ("ours", "bf16", "2x1"), SLOW, 12),
    ("fp32 in one process against the feed of 2022", ("ours", "fp32", "1x2"), SLOW, 6),
    *(
        (f"nn.Transformer, {dtype}, {how}", ("ours", dtype, how), ("torch", dtype, how), 1.2)
        for dtype, how in itertools.product(("fp32", "bf16"), ("1x2", "2x1"))
    ),
    *(
        (
            f"two ranks against one process of one thread, {dtype}",
            ("ours", dtype, "2x1"),
            ("ours", dtype, "1x1"),
            1.6,
        )
        for dtype in ("fp32", "bf16")
    ),
)


def ratios(cases: dict[str, dict]) -> list[dict]:
    """Every target as a ratio, as far as its two cases were measured."""
    found = []

    def add(what: str, ours: str, other: str, key: str, target: float, inverse=False) -> None:
        if ours in cases and other in cases:
            ratio = cases[ours][key] / cases[other][key]
            reached = ratio <= target if inverse else ratio >= target
            row = {"what": what, "ratio": round(ratio, 2), "target": target, "reached": reached}
            found.append(row | {"at most": inverse, "case": ours})

    for size, (what, *pair, target) in itertools.product(SIZES, TARGETS):
        names = [f"train-{code}-{size}-{dtype}-{how}" for code, dtype, how in pair]
        add(f"{what}, {size}", *names, "tokens per second", target)
    for size, dtype in itertools.product(SIZES, ("fp32", "bf16")):
        names = [f"train-{code}-{size}-{dtype}-1x2" for code in ("ours", "torch")]
        add(f"peak memory against nn.Transformer's, {dtype}, {size}", *names, "peak MB", 1.0, True)
    key, plain = "sentences per second", "decode-plain-shipped-fp32-beam1"
    for dtype in ("fp32", "bf16"):
        ours = f"decode-ours-shipped-{dtype}-beam1"
        what = f"greedy in batches with a cache against the plain loop, one by one, {dtype}"
        add(what, ours, plain, key, 15)
    for beam in (1, 4):
        names = [f"decode-{code}-shipped-fp32-beam{beam}" for code in ("ours", "ctranslate2")]
        add(f"against CTranslate2, fp32, beam {beam}", *names, key, 0.5)
    for B in (1, 8):
        name = f"position-ours-small-fp32-1x2-sentences-{B}"
        each = cases.get(name)
        if each is not None:
            ratio = round(each["512"] / each["16"], 2)
            row = {"what": f"the 512th symbol against the 16th, {B} at once", "ratio": ratio}
            row |= {"target": 1.5, "reached": ratio <= 1.5, "at most": True, "case": name}
            found.append(row)
    return found


def training_rows(cases: dict[str, dict]) -> list[list[str]]:
    """A line for each way to train: speed, its ratio to the feed of 2022, and memory, by size."""
    lines, ways = [], {}
    for case in cases.values():
        if case["task"] == "train":
            way = case["code"], case["dtype"], case["ranks"], case["threads"]
            ways.setdefault(way, {})[case["size"]] = case
    for (code, dtype, ranks, threads), sizes in ways.items():
        line = [CODES[code], dtype, f"{ranks} × {threads}"]
        for size in SIZES:
            speed = sizes[size]["tokens per second"]
            slow = cases[f"train-feed2022-{size}-fp32-1x2"]["tokens per second"]
            line += [f"{speed:,.0f}", f"{speed / slow:.1f}", f"{sizes[size]['peak MB']:,.0f}"]
        lines.append(line)
    return lines


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def readme_table(content: dict, earlier: dict) -> str:
    """Training and decoding in Markdown; of the earlier benchmark only the ratios."""
    cases = {case["name"]: case for case in content["cases"]}
    columns = ["training", "format", "processes × threads"]
    for config in SIZES.values():
        shape = f"N {config.N}, D {config.d_model}"
        columns += [f"tokens/s, {shape}", "× 2022", "MB"]
    text = markdown_table(columns, training_rows(cases))
    lines = []
    for case in cases.values():
        if case["task"] == "decode":
            speed = f"{case['sentences per second']:,.1f}"
            lines.append([CODES[case["code"]], case["dtype"], str(case["beam"]), speed])
    columns = ["decoding test 2016", "format", "beam", "sentences/s"]
    text += "\n" + markdown_table(columns, lines)
    rows, columns = at.table_of_ratios(content, earlier)
    text += "\n" + markdown_table(columns, rows)
    words = content["data"]["words"]
    told = (
        f"The symbols are words: {words['source']:,} German and {words['target']:,} English ones."
    )
    return f"{text}\n{told} A batch has {content['budget']:,} positions on each side.\n"


def table() -> None:
    """Write the tables into README, and print every ratio beside its target."""
    content, earlier = (json.loads(path.read_text()) for path in (RESULTS, EARLIER))
    told = readme_table(content, earlier)
    text = results.readme_with(README.read_text(), told, "speed", RESULTS.name)
    at.write_atomically(README, text.encode())
    for row in content["ratios"]:
        mark, sign = "ok    " if row["reached"] else "missed", "≤" if row["at most"] else "≥"
        print(f"{mark} {row['what']}: {row['ratio']} ({sign} {row['target']})")


def obey(options: argparse.Namespace) -> None:
    """Do what the command says."""
    names = options.cases or list(CASES)
    unknown = [name for name in names if name not in CASES]
    at.require(not unknown, f"no case is called {', '.join(unknown)}: `list` names them all")
    if options.command == "list":
        print("\n".join(names))
    elif options.command in ("measure", "profile"):
        answer = {"measure": measure, "profile": profile}[options.command](CASES[names[0]])
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(answer))
    elif options.command == "table":
        table()
    else:
        whole = not options.cases or options.output != RESULTS
        at.require(whole, f"{RESULTS} is for all cases: name another file for some, by --output")
        at.find_multi30k()  # an error now, and not after minutes
        run(names, options.rounds, options.output)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("run", "table", "measure", "profile", "list"))
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    try:
        obey(parser.parse_intermixed_args(arguments))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
