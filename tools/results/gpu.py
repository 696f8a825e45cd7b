"""Measure training on an NVIDIA GPU, and compare there what should be equal.

    python tools/gpu.py measure   how fast, in how much memory, at what share of the peak
    python tools/gpu.py compare   bf16 with fp32, and NCCL with one rank with none

Each writes its part of docs/results/gpu.json, and needs Multi30k and CUDA_VISIBLE_DEVICES.
`tools/bench.py` measures the same trainings on a CPU.
"""

import contextlib
import functools
import itertools
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from tools import records
from tools.results import plan
from tools.results import speed as bench
from tools.results.speed import Case

at = bench.at
ROUNDS = 5
SECONDS = 1.5  # of each round
WARM_UP = 20  # updates
AT_ONCE = 20  # updates from one look at the clock to the next
COMPARED = 20  # updates
SIDE = 8192  # of the matrices whose product is taken for the peak
RECIPE = plan.RUNS["recipe-1"]
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
PARTS = ["train"], ["torch", "ours"], bench.SIZES, FORMATS
CASES = [*itertools.starmap(Case, itertools.product(*PARTS))]


def peak(dtype: str) -> float:
    """Operations a second of a product of two large matrices; "fp32" is TF32, as in training."""
    from torch.utils.benchmark import Timer

    one, other = torch.randn(2, SIDE, SIDE, device="cuda", dtype=FORMATS[dtype])
    product = Timer("one @ other", globals={"one": one, "other": other}).timeit(20)
    return 2 * SIDE**3 / product.mean


def operations(config: at.Config, words: int, batch: at.Batch) -> int:
    """Floating-point operations of an update with a batch, its padding among them."""
    pairs, source = batch.src.shape
    lengths = source, batch.tgt.size(1)
    return pairs * at.training_flops(config.N, config.d_model, config.d_ff, words, *lengths)


def measured(case: Case, worker: at.Worker, peaks: dict) -> dict:
    """Speed of a training, round by round, its memory, and its share of the peak."""
    config = bench.SIZES[case.size]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with tempfile.TemporaryDirectory() as folder:
        training = bench.training_of(case, config, worker, Path(folder))
        flops = 0
        words = training.loss_compute.criterion.size

        def counted(batches: Iterable[at.Batch]) -> Iterator[at.Batch]:
            nonlocal flops
            for batch in batches:
                flops += operations(config, words, batch)
                yield batch

        training.batches = counted(training.batches)
        training.updates(WARM_UP)
        rounds = []
        for _ in range(ROUNDS):
            tokens = 0
            flops = 0
            begin = time.perf_counter()
            while time.perf_counter() - begin < SECONDS:
                tokens += training.updates(AT_ONCE).tokens
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            share = flops / seconds / peaks[case.dtype]
            rounds.append({"tokens per second": tokens / seconds, "share of peak": share})
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    about = {"task": case.task, "code": case.code, "size": case.size, "dtype": case.dtype}
    return about | {"rounds": rounds, "peak MB": memory}


def gradient_of(training: bench.Training, batch: at.Batch) -> tuple[float, torch.Tensor]:
    """The loss of a batch, and its gradient as one vector, in double precision."""
    with training.autocast():
        states = training.net(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        _, loss = training.loss_compute(states, batch.tgt_y, batch.ntokens)
    loss.backward()
    gradients = [p.grad.flatten().double().cpu() for p in training.net.parameters()]
    training.net.zero_grad()
    return loss.item(), torch.cat(gradients)


def formats(worker: at.Worker) -> dict:
    """How far loss and gradient of one batch are from those of the CPU in fp32."""
    still = replace(RECIPE, dropout=0.0)
    with tempfile.TemporaryDirectory() as folder:
        training = bench.training_of(Case("train"), still, worker, Path(folder))
        batch = next(training.batches)
    training.net.cpu()
    loss, gradient = gradient_of(training, batch.to(torch.device("cpu")))
    found = {}
    training.net.to(worker.device)
    for name, dtype in FORMATS.items():
        enabled = name != "fp32"
        training.autocast = functools.partial(
            torch.autocast, worker.device.type, dtype, enabled=enabled
        )
        other_loss, other_gradient = gradient_of(training, batch)
        found[name] = {
            "loss": abs(other_loss / loss - 1),
            "gradient": ((other_gradient - gradient).norm() / gradient.norm()).item(),
        }
    return found


def weights_after(worker: at.Worker) -> torch.Tensor:
    """All weights of the recipe after some updates, as one vector."""
    with tempfile.TemporaryDirectory() as folder:
        case = Case("train", dtype="bf16")
        training = bench.training_of(case, RECIPE, worker, Path(folder))
        if dist.is_initialized():
            training.net = torch.nn.parallel.DistributedDataParallel(training.net)
        torch.manual_seed(1)
        training.updates(COMPARED)
    return torch.cat([p.detach().flatten().double().cpu() for p in training.net.parameters()])


def nccl(worker: at.Worker) -> dict:
    """How far weights are from others after some updates: by chance, and with NCCL in between."""
    alone = weights_after(worker)
    again = weights_after(worker)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    exchanged = weights_after(worker)
    dist.destroy_process_group()
    return {
        "version": ".".join(map(str, torch.cuda.nccl.version())),
        "updates": COMPARED,
        "without": (again - alone).abs().max().item(),
        "with": (exchanged - alone).abs().max().item(),
    }


@contextlib.contextmanager
def on_gpu() -> Iterator[at.Worker]:
    """This process, and its GPU; ValueError without one."""
    records.graphics_card()
    with at.join_workers() as worker:
        yield worker


def keep(content: dict) -> None:
    records.write("gpu", records.read("gpu") | content)


def measure() -> None:
    """Measure every case."""
    with on_gpu() as worker:
        peaks = {dtype: peak(dtype) for dtype in FORMATS}
        cases = [measured(case, worker, peaks) for case in CASES]
    keep({"peak": peaks, "rounds": ROUNDS, "cases": cases, "made": records.circumstances("cuda")})


def compare() -> None:
    """Compare number formats, and a training with NCCL with one without."""
    with on_gpu() as worker:
        found = {"formats": formats(worker), "nccl": nccl(worker)}
    keep(found | {"made comparing": records.circumstances("cuda")})


main = records.command_line(measure=measure, compare=compare)

if __name__ == "__main__":
    sys.exit(main())
