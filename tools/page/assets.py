"""Fonts, styles and licences of the page."""

import re
from collections.abc import Iterable

from tools.page.markup import FIGURES, HERE, VENDOR, data_uri

LICENCES = ("katex/LICENSE", "preact/LICENSE", "preact/LICENSE-htm")
FIRST_FONTS = ("source-sans-3-latin-wght-normal", "source-serif-4-latin-wght-normal")
FONT_RULE = re.compile(r"@font-face\{[^}]*\}")


def fonts(names: Iterable[str]) -> str:
    """Rules for fonts, with the fonts in them."""
    rules = []
    for name in names:
        family, style = name.replace("-", " ").split(" latin wght ")
        data = (VENDOR / f"fonts/{name}.woff2").read_bytes()
        rules.append(
            f"@font-face{{font-family:'{family}';font-style:{style};font-weight:200 900;"
            f"font-display:block;src:url({data_uri('font/woff2', data)})}}"
        )
    return "\n".join(rules)


def katex_styles() -> str:
    return (VENDOR / "katex/katex.min.css").read_text("utf-8")


def styles() -> str:
    """The style sheet: fonts of the first screen, formulas, our own."""
    own = [file.read_text("utf-8") for file in (HERE / "page.css", *sorted(FIGURES.glob("*.css")))]
    formulas = FONT_RULE.sub("", katex_styles())
    return "\n".join([fonts(FIRST_FONTS), formulas, *own])


def later_styles() -> str:
    """The other fonts, half of the weight of all styles; the first screen does without them."""
    rules = [fonts(sorted({f.stem for f in (VENDOR / "fonts").glob("*.woff2")} - {*FIRST_FONTS}))]
    for rule in FONT_RULE.findall(katex_styles()):
        file = VENDOR / "katex" / re.search(r"url\((.*?\.woff2)\)", rule)[1]
        if file.is_file():  # those that no formula needs are not here
            source = f"src:url({data_uri('font/woff2', file.read_bytes())})"
            rules.append(re.sub(r"src:[^}]*", source, rule))
    return "\n".join(rules)


def licences() -> str:
    """The licences of what is vendored."""
    return "\n".join((VENDOR / name).read_text("utf-8") for name in LICENCES)
