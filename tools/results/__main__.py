"""Make what is missing in results, then write the tables, the charts and two drawings.

    python -m tools.results             all of it: days on a CPU
    python -m tools.results NAME ...    train and score these rows or runs of plan.py only

Nothing on record is made again: remove a record to make it anew. With the record of a run goes all
that was made with its weights. After a stop the same command goes on. Speed is measured by
`python -m tools.results.speed run`.
"""

import contextlib
import sys
from collections.abc import Iterator

import filelock
import torch

from tools import records
from tools.results import (
    bench,
    experiments,
    faults,
    learning,
    one_sequence,
    plan,
    score,
    ship,
    train,
)
from tools.views import write


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the records; ValueError where another process makes results."""
    records.RESULTS.mkdir(exist_ok=True)
    try:
        with filelock.FileLock(records.RESULTS / ".lock", timeout=0):
            yield
    except filelock.Timeout:
        raise ValueError("another `make results` is running") from None


@alone()
def make(names: tuple[str, ...] = (), /) -> None:
    """Make what is missing in results, then write the tables and charts.

    Args:
        names: rows or runs of tools/results/plan.py; without names everything is made
    """
    torch.set_num_threads(1)
    records.chosen_device()  # hides all GPUs unless one is named
    rows, runs = plan.chosen(names)
    for run in runs:
        if not records.read(f"runs/{run}"):
            score.forget(run)
        train.train(run)
    for row in rows:
        score.test(row)
    score.steps()
    if not names:
        score.sweep_beams()
        score.sweep_averages()
        ship.pretrained()
        experiments.demonstration()
        experiments.warmups()
        one_sequence.everything()
        experiments.reach()
        experiments.heads()
        faults.copying()
        learning.switches()
        faults.translating()
        experiments.length_cost()
        bench.everything()
    write.write()


main = records.command_line(make)

if __name__ == "__main__":
    sys.exit(main())
