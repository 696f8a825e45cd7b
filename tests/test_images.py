"""The drawings in images/: well formed, self-contained, readable by everybody in both themes."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parent.parent / "images"
NAMES = ("architecture", "attention", "multi-head")
LIMIT = 14_000  # bytes: they are inlined in the page
SVG = "{http://www.w3.org/2000/svg}"
PAGES = {"light": "#ffffff", "dark": "#111418"}  # backgrounds that arrows may cross
INKS = ("ink", "soft")
FILLS = ("paper", "panel", "embedding", "attention", "feed", "norm", "output")
BOXES = {
    "architecture": {
        "source-embedding", "target-embedding", "self-attention", "masked-self-attention",
        "cross-attention", "feed-forward", "encoder-final-norm", "decoder-final-norm", "memory",
        "generator-linear", "log-softmax", "norm-order",
    },
    "attention": {"queries", "keys", "values", "scores", "mask", "softmax", "weighted-mean"},
    "multi-head": {
        "query-linear", "key-linear", "value-linear", "split", "heads", "concat", "output-linear",
    },
}  # fmt: skip


def source(name: str) -> str:
    return (IMAGES / f"{name}.svg").read_text(encoding="utf-8")


def style(name: str) -> str:
    elements = ET.fromstring(source(name)).iter(f"{SVG}style")
    return "".join(element.text or "" for element in elements)


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--drawing-([\w-]+):\s*(#[0-9a-f]{6})\b", block))


def themes(name: str) -> dict[str, dict[str, str]]:
    """Custom properties of the three blocks that declare them, by what selects the block."""
    found = {}
    for selector, block in re.findall(r"([^{};]+)\{([^{}]*--drawing-ink:[^{}]*)\}", style(name)):
        if "[data-theme=dark]" in selector:
            key = "toggle"
        else:
            key = "system" if ":not([data-theme=light])" in selector else "light"
        assert key not in found, f"two blocks declare the colours of {key}"
        found[key] = variables(block)
    return found


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two #rrggbb colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_pairs():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_is_named_and_described(name):
    root = ET.fromstring(source(name))
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("class", "").split() == ["drawing", f"drawing-{name}"]
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and desc is not None
    assert title.text and desc.text and len(desc.text) > 100
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    _, _, width, height = root.get("viewBox").split()
    assert (root.get("width"), root.get("height")) == (width, height)


@pytest.mark.parametrize("name", NAMES)
def test_is_small_and_self_contained(name):
    text = source(name)
    assert len(text.encode()) <= LIMIT
    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg\")\w", text)
    assert not re.search(r"<script|<image|<foreignObject|@import|data:|\son\w+=", text)
    ids = {element.get("id") for element in ET.fromstring(text).iter()}
    for target in re.findall(r"url\(([^)]*)\)", text) + re.findall(r"href=\"([^\"]*)\"", text):
        assert target.startswith("#") and target[1:] in ids, target


def test_ids_are_unique_across_the_drawings():
    """They stand on one page: an arrowhead or a label must not be taken from another."""
    trees = [ET.fromstring(source(name)) for name in NAMES]
    count = Counter(e.get("id") for tree in trees for e in tree.iter() if e.get("id"))
    assert [key for key, times in count.items() if times > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_boxes_keep_the_ids_that_links_use(name):
    ids = {element.get("id") for element in ET.fromstring(source(name)).iter()}
    assert {f"box-{box}" for box in BOXES[name]} <= ids


@pytest.mark.parametrize("name", NAMES)
def test_styles_stay_inside_the_drawing(name):
    selectors = re.findall(r"([^{};]+)\{", style(name))
    for selector in (one.strip() for group in selectors for one in group.split(",")):
        assert selector.startswith("@media") or f".drawing-{name}" in selector, selector


@pytest.mark.parametrize("name", NAMES)
def test_text_has_contrast_in_both_themes(name):
    found = themes(name)
    assert set(found) == {"light", "system", "toggle"}
    assert found["system"] == found["toggle"], "dark by preference and by toggle must be the same"
    assert set(found["light"]) == set(found["system"])
    used = set(re.findall(r"var\(--drawing-([\w-]+)\)", style(name)))
    assert used <= set(found["light"])
    for theme, colours in (("light", found["light"]), ("dark", found["toggle"])):
        for ink in INKS:
            for fill in FILLS:
                assert contrast(colours[ink], colours[fill]) >= 4.5, (theme, ink, fill)
        for ground in (PAGES[theme], colours["paper"], colours["panel"]):
            assert contrast(colours["line"], ground) >= 3, (theme, "line", ground)


def test_drawings_share_one_palette():
    palettes = [themes(name) for name in NAMES]
    assert all(palette == palettes[0] for palette in palettes)


@pytest.mark.parametrize("name", NAMES)
def test_text_takes_its_colour_from_the_palette(name):
    """Only ink and soft colour text, so the contrast test above covers every word."""
    text_rules = [
        (selector, block)
        for selector, block in re.findall(r"([^{};]+)\{([^{}]*)\}", style(name))
        if re.search(r"\btext\b|\.d-(small|soft|strong|start)\b", selector)
    ]
    fills = [re.findall(r"fill:\s*var\(--drawing-(\w+)\)", block) for _, block in text_rules]
    assert {fill for found in fills for fill in found} <= set(INKS)
    for element in ET.fromstring(source(name)).iter():
        if element.tag in (f"{SVG}text", f"{SVG}tspan"):
            assert element.get("fill") is None and element.get("style") is None
