"""Draw the learning curves of a run, also while it trains.

python -m tools.learning_curves draw RUN   writes RUN/curves.png
"""

import sys
from pathlib import Path

import altair as alt
import pandas as pd

from tools import records

PANELS = {  # of a line of the log: title, scale
    "loss": ("training loss per token", "log"),
    "perplexity": ("validation perplexity", "log"),
    "bleu": ("validation BLEU, greedy", "linear"),
    "learning_rate": ("learning rate", "linear"),
    "tokens_per_second": ("target tokens per second", "linear"),
}


def read_log(run: Path) -> pd.DataFrame:
    """A row for each epoch of a run; ValueError where it has none."""
    path = run / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} is missing: name a run, after its first epoch")
    frame = pd.read_json(path, lines=True)
    return frame[frame["averaged"] == 0]  # the others are means of epochs


def curves(frame: pd.DataFrame) -> alt.Chart:
    """A panel for each number of an epoch, against the updates."""
    panels = []
    for name, (title, scale) in PANELS.items():
        chart = alt.Chart(frame, width=240, height=160, title=title).mark_line(point=True)
        y = alt.Y(name, type="quantitative", title=None).scale(type=scale, nice=False, zero=False)
        panels.append(chart.encode(x=alt.X("updates", type="quantitative"), y=y))
    return alt.concat(*panels, columns=3)


def draw(run: Path, /) -> None:
    """Draw the learning curves of a run into RUN/curves.png."""
    path = run / "curves.png"
    curves(read_log(run)).save(path, scale_factor=2)
    print(path)


main = records.command_line(draw=draw)

if __name__ == "__main__":
    sys.exit(main())
