"""Drawings made from the shipped model: images/first-translation.svg and images/next-token.svg."""

import html
import math

import the_annotated_transformer as at
from tools.page.playable import still
from tools.records import PROJECT

OWN = "drawing-first-translation"
ROWS = 8  # tokens with a bar of their own
TEMPERATURES = (0.5, 1.0, 2.0)


def style_for(own: str) -> str:
    """The beginning of a style element: colours in both themes, fonts, text."""
    other = (PROJECT / "images" / "multi-head.svg").read_text("utf-8")
    style = other[other.index("<style>") : other.index("    .drawing-multi-head .d-small")]
    return style.replace("drawing-multi-head", own)


def first_picture() -> str:
    """What the page's translator draws for its first sentence, as a file with its own style."""
    drawn = still("picture")["html"]
    label = 'role="img" aria-labelledby="first-translation-title first-translation-desc"'
    begin, drawn = drawn.split(' role="img" aria-label="', 1)
    words, rest = drawn.split('">', 1)
    return f"""{begin} xmlns="http://www.w3.org/2000/svg" class="drawing {OWN}" {label}>
  <title id="first-translation-title">A translation, and where the model looked</title>
  <desc id="first-translation-desc">Above: {at.SENTENCE} {words} \
Curves lead from each subword to those that the model looked at while it wrote it.</desc>
  {style_for(OWN)}\
    .{OWN} {{ min-width: 520px; }}
    .{OWN} rect {{ fill: var(--drawing-panel); stroke: var(--drawing-panel-edge); }}
    .{OWN} path {{ fill: none; stroke: var(--drawing-attention-edge); stroke-opacity: .6; }}
  </style>
  {rest.replace("<path", chr(10) + "  <path").replace("<g", chr(10) + "  <g")}
"""


def shares_at(log_probs: list[float], temperature: float) -> list[float]:
    """Probabilities of the likeliest tokens at a temperature; last, of all others together."""
    powers = [math.exp(log_prob / temperature) for log_prob in log_probs]
    total = sum(powers)
    return [power / total for power in (*powers[:ROWS], sum(powers[ROWS:]))]


def bar(share: float, x: int, y: int) -> str:
    """A share as a bar, and in percent."""
    length = 110 * share
    return (
        f'\n  <rect x="{x}" y="{y - 13}" width="{length:.1f}" height="14"/>'
        f'<text x="{x + length + 5:.1f}" y="{y}" class="d-soft d-start">{100 * share:.1f} %</text>'
    )


def next_token_picture() -> str:
    """The next token's distribution at three temperatures, as rows of bars."""
    scene = still("sampling")["scene"]
    names = [*scene["names"][:ROWS], f"{len(scene['logProbs']) - ROWS:,} others"]
    drawn = '\n  <text x="112" y="24" class="d-soft d-end">temperature</text>'
    for row, name in enumerate(names):
        drawn += f'\n  <text x="112" y="{54 + 26 * row}" class="d-end">{html.escape(name)}</text>'
    for number, temperature in enumerate(TEMPERATURES):
        x = 130 + 170 * number
        drawn += f'\n  <text x="{x}" y="24" class="d-start">{temperature:g}</text>'
        for row, share in enumerate(shares_at(scene["logProbs"], temperature)):
            drawn += bar(share, x, 54 + 26 * row)
    own = "drawing-next-token"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" class="drawing {own}" viewBox="0 0 640 276" \
width="640" height="276" role="img" aria-labelledby="next-token-title next-token-desc">
  <title id="next-token-title">The next token at three temperatures</title>
  <desc id="next-token-desc">After “{scene["written"]}”: bars for the probabilities of the \
likeliest tokens and of all others, at temperatures 0.5, 1 and 2.</desc>
  {style_for(own)}\
    .{own} .d-soft {{ fill: var(--drawing-soft); }}
    .{own} .d-start {{ text-anchor: start; }}
    .{own} .d-end {{ text-anchor: end; }}
    .{own} rect {{ fill: var(--drawing-attention-edge); }}
  </style>{drawn}
</svg>
"""
