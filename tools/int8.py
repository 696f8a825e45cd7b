"""Round a finished model to int8: a quarter of the bytes, for storing, not for computing.

    python tools/int8.py MODEL FOLDER

MODEL is a model's folder, or a run's, of which the best epoch is taken. Each row of a matrix
becomes whole numbers from -127 to 127 and a step, its largest absolute value divided by 127.
Vectors stay as they are, and a matrix that is rounded already is left alone. FOLDER gets the same
files as any model; only `model.safetensors` differs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from convert import at, new_folder, write_folder
from safetensors.torch import load, save
from torch import Tensor


def quantise(matrix: Tensor, name: str = "a matrix") -> tuple[Tensor, Tensor]:
    """Rows in int8, and a step for each: (rows, columns) -> (rows, columns), (rows,)."""
    largest = matrix.abs().amax(dim=1)
    if not largest.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity: no step fits it; take an earlier epoch")
    steps = (largest / 127).clamp(min=torch.finfo(largest.dtype).tiny)  # a row may be all zeros
    return (matrix / steps.unsqueeze(1)).round().to(torch.int8), steps


def quantise_all(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by name: matrices in int8 beside their steps, the rest unchanged."""
    result = dict(tensors)
    for name, value in tensors.items():
        if value.dim() == 2 and value.is_floating_point():
            result[name], result[f"{name}.steps"] = quantise(value, name)
    return result


def round_model(source: Path, folder: Path) -> at.Translator:
    """Write the model of `source` into `folder` in int8, and load it from there."""
    at.load_trained_model(source, torch.device("cpu"))  # notices damage, and what does not fit
    if (source / "summary.json").is_file():
        source = source / at.read_summary(source)["best"]
    about, files = at.read_checked(source)
    files["model.safetensors"] = save(quantise_all(load(files["model.safetensors"])))
    about["name"] = f"{about['name'].removesuffix(', int8')}, int8"
    write_folder(folder, about, files)
    return at.load_trained_model(folder, torch.device("cpu"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser("int8.py", description=__doc__.split("\n")[0])
    parser.add_argument("source", metavar="MODEL", type=Path, help="a model, or a run")
    parser.add_argument("folder", metavar="FOLDER", type=new_folder)
    options = parser.parse_args(arguments)
    try:
        translator = round_model(options.source, options.folder)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in options.folder.iterdir()) / 1e6
    print(f"{options.folder}: model {translator.name}, {size:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
