"""Watch it learn: the stored moments of a training, which a slider goes through."""

import json
import re

import pytest
from pages import built, drawn_by, figure, page_of, watched

from tools import records
from tools.page import playable
from tools.page.markup import BuildError
from tools.results import learning

TEXT = "# Part\n\nBefore.\n\n<!-- figure: moments -->\n\nAfter."


@pytest.fixture(scope="module")
def recorded(at, tmp_path_factory):
    """Records of a training of a few updates on the built-in captions, which was watched."""
    folder = tmp_path_factory.mktemp("watched") / "toy"
    config = at.Config(
        data="builtin", N=1, d_model=16, d_ff=32, h=2, vocab_size=300, max_len=64,
        batch_tokens=512, epochs=3, shares=60, average=1, warmup=2, precision="fp32",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESULTS", folder.parent / "results")
        patch.setattr(learning, "MOMENTS", (0, 1))
        captions = [german for german, _ in at.builtin_corpus()["train"][:2]]
        patch.setattr(learning, "SENTENCES", captions)
        at.train_model(config, folder, run_class=learning.WatchedRun)
        learning.put_on_record(folder, records.circumstances())
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        records.write("runs/toy", {"log": [epoch for epoch in log if not epoch["averaged"]]})
        yield records.read("learning")["moments"]


@pytest.fixture(scope="module")
def page(recorded, chromium, tmp_path_factory):
    with drawn_by(chromium):
        return built(tmp_path_factory.mktemp("page"), TEXT)


@pytest.fixture
def tab(browser, page):
    tab = watched(browser, page, reduced_motion="reduce")
    yield tab
    assert tab.faults == []
    assert tab.asked == [page.as_uri()]


@pytest.fixture
def box(tab):
    return figure(tab, "moments")


# Its place ----------------------------------------------------------------------------------------


def test_without_a_record_the_page_is_built_without_the_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    article = page_of(tmp_path, TEXT)
    assert not article.select("figure")
    assert article.get_text(" ", strip=True).endswith("Before. After.")


def test_records_of_two_trainings_are_refused(recorded, monkeypatch):
    other = {"log": [{"updates": recorded[-1]["updates"] + 1, "nll": 1.0}]}
    really = records.read
    monkeypatch.setattr(records, "read", lambda name: really(name) if "/" not in name else other)
    with pytest.raises(BuildError, match=r"learning\.json does not fit runs/toy\.json"):
        playable.training_at_moments()


@pytest.mark.browser
def test_it_stands_where_a_comment_asks_for_it(tab, box):
    order = tab.locator("article > :is(p, figure)").evaluate_all(
        "all => all.map((each) => each.dataset.play ?? each.textContent)"
    )
    place = order.index("moments")
    assert order[place - 1 : place + 2] == ["Before.", "moments", "After."]
    assert re.search(r"trains for \d+ epochs", box.locator("figcaption").inner_text())


# What it shows ------------------------------------------------------------------------------------


@pytest.mark.browser
def test_each_moment_shows_what_was_written_and_where_the_model_looked(recorded, box):
    slider = box.get_by_role("slider")
    for number, moment in enumerate(recorded):
        slider.fill(str(number))
        assert box.locator(".at").inner_text() == (
            f"update {moment['updates']} of {recorded[-1]['updates']}"
        )
        for button, sentence in enumerate(moment["sentences"]):
            box.get_by_role("group", name="Sentences").get_by_role("button").nth(button).click()
            rows = box.locator(".alignment .written").count()
            assert 0 < rows <= len(sentence["written"])
            wrote = "".join(sentence["written"][:rows]).replace("</s>", "").replace("▁", " ")
            shown = box.locator(".wrote").inner_text().removesuffix(" …")
            assert shown.split() == wrote.split()
            weights = [weight for row in sentence["attention"][:rows] for weight in row]
            drawn = box.locator(".alignment rect:not(.frame)").evaluate_all(
                "all => all.map((each) => Number(each.getAttribute('fill-opacity')))"
            )
            assert drawn == [weight for weight in weights if weight]


@pytest.mark.browser
def test_the_dot_is_on_the_line_from_the_first_loss_on(recorded, box):
    losses = dict(playable.training_at_moments()["losses"])
    highest = max(int(text) for text in box.locator(".tick").all_inner_texts())
    for number, moment in enumerate(recorded):
        box.get_by_role("slider").fill(str(number))
        dot = box.locator(".dot")
        if moment["updates"] < min(losses):
            assert dot.count() == 0
            assert f"first measured at update {min(losses)}" in box.inner_text()
            continue
        top, left = dot.evaluate("each => [each.style.top, each.style.left].map(parseFloat)")
        loss = losses[moment["updates"]]  # the later moments are the ends of epochs
        assert highest * (1 - top / 100) == pytest.approx(loss, abs=highest / 5000)
        assert left == pytest.approx(100 * moment["updates"] / max(losses), abs=0.01)
        assert f"Validation loss {loss:.2f}" in box.get_by_role("status").inner_text()


# Using it -----------------------------------------------------------------------------------------


@pytest.mark.browser
def test_keys_move_the_slider_and_play_goes_from_the_first_moment_to_the_last(
    recorded, browser, page
):
    tab = watched(browser, page)
    box = figure(tab, "moments")
    slider = box.get_by_role("slider")
    end = box.locator(".at").inner_text()
    slider.press("ArrowLeft")
    assert slider.input_value() == str(len(recorded) - 2)
    slider.press("Home")
    assert slider.get_attribute("aria-valuetext").startswith("update 0 of")
    assert "still random" in box.get_by_role("status").inner_text()
    slider.press("End")
    box.get_by_role("button", name="Play").press("Enter")
    assert slider.input_value() == "0"
    assert tab.evaluate("document.activeElement.textContent") == "Pause"
    box.locator(".at", has_text=end).wait_for()
    box.get_by_role("button", name="Play").wait_for()
    assert tab.faults == []


@pytest.mark.browser
def test_nothing_jumps_from_moment_to_moment(recorded, box):
    slider = box.get_by_role("slider")
    places = """box => [".board", ".loss", ".line"].map((name) =>
        box.querySelector(name).getBoundingClientRect().top - box.getBoundingClientRect().top)"""
    before = box.evaluate(places)
    for number in range(len(recorded)):
        slider.fill(str(number))
        assert box.evaluate(places) == before


@pytest.mark.browser
def test_without_scripts_and_on_paper_there_is_the_last_moment(recorded, browser, page, tab, box):
    silent = watched(browser, page, java_script_enabled=False).locator("[data-play=moments]")
    inside = "stage => stage.innerHTML"
    assert box.locator(".stage").evaluate(inside) == silent.locator(".stage").evaluate(inside)
    tab.emulate_media(media="print")
    for each in (silent, box):
        assert each.get_by_role("img").first.is_visible()
        assert each.locator(":is(button, input):visible").count() == 0
        last = recorded[-1]["updates"]
        assert f"Update {last}." in each.locator(".line").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("width, scheme", [(320, "light"), (390, "dark"), (1440, "dark")])
def test_at_any_width_it_fits_and_is_accessible(browser, page, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    size = {"width": width, "height": 900}
    tab = watched(browser, page, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    figure(tab, "moments").get_by_role("slider").fill("1")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(tab, context="[data-play=moments]").response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
    assert tab.faults == []
