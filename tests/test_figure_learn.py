"""The copy task in the reader's browser: PyTorch's numbers, and a figure that can be operated."""

from pathlib import Path

import pytest
import torch
from pages import figure, watched

from tools.page.bundle import bundle
from tools.page.markup import FIGURES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FULL = {"mask": True, "positions": True, "residuals": True, "shift": True}
WITHOUT = [None, *FULL]  # a part that is switched off, or none


# It computes what PyTorch computes ----------------------------------------------------------------


def modules_in(chromium):
    """A window with the modules that train, and no page."""
    tab = chromium.new_page()
    tab.add_script_tag(content=bundle(FIGURES / "learn/training.js", "training"))
    tab.add_script_tag(content=bundle(FIGURES / "learn/tape.js", "tapes"))
    return tab


@pytest.fixture(scope="module")
def engine(chromium):
    return modules_in(chromium)


def parts_without(part: str | None) -> dict[str, bool]:
    return FULL | ({part: False} if part else {})


def tensors(weights: dict[str, list]) -> dict[str, torch.Tensor]:
    """Parameters as JavaScript tells them: rows, columns, numbers."""
    found = {}
    for name, (rows, columns, numbers) in weights.items():
        matrix = torch.tensor(numbers, dtype=torch.double).view(rows, columns)
        is_vector = name.endswith("bias") or "norm" in name
        found[name] = matrix[0] if is_vector else matrix
    return found


class Reference:
    """PyTorch's model with the same weights, in double precision, and the same parts."""

    def __init__(self, at, sizes: dict, weights: dict, part: str | None) -> None:
        self.at = at
        self.part = part
        torch.set_default_dtype(torch.double)  # the sinusoids too
        self.model = at.make_model(
            sizes["vocabulary"], sizes["vocabulary"], sizes["layers"], sizes["width"],
            sizes["inner"], sizes["heads"], dropout=0.0, max_len=sizes["longest"],
            positions=at.NoPositions if part == "positions" else None,
        )  # fmt: skip
        self.model.load_state_dict(tensors(weights))

    def loss(self, sequences: list[list[int]]) -> torch.Tensor:
        """The mean loss of some sequences, by the script's functions."""
        at = self.at
        target = torch.tensor([[at.START, *ids, at.END] for ids in sequences])
        batch = at.Batch(target[:, 1:-1], target)
        if self.part == "mask":
            batch.tgt_mask = torch.ones_like(batch.tgt_mask)
        if self.part == "shift":
            batch.tgt = batch.tgt_y
        states = self.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        words = self.model.generator.proj.out_features
        criterion = at.LabelSmoothing(words, at.PAD)
        return at.SimpleLossCompute(self.model.generator, criterion)(
            states, batch.tgt_y, batch.ntokens
        )[1]


@pytest.fixture(params=WITHOUT, ids=str)
def pair(request, at, engine, monkeypatch):
    """A fresh learner in the browser, as `self.learner`, and PyTorch's model with its weights."""
    part = request.param
    if part == "residuals":

        def without_sum(self, x, sublayer):
            return sublayer(self.norm(x))

        monkeypatch.setattr(at.SublayerConnection, "forward", without_sum)
    sizes, weights = engine.evaluate(
        """parts => {
            self.learner = new training.Learner(parts, 3);
            self.told = (key) => Object.fromEntries(
                Object.entries(learner.model.parameters).map(([name, each]) =>
                    [name, [each.rows, each.columns, [...each[key]]]]));
            return [training.SIZES, told("data")];
        }""",
        parts_without(part),
    )
    yield engine, Reference(at, sizes, weights, part)
    torch.set_default_dtype(torch.float)


def batches_of(at, sizes: tuple[int, int, int]) -> list[list[list[int]]]:
    """Batches of the script's copy task: how many, of how many sequences, of which length."""
    number, size, length = sizes
    torch.manual_seed(5)
    return [batch.src.tolist() for batch in at.data_gen(14, size, number, length)]


def test_every_gradient_equals_that_of_pytorch(at, pair):
    tab, reference = pair
    [sequences] = batches_of(at, (1, 8, 6))
    loss, told = tab.evaluate(
        """sequences => {
            const tape = new tapes.Tape();
            const loss = learner.loss(tape, sequences);
            tape.backward();
            return [loss, told("grad")];
        }""",
        sequences,
    )
    expected = reference.loss(sequences)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    ours = tensors(told)
    theirs = dict(reference.model.named_parameters())
    assert ours.keys() == theirs.keys()
    largest = max(parameter.grad.abs().max() for parameter in theirs.values())
    for name, parameter in theirs.items():
        assert (ours[name] - parameter.grad).abs().max() < 1e-9 * largest, name


def test_fifty_updates_give_the_losses_of_pytorch(at, pair):
    tab, reference = pair
    batches = batches_of(at, (50, 8, 6))
    ours = tab.evaluate("batches => batches.map((each) => learner.update(each))", batches)
    settings = tab.evaluate("[training.FACTOR, training.WARM_UP]")
    optimizer, scheduler = at.make_optimizer(reference.model, *settings)
    theirs = []
    for sequences in batches:
        loss = reference.loss(sequences)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert theirs[-1] < 0.8 * theirs[0]
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_it_writes_what_greedy_decoding_writes(at, pair):
    tab, reference = pair
    for sequences in batches_of(at, (20, 16, 6)):
        tab.evaluate("sequences => learner.update(sequences)", sequences)
    ours, weights, told = tab.evaluate(
        """() => {
            const { written, weights } = learner.model.greedy(learner.tests.flat(), 50, 0, 7);
            return [written, [...weights], told("data")];
        }"""
    )
    reference.model.load_state_dict(tensors(told))
    src = torch.tensor(tab.evaluate("learner.tests"))
    mask = torch.ones(50, 1, 6, dtype=torch.bool)
    theirs = at.greedy_decode(reference.model, src, mask, 8, at.START, end_symbol=None)
    assert ours == theirs[:, 1:].tolist()
    cross = reference.model.decoder.layers[-1].src_attn.attn
    torch.testing.assert_close(torch.tensor(weights).view(cross.shape), cross)


# The figure ---------------------------------------------------------------------------------------


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []
    assert all(address.startswith(("file:", "blob:")) for address in tab.asked)


@pytest.fixture
def box(tab):
    return figure(tab, "learn")


def changed_page(page: Path, folder: Path, old: str, new: str) -> Path:
    """A copy of a page with another text in it."""
    text = page.read_text("utf-8")
    assert old in text
    (folder / "page.html").write_text(text.replace(old, new), "utf-8")
    return folder / "page.html"


def button(box, name: str):
    return box.get_by_role("button", name=name, exact=True)


def model(box, number: int):
    """The first or second model."""
    return box.get_by_role("group").nth(number)


def loss_of(box, number: int) -> float:
    return float(model(box, number).locator("dd").first.inner_text())


def wait_until(box, number: int, losses: int) -> None:
    """Until so many losses of a model have been drawn."""
    box.page.wait_for_function(
        """([box, number, losses]) =>
            (box.querySelector(`.curves .run-${number}`).getAttribute("d") ?? "")
                .split(/[ML]/).length > losses""",
        arg=[box.element_handle(), number, losses],
        timeout=120_000,
    )


def focused(tab) -> str:
    return tab.evaluate("document.activeElement.innerText")


def test_nothing_starts_by_itself_and_start_lowers_the_loss_until_it_is_paused(tab, box):
    assert tab.workers == []
    status = box.get_by_role("status")
    button(box, "Start").press("Enter")
    wait_until(box, 0, 1)
    first = loss_of(box, 0)
    wait_until(box, 0, 4)
    assert loss_of(box, 0) < 0.8 * first
    assert status.inner_text() == "Training …", "numbers are not said aloud as they come"
    assert focused(tab) == "Pause"
    tab.keyboard.press("Enter")
    assert focused(tab) == "Start"
    assert "exact copies" in status.inner_text()
    tab.wait_for_timeout(5000)  # for reports that were on their way
    paused = box.inner_html()
    tab.wait_for_timeout(4000)
    assert box.inner_html() == paused
    tab.keyboard.press("Enter")
    wait_until(box, 0, 6)
    button(box, "Reset").press("Enter")
    assert focused(tab) == "Reset"
    box.get_by_text("update 0 of").wait_for()
    assert box.locator(".curves .curve").evaluate_all(
        "all => all.every((e) => !e.getAttribute('d'))"
    )


@pytest.mark.long
def test_it_shows_what_the_same_seed_gives_elsewhere(browser, box):
    button(box, "Start").click()
    wait_until(box, 0, 1)
    button(box, "Pause").click()
    losses = modules_in(browser).evaluate(
        """parts => {
            const fresh = new training.Learner(parts, 1);
            return Array.from({ length: 10 }, () => fresh.update());
        }""",
        FULL,
    )
    drawn = box.locator(".curves .run-0").get_attribute("d")
    [x, y] = drawn.removeprefix("M").split("L")[0].split()
    assert float(x) == pytest.approx(10 / 300, abs=1e-4)
    assert 5 ** (1 - float(y)) * 1e-4 ** float(y) == pytest.approx(sum(losses) / 10, rel=2e-3)


@pytest.mark.long
def test_a_switch_begins_its_model_again_and_leaves_the_other_alone(tab, box):
    button(box, "Start").click()
    wait_until(box, 1, 2)
    wait_until(box, 0, 2)
    switch = model(box, 1).get_by_role("switch", name="shift right")
    switch.press("Space")
    assert switch.evaluate("each => each === document.activeElement")
    assert model(box, 1).locator("legend").inner_text().strip() == (
        "Without causal mask and shift right"
    )
    assert not switch.is_checked()
    wait_until(box, 1, 4)
    assert loss_of(box, 1) < 0.5 * loss_of(box, 0), "it reads the token that it must write"
    assert model(box, 0).locator("legend").inner_text().strip() == "Full model"
    assert len(tab.workers) == 2


@pytest.mark.long
def test_the_end_is_told_and_the_next_training_has_another_seed(browser, figures_page, tmp_path):
    page = changed_page(figures_page, tmp_path, "UPDATES = 300", "UPDATES = 20")
    tab = watched(browser, page)
    box = figure(tab, "learn")
    button(box, "Start").press("Enter")
    again = button(box, "Train again")
    again.wait_for(timeout=120_000)
    assert focused(tab) == "Train again"
    status = box.get_by_role("status")
    assert "After 20 updates. Full model: loss" in status.inner_text()
    assert "read the answers from the future" in status.inner_text()
    assert tab.workers == []
    again.press("Enter")
    box.get_by_text("seed 2").wait_for()
    again.wait_for(timeout=120_000)
    assert tab.faults == []


def test_where_no_worker_is_allowed_a_sentence_says_so(browser, figures_page, tmp_path):
    page = changed_page(figures_page, tmp_path, "worker-src blob:", "worker-src 'none'")
    box = figure(watched(browser, page), "learn")
    before = box.locator("svg").evaluate_all("all => all.map((each) => each.outerHTML)")
    button(box, "Start").click()
    box.get_by_role("status").get_by_text("no worker").wait_for()
    assert box.locator("svg").evaluate_all("all => all.map((each) => each.outerHTML)") == before
    assert button(box, "Start").is_visible()


def test_on_a_narrow_screen_both_models_stand_side_by_side(browser, figures_page):
    size = {"width": 390, "height": 844}
    tab = watched(browser, figures_page, viewport=size, has_touch=True, color_scheme="dark")
    box = figure(tab, "learn")
    left, right = (model(box, number).bounding_box() for number in (0, 1))
    assert left["y"] == right["y"]
    assert right["x"] > left["x"] + left["width"]
    switch = model(box, 0).get_by_text("positions")
    assert switch.bounding_box()["height"] >= 24
    switch.tap()
    assert "Without positions" in model(box, 0).inner_text()
