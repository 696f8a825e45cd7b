"""What test_training.py starts under torchrun: small trainings over several ranks, on CPUs.

    torchrun … ddp_worker.py FOLDER

Each rank writes what it found to FOLDER/rank-RANK.pt. The functions also serve one process.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

PROJECT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

import the_annotated_transformer as at  # noqa: E402

UPDATES, SYMBOLS = 20, 13
CASES = ("equal", "unequal", "a rank without tokens", "accumulated")


def sentence(number: int, length: int) -> list[int]:
    """Ids of an invented sentence."""
    return [at.START, *((7 * number + 3 * k) % 9 + 4 for k in range(length)), at.END]


def batch(sentences: list[list[int]]) -> at.Batch:
    """A batch; without any sentence one that has no target token."""
    return at.collate([(ids[1:], ids) for ids in sentences])


def shares(case: str, update: int) -> list[list[list[at.Batch]]]:
    """The micro-batches of an update, for each of two ranks."""
    lengths = {
        "equal": [[5, 5], [5, 5]],
        "unequal": [[1, 2, 1], [9, 8, 7, 6]],
        "a rank without tokens": [[4, 6], []] if update % 2 else [[], [3, 5]],
        "accumulated": [[2, 3, 9, 1], [8, 5, 1, 4]],
    }[case]
    parts = [
        [sentence(10 * update + 5 * rank + n, length) for n, length in enumerate(share)]
        for rank, share in enumerate(lengths)
    ]
    if case == "accumulated":
        return [[batch(part[:1]), batch(part[1:])] for part in parts]
    return [[batch(part)] for part in parts]


def start(dtype: torch.dtype) -> at.EncoderDecoder:
    """The same small model on every rank, without dropout."""
    torch.manual_seed(3)
    sizes = {"N": 2, "d_model": 16, "d_ff": 32, "h": 4}
    return at.make_model(SYMBOLS, SYMBOLS, **sizes, dropout=0.0).to(dtype)


def wrapped(model: at.EncoderDecoder, ranks: int) -> nn.Module:
    loss_model = at.SummedLoss(model, at.LabelSmoothing(SYMBOLS, at.PAD, 0.1))
    if ranks > 1:
        return nn.parallel.DistributedDataParallel(loss_model, gradient_as_bucket_view=True)
    return loss_model


def train(case: str, rank: int, ranks: int) -> dict:
    """Twenty updates in double precision; one process takes the shares of both ranks at once.

    The rate is small, since Adam turns even rounding noise into steps of full length.
    """
    model, state, reports = start(torch.double), at.TrainState(), []
    loss_model = wrapped(model, ranks)
    optimizer, scheduler = at.make_optimizer(model, 16, 0.1, 10)
    updates = [shares(case, update) for update in range(UPDATES)]
    if ranks > 1:
        batches = [part for update in updates for part in update[rank]]
    else:
        batches = [part for update in updates for share in update for part in share]
    together = len(batches) // UPDATES
    loss = at.run_epoch(batches, loss_model, optimizer, scheduler, state, together, reports.append)
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    norms = torch.tensor([report["grad_norm"] for report in reports])
    return {"parameters": parameters, "state": vars(state), "loss": loss, "norms": norms}


class NoStep:
    """In the place of optimizer and schedule: gradients stay where they are."""

    def step(self) -> None:
        pass

    zero_grad = lambda self, **_: None  # noqa: E731


def gradients(case: str, rank: int, ranks: int) -> torch.Tensor:
    """The gradients of one step in single precision."""
    model, both = start(torch.float), shares(case, 1)
    batches = both[rank] if ranks > 1 else [part for share in both for part in share]
    at.train_step(wrapped(model, ranks), batches, NoStep(), NoStep())
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def evaluation(rank: int, ranks: int) -> dict[str, float]:
    """Likelihood over batches that are dealt to the ranks unevenly."""
    batches = [batch([sentence(n, length)]) for n, length in enumerate([3, 9, 1, 4, 4])]
    share = batches if ranks == 1 else batches[:1] if rank == 0 else batches[1:]
    return at.evaluate_loss(start(torch.double), share)


def faults(rank: int, ranks: int) -> dict[str, object]:
    """What every rank must notice together."""
    found = {}
    for name in ("no tokens", "infinite on one rank"):
        model = start(torch.double)
        loss_model, before = wrapped(model, ranks), model.state_dict()
        before = {key: value.clone() for key, value in before.items()}
        optimizer, scheduler = at.make_optimizer(model, 16, 1.0, 10)
        batches = [batch([])] if name == "no tokens" else shares("equal", 0)[rank]
        if name == "infinite on one rank" and rank == 1:
            loss_model.register_forward_hook(lambda module, given, loss: loss * torch.inf)
        try:
            at.run_epoch(batches, loss_model, optimizer, scheduler, at.TrainState())
        except (ValueError, FloatingPointError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        same = (torch.equal(before[key], value) for key, value in model.state_dict().items())
        found[f"{name}, parameters kept"] = all(same)
    with at.StopRequest() as stop:
        before = stop.due()
        stop.signalled = rank == 1
        found["stop"] = [before, stop.due(), stop.asked]
    return found


def exchanges(rank: int, parts: int) -> int:
    """How often gradients travel in one update of so many micro-batches."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    calls, loss_model = [], wrapped(start(torch.float), 2)

    def counted(group, bucket):
        calls.append(bucket)
        return default_hooks.allreduce_hook(group, bucket)

    loss_model.register_comm_hook(None, counted)
    batches = [batch([sentence(n, 3 + rank)]) for n in range(parts)]
    at.train_step(loss_model, batches, NoStep(), NoStep())
    return len(calls)


def patience(rank: int) -> float:
    """Seconds that one rank waits while the other one is busy alone."""
    begin = time.monotonic()
    if rank == 0:
        time.sleep(3)
    at.total_over_ranks(1.0)
    return time.monotonic() - begin


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with at.join_workers() as worker:
        place = worker.rank, worker.ranks
        found = {case: train(case, *place) for case in CASES}
        found |= {f"gradients, {case}": gradients(case, *place) for case in CASES}
        found |= {"evaluation": evaluation(*place), "faults": faults(*place)}
        found["exchanges"] = [exchanges(worker.rank, parts) for parts in (1, 2, 5)]
        found["waited"] = patience(worker.rank)
        group = torch.distributed.group.WORLD
        found["limit"] = group._get_backend(worker.device).options._timeout.total_seconds()
        torch.save(found, folder / f"rank-{worker.rank}.pt")
    assert not torch.distributed.is_initialized()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
