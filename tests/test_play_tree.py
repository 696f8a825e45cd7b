"""The beam as a tree that grows: the script's search, played in a browser."""

import re

import pytest
import torch
from conftest import PROJECT, visited
from test_page import built, shown

pytestmark = pytest.mark.browser
SENTENCES = (
    "Ein kleines Mädchen hebt einen roten Ball auf.",
    "Ein Kind schläft auf dem Schoß seiner Mutter.",  # alpha decides
)
FASTER = "const wait = setTimeout; self.setTimeout = (then, time) => wait(then, time / 20)"
WATCH = """asked => new MutationObserver(() => (self.seen ??= []).push(asked.innerText))
    .observe(asked, { childList: true })"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A page with this figure alone, in the place of a table."""
    rows = "<table><thead><tr><th>step</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>"
    figure = shown({"text/html": rows}, "@example\ndef one_search(): ...")
    return built(tmp_path_factory.mktemp("tree"), figure)


def asked(page, words: str) -> None:
    """Wait until the line above the tree says this."""
    page.locator(".asked", has_text=re.compile(words)).wait_for()


def test_the_tree_is_the_search_of_the_script(at, browser, page_file, monkeypatch):
    record = []
    expand = at.expand
    monkeypatch.setattr(at, "expand", lambda *given: record.append(expand(*given)) or record[-1])
    translator = at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))
    page = visited(browser, page_file.as_uri(), reduced_motion="reduce")
    for sentence in SENTENCES:
        src = torch.tensor([at.source_parts(translator, [sentence])[0][1]])
        given = translator.model, src, at.Batch(src).src_mask, at.length_cap(src.size(1), 128)
        greedy = translator.vocabularies[1].decode(at.greedy_search(*given)[0].tolist())
        page.locator("select").select_option(sentence)
        asked(page, "step 1 of")
        while not re.search(r"step (\d+) of \1\b", page.locator(".asked").inner_text()):
            page.get_by_role("button", name="Step").click()
        for beam, alpha in [(1, 0.6), (3, 0.6), (5, 0.6), (1, 2.0), (3, 2.0), (5, 2.0)]:
            record.clear()
            best = at.beam_search(*given, beam=beam, alpha=alpha)
            best = translator.vocabularies[1].decode(best[0].tolist())
            last = record[-1][0]
            ended = [n for n in last.score(alpha)[0].argsort(descending=True) if last.ended[0, n]]
            page.locator("[name=width]").fill(str(beam))
            page.locator("[name=alpha]").fill(str(alpha))
            asked(page, f"Width {beam}, α = {alpha}, step [0-9]+ of {len(record)}")
            asked(page, f"step {len(record)} of {len(record)}")
            for n, row in zip(ended, page.locator(".ranks tbody tr").all(), strict=True):
                _, text, logp, *_ = row.locator("td").all_inner_texts()
                expected = translator.vocabularies[1].decode(last.written[0, n].tolist())
                assert text == expected
                result = abs(float(logp.replace("−", "-")) - last.logp[0, n].item())
                assert result < 0.003
            told = page.locator(".told").inner_text()
            assert greedy.rstrip(".") in told
            assert best.rstrip(".") in told
            assert ("both write" in told) == (greedy == best)
            assert page.locator(".node.fork").count() == (greedy != best)
            thick = page.locator(".tree .best b").all_inner_texts()
            assert "".join(thick) == best.replace(" ", "") + "end"


def test_play_grows_to_the_end_by_keyboard_alone(browser, page_file):
    page = browser.new_page()
    page.add_init_script(FASTER)
    page.goto(page_file.as_uri())
    page.locator(".asked").evaluate(WATCH)
    page.locator("select").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Play").wait_for()  # it has stopped
    assert page.locator(".told[aria-busy=false]").count() == 1
    seen = [re.search(r"\d+ of 10", words)[0] for words in page.evaluate("seen")]
    assert seen == [f"{step} of 10" for step in range(1, 11)]
    for _ in range(6):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator(".about").inner_text().startswith("Step 2, place 1: little has probability")


@pytest.mark.parametrize(("width", "along", "across"), [(390, "y", "x"), (1360, "x", "y")])
def test_it_grows_downward_where_it_is_narrow(browser, page_file, width, along, across):
    page = visited(browser, page_file.as_uri(), viewport={"width": width, "height": 800})
    for _ in range(2):
        page.get_by_role("button", name="Step").click()
    asked(page, "step 2 of 10")
    first, second = (page.locator("button.best").nth(n).bounding_box() for n in range(2))
    assert second[along] > first[along] + 30
    assert abs(second[across] - first[across]) < 20
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_scripts_the_still_picture_stays(browser, page_file):
    page = visited(browser, page_file.as_uri(), java_script_enabled=False)
    assert page.locator(".node b").count() == 39
    assert page.locator("button.node").count() == 0
