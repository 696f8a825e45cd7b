"""Make the model that the repository ships.

python -m tools.results.ship pretrained   writes pretrained/, and what int8 costs to pretrained.json

A finished record stays: remove results/pretrained.json, and pretrained/, to make both anew.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch

import the_annotated_transformer as at
from tools import models, records
from tools.results import plan
from tools.results.score import score_once, translated, translator_of


@records.once("pretrained")
def pretrained() -> dict:
    """Write the folder pretrained/ from the full recipe, and score it beside the whole model."""
    [run] = plan.SHIPPED.runs
    place = Path(tempfile.mkdtemp(dir=at.runs_folder()))
    average, small = place / "average", place / "small"
    whole = translator_of(run, plan.AVERAGED)
    at.save_model(whole, average)
    models.round_model(average, small)
    shutil.copytree(small, records.PRETRAINED, dirs_exist_ok=True)  # beside its card
    rounded = at.load_trained_model(records.PRETRAINED, torch.device("cpu"))
    formats = {}
    for name, translator, row, folder in (
        ("fp32", whole, plan.ROWS[-1], average),
        ("int8", rounded, plan.SHIPPED, records.PRETRAINED),
    ):
        size = (folder / "model.safetensors").stat().st_size / 1e6
        _, scores = translated(translator, "val", plan.BEAM, row.alpha)
        formats[name] = {"MB": round(size, 2), "val": scores}
        formats[name] |= {split: score_once(row, run, split, translator) for split in plan.TESTS}
    shutil.rmtree(place)
    training = records.read(f"runs/{run}")["summary"]
    made = records.circumstances()
    return {"run": run, "training": training, "formats": formats, "made": made}


main = records.command_line(pretrained=pretrained)

if __name__ == "__main__":
    sys.exit(main())
