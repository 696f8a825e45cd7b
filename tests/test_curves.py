"""Learning curves of a run as a picture."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from conftest import log_of

from tools import learning_curves as curves


def test_each_epoch_of_a_run_is_drawn(whole):
    """Also the axis of the updates; the mean of the last epochs is no point of a curve."""
    panels = curves.curves(curves.read_log(whole)).to_dict()
    drawn = [panel["encoding"]["y"]["field"] for panel in panels["concat"]]
    assert drawn == list(curves.PANELS)
    [rows] = panels["datasets"].values()
    frame = pd.DataFrame(rows)
    epochs = [entry for entry in log_of(whole) if entry["averaged"] == 0]
    assert frame["updates"].tolist() == [entry["updates"] for entry in epochs]
    assert frame["bleu"].tolist() == pytest.approx([entry["bleu"] for entry in epochs])


def test_the_picture_lies_in_the_run(small_run, tmp_path, capsys):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    assert curves.main(["draw", str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{run}/curves.png\n"


def test_a_folder_without_an_epoch_is_refused(tmp_path, capsys):
    assert curves.main(["draw", str(tmp_path / "none")]) == 1
    assert "none/log.jsonl is missing: name a run" in capsys.readouterr().err
