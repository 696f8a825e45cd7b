"""Break it: recorded trainings of the copy task with parts left out."""

import pytest
from pages import figure, watched

from tools import records

pytestmark = pytest.mark.slow


def test_each_moment_of_each_run_shows_its_record(browser, figures_page):
    tab = watched(browser, figures_page, reduced_motion="reduce")
    box = figure(tab, "broken")
    slider = box.get_by_role("slider")
    record = records.read("switches")
    chips = box.get_by_role("group", name="trained with").get_by_role("button")
    frame = box.locator(".alignment .frame").evaluate("each => each.getBBox().height")
    for number, run in enumerate(record["runs"]):
        chips.nth(number).click()
        for at, moment in enumerate(run["moments"]):
            slider.fill(str(at))
            assert box.locator(".title b").inner_text() == str(moment["copied"])
            assert box.locator(".full").get_attribute("d").count("M") == moment["copied"]
            rows = box.locator(".written").all_text_contents()
            assert len(rows) == len(moment["written"])
            now = box.locator(".alignment .frame").evaluate("each => each.getBBox().height")
            assert now == frame, "nothing opens under it where less is written"
            pairs = zip(moment["written"], [*run["read"], 1], strict=False)
            wrong = [token != right for token, right in pairs]
            assert [row.startswith("✗") for row in rows] == wrong
            drawn = box.locator(".alignment rect:not(.frame)").evaluate_all(
                "all => all.map((each) => Math.round(100 * each.getAttribute('fill-opacity')))"
            )
            weights = map(int, " ".join(moment["attention"]).split())
            assert drawn == [weight for weight in weights if weight]
            if moment["loss"] is not None:
                assert f"{moment['loss']:.3f}" in box.get_by_role("status").inner_text()
    assert tab.faults == []
    assert tab.asked == [figures_page.as_uri()], "it needs no model"
