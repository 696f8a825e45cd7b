"""Charts of the notebook as SVG, in the colours of the page's style sheet."""

import copy
import json
import re
from collections.abc import Iterator

import vl_convert

from tools.page.cache import cached

VEGA_LITE = "6.4"
NARROW = 330  # pixels; the room on a phone
WIDE = 760  # pixels; of the room on wide screens, so much that letters stay legible on a tablet
PLOT = 252  # of them what an axis with its labels and title leaves
RAMP = (1, 3, 5, 7, 9)  # its colours in page.css
DASHES = [[1, 0], [9, 3], [4, 3], [9, 3, 2, 3]]  # of lines, which may lie on each other
STEPS = 20  # of a ramp: from 0 to 1 and from -1 to 1 they end at round numbers
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


def steps(name: str) -> list[str]:
    """The colours of a ramp, mixed of those of page.css."""
    mixed = []
    for step in range(STEPS):
        place = (len(RAMP) - 1) * step / (STEPS - 1)
        below = min(int(place), len(RAMP) - 2)
        low, high = (f"var(--{name}-{number})" for number in RAMP[below : below + 2])
        mixed.append(f"color-mix(in srgb, {low}, {high} {100 * (place - below):.0f}%)")
    return mixed


def colour(part: dict, is_narrow: bool) -> None:
    """Let numbers take their colours from a ramp of the page, in steps: else all came out black."""
    channel = part.get("encoding", {}).get("color", {})
    if channel.get("type") == "quantitative":
        scale = channel.get("scale", {})
        name = "diverging" if scale.pop("scheme", "") in DIVERGING else "ramp"
        channel["scale"] = scale | {"type": "quantize", "range": steps(name)}
        if channel.get("legend", True):
            label = f"datum.index % {5 if is_narrow else 2} ? '' : datum.label"
            labels = {"labelExpr": label, "labelOverlap": False}
            channel["legend"] = channel.get("legend", {}) | labels


def dash(part: dict) -> None:
    """Tell lines apart by dashes as well as by colours."""
    encoding = part.get("encoding", {})
    mark = part.get("mark")
    kind = mark.get("type") if isinstance(mark, dict) else mark
    if kind == "line" and "color" in encoding and "strokeDash" not in encoding:
        dashes = {"scale": {"range": DASHES}, "legend": None}
        encoding["strokeDash"] = encoding["color"] | dashes


def widened(spec: dict, factor: float) -> dict:
    """A chart with plots so many times as wide; heat maps keep their shape."""
    spec = copy.deepcopy(spec)
    for part in parts(spec):
        is_heat_map = part.get("encoding", {}).get("color", {}).get("type") == "quantitative"
        if isinstance(part.get("width"), int | float) and not is_heat_map:
            part["width"] = round(part["width"] * factor)
    return spec


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
        "axisBand": {"labelOverlap": True},
        "header": guide,
        "legend": guide | {"gradientStrokeColor": line} | (above if is_narrow else {}),
        "title": {"color": ink, "fontSize": 15, "anchor": "start", "frame": "group"},
        "view": {"stroke": line},
        "text": {"color": ink},
        "rule": {"color": muted},
        "mark": {"color": "var(--series-1)"},
        "range": {"category": [f"var(--series-{number})" for number in range(1, 7)]},
    }


CELL = re.compile(r'<path aria-label="[^"]*: ([^":]*)"[^>]* d="(M[^"]*h[^"]*Z)" fill="([^"]*)"/>')

DISC = re.compile(r'<path([^>]*) d="M([\d.]+),0(?:A\2,\2,0,1,1,-?\2,0){2}"')
LINE = re.compile(r'<line transform="translate\(([^)]*)\)" x2="([^"]*)" y2="([^"]*)"( [^>]*)/>')


def joined(lines: re.Match) -> str:
    """Lines of a grid or of an axis as one path."""
    found = LINE.findall(lines[0])
    if len({looks for *_, looks in found}) > 1:
        return lines[0]
    path = "".join(f"M{start}l{x},{y}" for start, x, y, _ in found)
    return f'<path d="{path}"{found[0][-1]}/>'


def merged(cells: re.Match, is_narrow: bool) -> str:
    """Cells of a heat map: a path for each colour, or for each value, where a mouse can ask it."""
    colours: dict[str, dict[str, str]] = {}
    for value, cell, colour in CELL.findall(cells[0]):
        title = "" if is_narrow else f"<title>{value}</title>"
        paths = colours.setdefault(colour, {})
        paths[title] = paths.get(title, "") + cell
    svg = ""
    for colour, paths in colours.items():
        drawn = "".join(f'<path d="{cells}">{title}</path>' for title, cells in paths.items())
        svg += f'<g fill="{colour}">{drawn}</g>'
    return svg


def lean(svg: str, is_narrow: bool) -> str:
    """The same drawing in fewer bytes."""
    svg = re.sub(f"({CELL.pattern}){{2,}}", lambda cells: merged(cells, is_narrow), svg)
    unused = (
        r' (xmlns(:xlink)?|version|aria-[\w]+|role|font-family|pointer-events)="[^"]*"',
        r'<path class="(foreground|background)"((?! stroke=)[^>])*/>',  # nothing is seen of it
        r' class="mark-(?!rect|text role-axis-label)[^"]*"|(?<="mark-rect) [^"]*(?=")',
        ' opacity="1"| stroke-width="1"',
    )
    svg = re.sub("|".join(unused), "", svg)
    svg = re.sub(f"(?:{LINE.pattern}){{2,}}", joined, svg)
    svg = DISC.sub(r'<circle\1 r="\2"', svg)
    in_a_tag = r"\d+\.\d{3,}(?=[^<]*>)"  # not what is read
    return re.sub(in_a_tag, lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), svg)


def size(svg: str) -> tuple[str, str]:
    """Width and height of a drawing."""
    return re.search(r'width="([\d.]+)" height="([\d.]+)"', svg).groups()


def filled(spec: dict) -> dict:
    """A chart as wide as the room, found from its width once and with plots twice as wide."""
    charts = (widened(spec, factor) for factor in (1, 2))
    once, twice = (float(size(vl_convert.vegalite_to_svg(each, VEGA_LITE))[0]) for each in charts)
    return widened(spec, 1 + (WIDE - once) / (twice - once)) if twice > once else spec


def drawn(spec: dict, is_narrow: bool) -> str:
    """The SVG of a chart for one of two rooms. It grows with the letters of the page."""
    spec = copy.deepcopy(spec)
    for part in parts(spec):
        colour(part, is_narrow)
        dash(part)
        mark = part.get("mark")
        if isinstance(mark, dict) and mark.get("point") == "transparent":
            del mark["point"]  # it is there for the mouse
        if is_narrow:
            narrow(part)
    spec["config"] = spec.get("config", {}) | config(is_narrow)
    spec = spec if is_narrow else filled(spec)
    svg = lean(vl_convert.vegalite_to_svg(spec, VEGA_LITE), is_narrow)
    width, height = size(svg)
    style = f'style="width:{float(width) / 16:.2f}rem"'
    svg = svg.replace(f'width="{width}" height="{height}"', style, 1)
    return svg.replace('class="marks"', f'class="{"narrow" if is_narrow else "wide"}"', 1)


@cached
def stills(text: str) -> str:
    """A chart, given as JSON, for wide and for narrow screens."""
    return "".join(drawn(json.loads(text), is_narrow) for is_narrow in (False, True))
