"""Small figures with sliders: numbers are those of the script, and each slider changes them."""

import itertools
import math

import pytest
import torch
from pages import engine_in, figure, watched

from tools.page.bundle import bundle
from tools.page.markup import FIGURES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SMALL = ("ask", "batches", "positions", "smoothing", "schedule", "sampling")


# They compute what the script computes ------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the shipped model and the figures' functions, and no page."""
    tab = engine_in(chromium)
    for name in SMALL:
        tab.add_script_tag(content=bundle(FIGURES / f"{name}.js", name))
    return tab


@pytest.fixture
def double():
    """The script computes in double precision, as JavaScript does."""
    torch.set_default_dtype(torch.double)
    yield
    torch.set_default_dtype(torch.float)


def test_encodings_and_inner_products_are_those_of_the_script(at, double, engine):
    pe = at.PositionalEncoding(64, 0.0, max_len=100).pe[0]
    ours = engine.evaluate("[0, 1, 40, 80].map(positions.encodingOf)")
    torch.testing.assert_close(torch.tensor(ours), pe[[0, 1, 40, 80]], atol=1e-9, rtol=0)
    for position, steps in ((40, 0), (0, 7), (80, 10), (63, -3)):
        wish = {"position": position, "steps": steps}
        products = engine.evaluate("wish => positions.sceneOf(wish).products", wish)
        expected = pe[:81] @ pe[position + steps]
        torch.testing.assert_close(torch.tensor(products), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.37, 0.5])
def test_targets_and_losses_are_those_of_the_script(at, double, engine, smoothing):
    criterion = at.LabelSmoothing(9, 8, smoothing)
    right = torch.tensor([1])
    for probability in (0.2, 0.5, 0.9, 0.999):
        wish = {"smoothing": smoothing, "probability": probability}
        scene = engine.evaluate("wish => smoothing.sceneOf(wish)", wish)
        expected = at.smoothed_target(criterion, right)[0]
        target = torch.tensor(scene["target"], dtype=torch.double)
        torch.testing.assert_close(target, expected, atol=1e-12, rtol=0)
        guess = torch.tensor(scene["guess"])
        assert guess.sum() == pytest.approx(1)
        loss = criterion(guess.log().unsqueeze(0), right).item()
        assert scene["loss"] == pytest.approx(loss, abs=1e-9)
        assert dict(scene["smoothed"])[probability] == pytest.approx(loss, abs=1e-9)


@pytest.mark.parametrize(
    "width, factor, warmup", [(512, 1, 4000), (64, 0.25, 500), (2048, 3, 12_000)]
)
def test_learning_rates_are_those_of_the_script(at, engine, width, factor, warmup):
    wish = {"width": width, "factor": factor, "warmup": warmup}
    scene = engine.evaluate("wish => schedule.sceneOf(wish)", wish)
    expected = [at.rate(step, width, factor, warmup) for step, _ in scene["rates"]]
    assert [rate for _, rate in scene["rates"]] == pytest.approx(expected, rel=1e-12)
    assert scene["peak"] == pytest.approx(max(expected), rel=1e-12)


@pytest.mark.parametrize("asks, turn", [(3, 0), (0, 90), (7, -135)])
def test_a_word_asks_as_in_the_script(at, double, engine, asks, turn):
    words = [
        {"word": word, "place": place.tolist()}
        for word, place in zip(at.WORDS, at.VECTORS, strict=True)
    ]
    wish = {"words": words, "asks": asks, "turn": turn}
    scene = engine.evaluate("wish => ask.sceneOf(wish)", wish)
    angle = math.radians(turn)
    turned = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    vectors = torch.tensor([each["place"] for each in words])
    query = vectors[asks] @ torch.tensor(turned)
    answer, weights = at.ask(query, vectors, vectors)
    for ours, expected in zip(
        (scene["query"], scene["weights"], scene["answer"]), (query, weights, answer), strict=True
    ):
        torch.testing.assert_close(torch.tensor(ours), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("budget", [24, 96, 130, 160])
def test_sorted_batches_are_those_of_the_script(at, engine, budget):
    wish = {"budget": budget, "sorted": True, "seed": 3}
    scene = engine.evaluate("wish => batches.sceneOf(wish)", wish)
    lengths = [length for batch in scene["batches"] for length in batch]
    ours = at.token_batches([(length, 1) for length in lengths], budget)
    assert scene["batches"] == [[lengths[number] for number in batch] for batch in ours]
    positions = sum(len(batch) * max(batch) for batch in scene["batches"])
    assert scene["padding"] == pytest.approx(1 - sum(lengths) / positions)


def test_sorting_keeps_the_sentences_and_saves_padding(engine):
    wish = {"budget": 96, "sorted": False, "seed": 2}
    mixed = engine.evaluate("wish => batches.sceneOf(wish)", wish)
    tidy = engine.evaluate("wish => batches.sceneOf(wish)", wish | {"sorted": True})
    flat = [sorted(itertools.chain(*scene["batches"])) for scene in (mixed, tidy)]
    assert flat[0] == flat[1]
    assert tidy["padding"] < mixed["padding"]
    assert all(len(batch) * max(batch) <= 96 for batch in mixed["batches"])


class Told(torch.nn.Module):
    """A language model that says the same log-probabilities whatever it reads."""

    def __init__(self, log_probs: torch.Tensor) -> None:
        super().__init__()
        self.log_probs = log_probs
        self.generator = torch.nn.Module()
        self.generator.proj = torch.nn.Linear(1, 1)
        self.generator.forward = lambda states: self.log_probs

    def forward(self, src, tgt, src_mask, tgt_mask):
        return torch.zeros(1, tgt.size(1), 1)


@pytest.fixture(scope="module")
def shown(engine):
    """What the figure of sampling shows."""
    return engine.evaluate("sampling.firstScene(model)")


@pytest.mark.parametrize(
    "temperature, top_k, top_p",
    [(1.0, None, 1.0), (0.3, None, 1.0), (2.0, 12, 1.0), (1.0, None, 0.8), (1.7, 100, 0.35)],
)
def test_it_draws_from_what_the_script_draws_from(
    at, double, engine, shown, monkeypatch, temperature, top_k, top_p
):
    drawn_from = []

    def multinomial(probabilities, number):
        drawn_from.append(probabilities / probabilities.sum())
        return torch.zeros(number, dtype=torch.long)

    monkeypatch.setattr(torch.Tensor, "multinomial", multinomial)
    model = Told(torch.tensor(shown["logProbs"]))
    at.sample(model, [at.START], 2, temperature, top_k, top_p)
    wish = {"temperature": temperature, "topK": top_k, "topP": top_p}
    ours = engine.evaluate("given => sampling.drawnFrom(...given)", [shown["logProbs"], wish])
    torch.testing.assert_close(torch.tensor(ours), drawn_from[0], atol=1e-9, rtol=0)


def test_the_distribution_is_that_of_the_shipped_model(at, shown):
    translator = at.load_trained_model(at.Path("pretrained"), torch.device("cpu"))
    vocabulary = translator.vocabularies[1]
    [ids] = at.source_ids(translator, [at.SENTENCE])
    src = torch.tensor([ids])
    everything = torch.ones(1, 1, len(ids), dtype=torch.bool)
    written = at.greedy_decode(translator.model, src, everything, 4, at.START)
    assert vocabulary.decode(written[0, 1:].tolist()) == shown["written"]
    batch = at.Batch(src, torch.cat([written, written[:, :1]], dim=1))
    with torch.no_grad():
        states = translator.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = translator.model.generator(states)[0, -1]
    expected = log_probs.sort(descending=True).values
    torch.testing.assert_close(torch.tensor(shown["logProbs"]), expected, atol=1e-3, rtol=0)


def test_a_token_is_drawn_as_often_as_its_probability_says(engine):
    drawn = engine.evaluate(
        """() => {
            const numbers = Array.from({ length: 1000 }, (_, i) => (i + 0.5) / 1000);
            return numbers.map((number) => sampling.tokenAt(number, [0.2, 0.5, 0.3, 0]));
        }"""
    )
    assert [drawn.count(token) for token in range(4)] == [200, 500, 300, 0]


# The figures --------------------------------------------------------------------------------------


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page)
    yield tab
    assert tab.faults == []
    assert tab.asked == [figures_page.as_uri()], "they need no model"


def slider(box, name: str):
    return box.get_by_role("slider", name=name)


@pytest.mark.parametrize(
    "name, label",
    [
        ("positions", "position"),
        ("positions", "turns by"),
        ("smoothing", "smoothing"),
        ("smoothing", "guess"),
        ("schedule", "warm-up"),
        ("schedule", "width"),
        ("schedule", "factor"),
        ("sampling", "temperature"),
        ("sampling", "top-k"),
        ("sampling", "top-p"),
    ],
)
def test_a_key_moves_each_slider_and_the_picture_with_it(tab, name, label):
    box = figure(tab, name)
    pictures = box.locator(":is(.plot, table)")
    moved = slider(box, label)
    seen = []
    for key in ("Home", "End", "ArrowLeft"):
        moved.press(key)
        seen.append(
            (
                moved.get_attribute("aria-valuetext"),
                *pictures.evaluate_all("all => all.map((each) => each.outerHTML)"),
            )
        )
        assert box.get_by_text(seen[-1][0]).count() > 0
    assert len(set(seen)) == 3
    assert moved.evaluate("each => each === document.activeElement")


def test_a_position_is_dragged_in_either_chart(tab):
    box = figure(tab, "positions")
    for chart in box.locator(".plot").all():
        place = chart.bounding_box()
        tab.mouse.move(place["x"] + place["width"] * 0.25, place["y"] + 20)
        tab.mouse.down()
        assert slider(box, "position").input_value() == "20"
        tab.mouse.move(place["x"] + place["width"] * 2, place["y"] + 20)
        assert slider(box, "position").input_value() == "80"
        tab.mouse.up()
        tab.mouse.move(place["x"], place["y"] + 20)
        assert slider(box, "position").input_value() == "80", "it was let go"


def test_the_line_names_what_is_seen(tab):
    box = figure(tab, "schedule")
    slider(box, "width").fill("9")
    assert "base model" in box.get_by_role("status").inner_text()
    box = figure(tab, "smoothing")
    slider(box, "guess").fill("0.9")
    assert "equals the target" in box.get_by_role("status").inner_text()
    slider(box, "guess").fill("0.99")
    assert "surer" in box.get_by_role("status").inner_text()
    box = figure(tab, "positions")
    slider(box, "turns by").fill("-1")
    assert "looks at 39" in box.get_by_role("status").inner_text()
    slider(box, "position").press("Home")
    assert "beyond this chart" in box.get_by_role("status").inner_text()


def test_what_is_cut_is_never_drawn_and_draws_go_with_the_next_change(tab):
    box = figure(tab, "sampling")
    slider(box, "top-k").fill("1")  # the second choice: two tokens
    assert box.locator(".cut").count() == 11
    box.get_by_role("button", name="Draw").click()
    counts = [int(text.removesuffix(" ×")) for text in box.locator("td.count").all_inner_texts()]
    assert sum(counts) == 100
    assert sum(counts[:2]) == 100
    slider(box, "top-k").press("Home")
    assert "greedy decoding" in box.get_by_role("status").inner_text()
    assert {*box.locator("td.count").all_inner_texts()} == {""}


def test_at_top_p_of_one_nothing_is_cut_however_low_the_temperature(tab):
    box = figure(tab, "sampling")
    slider(box, "temperature").press("Home")
    assert box.locator(".cut").count() == 0


def test_a_finger_drags_a_position_on_a_narrow_screen(browser, figures_page):
    tab = watched(browser, figures_page, viewport={"width": 390, "height": 844}, has_touch=True)
    box = figure(tab, "positions")
    fingers = tab.context.new_cdp_session(tab)
    chart = box.locator(".plot").last
    chart.evaluate("each => each.scrollIntoView({ block: 'center' })")
    place = chart.bounding_box()
    scrolled = tab.evaluate("scrollY")

    def touch(kind: str, *points) -> None:
        spots = [{"x": x, "y": y} for x, y in points]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})

    x, y = place["x"] + place["width"] / 2, place["y"] + 40
    touch("touchStart", (x, y))
    for step in range(1, 6):
        touch("touchMove", (x - 20 * step, y))
    touch("touchEnd")
    assert int(slider(box, "position").input_value()) < 25
    assert tab.evaluate("scrollY") == scrolled
    assert tab.faults == []
