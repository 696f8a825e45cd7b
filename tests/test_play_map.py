"""The plan as a map: panel and table say what PyTorch says; it can be played with everywhere."""

import itertools
import json

import pytest
import torch
from conftest import PROJECT
from pages import built, javascript, visited

SENTENCE = ["Ein kleines Mädchen hebt einen roten Ball auf.", "A little girl raises a red ball."]
OTHER = "Zwei Hunde spielen im Schnee."
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
    ("decoder feed-forward sum", 2, 3, "decoder.layers.2.sublayer.2"),
    ("decoder generator", 0, 3, "decoder.layers.2.sublayer.2"),
]
ATTENTION = {  # the module that keeps its weights
    "encoder attention": "encoder.layers.{}.self_attn",
    "decoder attention": "decoder.layers.{}.self_attn",
    "decoder cross": "decoder.layers.{}.src_attn",
}
PARTS = {"encoder": 2, "decoder": 3}
WIDE = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 780}
browsing = pytest.mark.browser


# What PyTorch says ------------------------------------------------------------------------------


class Torch:
    """The first sentence in the script's own model: what its modules gave, and its weights."""

    def __init__(self, at) -> None:
        translator = at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))
        self.model = translator.model
        subwords = translator.vocabularies[0]
        [src, tgt] = subwords.encode(SENTENCE)
        self.words = subwords.words
        self.written = [*tgt, at.END]
        self.seen: dict[str, list] = {}
        for name, module in self.model.named_modules():
            module.register_forward_hook(self.keeper(name))
        src = torch.tensor([[*src, at.END]])
        tgt = torch.tensor([[at.START, *tgt]])
        everything = torch.ones(1, 1, src.size(1), dtype=torch.bool)
        with torch.no_grad():
            self.model(src, tgt, everything, at.subsequent_mask(tgt.size(1)))

    def keeper(self, name: str):
        def keep(_, before, after) -> None:
            self.seen.setdefault(name, []).append((before and before[0], after))

        return keep

    def shares(self, side: str, vectors) -> torch.Tensor:
        """The logit lens of vectors (1, T, D): probabilities (T, V)."""
        norm = getattr(self.model, side).norm
        with torch.no_grad():
            return self.model.generator(norm(vectors))[0].exp()

    def at(self, place: str, name: str) -> torch.Tensor:
        """The vectors at a place: what the module gave, or what it added."""
        side = place.split()[0]
        before, after = self.seen[name][0 if side == "encoder" else -1]  # embeddings serve both
        return after - before if place in ATTENTION else after

    def spelt(self, number: int) -> str:
        return self.words[number].strip("▁").replace("</s>", "end")

    def lens(self, place: str, position: int, name: str) -> dict[str, float]:
        """The five likeliest subwords there."""
        best = self.shares(place.split()[0], self.at(place, name))[position].topk(5)
        words = map(self.spelt, best.indices.tolist())
        return dict(zip(words, best.values.tolist(), strict=True))

    def weights(self, place: str, layer: int, position: int) -> list[list[float]]:
        """By head."""
        weights = self.model.get_submodule(ATTENTION[place].format(layer)).attn  # (1, H, T, S)
        seen = position + 1 if place == "decoder attention" else None
        return weights[0, :, position, :seen].tolist()

    def rows(self, side: str) -> list[torch.Tensor]:
        """The logit lens after each sum, as the table has it."""
        embedded = self.seen["src_embed" if side == "encoder" else "tgt_embed"]
        stream = [embedded[0 if side == "encoder" else -1][1]]
        for layer, part in itertools.product(range(3), range(PARTS[side])):
            stream.append(self.seen[f"{side}.layers.{layer}.sublayer.{part}"][0][1])
        rows = [self.shares(side, vectors) for vectors in stream]
        return [*rows, rows[-1]]


@pytest.fixture(scope="module")
def theirs(at):
    return Torch(at)


# The scene, without a browser -------------------------------------------------------------------


class Engine:
    """The model and the figure's functions in quickjs."""

    def __init__(self) -> None:
        self.context = javascript(map="map.js")

    def says(self, expression: str):
        return json.loads(self.context.eval(f"JSON.stringify({expression})"))

    def scene(self, **changes) -> dict:
        wish = {"text": SENTENCE[0], "place": "decoder final", "layer": 0, "encoder": 0}
        wish |= {"decoder": 0} | changes
        return self.says(f"stills.finish(map.sceneOf(model, {json.dumps(wish)}))")


@pytest.fixture(scope="module")
def engine():
    return Engine()


@pytest.mark.parametrize(("place", "layer", "position", "name"), PLACES)
def test_the_logit_lens_is_that_of_pytorch(engine, theirs, place, layer, position, name):
    scene = engine.scene(place=place, layer=layer, **{place.split()[0]: position})
    shares = {
        each["piece"].strip("▁").replace("</s>", "end"): each["share"] for each in scene["says"]
    }
    assert shares == pytest.approx(theirs.lens(place, position, name), abs=1e-4)
    assert (scene["strip"] is None) == (place in ATTENTION)
    if scene["strip"]:
        vector = theirs.at(place, name)[0, position]
        if place.split()[1] in ("memory", "generator"):
            norm = getattr(theirs.model, place.split()[0]).norm
            vector = norm(vector).detach()
        assert scene["strip"]["length"] == pytest.approx(vector.norm().item(), abs=0.06)
        signs = torch.tensor(scene["strip"]["shades"]).sign()
        assert (signs == vector.sign()).all()


@pytest.mark.parametrize("place", ATTENTION)
def test_the_weights_of_all_heads_are_those_of_pytorch(engine, theirs, place):
    for layer, position in itertools.product(range(3), (0, 3, 8)):
        scene = engine.scene(place=place, layer=layer, encoder=position, decoder=position)
        expected = theirs.weights(place, layer, position)
        assert len(scene["weights"]) == len(expected) == 3
        for ours, row in zip(scene["weights"], expected, strict=True):
            assert ours == pytest.approx(row, abs=2e-4), (layer, position)
            assert sum(ours) == pytest.approx(1, abs=1e-3)


def test_others_get_what_they_got_before(engine):
    """Who shows nothing to `see` and asks for `cross` is served as ever."""
    found = engine.says(
        "(() => { const memory = stills.finish(model.reading([5, 6, 1]));"
        "const step = model.step(memory, null, 0);"
        "const [[row]] = step.cross.slice(-1);"
        "return [Object.keys(step), step.cross.length, step.cross[0].length, row.length] })()"
    )
    assert found == [["past", "logProbs", "cross"], 3, 3, 3]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_table_is_the_logit_lens_of_pytorch(engine, theirs, side):
    table = engine.scene()["tables"][side]
    expected = theirs.rows(side)
    assert len(table["rows"]) == len(expected) == 2 + 3 * PARTS[side]
    for ours, row in zip(table["rows"], expected, strict=True):
        best = row.max(dim=-1)
        pieces = [theirs.words[number] for number in best.indices.tolist()]
        assert [cell["piece"] for cell in ours] == pieces
        shares = [cell["share"] for cell in ours]
        assert shares == pytest.approx(best.values.tolist(), abs=1e-3)
    names = torch.stack([row.argmax(dim=-1) for row in expected]).tolist()
    first = [-1] * len(names[0])
    if side == "decoder":
        columns = zip(*names, strict=True)
        pairs = zip(columns, theirs.written, strict=True)
        first = [column.index(end) if end in column else -1 for column, end in pairs]
        assert -1 in first, "the beam wrote “rais”, which was never the likeliest"
        assert max(first) > 0
    assert table["first"] == first


def test_the_drawing_becomes_a_tree_that_keeps_its_boxes(engine):
    found = engine.says(
        'map.treeOf(\'<svg viewbox="0 0 1 2"><g><text class="d-says">no</text></g>'
        '<a href="#x" data-place="encoder final"><rect x="1"/>'
        "<text>D &lt; V  &amp;\\n V</text></a></svg>')"
    )
    text = {"tag": "text", "attributes": {}, "children": ["D < V & V"]}
    box = [{"tag": "rect", "attributes": {"x": "1"}, "children": []}, text]
    link = {"href": "#x", "data-place": "encoder final"}
    assert found["attributes"] == {"viewBox": "0 0 1 2"}
    assert found["children"][0]["children"] == []
    assert found["children"][1] == {"tag": "a", "attributes": link, "children": box}


def test_what_is_said_of_a_text(engine):
    scene = engine.scene()
    for typed, changes, expected in (
        (SENTENCE[0], {}, ""),
        ("  ", {}, "Type a sentence"),
        ("Ein Hund.", {}, "runs through the model"),
        (SENTENCE[0], {"cut": True}, "finds no end: the map shows its first 10 subwords"),
    ):
        hint = engine.says(f"map.hintOf({json.dumps(typed)}, {json.dumps(scene | changes)})")
        assert (expected in hint) if expected else hint == ""
    strange = engine.scene(text="Ein 日.", encoder=99, decoder=99)
    assert strange["encoder"] == len(strange["pieces"]["encoder"]) - 1, "the last that there is"
    assert "never seen" in engine.says(f"map.hintOf('Ein 日.', {json.dumps(strange)})")


def test_who_is_interrupted_goes_on_where_it_was(engine):
    steps = """((keep) => {
      const wish = { text: %s, place: "decoder final", layer: 0, encoder: 0, decoder: 0 };
      let work = map.sceneOf(model, wish), count = 0;
      for (; count < keep; count++) work.next();
      work = map.sceneOf(model, { ...wish, place: "encoder final" });
      for (let step = work.next(); !step.done; step = work.next()) count++;
      return count;
    })"""
    whole = engine.says(f"{steps % json.dumps('Ein Hund rennt.')}(0)")
    halved = engine.says(f"{steps % json.dumps('Ein Hund rennt!')}(40)")
    assert whole > 100, "it yields often"
    assert halved < 1.2 * whole


# The figure in a browser ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page that holds the map alone."""
    sections = "".join(f'<a id="{name}"></a>\n# {name}\n\n' for name in SECTIONS)
    text = f"{sections}![The plan.](images/architecture.svg)\n\nThe end."
    return built(tmp_path_factory.mktemp("map"), text)


def shown(browser, page, **settings):
    """A window with the page, and in `faults` what went wrong in it."""
    faults = []
    tab = visited(browser, "about:blank", **settings)
    tab.faults = faults
    tab.on("pageerror", lambda error: faults.append(error))
    tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else 0)
    tab.add_init_script(
        "self.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach((entry) => {"
        "shift += entry.value; })).observe({ type: 'layout-shift', buffered: true })"
    )
    tab.goto(page.as_uri())
    tab.asked.clear()
    return tab


def panel(tab) -> tuple[str, dict[str, float]]:
    """What the panel shows: the place, and subwords with their probabilities."""
    rows = [row.split() for row in tab.locator(".panel li").all_inner_texts()]
    return tab.locator(".where").inner_text(), {piece: float(share) for piece, share in rows}


def wait_for(tab, start: str) -> None:
    """Until the panel is about a box."""
    start = json.dumps(start)
    tab.wait_for_function(f"document.querySelector('.where').innerText.startsWith({start})")


def box(tab, place: str):
    return tab.locator(f'[data-place="{place}"]')


@browsing
def test_the_panel_says_what_pytorch_says(browser, made, theirs):
    tab = shown(browser, made, viewport=WIDE)
    assert tab.asked == []
    places = set()
    for place, layer, position, name in PLACES:
        row = ".source" if place.startswith("encoder") else ".read"
        tab.locator(f"{row} button").nth(position).click()
        tab.locator(".layers button").nth(layer).click()
        box(tab, place).press("Enter")
        expected = pytest.approx(theirs.lens(place, position, name), abs=0.0006)
        tab.wait_for_function(f"document.querySelector('.chosen[data-place=\"{place}\"]')")
        where, shares = panel(tab)
        assert shares == expected, place
        places.add(where)
        if place in ATTENTION:
            weights = theirs.weights(place, layer, position)
            rows = tab.locator(".weights tbody tr").all()
            for cells, row in zip(rows, weights, strict=True):
                texts = cells.locator("td").all_inner_texts()
                assert list(map(float, texts)) == pytest.approx(row, abs=0.0051)
            arcs = sum(sum(column) / 3 >= 0.05 for column in zip(*weights, strict=True))
            assert tab.locator(".arcs path").count() == arcs
            tab.get_by_role("button", name="head 2", exact=True).click()
            arcs = sum(weight >= 0.05 for weight in weights[1])
            assert tab.locator(".arcs path").count() == arcs
            assert "Arcs: head 2." in tab.locator(".weights .legend").inner_text()
            tab.get_by_role("button", name="head 2", exact=True).click()
        else:
            assert tab.locator(".strip").is_visible()
    assert len(places) == len(PLACES)
    assert tab.faults == []


@browsing
def test_what_is_said_of_the_generator_is_so_where_it_stands(browser, made):
    tab = shown(browser, made, viewport=WIDE)
    final = {}
    for place, layer, expected in (
        ("decoder cross sum", 2, "if all later parts were left out"),
        ("decoder feed-forward sum", 1, "if all later parts were left out"),
        ("decoder feed-forward sum", 3, "this is what the generator does say"),
        ("decoder final", 3, "What the generator does say"),
        ("decoder generator", 3, "What the generator does say"),
        ("decoder positions", 3, "if all layers were left out"),
        ("decoder feed-forward", 3, "if it heard nothing but what this part adds"),
        ("encoder feed-forward sum", 2, "the generator never hears the encoder"),
        ("encoder attention", 2, "what it would say of what this part adds"),
    ):
        tab.locator(".layers button").nth(layer - 1).click()
        box(tab, place).locator("rect, use").first.click()
        tab.wait_for_function(
            f"document.querySelector('.meaning').innerText.includes({json.dumps(expected)})"
        )
        if "does say" in expected:
            final[place] = panel(tab)[1]
    assert len(final) == 3
    assert len({json.dumps(shares) for shares in final.values()}) == 1, "all three are the output"


@browsing
def test_pointing_and_tapping_show_a_box_and_the_keyboard_leads_to_its_section(browser, made):
    tab = shown(browser, made, has_touch=True, viewport=WIDE)
    cross = box(tab, "decoder cross")
    final = box(tab, "decoder final")
    final.hover()
    wait_for(tab, "final norm")
    tab.locator(".layers button").nth(2).click()
    assert panel(tab)[0].startswith("final norm"), "it stays while a layer is chosen"
    for _ in range(2):
        cross.tap()
        wait_for(tab, "cross-attention")
        assert tab.url == made.as_uri()
    for key, keyed, name in ((" ", final, "final norm"), ("Enter", cross, "cross-attention")):
        keyed.focus()
        tab.wait_for_timeout(200)
        assert not panel(tab)[0].startswith(name), "to pass a box by is not to choose it"
        tab.keyboard.press(key)
        wait_for(tab, name)
        assert tab.url == made.as_uri()
    final.press("Enter")
    wait_for(tab, "final norm")
    tab.locator(".panel a").press("Enter")
    assert tab.url.endswith("#layer-norm")
    tab.set_viewport_size({"width": 667, "height": 375})  # a phone on its side
    cross.tap()  # the panel does not lie over it
    wait_for(tab, "cross-attention")
    tab.set_viewport_size(PHONE)
    tab.locator(".source button").nth(4).tap()
    wait_for(tab, "final norm\nencoder, at einen")
    box(tab, "encoder attention").tap()
    wait_for(tab, "self-attention")
    shown_at_once = tab.locator(".panel").bounding_box()
    assert 0 < shown_at_once["y"] < PHONE["height"] / 2, "it stays in sight"
    assert tab.faults == []


@browsing
def test_a_cell_of_the_table_chooses_its_box_layer_and_position(browser, made):
    tab = shown(browser, made, viewport=WIDE)
    table = tab.locator(".lens table")
    pressed = table.locator("[aria-pressed=true]")
    assert pressed.inner_text() == "ball"
    assert tab.locator(".lens .first").count() == 9, "all but rais, which the beam preferred"
    assert "“rais”" in tab.locator(".lens .legend").inner_text()
    assert tab.asked == [], "the table of the first sentence needs no model"
    table.locator("tbody tr").nth(3).locator("button").nth(9).click()  # feed-forward, layer 1; "."
    wait_for(tab, "sum after feed-forward")
    where, shares = panel(tab)
    assert "layer 1 of 3, at ., where end is written next" in where
    assert pressed.inner_text() == next(iter(shares)) == "end"
    assert pressed.get_attribute("title").startswith(f"{shares['end']:.3f}")
    first = tab.locator(".lens .first button").last.get_attribute("title")
    assert first.endswith(", what is written in the end")
    tab.keyboard.press("ArrowUp")
    wait_for(tab, "sum after cross-attention")
    tab.keyboard.press("ArrowLeft")
    tab.wait_for_function("document.querySelector('.where').innerText.includes('at ball,')")
    assert pressed.inner_text() == next(iter(panel(tab)[1]))
    assert table.locator("[tabindex='0']").count() == 1
    assert tab.evaluate("document.activeElement.tabIndex") == 0
    for _ in range(3):
        tab.keyboard.press("ArrowUp")  # and no further than the first row
    wait_for(tab, "embedding + positions")
    box(tab, "encoder attention").click()
    wait_for(tab, "self-attention")
    assert table.locator("thead th").all_inner_texts()[-1] == "end", "the other side's table"
    assert pressed.count() == 0, "the weights are none of its cells"
    assert table.locator("tr.chosen th").inner_text().split() == ["1", "self-attention"]


@browsing
def test_the_readers_own_sentence_runs_through_the_map(browser, made, at):
    tab = shown(browser, made, viewport=WIDE, reduced_motion="reduce")
    field = tab.get_by_label("Your own sentence")
    assert tab.asked == []
    field.fill("   ")
    tab.locator(".line", has_text="Type a sentence").wait_for()
    assert tab.asked == []
    assert tab.locator(".translated").inner_text() == SENTENCE[1]
    field.fill(OTHER)
    tab.keyboard.press("Enter")
    [translation] = at.translate(
        at.load_trained_model(PROJECT / "pretrained", torch.device("cpu")), [OTHER], at.beam_search
    )
    tab.locator(".translated", has_text=translation).wait_for()
    assert [address.rsplit("/")[-1] for address in tab.asked] == ["model.js"]
    written = tab.locator(".written button").all_inner_texts()
    assert written[:3] == translation.split()[:3]
    assert written[-1] == "end"
    assert tab.locator(".lens tbody tr").first.locator("td").count() == len(written)
    assert tab.locator(".line").inner_text() == ""
    assert OTHER in tab.locator(".plan > svg").get_attribute("aria-label")
    field.fill("ab" * 40)
    tab.locator(".line", has_text="It finds no end").wait_for()
    field.fill("日" * 90)
    tab.locator(".source button", has_text="<unk>").first.wait_for()
    assert tab.locator(".source button").count() == 82, "a space, eighty letters, the end"
    assert tab.evaluate("document.documentElement.scrollWidth") <= WIDE["width"]
    assert tab.faults == []


@browsing
@pytest.mark.parametrize("width", [1360, 700, 390, 320])
def test_nothing_jumps_from_box_to_box(browser, made, width):
    tab = shown(browser, made, viewport={"width": width, "height": 800})
    box(tab, "decoder cross sum").scroll_into_view_if_needed()
    tab.wait_for_timeout(300)
    parts = ".map, .panel, .where, .slot, .meaning, .lens"
    heights = f"[...document.querySelectorAll('{parts}')].map((each) => each.offsetHeight)"
    still = tab.evaluate(heights)
    assert tab.evaluate("shift") < 0.02, "while scripts start"
    kinds = set()
    for link in tab.locator("[data-place]").all():
        place = link.get_attribute("data-place")
        link.dispatch_event("click", {"detail": 1})
        tab.wait_for_function(f"document.querySelector('.chosen[data-place=\"{place}\"]')")
        assert tab.evaluate(heights) == still, place
        kinds.add(tab.locator(".slot > *").get_attribute("class"))
    assert kinds == {"strip", "weights"}


@browsing
@pytest.mark.parametrize("width", [1360, 390, 320])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_is_accessible(browser, made, width, scheme):
    tab = shown(browser, made, viewport={"width": width, "height": 800}, color_scheme=scheme)
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for place in ("decoder cross sum", "decoder attention", "encoder attention"):
        box(tab, place).dispatch_event("click", {"detail": 1})
        tab.wait_for_function(f"document.querySelector('.chosen[data-place=\"{place}\"]')")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert axe.Axe().run(tab).response["violations"] == []
    first = tab.locator(".lens tbody th").first
    before = first.bounding_box()["x"]
    tab.locator(".lens > .scroll").evaluate("(box) => (box.scrollLeft = 200)")
    assert first.bounding_box()["x"] == before, "the first column stays"
    assert tab.faults == []


@browsing
def test_forced_colours_take_no_meaning_away(browser, made):
    tab = shown(browser, made, viewport=WIDE, forced_colors="active")
    box(tab, "decoder attention").click()
    wait_for(tab, "masked self-attention")
    colour = "(each) => getComputedStyle(each).backgroundColor"
    cells = tab.locator(".weights tbody td").all()
    cells.sort(key=lambda cell: float(cell.inner_text()))
    assert cells[0].evaluate(colour) != cells[-1].evaluate(colour)
    buttons = tab.locator(".lens td button")
    assert len(set(buttons.evaluate_all(f"(all) => all.map({colour})"))) > 10
    assert tab.locator(".bar i").first.evaluate(colour) == "rgb(0, 0, 0)"
    pressed = tab.locator(".read [aria-pressed=true]")
    assert pressed.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"
    assert pressed.evaluate("(each) => getComputedStyle(each).forcedColorAdjust") == "none", (
        "no plate"
    )


@browsing
def test_without_the_model_or_scripts_the_still_picture_stays(browser, made, tmp_path):
    (tmp_path / "page.html").write_bytes(made.read_bytes())
    tab = shown(browser, tmp_path / "page.html", viewport=PHONE)
    still = panel(tab)
    result = max(still[1].items(), key=lambda row: row[1])[0]
    assert result == "ball"
    box(tab, "decoder final").press("Enter")
    tab.get_by_text("The model could not be read").wait_for()
    silent = visited(browser, made.as_uri(), java_script_enabled=False, viewport=PHONE)
    assert panel(tab) == panel(silent) == still
    assert silent.locator(".map :is(input, .layers, .hint, .line):visible").count() == 0
    assert silent.locator(".lens .first").count() == 9
    boxes = [silent.locator(f".d-{name}").bounding_box() for name in ("encoder", "decoder", "note")]
    assert all(a["y"] + a["height"] <= b["y"] for a, b in itertools.pairwise(boxes)), "stacked"
    tab.emulate_media(media="print")
    assert tab.locator(".map :is(input, .layers):visible").count() == 0
    assert tab.locator(".lens table").is_visible()
