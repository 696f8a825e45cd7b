"""A small training that test_loses_nothing.py starts, kills and starts again.

    kill_worker.py CORPUS FOLDER EPOCHS [STAGE FILE NUMBER MARKER]

With a STAGE given, the first rank stops for good where it writes FILE for the NUMBERth time: it
touches MARKER and waits to be killed. "half" is in the middle of the bytes, "named" after the
file has got its name. RANK in the name of the CORPUS is the number of the process.
"""

import os
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import the_annotated_transformer as at  # noqa: E402


def arrange_accident(stage: str, name: str, number: int, marker: str) -> None:
    """Put a halt into what gives a file its name."""
    replace, seen = os.replace, []

    def halting_replace(beside, target) -> None:
        seen.extend([target] if Path(target).name == name else [])
        if len(seen) == number and stage == "half":
            os.truncate(beside, os.path.getsize(beside) // 2)
        else:
            replace(beside, target)
        if len(seen) == number:
            Path(marker).touch()
            time.sleep(600)

    os.replace = halting_replace


def main(corpus: str, folder: str, epochs: str, *accident: str) -> int:
    at.choose_device = lambda: at.torch.device("cpu")
    at.gains_from_bf16 = lambda device: False
    if accident and os.environ.get("RANK", "0") == "0":
        stage, name, number, marker = accident
        arrange_accident(stage, name, int(number), marker)
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --max-len 32 --dropout 0.2 --min-freq 1"
    course = "--batch-tokens 128 --warmup 2 --factor 1 --schedule root --patience 100000 --keep 2"
    arguments = ["train", "--preset", "smoke", *sizes.split(), *course.split()]
    corpus = corpus.replace("RANK", os.environ.get("RANK", "0"))
    return at.main([*arguments, "--data", corpus, "--folder", folder, "--epochs", epochs])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
