"""Learning curves of a run as a picture."""

import curves
import pandas as pd

import the_annotated_transformer as tutorial


def test_every_number_of_a_run_is_drawn(whole):
    history = tutorial.read_run(whole).history
    panels = curves.curves(history).to_dict()
    drawn = [panel["encoding"]["y"]["field"] for panel in panels["concat"]]
    assert drawn == list(curves.PANELS)
    [rows] = panels["datasets"].values()
    result = pd.DataFrame(rows)["bleu"].tolist()
    expected = [epoch.bleu for epoch in history]
    assert result == expected


def test_the_picture_lies_in_the_run(small_run, capsys):
    assert curves.main(["draw", str(small_run)]) == 0
    assert (small_run / "curves.png").read_bytes().startswith(b"\x89PNG")
    (small_run / "curves.png").unlink()
    assert capsys.readouterr().out == f"{small_run}/curves.png\n"


def test_a_folder_without_an_epoch_is_told(tmp_path, capsys):
    assert curves.main(["draw", str(tmp_path / "none")]) == 1
    assert "has no epoch to draw: name a run" in capsys.readouterr().err
