"""Charts of the notebook as SVG, in the colours of the page's style sheet."""

import copy
import json
import re
from collections.abc import Iterator

import vl_convert

from tools.page.cache import cached

VEGA_LITE = "6.4"
NARROW = 330  # pixels; the room on a phone
PLOT = 252  # of them what an axis with its labels and title leaves
STEPS = 9  # of a ramp
DIVERGING = ("redblue",)  # schemes of two colours; all others become the one of the page
FONT = "Liberation Sans"  # the converter measures with it; the page sets its own, which is narrower


def parts(spec: dict) -> Iterator[dict]:
    """A chart and all charts in it."""
    yield spec
    inside = [spec["spec"]] if "spec" in spec else []
    for name in ("layer", "hconcat", "vconcat"):
        inside += spec.get(name, [])
    for part in inside:
        yield from parts(part)


def colour(part: dict) -> None:
    """Let numbers take their colours from a ramp of the page, in steps: else all came out black."""
    channel = part.get("encoding", {}).get("color", {})
    if channel.get("type") == "quantitative":
        scale = channel.get("scale", {})
        name = "diverging" if scale.pop("scheme", "") in DIVERGING else "ramp"
        steps = [f"var(--{name}-{number})" for number in range(1, STEPS + 1)]
        channel["scale"] = scale | {"type": "quantize", "range": steps}


def narrow(part: dict) -> None:
    """Make a chart fit a phone: its parts below one another, no plot wider than the room."""
    if "hconcat" in part:
        part["vconcat"] = part.pop("hconcat")
    if "spec" in part:
        part["columns"] = 1
    if facet := part.get("encoding", {}).get("facet"):
        facet["columns"] = 1
    if isinstance(part.get("width"), int | float):
        part["width"] = min(part["width"], PLOT)


def config(is_narrow: bool) -> dict:
    """Sizes and colours of all charts."""
    ink, muted, line = ("var(--ink)", "var(--muted)", "var(--line)")
    above = {"orient": "top", "columns": 2}
    guide = {
        "labelFontSize": 13,
        "titleFontSize": 13,
        "titleFontWeight": 600,
        "labelColor": muted,
        "titleColor": ink,
    }
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 2,
        "axis": guide | {"gridColor": line, "domainColor": muted, "tickColor": muted},
        "axisQuantitative": {"labelSeparation": 4},
        "header": guide,
        "legend": guide | {"gradientStrokeColor": line} | (above if is_narrow else {}),
        "title": {"color": ink, "fontSize": 15, "anchor": "start", "frame": "group"},
        "view": {"stroke": line},
        "text": {"color": ink},
        "rule": {"color": muted},
        "mark": {"color": "var(--series-1)"},
        "range": {"category": [f"var(--series-{number})" for number in range(1, 7)]},
    }


CELL = re.compile(r'<path d="(M[^"]*h[^"]*Z)" fill="([^"]*)"/>')


def merged(cells: re.Match) -> str:
    """Cells of a heat map, one path for each colour."""
    colours: dict[str, list[str]] = {}
    for cell, colour in CELL.findall(cells[0]):
        colours.setdefault(colour, []).append(cell)
    return "".join(f'<path d="{"".join(each)}" fill="{fill}"/>' for fill, each in colours.items())


def lean(svg: str) -> str:
    """The same drawing in fewer bytes."""
    unused = (
        r' (xmlns(:xlink)?|version|aria-[\w]+|role|font-family|pointer-events)="[^"]*"',
        r'<path class="(foreground|background)"((?! stroke=)[^>])*/>',  # nothing is seen of it
        r' class="mark-(?!rect|text role-axis-label)[^"]*"|(?<="mark-rect) [^"]*(?=")',
        ' opacity="1"| stroke-width="1"',
    )
    svg = re.sub("|".join(unused), "", svg)
    svg = re.sub(
        r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), svg
    )
    return re.sub(f"({CELL.pattern}){{2,}}", merged, svg)


def drawn(spec: dict, is_narrow: bool) -> str:
    """The SVG of a chart for one of two rooms. It grows with the letters of the page."""
    spec = copy.deepcopy(spec)
    for part in parts(spec):
        colour(part)
        mark = part.get("mark")
        if isinstance(mark, dict) and mark.get("point") == "transparent":
            del mark["point"]  # it is there for the mouse
        if is_narrow:
            narrow(part)
    spec["config"] = spec.get("config", {}) | config(is_narrow)
    svg = lean(vl_convert.vegalite_to_svg(spec, VEGA_LITE))
    width, height = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg).groups()
    size = f'style="width:{float(width) / 16:.2f}rem"'
    svg = svg.replace(f'width="{width}" height="{height}"', size, 1)
    return svg.replace('class="marks"', f'class="{"narrow" if is_narrow else "wide"}"', 1)


@cached
def stills(text: str) -> str:
    """A chart, given as JSON, for wide and for narrow screens."""
    return "".join(drawn(json.loads(text), is_narrow) for is_narrow in (False, True))
