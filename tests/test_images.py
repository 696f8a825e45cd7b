"""The drawings in images/: well formed, self-contained, readable by everybody in both themes."""

import re
import xml.etree.ElementTree as ET

import pytest
from conftest import PROJECT
from pages import contrast

from tools.views import write

LINKED = ("architecture", "attention", "multi-head", "sketch")
NAMES = sorted(path.stem for path in (PROJECT / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
PAGES = {"light": "#ffffff", "dark": "#111418"}  # backgrounds that arrows may cross
INKS = ("ink", "soft")
ROLES = ("query", "key", "value")
FILLS = ("paper", "panel", "embedding", "attention", "feed", "norm", "output")


def source(name: str) -> str:
    return (PROJECT / "images" / f"{name}.svg").read_text(encoding="utf-8")


def style(name: str) -> str:
    elements = ET.fromstring(source(name)).iter(f"{SVG}style")
    return "".join(element.text or "" for element in elements)


def themes(name: str) -> dict[str, dict[str, str]]:
    """Custom properties of the three blocks that declare them, by what selects the block."""
    found = {}
    for selector, block in re.findall(r"([^{};]+)\{([^{}]*--drawing-ink:[^{}]*)\}", style(name)):
        if "[data-theme=dark]" in selector:
            key = "toggle"
        else:
            key = "system" if ":not([data-theme=light])" in selector else "light"
        assert key not in found, f"two blocks declare the colours of {key}"
        found[key] = dict(re.findall(r"--drawing-([\w-]+):\s*(#[0-9a-f]{6})\b", block))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_is_named_described_and_self_contained(name):
    text = source(name)
    root = ET.fromstring(text)
    role = "group" if name in LINKED else "img"  # an image hides its links from a screen reader
    assert root.get("role") == role
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title.text and desc.text
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg\")\w", text)
    assert not re.search(r"<script|<image|<foreignObject|@import|data:|\son\w+=", text)
    references = {use.get("href") for use in root.iter(f"{SVG}use")}
    references |= set(re.findall(r"url\(([^)]*)\)", text))
    assert references <= {f"#{element.get('id')}" for element in root.iter()}


@pytest.mark.parametrize("name", NAMES)
def test_text_has_contrast_in_both_themes(name):
    found = themes(name)
    assert set(found) == {"light", "system", "toggle"}
    assert found["system"] == found["toggle"], "dark by preference and by toggle must be the same"
    used = set(re.findall(r"var\(--drawing-([\w-]+)\)", style(name)))
    assert used <= set(found["light"])
    for theme, colours in (("light", found["light"]), ("dark", found["toggle"])):
        for ink in INKS:
            for fill in FILLS:
                assert contrast(colours[ink], colours[fill]) >= 4.5, (theme, ink, fill)
        for role in set(ROLES) & set(colours):
            for fill in ("paper", "panel", "attention", "output"):
                assert contrast(colours[role], colours[fill]) >= 4.5, (theme, role, fill)
        for ground in (PAGES[theme], colours["paper"], colours["panel"]):
            assert contrast(colours["line"], ground) >= 3, (theme, "line", ground)
    # Only these inks colour text, so this covers every word.
    assert not re.search(r"<t(ext|span)[^>]* (fill|style)=", source(name))
    rules = re.findall(r"([^{};]+)\{([^{}]*)\}", style(name))
    blocks = [b for s, b in rules if re.search(r"\btext\b|\.d-(small|soft|strong|start)\b", s)]
    assert set(re.findall(r"fill:\s*var\(--drawing-(\w+)\)", "".join(blocks))) <= set(INKS)


@pytest.mark.parametrize("name", ["first-translation", "next-token"])
def test_a_picture_of_the_shipped_model_is_that_of_the_shipped_model(name):
    number = r"\d+(?:\.\d+)?"
    published = source(name)
    made = write.filled(f"images/{name}.svg")
    assert re.sub(number, "", published) == re.sub(number, "", made), "`make results` writes it"
    then, now = (list(map(float, re.findall(number, text))) for text in (published, made))
    assert now == pytest.approx(then, rel=0, abs=0.15), "processors round"


def test_the_numbers_of_attention_are_those_of_its_function(at):
    keys = at.VECTORS[[1, 2, 3, 6]]
    mask = at.subsequent_mask(4)[0, 1:]
    scores = keys[1:] @ keys.T / 2**0.5
    output, weights = at.attention(keys[1:], keys, keys, mask)
    tables = keys[1:], keys, keys, scores, scores[mask], weights, output
    expected = at.torch.cat([table.flatten() for table in tables]).tolist()
    cells = re.findall(r'<tspan x="\d+">([^<]+)</tspan>', source("attention").replace("−", "-"))
    assert list(map(float, cells)) == pytest.approx(expected, abs=0.0501)
