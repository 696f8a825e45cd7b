"""Make the model that the repository ships: pretrained/, and pretrained.json with what int8 costs.

Remove results/pretrained.json, and pretrained/ but for its card, to make both anew.
"""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import torch

import the_annotated_transformer as at
from tools import records
from tools.results import plan
from tools.results.score import score_once, translated, translator_of


@records.once("pretrained")
def pretrained() -> dict:
    """Write the folder pretrained/ from the full recipe, and score it beside the whole model."""
    [run] = plan.SHIPPED.runs
    whole = translator_of(run, plan.AVERAGED)
    place = Path(tempfile.mkdtemp(dir=at.runs_folder()))
    at.save_model(whole, place / "fp32")
    at.save_model(dataclasses.replace(whole, name=f"{whole.name}, int8"), place / "int8", int8=True)
    shutil.copytree(place / "int8", records.PRETRAINED, dirs_exist_ok=True)  # beside its card
    rounded = at.load_trained_model(records.PRETRAINED, torch.device("cpu"))
    formats = {}
    for name, translator, row in (("fp32", whole, plan.RECIPE), ("int8", rounded, plan.SHIPPED)):
        size = (place / name / "model.safetensors").stat().st_size / 1e6
        _, scores = translated(translator, "val", plan.BEAM, row.alpha)
        formats[name] = {"MB": round(size, 2), "val": scores}
        for split in plan.TESTS:
            score_once(row, run, split, translator)
    shutil.rmtree(place)
    return {"run": run, "formats": formats, "made": records.circumstances()}
