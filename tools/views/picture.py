"""The drawing of README and of the notebook's first screen: images/first-translation.svg."""

import the_annotated_transformer as at
from tools.page.playable import still
from tools.records import PROJECT

OWN = "drawing-first-translation"


def first_picture() -> str:
    """What the page's translator draws for its first sentence, as a file with its own style."""
    drawn = still("picture")["html"]
    other = (PROJECT / "images" / "multi-head.svg").read_text("utf-8")
    style = other[other.index("<style>") : other.index("    .drawing-multi-head .d-small")]
    style = style.replace("drawing-multi-head", OWN)
    label = 'role="img" aria-labelledby="first-translation-title first-translation-desc"'
    begin, drawn = drawn.split(' role="img" aria-label="', 1)
    words, rest = drawn.split('">', 1)
    return f"""{begin} xmlns="http://www.w3.org/2000/svg" class="drawing {OWN}" {label}>
  <title id="first-translation-title">A translation, and where the model looked</title>
  <desc id="first-translation-desc">Above: {at.SENTENCE} {words} \
Curves lead from each subword to those that the model looked at while it wrote it.</desc>
  {style}\
    .{OWN} {{ min-width: 520px; }}
    .{OWN} rect {{ fill: var(--drawing-panel); stroke: var(--drawing-panel-edge); }}
    .{OWN} path {{ fill: none; stroke: var(--drawing-attention-edge); stroke-opacity: .6; }}
  </style>
  {rest.replace("<path", chr(10) + "  <path").replace("<g", chr(10) + "  <g")}
"""
