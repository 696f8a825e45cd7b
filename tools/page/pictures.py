"""What the tools do with pictures."""

import io

from PIL import Image


def on_white(png: bytes) -> Image.Image:
    """A PNG on white paper: a drawing has no ground of its own, and would stand on black."""
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    paper = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(paper, picture).convert("RGB")
