"""Drawings as small PNG, for the notebook."""

import io
import re
from pathlib import Path

import vl_convert
from PIL import Image


def smaller(png: bytes, colours: int = 64) -> bytes:
    """A PNG in few colours, on white paper; one that is so already stays as it is.

    A drawing has no ground of its own, and would stand on black.
    """
    picture = Image.open(io.BytesIO(png))
    if picture.mode == "P":
        return png
    paper = Image.new("RGBA", picture.size, "white")
    page = Image.alpha_composite(paper, picture.convert("RGBA")).convert("RGB")
    page = page.quantize(colours, dither=Image.Dither.NONE)
    page.save(small := io.BytesIO(), "PNG", optimize=True)
    return small.getvalue()


def png_of_drawing(drawing: Path) -> bytes:
    """An SVG drawing as a small PNG, in its light colours and on white."""
    svg = drawing.read_text("utf-8")
    for name, value in re.findall(r"(--[\w-]+):\s*([^;}]+)", svg):  # those for light pages first
        svg = svg.replace(f"var({name})", value.strip())  # unknown to the rasteriser
    return smaller(vl_convert.svg_to_png(svg, scale=1.5), colours=256)
