"""Average several finished models of one run, such as its last epochs, into a new one.

    python tools/average.py RUN/epoch-* [--output FOLDER]

The mean is written as a folder, `average` beside the first model unless another is named.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import the_annotated_transformer as at


def average_models(folders: Sequence[Path | str]) -> at.Translator:
    """The mean of several finished models; ValueError where their symbols or shapes differ."""
    first = at.load_trained_model(folders[0], torch.device("cpu"))
    symbols = [each.words for each in first.vocabularies]

    def weights() -> Iterator[dict[str, torch.Tensor]]:
        for folder in folders:
            other = at.load_trained_model(folder, torch.device("cpu"))
            if [each.words for each in other.vocabularies] != symbols:
                raise ValueError(f"{folder} has other symbols than {folders[0]}")
            if other.model.arguments != first.model.arguments:
                raise ValueError(f"{folder} has other sizes than {folders[0]}")
            yield other.model.state_dict()

    first.model.load_state_dict(at.mean_of_states(weights()))
    return dataclasses.replace(first, name=f"{first.name}, {len(folders)} averaged")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="average.py", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--output", type=Path, help="default: average beside the first model")
    options = parser.parse_args(arguments)
    output = options.output or options.folders[0].resolve().parent / "average"
    try:
        at.save_model(average_models(options.folders), output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{output}: the mean of {len(options.folders)} models")
    return 0


if __name__ == "__main__":
    sys.exit(main())
