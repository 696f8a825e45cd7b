"""What stands in the margin: marks of the paper's sections, and a map of the model."""

import html
import re

from bs4 import BeautifulSoup

from tools.page.markup import parsed

PARTS = "attention model training copy-task"  # those beside which the map stands
ASKING = "one-sentence three-matrices scaled-dot-product-attention why-scale attention-function"
ASKING = f"multi-head-attention {ASKING} three-uses"
# Each box and the sections that build it; it leads to the first.
BUILT = {
    "source": "batches",
    "target": "teacher-forcing batches",
    "embedding": "embeddings",
    "positions": "positional-encoding word-order",
    "norm": "layer-norm warm-up-and-norm",
    "self-attention": ASKING,
    "causal mask": "causal-mask",
    "cross-attention": "three-uses",
    "feed-forward": "feed-forward",
    "residual": "residual dropout",
    "layers": "layers encoder-decoder make-model parameter-count",
    "generator": "generator greedy-decoding",
    "loss": "label-smoothing loop evaluation",
}
SIDES = {  # from below
    "encoder": "source, embedding, positions, norm, self-attention, norm, feed-forward, norm",
    "decoder": "target, embedding, positions, norm, causal mask, self-attention, "
    "norm, cross-attention, norm, feed-forward, norm, generator, loss",
}
FIRST, THIN, HIGH, GAP, BOTTOM = 3, 13, 21, 5, 318  # boxes below the layers; heights; the floor
MARK = re.compile(r"(?<=[.:!?)]\s)\(§[^)]*\)")


def set_marks(article: BeautifulSoup) -> None:
    """Name the marks that close a passage; on wide screens they stand beside it."""
    for text in article.find_all(string=MARK):
        if text.parent.name == "p":
            marked = MARK.sub(r'<small class="mark">\g<0></small>', html.escape(text, quote=False))
            text.replace_with(parsed(marked))


def link(name: str, ids: set[str], drawn: str) -> str:
    """What is drawn of a box, as a link where the page has its section."""
    built = BUILT[name].split()
    address = f' href="#{built[0]}"' if built[0] in ids else ""
    kind = name.split("-")[-1].replace(" ", "-")
    return f'<a class="{kind}"{address} tabindex="-1" data-built="{BUILT[name]}">{drawn}</a>'


def side(name: str, left: int, outside: int, ids: set[str]) -> str:
    """One of the two stacks, with a way around each sub-layer on its outside."""
    frame = drawn = ""
    y = BOTTOM
    for number, box in enumerate(SIDES[name].split(", ")):
        height = THIN if box in ("norm", "causal mask") else HIGH
        y -= height + GAP
        if number == FIRST:
            start = y + height + 3
        label = f'<text x="{left + 34}" y="{y + height / 2 + 3.5}">{box}</text>'
        shape = f'<rect x="{left}" y="{y}" width="68" height="{height}" rx="3"/>'
        drawn += link(box, ids, shape + label)
        if box == "norm":
            below = y + height + 2
        elif box.endswith(("attention", "feed-forward")):
            path = f'<path d="M{left + 34} {below}H{outside}V{y - 2.5}H{left + 34}"/>'
            frame += link("residual", ids, path)
        if box == "feed-forward":
            top = y - 5
    x = min(left - 4, outside - 3)
    edge = f'<rect x="{x}" y="{top}" width="80" height="{start - top}" rx="5"/>'
    title = f'<text x="{left + 34}" y="{y - 6}">{name}</text>'
    stream = f'<path d="M{left + 34} {BOTTOM - GAP}V{y}"/>'  # in sight between the boxes
    return link("layers", ids, edge) + stream + frame + drawn + title


def small_map(article: BeautifulSoup) -> str:
    """A map of the model, whose boxes light up where they are built.

    It says what the contents say, so that only eyes get it.
    """
    ids = {tag["id"] for tag in article.find_all(["h2", "h3"], id=True)}
    if not ids & set(PARTS.split()):
        return ""
    sides = side("encoder", 9, 4, ids) + side("decoder", 93, 166, ids)
    memory = '<path d="M77 142.5H93"/>'
    drawing = f'<svg viewBox="0 0 170 {BOTTOM}">{memory}{sides}</svg>'
    return f'<aside id="map" aria-hidden="true" data-parts="{PARTS}">{drawing}</aside>'
