"""Make what is missing in results, then write the tables, the charts and two drawings.

    python -m tools.results             all of it: days on a CPU
    python -m tools.results NAME ...    train and score these rows or runs of plan.py only

Nothing on record is made again: remove a record to make it anew. After a stop the same command goes
on. Speed is measured by `python -m tools.results.speed run`.
"""

import sys

import torch

from tools import records
from tools.results import experiments, faults, language_models, plan, score, ship, train
from tools.views import write


def make(names: tuple[str, ...] = (), /) -> None:
    """Make what is missing in results, then write the tables and charts.

    Args:
        names: rows or runs of tools/results/plan.py; without names everything is made
    """
    torch.set_num_threads(1)
    records.chosen_device()  # hides all GPUs unless one is named
    rows, runs = plan.chosen(names)
    for run in runs:
        train.train(run)
    for row in rows:
        score.test(row)
    score.steps()
    if not names:
        score.sweep_beams()
        score.sweep_averages()
        ship.pretrained()
        experiments.warmups()
        experiments.lengths()
        experiments.heads()
        faults.copying()
        faults.translating()
        language_models.train()
        experiments.length_cost()
        language_models.speed()
    write.write()


main = records.command_line(make)

if __name__ == "__main__":
    sys.exit(main())
