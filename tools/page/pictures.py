"""Pictures: drawings and charts as PNG, WebP or SVG."""

import functools
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import vl_convert
from PIL import Image

from tools.page import bundle, javascript
from tools.page.cache import cached
from tools.page.markup import PARTS, data_uri

VEGA = ("window.vegaEmbed = vegaEmbed;", "6.4")  # what the page calls, version of Vega-Lite
WIDTHS = (330, 952)  # pixels; widths of a chart on a phone and beside the contents


def on_white(png: bytes) -> Image.Image:
    """A PNG on white paper: a drawing has no ground of its own, and would stand on black."""
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    paper = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(paper, picture).convert("RGB")


def smaller(png: bytes, colours: int = 64) -> bytes:
    """A PNG on white, in few colours; one that is so already stays as it is."""
    if Image.open(io.BytesIO(png)).mode == "P":
        return png
    page = on_white(png).quantize(colours, dither=Image.Dither.NONE)
    page.save(small := io.BytesIO(), "PNG", optimize=True)
    return small.getvalue()


def png_of_drawing(drawing: Path) -> bytes:
    """An SVG drawing as a small PNG, in its light colours and on white."""
    svg = drawing.read_text("utf-8")
    for name, value in re.findall(r"(--[\w-]+):\s*([^;}]+)", svg):  # those for light pages first
        svg = svg.replace(f"var({name})", value.strip())  # unknown to the rasteriser
    return smaller(vl_convert.svg_to_png(svg, scale=1.5), colours=256)


@cached
def vega(call: str, version: str) -> str:
    """Vega-Lite as a script."""
    return vl_convert.javascript_bundle(call, version)


@functools.cache
def chart_dresser() -> str:
    """A script that gives a chart the page's light colours and sizes."""
    light, _dark = (PARTS / "page.css").read_text("utf-8").split(':root[data-theme="dark"]', 1)
    values = dict(re.findall(r"--(\w+): ([^;]+);", light))
    values["sans"] = "Liberation Sans"  # the converter has this font, not the page's
    fit = bundle.bundle(PARTS / "script/fit.js", "fit")
    return f"{fit}const values = {json.dumps(values)};"


@cached
def drawn_chart(dresser: str, spec: str) -> str:
    """JSON of the heights of a chart at each of WIDTHS, and of its picture at the last one."""
    dress = "(text, width) => fit.dressed(text, width, (name) => values[name])"
    svgs = [
        vl_convert.vegalite_to_svg(javascript.call(dresser, dress, spec, width), VEGA[1])
        for width in WIDTHS
    ]
    heights = [round(float(ElementTree.fromstring(svg).get("height"))) for svg in svgs]
    picture = on_white(vl_convert.svg_to_png(svgs[-1], scale=1.5))
    picture = picture.quantize(64, dither=Image.Dither.NONE).convert("RGB")
    picture.save(small := io.BytesIO(), "WEBP", lossless=True, method=6)
    return json.dumps([*heights, data_uri("image/webp", small.getvalue())])
