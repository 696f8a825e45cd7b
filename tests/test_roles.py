"""Queries, keys and values: one colour each, where they are meant, and for every eye."""

import itertools
import math
import re

import pytest
from nbformat.v4 import new_code_cell
from pages import contrast, hidden, page_of

from tools.page.markup import HERE

ROLES = ("query", "key", "value")
START, MODEL, TRAINING = (
    f'<a id="{x}"></a>\n# {x}\n\n' for x in ("attention", "model", "training")
)
CSS = (HERE / "page.css").read_text("utf-8")
THEMES = [dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in CSS.split("[data-theme")]
# What eyes see without one kind of cone (Machado et al., 2009), in linear light.
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
}


def roles_in(tag, selector: str = "") -> list[tuple[str, str]]:
    found = tag.select(", ".join(f"{selector} .{role}" for role in ROLES))
    return [(each["class"][-1], each.get_text().strip("\u200b")) for each in found]


def test_prose_is_coloured_where_attention_is_explained(tmp_path):
    text = (
        "A query meets keys. A dictionary returns the value of a key. See `key`, [a key](#model)."
    )
    page = page_of(
        tmp_path,
        f"Each key.\n\n{START}{text}",
        MODEL + "Text.",
        '<a id="try-attention"></a>\n## Try it\n\nIts values.',
    )
    assert roles_in(page) == [("query", "query"), ("key", "keys")]


def test_in_formulas_letters_have_roles_and_widths_have_none(tmp_path):
    text = "$QK^\\top / \\sqrt{d_k}$, $q_i k_i$, $d_v$, $W_i^Q$, $W^V$, $W^O$"
    page = page_of(tmp_path, START + text, TRAINING + "$k$")
    assert [name.replace("\n", "") for _, name in roles_in(page)] == [
        "Q",
        "K",
        "q",
        "k",
        "WiQ",
        "WV",
    ]


def test_in_code_names_are_coloured_but_not_methods_nor_what_is_folded(tmp_path):
    code = "def f(q, keys, W_v):\n    return table.values(), d_k, q  # a query"
    page = page_of(tmp_path, START, new_code_cell(code), hidden("value = 1"))
    assert [name for _, name in roles_in(page)] == ["q", "keys", "W_v", "q", "query"]


def lab(colour: str, eye: str) -> tuple[float, float, float]:
    """A colour as an eye sees it, in CIELAB."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    r, g, b = (
        min(1, max(0, sum(a * b for a, b in zip(row, light, strict=True)))) for row in EYES[eye]
    )
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("colours", THEMES[:2], ids=["light", "dark"])
def test_the_colours_are_read_and_told_apart_by_every_eye(colours):
    for role in ROLES:
        for ground in ("paper", "panel", "code-paper", "note"):
            assert contrast(colours[role], colours[ground]) >= 4.5, (role, ground)
    for one, other in itertools.combinations(ROLES, 2):
        for eye in EYES:
            assert math.dist(lab(colours[one], eye), lab(colours[other], eye)) > 20, (
                one,
                other,
                eye,
            )
