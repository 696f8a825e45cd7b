"""A training gives the losses that it always gave: fifty updates, of subwords and of words.

In double precision, since single precision differs from one processor to the next.

Other losses are right only after a change of what a training computes: the captions, vocabularies,
first weights, batches, model, loss, schedule or optimizer. Then record them anew:

    python -m tests.test_golden record
"""

import dataclasses
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import the_annotated_transformer as at

FILE = Path(__file__).with_name("golden_losses.json")
GOLDEN = json.loads(FILE.read_text("utf-8"))
UPDATES = 50


def losses_of(settings: dict) -> list[float]:
    """The mean loss of each of the first updates of a run on the built-in captions."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        at.begin_run(at.Config(**GOLDEN["settings"] | settings), folder)
        run = at.Run(folder, at.Worker(0, 1, torch.device("cpu")))
        run.model.double()
        numbers = at.batches_of_epoch(run.config, run.train, 1)[:UPDATES]
        losses = []
        for batch in at.load_batches(run.train, numbers, run.worker):
            given = [batch], run.net, run.loss_compute, run.optimizer, run.scheduler
            loss, _ = at.run_epoch(*given)
            losses.append(loss)
    return losses


@pytest.mark.parametrize("kind", GOLDEN["kinds"])
def test_a_training_gives_the_golden_losses(kind):
    golden = GOLDEN["kinds"][kind]
    assert len(golden["losses"]) == UPDATES
    assert losses_of(golden["settings"]) == pytest.approx(golden["losses"], abs=1e-5, rel=0)


def test_golden_losses_notice_a_small_change():
    """A learning rate that is a thousandth higher, for example."""
    golden = GOLDEN["kinds"]["subwords"]
    factor = 1.001 * dataclasses.replace(at.Config(), **GOLDEN["settings"]).factor
    losses = losses_of(golden["settings"] | {"factor": factor})
    assert losses != pytest.approx(golden["losses"], abs=1e-5, rel=0)


def record() -> None:
    """Compute all losses anew, by one thread, and note what computed them."""
    torch.set_num_threads(1)
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=FILE.parent, capture_output=True, text=True, check=True)
    GOLDEN["commit"] = commit.stdout.strip()
    GOLDEN["torch"] = torch.__version__
    GOLDEN["machine"] = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    for golden in GOLDEN["kinds"].values():
        golden["losses"] = losses_of(golden["settings"])
    FILE.write_text(json.dumps(GOLDEN, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["record"]:
        sys.exit(__doc__)
    record()
