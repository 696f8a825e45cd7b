"""The plan as a map: its panel says what PyTorch says, and it can be played with everywhere."""

import itertools

import pytest
import torch
from conftest import PROJECT, visited
from test_page import built

SENTENCE = ["Ein kleines Mädchen hebt einen roten Ball auf.", "A little girl raises a red ball."]
SECTIONS = """batches embeddings positional-encoding layer-norm three-uses feed-forward residual
causal-mask generator""".split()
PLACES = [  # a box; layer and position, from 0; the module that makes what it shows
    ("encoder embedding", 0, 2, "src_embed.0"),
    ("encoder attention", 0, 6, "encoder.layers.0.sublayer.0"),
    ("encoder memory", 2, 9, "encoder.layers.2.sublayer.1"),
    ("decoder positions", 0, 4, "tgt_embed"),
    ("decoder attention norm", 2, 5, "decoder.layers.2.sublayer.0.norm"),
    ("decoder cross", 1, 7, "decoder.layers.1.sublayer.1"),
    ("decoder cross sum", 1, 7, "decoder.layers.1.sublayer.1"),
    ("decoder generator", 0, 3, "decoder.layers.2.sublayer.2"),
]
WIDE = {"width": 1360, "height": 900}
PHONE = {"width": 360, "height": 740}
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page that holds the map alone."""
    sections = "".join(f'<a id="{name}"></a>\n## {name}\n\n' for name in SECTIONS)
    text = f"{sections}![The plan.](images/architecture.svg)"
    return built(tmp_path_factory.mktemp("map"), text)


def panel(tab) -> tuple[str, dict[str, float]]:
    """What the panel shows: the place, and subwords with their probabilities."""
    rows = [row.split() for row in tab.locator(".panel li").all_inner_texts()]
    return tab.locator(".where").inner_text(), {piece: float(share) for piece, share in rows}


def torch_lens(at, place: str, position: int, name: str) -> dict[str, float]:
    """The five likeliest subwords there, by the script's own model."""
    translator = at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))
    model = translator.model
    subwords = translator.vocabularies[0]
    [src, tgt] = subwords.encode(SENTENCE)
    seen = []
    src = torch.tensor([[*src, at.END]])
    tgt = torch.tensor([[at.START, *tgt]])
    keep = model.get_submodule(name).register_forward_hook
    keep(lambda module, before, after: seen.append((before[0], after)))
    with torch.no_grad():
        everything = torch.ones(1, 1, src.size(1), dtype=torch.bool)
        model(src, tgt, everything, at.subsequent_mask(tgt.size(1)))
        encoding = place.startswith("encoder")
        before, after = seen[0 if encoding else -1]  # embeddings may serve both sides
        vectors = after - before if place in ("encoder attention", "decoder cross") else after
        norm = model.encoder.norm if encoding else model.decoder.norm
        shares = model.generator(norm(vectors))[0, position].exp().topk(5)
    words = [subwords.words[number].strip("▁").replace("</s>", "end") for number in shares.indices]
    return dict(zip(words, shares.values.tolist(), strict=True))


def test_the_panel_says_what_pytorch_says(browser, made, at):
    tab = visited(browser, made.as_uri(), viewport=WIDE)
    places = set()
    for place, layer, position, name in PLACES:
        row = ".source" if place.startswith("encoder") else ".read"
        tab.locator(f"{row} button").nth(position).click()
        tab.locator(".layers button").nth(layer).click()
        tab.locator(f'[data-place="{place}"]').first.focus()
        tab.locator(".touched .heard:not(:empty)").wait_for(state="attached")
        where, shares = panel(tab)
        expected = pytest.approx(torch_lens(at, place, position, name), abs=0.0006)
        assert shares == expected, place
        places.add(where)
    assert len(places) == len(PLACES)


def test_pointing_and_tapping_show_a_box_and_the_keyboard_leads_to_its_section(browser, made):
    tab = visited(browser, made.as_uri(), has_touch=True, viewport=WIDE)
    cross, final = (tab.locator(f'[data-place="decoder {name}"]') for name in ("cross", "final"))
    final.hover()
    tab.wait_for_function("document.querySelector('.where').innerText.startsWith('final norm')")
    tab.get_by_role("button", name="3", exact=True).click()
    assert panel(tab)[0].startswith("final norm"), "it stays while a layer is chosen"
    for _ in range(2):
        cross.tap()
        assert panel(tab)[0].startswith("cross-attention")
        assert tab.url == made.as_uri()
    final.focus()
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#layer-norm")
    assert tab.locator(".panel a").get_attribute("href") == "#layer-norm"
    tab.set_viewport_size({"width": 667, "height": 375})  # a phone on its side
    cross.tap()  # the panel does not lie over it


def test_without_the_model_or_scripts_the_still_picture_stays(browser, made, tmp_path):
    (tmp_path / "page.html").write_bytes(made.read_bytes())
    tab = visited(browser, (tmp_path / "page.html").as_uri(), viewport=PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    still = panel(tab)
    result = max(still[1].items(), key=lambda row: row[1])[0]
    assert result == "ball"
    tab.locator('[data-place="decoder final"]').focus()
    tab.get_by_text("The model could not be read").wait_for()
    silent = visited(browser, made.as_uri(), java_script_enabled=False, viewport=PHONE)
    assert panel(tab) == panel(silent) == still
    assert silent.locator(".map button").count() == 0
    boxes = [silent.locator(f".d-{name}").bounding_box() for name in ("encoder", "decoder", "note")]
    assert all(a["y"] + a["height"] <= b["y"] for a, b in itertools.pairwise(boxes)), "stacked"
