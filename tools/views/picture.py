"""What two drawings show of the shipped model; frame, words and style stand in their files."""

import html
import math

from tools.page import playable

ROWS = 8  # tokens with a bar of their own
TEMPERATURES = (0.5, 1.0, 2.0)


def first_translation() -> str:
    """What the page's translator draws for its first sentence."""
    return playable.first_translation().replace("<path", "\n<path").replace("<g", "\n<g")


def shares_at(log_probs: list[float], temperature: float) -> list[float]:
    """Probabilities of the likeliest tokens at a temperature; last, of all others together."""
    powers = [math.exp(log_prob / temperature) for log_prob in log_probs]
    total = sum(powers)
    return [power / total for power in (*powers[:ROWS], sum(powers[ROWS:]))]


def bar(share: float, x: int, y: int) -> str:
    """A share as a bar, and in percent."""
    length = 110 * share
    return (
        f'<rect x="{x}" y="{y - 13}" width="{length:.1f}" height="14"/>'
        f'<text x="{x + length + 5:.1f}" y="{y}" class="d-soft d-start">{100 * share:.1f} %</text>'
    )


def next_token() -> str:
    """The next token's distribution at three temperatures, as rows of bars."""
    scene = playable.still("sampling")["scene"]
    names = [*scene["names"][:ROWS], f"{len(scene['logProbs']) - ROWS:,} others"]
    lines = ['<text x="112" y="24" class="d-soft d-end">temperature</text>']
    for row, name in enumerate(names):
        lines.append(f'<text x="112" y="{54 + 26 * row}" class="d-end">{html.escape(name)}</text>')
    for number, temperature in enumerate(TEMPERATURES):
        x = 130 + 170 * number
        lines.append(f'<text x="{x}" y="24" class="d-start">{temperature:g}</text>')
        for row, share in enumerate(shares_at(scene["logProbs"], temperature)):
            lines.append(bar(share, x, 54 + 26 * row))
    return "\n".join(lines)
