"""A small training that test_loses_nothing.py starts, kills and starts again.

    kill_worker.py CORPUS FOLDER EPOCHS [STAGE NUMBER MARKER]

With a STAGE given, the first rank stops for good at that place of its NUMBERth checkpoint: it
touches MARKER and waits to be killed. "half" is in the middle of the bytes, "written" before a
file gets its name, "named" between the old checkpoint's new name and the new one's.
"""

import os
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import the_annotated_transformer as at  # noqa: E402


def halt(marker: str) -> None:
    """The place of the accident: whoever waits for the marker kills everything."""
    Path(marker).touch()
    time.sleep(600)


def arrange_accident(stage: str, number: int, marker: str) -> None:
    """Replace what writes checkpoints by the same with a halt in it."""
    fsync, replace, seen = os.fsync, os.replace, []

    def halting_fsync(file: int) -> None:
        fsync(file)
        if os.readlink(f"/proc/self/fd/{file}").rpartition("/")[2].startswith(".next.pt"):
            seen.append(file)
            if len(seen) == number and stage == "half":
                os.truncate(file, os.fstat(file).st_size // 2)
            if len(seen) == number and stage in ("half", "written"):
                halt(marker)

    def halting_replace(source, target) -> None:
        replace(source, target)
        if Path(target).name == "previous.pt" and stage == "named" and len(seen) >= number:
            halt(marker)

    os.fsync, os.replace = halting_fsync, halting_replace


def main(corpus: str, folder: str, epochs: str, *accident: str) -> int:
    at.SAVE_EVERY = 3
    at.choose_device = lambda local_rank=0: at.torch.device("cpu")
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and os.environ["RANK"] == "1":
        time.sleep(1)  # who is early must not take the address of a dead rank for that of this one
    if accident and os.environ.get("RANK", "0") == "0":
        arrange_accident(accident[0], int(accident[1]), accident[2])
    sizes = "--N 1 --d-model 16 --d-ff 32 --h 2 --max-len 32 --dropout 0.2 --min-freq 1"
    course = "--batch-tokens 128 --warmup 10 --factor 1 --schedule root --patience 100000 --keep 2"
    arguments = ["train", "--preset", "smoke", *sizes.split(), *course.split()]
    return at.main([*arguments, "--data", corpus, "--folder", folder, "--epochs", epochs])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
