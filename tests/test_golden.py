"""A training gives the losses that it always gave: words and subwords, with and without dropout.

The losses change with the captions, the vocabularies, the first weights, the batches, the model,
the loss, the schedule or the optimizer. If such a change is meant, record them anew:

    python -m tests.test_golden record
"""

import json
import platform
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
    """The loss of each of the first updates, in double precision: processors differ less."""
    with tempfile.TemporaryDirectory() as folder:
        at.begin_run(at.Config(**GOLDEN["settings"] | settings), Path(folder))
        run = at.Run(Path(folder), at.Worker(0, 1, torch.device("cpu")))
        run.model.double()
        losses = []
        for batch in at.load_batches(
            run.train, at.batches_of_epoch(run.config, run.train, 1)[:UPDATES], run.worker, 256
        ):
            given = [batch], run.net, run.loss_compute, run.optimizer, run.scheduler
            losses.append(at.run_epoch(*given)[0])
    return losses


@pytest.mark.parametrize("kind", GOLDEN["kinds"])
def test_a_training_gives_the_golden_losses(kind):
    golden = GOLDEN["kinds"][kind]
    assert losses_of(golden["settings"]) == pytest.approx(golden["losses"], abs=1e-5, rel=0)


def record() -> None:
    """Compute all losses anew."""
    torch.set_num_threads(1)
    GOLDEN["torch"] = torch.__version__
    GOLDEN["machine"] = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    for golden in GOLDEN["kinds"].values():
        golden["losses"] = losses_of(golden["settings"])
    FILE.write_text(json.dumps(GOLDEN, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["record"]:
        sys.exit(__doc__)
    record()
