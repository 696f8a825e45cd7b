"""What test_training.py starts under torchrun: small trainings over two ranks, on CPUs.

    torchrun … ddp_worker.py FOLDER

Each rank writes what it found to FOLDER/rank-RANK.pt. The functions also serve one process.
"""

import sys
from pathlib import Path

import torch
from torch import nn

PROJECT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

import the_annotated_transformer as at  # noqa: E402

SYMBOLS = 13
CASES = {  # lengths of the sentences of each rank, in every second update
    "equal": ([[5, 5], [5, 5]], [[4, 4], [4, 4]]),
    "unequal": ([[1, 2, 1], [9, 8, 7, 6]], [[9], [1, 2, 3]]),
    "a rank without tokens": ([[4, 6], []], [[], [3, 5]]),
    "accumulated": ([[2, 3, 9, 1], [8, 5, 1, 4]], [[2, 3], [8, 5, 1, 4]]),
}


def batch(first: int, lengths: list[int]) -> at.Batch:
    """Invented sentences; without any a batch that has no target token."""
    rows = [
        [at.START, *((7 * (first + n) + 3 * k) % 9 + 4 for k in range(length)), at.END]
        for n, length in enumerate(lengths)
    ]
    return at.collate([(ids[1:], ids) for ids in rows] or [([at.END], [at.START, at.PAD])])


def share(case: str, update: int, rank: int) -> list[at.Batch]:
    """The micro-batches of one of two ranks."""
    first, lengths = 10 * update + 5 * rank, CASES[case][update % 2][rank]
    if case == "accumulated":
        return [batch(first, lengths[:1]), batch(first + 1, lengths[1:])]
    return [batch(first, lengths)]


def start() -> at.EncoderDecoder:
    """The same small model on every rank, in double precision, without dropout."""
    torch.manual_seed(3)
    model = at.make_model(SYMBOLS, SYMBOLS, N=2, d_model=16, d_ff=32, h=4, dropout=0.0)
    return at.make_fast(model).double()


def wrapped(model: at.EncoderDecoder, ranks: int) -> nn.Module:
    loss_model = at.ModelWithLoss(model, at.LabelSmoothing(SYMBOLS, at.PAD, 0.1))
    if ranks > 1:
        return nn.parallel.DistributedDataParallel(
            loss_model, gradient_as_bucket_view=True, forward_sync_buffers=False
        )
    return loss_model


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def train(case: str, rank: int, ranks: int) -> dict:
    """Twenty updates; one process takes the shares of both ranks at once.

    The rate is small, since Adam turns even rounding noise into steps of full length.
    """
    model, gradients, steps = start(), [], []
    loss_model, (optimizer, scheduler) = wrapped(model, ranks), at.make_optimizer(model, 0.1, 10)
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    )
    for update in range(20):
        mine = [rank] if ranks > 1 else [0, 1]
        batches = [part for each in mine for part in share(case, update, each)]
        steps.append(at.train_step(loss_model, batches, optimizer, scheduler))
    numbers = {name: [step[name] for step in steps] for name in ("loss", "tokens", "grad_norm")}
    return numbers | {"parameters": flat(model), "gradients": torch.stack(gradients)}


def faults(rank: int, ranks: int) -> dict[str, object]:
    """What every rank must notice together."""
    found = {}
    for name in ("no tokens", "infinite on one rank", "stop"):
        model = start()
        loss_model, before = wrapped(model, ranks), flat(model)
        batches = [batch(0, [])] if name == "no tokens" else share("equal", 0, rank)
        if name == "infinite on one rank" and rank == 1:
            loss_model.register_forward_hook(lambda module, given, loss: loss * torch.inf)
        try:
            step = at.train_step(
                loss_model, batches, *at.make_optimizer(model, 1.0, 10), name == "stop" and rank > 0
            )
            found[name] = step["stops"]
        except (ValueError, FloatingPointError) as error:
            assert torch.equal(before, flat(model)), "no parameter has changed"
            found[name] = f"{type(error).__name__}: {error}"
    return found


def exchanges(rank: int, parts: int) -> int:
    """How often gradients travel in one update of so many micro-batches."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, calls = start(), []
    loss_model = wrapped(model, 2)

    def counted(group, bucket):
        calls.append(bucket)
        return default_hooks.allreduce_hook(group, bucket)

    loss_model.register_comm_hook(None, counted)
    batches = [batch(n, [3 + rank]) for n in range(parts)]
    at.train_step(loss_model, batches, *at.make_optimizer(model, 1.0, 10))
    return len(calls)


def reading(worker: at.Worker) -> str:
    """What every rank hears of a file that the first one cannot read."""

    def fails():
        raise OSError(f"rank {worker.rank} cannot read")

    try:
        return at.from_first_rank(fails, worker)
    except OSError as error:
        return str(error)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with at.join_workers() as worker:
        place = worker.rank, worker.ranks
        found = {case: train(case, *place) for case in CASES}
        found |= {"faults": faults(*place), "reading": reading(worker)}
        found["exchanges"] = [exchanges(worker.rank, parts) for parts in (1, 2, 5)]
        torch.save(found, folder / f"rank-{worker.rank}.pt")
    assert not torch.distributed.is_initialized()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
