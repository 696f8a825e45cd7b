"""Charts, tables and drawings as HTML."""

import html
import json
import re

from tools.page import pictures
from tools.page.markup import BuildError, compact_json, json_script, parsed

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
    """A chart that the page's script draws; where scripts are off, its picture is shown."""
    label = html.escape(spec.get("description", "").strip())
    if not label:
        raise BuildError("a chart has no description, which is its text alternative")
    if missing := missing_numbers(spec):
        raise BuildError(f"a chart has null where a number should be: {', '.join(missing[:3])}")
    text = compact_json(spec)
    narrow, wide, picture = json.loads(pictures.drawn_chart(pictures.chart_dresser(), text))
    heights = f"--if-narrow:{narrow}px;--if-wide:{wide}px"  # the place that is kept free for it
    view = f'<div class="scroll"><div class="view" style="{heights}"></div></div>'
    script = f'{json_script(spec)}<noscript><img src="{picture}" alt="{label}"></noscript>'
    bound = text.count('"bind":{')  # and for its controls, in rows
    rows = f' style="--if-narrow:{max(1, bound - 1)};--if-wide:{(bound + 2) // 3}"' if bound else ""
    drawn = f'<div class="chart"><div class="controls"{rows}></div>{view}{script}</div>\n'
    return f"{drawn}<figcaption>{label}</figcaption>"


def table(source: str, address: str = "") -> str:
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
    return f'<figure{address}>{caption}<div class="scroll table">{table}</div></figure>\n'


def drawing(source: str, alt: str, prefix: str) -> str:
    """An SVG drawing as part of the page, its ids made unique by `prefix`."""
    svg = re.sub(r"<!--.*?-->|<title.*?</title>", "", source[source.index("<svg") :], flags=re.S)
    for name in re.findall(r'\bid="([^"]+)"', svg):
        svg = re.sub(rf'(\bid="|#){re.escape(name)}(?![\w-])', rf"\1{prefix}{name}", svg)
    svg = re.sub(r'\s(?:role|aria-\w+|xmlns)="[^"]*"', "", svg)
    role = "group" if "<a " in svg else "img"  # a screen reader hides the links of an image
    label = f'role="{role}" aria-label="{html.escape(alt)}"'
    return f'<div class="picture scroll">{svg.replace("<svg", f"<svg {label}", 1).strip()}</div>'
