"""Draw what a run has in its history, also while it trains.

python tools/curves.py draw RUN   writes RUN/curves.png
"""

import sys
from dataclasses import asdict
from pathlib import Path

import altair as alt
import models
import pandas as pd
import records

at = models.at
PANELS = {  # of an epoch's record: title, scale
    "loss": ("training loss per token", "log"),
    "perplexity": ("validation perplexity", "log"),
    "bleu": ("validation BLEU, greedy", "linear"),
    "learning_rate": ("learning rate", "linear"),
    "tokens_per_second": ("target tokens per second", "linear"),
}


def curves(history: list[at.Epoch]) -> alt.Chart:
    """A panel for each number of an epoch, against the updates."""
    frame = pd.DataFrame([asdict(epoch) for epoch in history])
    panels = []
    for name, (title, scale) in PANELS.items():
        chart = alt.Chart(frame, width=240, height=160, title=title).mark_line(point=True)
        y = alt.Y(name, type="quantitative", title=None).scale(type=scale, nice=False, zero=False)
        panels.append(chart.encode(x=alt.X("updates", type="quantitative"), y=y))
    return alt.concat(*panels, columns=3)


def draw(run: Path, /) -> None:
    """Draw the learning curves of a run into RUN/curves.png."""
    content = at.read_run(run)
    if content is None or not content.history:
        raise ValueError(f"{run} has no epoch to draw: name a run, after its first epoch")
    path = run / "curves.png"
    curves(content.history).save(path, scale_factor=2)
    print(path)


main = records.command_line(draw=draw)

if __name__ == "__main__":
    sys.exit(main())
