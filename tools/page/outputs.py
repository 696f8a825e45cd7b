"""Charts, tables and drawings as HTML."""

import html
import json
import re

from tools.page import charts
from tools.page.markup import BuildError, parsed

NUMBER = re.compile(r"[-+−–—±\d.,;()\s\u2060]*(e[+-]?\d+)?\s*[%×kM]?|NaN")  # a range, too


def missing_numbers(node: object, place: str = "") -> list[str]:
    """Places in a chart's data with null, NaN or infinity, alone or among numbers in a string."""
    if isinstance(node, dict | list):
        children = node.items() if isinstance(node, dict) else enumerate(node)
        return [at for key, child in children for at in missing_numbers(child, f"{place}/{key}")]
    packed = r"[-+.\de ]*\b(nan|inf)\b[-+.\de naif]*"
    missing = node is None or re.fullmatch(packed, str(node).lower())
    return [place] if missing and ("/datasets/" in place or "/data/values/" in place) else []


def chart(spec: dict) -> str:
    """A chart as it is before anybody has touched it, for wide and for narrow screens."""
    label = html.escape(spec.get("description", "").strip())
    if not label:
        raise BuildError("a chart has no description, which is its text alternative")
    if missing := missing_numbers(spec):
        raise BuildError(f"a chart has null where a number should be: {', '.join(missing[:3])}")
    svgs = charts.stills(json.dumps(spec)).replace("<svg", f'<svg role="img" aria-label="{label}"')
    return f'<div class="chart">{svgs}</div>\n<figcaption>{label}</figcaption>'


def table(source: str) -> str:
    """A pandas table without its styling, numbers to the right."""
    table = parsed(source).table
    caption = table.caption.extract().decode_contents() if table.caption else ""
    for tag in [table, *table.find_all(True)]:
        tag.attrs = {k: v for k, v in tag.attrs.items() if k in ("colspan", "rowspan")}
    rows = [row.find_all(["th", "td"]) for row in table.find_all("tr")]
    for column in zip(*rows, strict=False):
        texts = [cell.get_text(strip=True) for cell in column[1:]]
        if any(texts) and all(map(NUMBER.fullmatch, texts)):
            for cell in column:
                cell["class"] = "num"
            for number in filter(None, (cell.string for cell in column[1:])):
                number.replace_with(re.sub(r"(?<![e\d])-", "−", number))
    caption = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'{caption}<div class="scroll table">{table}</div>'


def drawing(source: str, alt: str, prefix: str) -> str:
    """An SVG drawing as part of the page, its ids made unique by `prefix`."""
    svg = re.sub(r"<!--.*?-->|<title.*?</title>", "", source[source.index("<svg") :], flags=re.S)
    for name in re.findall(r'\bid="([^"]+)"', svg):
        svg = re.sub(rf'(\bid="|#){re.escape(name)}(?![\w-])', rf"\1{prefix}{name}", svg)
    svg = re.sub(r'\s(?:role|aria-\w+|xmlns)="[^"]*"', "", svg)
    role = "group" if "<a " in svg else "img"  # a screen reader hides the links of an image
    label = f'role="{role}" aria-label="{html.escape(alt)}"'
    return f'<div class="picture scroll">{svg.replace("<svg", f"<svg {label}", 1).strip()}</div>'
