"""Measure how fast training and decoding are, beside the baselines of tools/baselines.py.

    python tools/bench.py run            every case, round by round; writes benchmark.json
    python tools/bench.py table          the tables of README.md from that file
    python tools/bench.py measure CASE   one case once, as a line of JSON
    python tools/bench.py list           the names of the cases

The machine must be quiet: `run` looks before each case, and refuses. Cases take turns, five rounds
of them, each time in new processes, so that a machine whose speed changes changes it for all. Each
number is the median of the rounds. Each measurement is kept in RUNS_DIR at once: after a stop the
same command goes on, if the code is the same. Multi30k is needed.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import baselines
import results
import torch
from torch import nn

at, records = baselines.at, results.records
ROUNDS, SECONDS, WARM_UP = 5, 6.0, 3  # rounds; seconds of a measurement; updates before it
BUDGET = 2560  # positions of one side of a batch, in each process

# The sizes of the benchmark: words as symbols, so that the feed of 2022 has the same vocabulary.
WORDS = at.Config(
    data="multi30k", pieces=0, share_embeddings=False, dropout=0.1, batch_tokens=BUDGET
)
SIZES = {
    "small": dataclasses.replace(WORDS, d_model=256, d_ff=1024, h=4),
    "base": dataclasses.replace(WORDS, N=6, d_model=512, d_ff=2048, h=8),
}
CODES = {
    "feed2022": "the feed of 2022",
    "torch": "nn.Transformer",
    "ours": "ours",
    "plain": "plain loop, one sentence at a time",
    "ctranslate2": "CTranslate2",
}


# Cases ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One measurement: what is run, and with how much of the machine."""

    task: str  # train, without, decode, scale, position
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

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.dtype == "bf16" else None


def all_cases() -> Iterator[Case]:
    for size in SIZES:
        yield Case("train", "feed2022", size)
        for code, dtype in itertools.product(("ours", "torch"), ("fp32", "bf16")):
            yield Case("train", code, size, dtype)
            yield Case("train", code, size, dtype, ranks=2, threads=1)
    yield Case("decode", "plain", "shipped")
    for beam in (1, 4):
        for code, dtypes in (("ours", ("fp32", "bf16")), ("ctranslate2", ("fp32", "int8"))):
            yield from (Case("decode", code, "shipped", dtype, beam=beam) for dtype in dtypes)
    yield from (Case("without", dtype="bf16", change=(name,)) for name in GAINS)
    yield from (Case("scale", dtype="bf16", change=("d_model", D)) for D in (256, 512))
    yield from (Case("position", code, change=("sentences", 1)) for code in ("ours", "plain"))


# What each gain is worth: the same training without it ------------------------------------------


def whole_loss(loss_model, batch: at.Batch) -> torch.Tensor:
    """The plain loss, of all positions."""
    with torch.autocast("cpu", loss_model.autocast, enabled=loss_model.autocast is not None):
        states = loss_model.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        return loss_model.criterion(loss_model.model.generator(states), batch.tgt_y)


def attention_to_read(attn, query, key, value, mask) -> torch.Tensor:
    return at.attention(query, key, value, mask, attn.dropout)[0]


def adam_to_read(parameters, **settings) -> torch.optim.Adam:
    return ADAM(parameters, **settings | {"fused": False})


def unsorted_batches(lengths, budget: int, order=None) -> list[list[int]]:
    """As many sentences a batch as a sorted one has on average, in any order."""
    order, numbers = order or random.Random(0), list(range(len(lengths)))
    order.shuffle(numbers)
    return list(at.grouped(numbers, len(lengths) * budget // sum(map(max, lengths))))


ADAM = torch.optim.Adam
GAINS = {  # what is replaced, by what
    "dropout from random bytes": (at.FastDropout, "forward", nn.Dropout.forward),
    "loss in chunks, real symbols only": (at.ModelWithLoss, "forward", whole_loss),
    "fused attention": (at.FastAttention, "attend", attention_to_read),
    "attention in fp32": (at.FastAttention, "attend", at.MultiHeadedAttention.attend),
    "fused layer norm": (at.FusedLayerNorm, "forward", at.LayerNorm.forward),
    "fused Adam": (torch.optim, "Adam", adam_to_read),
    "batches alike in length": (at, "token_batches", unsorted_batches),
    "another allocator": (os, "environ", os.environ),  # see run_case
}
CASES = {case.name: case for case in all_cases()}


# Training ---------------------------------------------------------------------------------------


def remembered(tokens_of: Callable, texts: tuple[str, ...], language: str) -> list[list[str]]:
    """Tokens, kept in a file: spaCy would cost each process seconds and memory."""
    name = hashlib.sha256(json.dumps([language, *texts]).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"annotated-bench-{os.getuid()}-{name}.json")
    if not path.is_file():
        mine = path.with_suffix(f".{os.getpid()}")  # two ranks may write it
        mine.write_text(json.dumps(tokens_of(texts, language)))
        mine.replace(path)
    return json.loads(path.read_text())


def feed_of(training: at.Training) -> Iterator[at.Batch]:
    """This rank's batches, pass after pass."""
    for number in itertools.count():
        for [numbers] in training.updates_of_pass(number):
            yield at.share_of(training.train, numbers, training.worker)


def parts_of(case: Case, worker: at.Worker) -> tuple:
    """A model with its loss, its optimizer and schedule, and its batches."""
    config = SIZES[case.size]
    at.tokens_of = functools.partial(remembered, at.tokens_of)
    training = at.Training(config, dataclasses.replace(worker, autocast=case.autocast))
    feed = feed_of(training)
    if case.code == "ours":
        return training.loss_model, training.optimizer, training.scheduler, feed
    training.model = training.loss_model = training.optimizer = training.scheduler = None
    sizes = tuple(map(len, training.vocabularies))
    if case.code == "feed2022":
        loss_model = baselines.MaterialisedModel(sizes, config)
        feed = baselines.feed_of_2022(training.corpus, training.vocabularies)
    else:
        loss_model = baselines.TorchModel(sizes, config, case.autocast)
    if worker.ranks > 1:
        loss_model = nn.parallel.DistributedDataParallel(
            loss_model, bucket_cap_mb=3, gradient_as_bucket_view=True, forward_sync_buffers=False
        )
    adam = torch.optim.Adam(loss_model.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    rate = functools.partial(at.rate, model_size=config.d_model, factor=1.0, warmup=1000)
    return loss_model, adam, torch.optim.lr_scheduler.LambdaLR(adam, rate), feed


def measure_training(case: Case) -> dict:
    """Real target tokens per second, and memory, of all ranks together."""
    if case.task == "without":
        setattr(*GAINS[case.change[0]])
    with at.join_workers() as worker:
        loss_model, adam, schedule, batches = parts_of(case, worker)
        loss_model.train()
        for _ in range(WARM_UP):
            begin = time.perf_counter()
            at.train_step(loss_model, [next(batches)], adam, schedule)
        once = time.perf_counter() - begin
        updates, tokens = at.from_first_rank(lambda: max(3, round(SECONDS / once)), worker), 0
        begin = time.perf_counter()
        for _ in range(updates):
            tokens += at.train_step(loss_model, [next(batches)], adam, schedule)["tokens"]
        seconds = time.perf_counter() - begin
        [peak] = at.total_over_ranks(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"tokens per second": tokens / seconds, "peak MB": peak, "updates": updates}


def measure_scale(case: Case) -> dict:
    """A step on random symbols at some width: 160 sentences of 16 symbols, and its arithmetic."""
    (_, D), B, length, V = case.change, BUDGET // 16, 16, 5000
    config = dataclasses.replace(SIZES[case.size], d_model=D, d_ff=4 * D, h=D // 64)
    model = at.make_model(V, V, config.N, D, config.d_ff, config.h, config.dropout,
                          attention_dropout=0.0, share_embeddings=True)  # fmt: skip
    criterion = at.LabelSmoothing(V, at.PAD, baselines.SMOOTHING)
    loss_model = at.ModelWithLoss(at.make_fast(model), criterion, case.autocast)
    optimizer, scheduler = at.make_optimizer(model, 1.0, 1000)
    ids = torch.randint(len(at.SPECIALS), V, (B, length + 1))
    batch, times = at.Batch(ids[:, :-1], ids), []
    while len(times) < WARM_UP + 5 or sum(times) < SECONDS / 2:
        begin = time.perf_counter()
        at.train_step(loss_model, [batch], optimizer, scheduler)
        times.append(time.perf_counter() - begin)
    seconds = median(times[WARM_UP:])
    flops = B * at.training_flops(config.N, D, config.d_ff, V, length, length)
    return {"milliseconds": 1000 * seconds, "GFLOP/s": flops / seconds / 1e9}


# Decoding ---------------------------------------------------------------------------------------


def measure_positions(case: Case, longest: int = 512) -> dict:
    """Milliseconds of one decoding step at growing positions."""
    config, (_, B) = SIZES[case.size], case.change
    torch.manual_seed(1)
    model = at.make_model(5000, 5000, config.N, config.d_model, config.d_ff, config.h).eval()
    src, tgt = (torch.randint(len(at.SPECIALS), 5000, (B, n)) for n in (32, longest + 8))
    mask, times, places = at.Batch(src).src_mask, {}, [2**n for n in range(4, longest.bit_length())]
    with torch.no_grad():
        memory = model.encode(src, mask)
        decoder, each = at.CachedDecoder(model, memory, mask, longest + 8), []
        for position in range(longest + 8 if case.code == "ours" else 0):
            begin = time.perf_counter()
            decoder.step(tgt[:, position : position + 1])
            each.append(1000 * (time.perf_counter() - begin))
        for place in places:
            some = each[place - 8 : place + 8]
            while len(some) < 4:
                begin = time.perf_counter()
                states = model.decode(memory, mask, tgt[:, :place], at.subsequent_mask(place))
                model.generator(states[:, -1])
                some.append(1000 * (time.perf_counter() - begin))
            times[str(place)] = median(some)
    return times


def shipped() -> at.Translator:
    """The model of pretrained/."""
    return at.load_trained_model("pretrained", torch.device("cpu"))


def source_batches(translator: at.Translator, size: int = 100) -> list[list[list[int]]]:
    """Test 2016 as ids, batches of sentences alike in length."""
    corpus = at.find_multi30k(translator.languages)
    sources = [source for source, _ in corpus.splits["test_2016_flickr"]]
    ids = [ids for _, ids in at.source_parts(translator, sources)]
    return list(at.grouped(sorted(ids, key=len), size))


def decode_ours(case: Case) -> Callable[[list], int]:
    """A function from a batch of ids to the number of symbols written."""
    translator = shipped()
    at.make_fast(translator.model)

    def decode(rows: list[list[int]]) -> int:
        batch = at.Batch(at.pad_ids(rows))
        cap = at.length_cap(batch.src.size(1), translator.max_len)
        with torch.autocast("cpu", case.autocast, enabled=case.autocast is not None):
            written = at.beam_search(
                translator.model, batch.src, batch.src_mask, cap, beam=case.beam
            )
        return int((written != at.PAD).sum())

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
    penalty = 0.6 if case.beam > 1 else 0.0

    def decode(rows: list[list[int]]) -> int:
        tokens = [[words[number] for number in row] for row in rows]
        cap = at.length_cap(len(rows[-1]), translator.max_len)
        written = engine.translate_batch(
            tokens, max_decoding_length=cap, max_batch_size=0, beam_size=case.beam,
            length_penalty=penalty,
        )  # fmt: skip
        return sum(len(each.hypotheses[0]) for each in written)

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
    return {"sentences per second": sum(map(len, batches)) / seconds, "symbols": symbols}


# Rounds -----------------------------------------------------------------------------------------


def measure(case: Case) -> dict:
    """Measure a case in this process, which is one of its ranks."""
    torch.set_num_threads(case.threads)
    tasks = {"decode": measure_decoding, "scale": measure_scale, "position": measure_positions}
    return tasks.get(case.task, measure_training)(case)


def run_case(case: Case) -> dict:
    """Measure a case in processes of its own, as many as it has ranks; RuntimeError if it fails."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    command = [sys.executable, *([*torchrun, "--"] if case.ranks > 1 else [])]
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads), "CUDA_VISIBLE_DEVICES": ""}
    if case.change == ("another allocator",):
        environment.pop("LD_PRELOAD", None)
    command += [str(Path(__file__).resolve()), "measure", case.name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{case.name} failed:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def run(names: list[str], rounds: int, name: str) -> None:
    """Measure the cases in turn, round after round, and write the medians."""
    source = b"".join(Path(module.__file__).read_bytes() for module in (at, baselines))
    source += Path(__file__).read_bytes()
    log = at.runs_folder() / f"bench-{hashlib.sha256(source).hexdigest()[:10]}.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    measured: dict[str, list[dict]] = {case: [] for case in CASES}
    for line in log.read_text().splitlines() if log.is_file() else ():
        entry = json.loads(line)
        measured[entry["case"]].append(entry["measured"])
    for number, case in itertools.product(range(rounds), names):
        if len(measured[case]) <= number:
            results.wait_for_quiet()
            numbers = run_case(CASES[case])
            with log.open("a") as file:
                file.write(json.dumps({"case": case, "measured": numbers}) + "\n")
            measured[case].append(numbers)
            print(f"round {number + 1}, {case}: {json.dumps(numbers)}", flush=True)
    cases = []
    for case in names:
        medians = {key: median(each[key] for each in measured[case]) for key in measured[case][0]}
        settings = {"name": case} | dataclasses.asdict(CASES[case])
        cases.append(settings | medians | {"rounds": measured[case]})
    content = {"rounds": rounds, "budget": BUDGET, "cases": cases}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        content["CTranslate2"] = importlib.metadata.version("ctranslate2")
    results.write(name, content)


# Tables -----------------------------------------------------------------------------------------


def readme_tables(content: dict) -> str:
    """Training and decoding in Markdown."""
    speeds, decoding = {}, []
    for case in (case for case in content["cases"] if case["name"] in CASES):
        if case["task"] == "train":
            way = CODES[case["code"]], case["dtype"], f"{case['ranks']} × {case['threads']}"
            cells = f"{case['tokens per second']:,.0f}", f"{case['peak MB']:,.0f}"
            speeds.setdefault(way, []).extend(cells)
        elif case["task"] == "decode":
            speed = f"{case['sentences per second']:,.1f}"
            decoding.append([CODES[case["code"]], case["dtype"], str(case["beam"]), speed])
    columns = ["training", "format", "processes × threads"]
    for config in SIZES.values():
        columns += [f"tokens/s, N {config.N}, D {config.d_model}", "MB"]
    training = results.markdown_table(columns, [[*way, *cells] for way, cells in speeds.items()])
    columns = ["decoding test 2016", "format", "beam", "sentences/s"]
    return f"{training}\n{results.markdown_table(columns, decoding)}"


def table(name: str) -> None:
    """Write the tables into README."""
    rows = readme_tables(records.read(name))
    text = results.README.read_text(encoding="utf-8")
    text = results.readme_with(text, rows, "speed", "benchmark.json")
    at.write_atomically(results.README, text.encode())


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("run", "table", "measure", "list"))
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--name", default="benchmark", help="of the file in docs/results")
    options = parser.parse_intermixed_args(arguments)
    try:
        names = results.chosen(options.cases, list(CASES))
        if options.command == "list":
            print("\n".join(names))
        elif options.command == "table":
            table(options.name)
        elif options.command == "run":
            if options.cases and options.name == "benchmark":
                raise ValueError("benchmark.json is for all cases: name another file, by --name")
            at.find_multi30k()  # an error now, and not after minutes
            run(names, options.rounds, options.name)
        else:
            case = CASES[names[0]]
            alone = case.ranks == 1 or "RANK" in os.environ
            answer = measure(case) if alone else run_case(case)
            if os.environ.get("RANK", "0") == "0":
                print(json.dumps(answer))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
