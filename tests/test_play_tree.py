"""The beam as a tree that grows: the script's search, and never more than is known at a step."""

import functools
import itertools
import json
import math
import re

import pytest
import quickjs
import torch
from conftest import PROJECT
from pages import LISTENS, built, javascript, shown, visited

from tools.page import build as build_page

FIRST = "Ein kleines Mädchen hebt einen roten Ball auf."
SECOND = "Ein Kind schläft auf dem Schoß seiner Mutter."  # alpha decides
END = 1  # of the model
CLOSE = 0.003  # of log-probabilities, here and in PyTorch
FASTER = "const wait = setTimeout; self.setTimeout = (then, time) => wait(then, time / 20)"
OF_THE_END = re.compile(r"winner|is over|fork|leaves|lost it|higher score")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


# What is told, without a browser ------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> quickjs.Context:
    return javascript(tree="tree.js", hints="lib/hints.js")


def asked(engine: quickjs.Context, expression: str):
    return json.loads(engine.eval(f"JSON.stringify({expression})"))


def scene_of(engine: quickjs.Context, text: str, width: int, alpha: float) -> dict:
    """The scene of a plan, which stays at hand as `scene`."""
    plan = json.dumps({"text": text, "width": width, "alpha": alpha})
    engine.eval(f"globalThis.scene = stills.finish(tree.sceneOf(model, {plan}))")
    return asked(engine, "scene")


class Searched:
    """The search of Part 7 for one sentence, step by step: `grow` until the best is decided."""

    def __init__(self, at, translator, text: str, width: int, alpha: float) -> None:
        [(_, ids)] = at.source_parts(translator, [text], split=False)
        batch = at.Batch(torch.tensor([ids]))
        given = translator.model, batch.src, batch.src_mask
        longest = at.length_cap(len(ids), translator.max_len)
        self.decode = translator.vocabularies[1].decode
        self.penalty = functools.partial(at.length_penalty, alpha=alpha)
        self.greedy = at.greedy_decode(*given, longest, at.START)[0].tolist()
        self.best = at.beam_search(*given, longest, beam=width, alpha=alpha)[0].tolist()
        self.steps = []
        log_probs_after = at.log_probs_of(*given)
        hypotheses = [(0.0, [at.START])]
        with torch.no_grad():
            while not self.decided(hypotheses, longest - 1):
                grown = at.grow(hypotheses, log_probs_after, width)
                self.steps.append(self.step(hypotheses, log_probs_after, grown))
                hypotheses = grown

    def score(self, logp: float, written: list[int]) -> float:
        return logp / self.penalty(len(written) - 1)

    def decided(self, hypotheses: list, longest: int) -> bool:
        """Can no hypothesis that goes on beat the best that has ended?"""
        ended = [self.score(*each) for each in hypotheses if each[1][-1] == END]
        going = [logp for logp, written in hypotheses if written[-1] != END]
        too_long = len(max((written for _, written in hypotheses), key=len)) > longest
        bound = max(going, default=-math.inf) / self.penalty(longest)
        return too_long or (bool(ended) and max(ended) >= bound)

    def step(self, hypotheses: list, log_probs_after, grown: list) -> dict:
        """What was proposed, and what is kept: (text, has it ended, log-probability, score)."""
        going = [each for each in hypotheses if each[1][-1] != END]
        total = torch.stack([logp + log_probs_after(written) for logp, written in going])
        likely = total.flatten().topk(16)
        candidates = []
        for logp, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
            row, token = divmod(index, total.size(1))
            candidates.append((self.decode([*going[row][1], token]), token == END, logp))
        kept = [
            (self.decode(written), written[-1] == END, logp, self.score(logp, written))
            for logp, written in grown
        ]
        return {
            "kept": kept,
            "ids": [written for _, written in grown],
            "candidates": candidates,
            "ended": len(hypotheses) - len(going),
            "going": len(going),
        }

    def greedy_place(self, step: int) -> bool:
        """Is the greedy path in the beam after so many steps?"""
        return self.greedy[: step + 1] in self.steps[step - 1]["ids"]


def named(node: tuple) -> str:
    """A hypothesis as the figure calls it."""
    text, ended, *_ = node
    return f"“{text}” with its end" if ended else f"“{text}”"


def differences(scene: dict, search: Searched) -> list[str]:
    """Where a scene is not what the script has searched."""
    found = []
    if len(scene["steps"]) != len(search.steps) + 1:
        return [f"{len(scene['steps']) - 1} steps instead of {len(search.steps)}"]

    def compare(place: str, ours: list, theirs: list) -> None:
        same = len(ours) == len(theirs) and all(
            one[:2] == (other[0], other[1]) and math.isclose(one[2], other[2], abs_tol=CLOSE)
            for one, other in zip(ours, theirs, strict=False)
        )
        if not same:
            found.append(f"{place}: {ours} instead of {theirs}")

    for number, (step, theirs) in enumerate(zip(scene["steps"][1:], search.steps, strict=True), 1):
        kept = [(node["text"], node["ended"], node["logp"]) for node in step["kept"]]
        compare(f"step {number}, kept", sorted(kept), sorted(theirs["kept"]))
        cut = [(node["text"], node["piece"] == "</s>", node["logp"]) for node in step["cut"]]
        free = scene["width"] - theirs["ended"]
        shown = min(scene["width"], 3)
        compare(f"step {number}, cut", cut, theirs["candidates"][free : free + shown])
        if (step["greedy"] >= 0) != search.greedy_place(number):
            found.append(f"step {number}, greedy: {step['greedy']}")
    return found


def wrong_words(engine, scene: dict, search: Searched, at: int) -> list[str]:
    """What is said at a step before the last, and is not so or not known then."""
    theirs = search.steps[at - 1]
    told = asked(engine, f"tree.told(scene, {at})")
    free = scene["width"] - theirs["ended"]
    last, cut = theirs["candidates"][free - 1], theirs["candidates"][free]
    best = max(theirs["kept"], key=lambda node: node[3])
    proposed = f"{theirs['going'] * scene['subwords']:,} candidates"
    found = [words for words in (f"Step {at}.", proposed) if words not in told]
    for before, node, value in (
        ("(?:last of them|kept. This), ", last, last[2]),
        ("the best that is cut, ", cut, cut[2]),
        ("The best so far is ", best, best[3]),
    ):
        said = re.search(f"{before}{re.escape(named(node))},[^−]* ?(−?[0-9.]+[0-9])", told)
        if not said or abs(number(said[1]) - value) > 0.006:
            found.append(f"{before}{named(node)} {value:.3f}")
    lost = next((n for n in range(1, at + 1) if not search.greedy_place(n)), None)
    place = scene["steps"][at]["greedy"] + 1
    greedy = f"fell out at step {lost}." if lost else f"is at place {place}."
    if f"The greedy path {greedy}" not in told:
        found.append(greedy)
    if OF_THE_END.search(told):
        found.append(f"tells the end: {told}")
    return found


@pytest.fixture(scope="module")
def shipped(at):
    return at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))


@pytest.mark.parametrize("text", [FIRST, SECOND])
@pytest.mark.parametrize(("width", "alpha"), [(1, 0.6), (2, 2.0), (3, 0.6), (5, 0.0)])
def test_every_step_is_the_search_of_the_script_and_is_said_so(
    engine, at, shipped, text, width, alpha
):
    search = Searched(at, shipped, text, width, alpha)
    scene = scene_of(engine, text, width, alpha)
    assert differences(scene, search) == []
    count = asked(engine, "tree.countOf(scene)")
    for step in range(1, len(search.steps)):
        assert wrong_words(engine, scene, search, step) == []
        kept = search.steps[step - 1]["kept"]
        ended = sorted((node for node in kept if node[1]), key=lambda node: -node[3])
        ours = [node["text"] for node in asked(engine, f"tree.endedAt(scene, {step})")]
        assert ours == [node[0] for node in ended]
    told = asked(engine, f"tree.told(scene, {count})")
    best = search.decode(search.best)
    greedy = search.decode(search.greedy)
    assert best.rstrip(".") in told
    assert greedy.rstrip(".") in told
    assert ("both write" in told) == (best == greedy)
    for node in scene["greedy"]:
        assert greedy.startswith(node["text"])


def test_where_greedy_decoding_takes_longer_the_end_waits_for_it(engine):
    scene = scene_of(engine, "Ein Hund.", 5, 0.0)
    assert [len(scene["steps"]) - 1, len(scene["greedy"])] == [4, 6]
    for at in (4, 5):
        told = asked(engine, f"tree.told(scene, {at})")
        assert told.startswith("The search is over: the best that has ended scores −1.76, and what")
        assert told.endswith("Greedy decoding still goes on.")
    told = asked(engine, "tree.told(scene, 6)")
    assert "After “A dog” greedy took “is” (0.26), the winner “.” (0.22)." in told


def test_a_fault_would_be_seen(engine, at, shipped):
    search = Searched(at, shipped, FIRST, 3, 0.6)
    damages = {
        "scene.steps[4].cut.reverse()": "step 4, cut",
        "scene.steps[2].kept.pop()": "step 2, kept",
        "scene.steps[5].kept[1].logp += 0.01": "step 5, kept",
        "scene.steps[3].greedy = -1": "step 3, greedy",
        "scene.steps.pop()": "11 steps instead of 12",
    }
    for damage, expected in damages.items():
        scene_of(engine, FIRST, 3, 0.6)
        engine.eval(damage)
        [first, *_] = differences(asked(engine, "scene"), search)
        assert first.startswith(expected)
    scene = scene_of(engine, FIRST, 3, 0.6)
    engine.eval("scene.steps[4].best = 1")
    assert any("best so far" in each for each in wrong_words(engine, scene, search, 4))


def test_at_a_node_stands_what_it_proposed_and_what_became_of_that_by_now(engine):
    scene = scene_of(engine, FIRST, 3, 0.6)
    count = asked(engine, "tree.countOf(scene)")
    for at in range(1, count + 1):
        for step in range(at + 1):
            for place, node in enumerate(scene["steps"][step]["kept"]):
                about = asked(engine, f'tree.about(scene, "kept-{step}-{place}", {at})')
                fates = {row["piece"]: row["fate"] for row in about["rows"]}
                if step == at or not fates:
                    assert set(fates.values()) <= {""}
                    continue
                grown = {
                    each["piece"]
                    for each in scene["steps"][step + 1]["kept"]
                    if each["from"] == place and not each["waits"]
                }
                assert {piece for piece, fate in fates.items() if fate == "kept"} == grown
                assert len(fates) == 3
                total = sum(row["share"] for row in about["rows"]) + about["rest"]
                assert math.isclose(total, 1, abs_tol=1e-3)
                for row in about["rows"]:
                    logp = node["logp"] + math.log(row["share"])
                    assert row["share"] < 0.001 or math.isclose(row["logp"], logp, abs_tol=0.01)
    cut = asked(engine, 'tree.about(scene, "cut-4-0", 4)')
    assert cut["words"].startswith("Step 4, cut: “pick” after “A little girl” has probability")
    assert "the last that is kept has −2.55" in cut["words"]
    assert [row["piece"] for row in cut["rows"] if row["meant"]] == ["▁pick"]
    unknown = asked(engine, 'tree.about(scene, "kept-7-0", 4)')
    assert unknown["words"].startswith("At the start nothing is written.")


def test_a_search_that_is_known_is_not_computed_again(engine):
    engine.eval(
        "globalThis.steps = 0; globalThis.really ??= model.step.bind(model);"
        "model.step = (...given) => { steps += 1; return really(...given); }"
    )
    text = "Zwei Hunde rennen."
    scene_of(engine, text, 3, 0.6)
    first = asked(engine, "steps")
    assert first > 5
    scene_of(engine, text, 3, 1.2)
    assert asked(engine, "steps") - first < first / 2
    before = asked(engine, "steps")
    scene_of(engine, text, 3, 0.6)
    assert asked(engine, "steps") == before


def test_the_field_says_what_is_wrong_with_it(engine):
    for typed, expected in (("  ", "Type a sentence"), ("a" * 80, "80 letters"), ("Ein Hund.", "")):
        hint = asked(engine, f"hints.hintFor({json.dumps(typed)}, [], 80)")
        assert (expected in hint) if expected else hint == ""


# In a browser -------------------------------------------------------------------------------------

in_a_browser = pytest.mark.browser
SEE = """() => new MutationObserver(() => {
    const at = Number(document.querySelector(".asked").textContent.match(/step (\\d+)$/)[1]);
    (self.seen ??= new Map()).set(at, {
        told: document.querySelector(".told [role=status]").textContent,
        marked: document.querySelectorAll(".grid .fork, .key .fork").length,
        steps: document.querySelectorAll(".step").length,
        room: [".told", ".key", ".ranks", ".about"].map((name) =>
            document.querySelector(name).getBoundingClientRect().top + scrollY),
    });
}).observe(document.querySelector(".tree"), {
    childList: true, subtree: true, characterData: true,
})"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page with this figure alone, in the place of a table, beside its side file."""
    rows = "<table><thead><tr><th>step</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>"
    figure = shown({"text/html": rows}, "@example\ndef one_search(): ...")
    return built(tmp_path_factory.mktemp("tree"), figure)


def opened(browser, made, **settings):
    """A window with the page; what goes wrong there is in `faults`."""
    settings = {"viewport": {"width": 1360, "height": 900}, **settings}
    page = browser.new_context(**settings).new_page()
    page.faults = []
    page.files = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda told: told.type == "error" and page.faults.append(told.text))
    page.on("request", lambda request: page.files.append(request.url.rsplit("/", 1)[-1]))
    page.add_init_script(FASTER)
    page.goto(made.as_uri())
    page.wait_for_function(LISTENS)
    return page


def press(page, name: str, times: int = 1) -> None:
    for _ in range(times):
        page.get_by_role("button", name=name, exact=True).click()


def stands(page, words: str, milliseconds: int = 30_000) -> None:
    """Wait until the line above the tree says this."""
    page.locator(".asked", has_text=re.compile(words)).wait_for(timeout=milliseconds)


def without_violations(page) -> bool:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    return axe.Axe().run(page).response["violations"] == []


@in_a_browser
@pytest.mark.parametrize("width", [320, 390, 1360])
def test_it_grows_to_its_end_which_nothing_tells_before(browser, made, width):
    page = opened(browser, made, viewport={"width": width, "height": 900})
    stands(page, "step 12$")
    assert "greedy took" in page.locator(".told").inner_text()
    assert page.locator(".node.fork").count() == 1
    page.evaluate(SEE)
    press(page, "Play")
    page.get_by_role("button", name="Pause").wait_for()
    assert page.locator(".told [aria-busy=true]").count() == 1
    page.get_by_role("button", name="Play").wait_for()  # it has stopped
    assert page.locator(".told [aria-busy=false]").count() == 1
    seen = page.evaluate("[...seen]")
    assert [at for at, _ in seen] == list(range(1, 13))
    for at, what in seen[:-1]:
        assert what["steps"] == at
        assert what["marked"] == 0
        assert not OF_THE_END.search(what["told"])
    assert seen[-1][1]["marked"] == 2
    rooms = [what["room"] for _, what in seen]
    assert all(room == rooms[0] for room in rooms), "something has jumped"
    assert page.files == ["page.html"], "what is in the page needs no model"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.faults == []


@in_a_browser
def test_nothing_jumps_when_scripts_start(browser, made):
    page = opened(browser, made)
    stands(page, "step 12$")
    still = visited(browser, made.as_uri(), java_script_enabled=False)
    tree = ".grid"
    for name in (tree, ".ranks"):
        assert still.locator(name).bounding_box()["height"] == pytest.approx(
            page.locator(name).bounding_box()["height"], abs=1
        )
    served = build_page.parsed(made.read_text("utf-8")).select_one(".tree")
    assert len(served.select(".controls button")) == 4
    assert page.locator(".tree button").count() == len(served.select("button"))


@in_a_browser
def test_by_keyboard_alone(browser, made):
    page = opened(browser, made)
    page.get_by_role("button", name="Step", exact=True).focus()
    for _ in range(4):
        page.keyboard.press("Enter")
    stands(page, "step 4$")
    assert page.locator(".grid [tabindex='0']").count() == 1
    for _ in range(5):  # faster, width, alpha, what scrolls, the tree
        page.keyboard.press("Tab")
    about = page.locator(".about")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "the start"
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    where = about.locator("p").inner_text()
    assert where.startswith("Step 3, place 2: “girl” after “A young” has probability 0.93")
    page.keyboard.press("ArrowUp")
    rows = about.locator("tbody tr").all_inner_texts()
    assert [row.split() for row in rows][:3] == [
        ["is", "0.30", "−1.72", "kept"],
        ["rais", "0.18", "−2.23", "kept"],
        ["picking", "0.13", "−2.55", "kept"],
    ]
    assert re.match(r"4,997 others\s+0\.3\d", rows[3])
    page.keyboard.press("ArrowRight")
    assert about.locator("tbody td:last-child").all_inner_texts() == [""] * 4  # not decided yet
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert about.locator("p").inner_text().startswith("Step 4, cut: “pick” after")
    assert about.locator(".meant").inner_text().split()[-1] == "cut"
    assert page.locator(".grid [tabindex='0']").count() == 1
    for _ in range(2):
        page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.type") == "range"
    press(page, "Back")
    assert about.locator("p").inner_text().startswith("At the start")  # the node is gone
    assert without_violations(page)


@in_a_browser
@pytest.mark.parametrize(("width", "along", "across"), [(390, "y", "x"), (1360, "x", "y")])
def test_it_grows_downward_where_it_is_narrow_and_is_touched(browser, made, width, along, across):
    settings = {"viewport": {"width": width, "height": 800}, "has_touch": True}
    page = opened(browser, made, **settings)
    press(page, "Step", 3)
    stands(page, "step 3$")
    boxes = [page.locator("button.best").nth(n).bounding_box() for n in range(3)]
    for one, other in itertools.pairwise(boxes):
        assert other[along] > one[along] + 30
        assert abs(other[across] - one[across]) < 20
    kept, cut = (
        page.locator(f".step:last-of-type .node.{name}").first.bounding_box()
        for name in ("lost, .step:last-of-type .node.new", "cut")
    )
    assert cut[across] > kept[across]
    page.locator(".step:last-of-type .node.cut").first.tap()
    assert page.locator(".about p").inner_text().startswith("Step 3, cut: “girls” after “A little”")
    page.locator(".node.greedy").first.tap()
    assert "Step 1, greedy: “A” has probability 0.89." in page.locator(".about p").inner_text()
    assert page.locator(".about td:last-child").all_inner_texts()[:3] == ["taken", "left", "left"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.faults == []


@in_a_browser
def test_the_readers_settings_and_sentence_are_searched(browser, made, at, shipped):
    page = opened(browser, made, reduced_motion="reduce")
    for width, alpha in ((1, 0.6), (5, 2.0)):
        page.locator("[name=width]").fill(str(width))
        page.locator("[name=alpha]").fill(str(alpha))
        search = Searched(at, shipped, FIRST, width, alpha)
        count = max(len(search.steps), 10)
        stands(page, f"width {width}, α = {alpha}, step {count}$")
        ended = sorted((n for n in search.steps[-1]["kept"] if n[1]), key=lambda node: -node[3])
        rows = page.locator(".ranks tbody tr:not(.empty)").all()
        for node, row in zip(ended, rows, strict=True):
            _, text, logp, length, score = row.locator("td").all()
            assert text.locator("span > :first-child").inner_text() == node[0]
            assert abs(number(logp.inner_text()) - node[2]) < CLOSE
            assert abs(number(score.inner_text()) - node[3]) < CLOSE
            assert int(length.inner_text()) > 5
        best = search.decode(search.best)
        pieces = page.locator(".step .node.best:not(.waits) b").all_inner_texts()
        assert "".join(pieces).replace("…", "") == best.replace(" ", "") + "end"
    press(page, SECOND)
    stands(page, f"{SECOND} width 5, α = 2.0, step")
    field = page.get_by_label("A sentence in German")
    assert field.input_value() == SECOND
    field.fill("Ein Hund schläft.")
    page.keyboard.press("Enter")
    stands(page, "Ein Hund schläft")
    page.locator(".told", has_text="A dog").wait_for()  # motion is unwelcome: at once at its end
    assert page.get_by_role("button", name="Play").count() == 1
    field.fill(" ")
    page.get_by_text("Type a sentence in German").wait_for()
    assert "Ein Hund schläft" in page.locator(".asked").inner_text()
    assert field.get_attribute("maxlength") == "80"
    assert page.files == ["page.html", "model.js"]
    assert page.faults == []


@in_a_browser
def test_a_long_search_leaves_the_page_awake_and_gives_way(browser, made):
    page = opened(browser, made)
    page.locator("[name=width]").fill("5")
    stands(page, "width 5")
    page.evaluate("self.turns = 0; setInterval(() => { turns += 1; }, 5)")
    field = page.get_by_label("A sentence in German")
    field.fill("日" * 80)
    page.keyboard.press("Enter")
    page.get_by_text("Searching …").wait_for()
    press(page, FIRST)
    field.fill("Ein Hund.")
    page.keyboard.press("Enter")
    stands(page, "Ein Hund. ")
    assert page.evaluate("turns") > 5, "the browser had its turn meanwhile"
    assert page.get_by_text("Searching …").count() == 0
    assert page.faults == []


@in_a_browser
def test_without_its_side_file_it_says_so_and_still_plays(browser, made, tmp_path):
    (tmp_path / "page.html").write_bytes(made.read_bytes())
    page = opened(browser, tmp_path / "page.html")
    page.locator("[name=width]").fill("4")
    page.get_by_role("status").get_by_text("model.js is missing beside this page").wait_for()
    stands(page, "width 3, α = 0.6, step 12$")
    press(page, "Step", 2)
    stands(page, "width 3, α = 0.6, step 2$")
    assert page.locator(".step").count() == 2


@in_a_browser
def test_without_scripts_and_on_paper_the_finished_search_stands(browser, made):
    page = visited(browser, made.as_uri(), java_script_enabled=False)
    paper = opened(browser, made)
    paper.emulate_media(media="print")
    for view in (page, paper):
        assert view.locator(".step").count() == 12
        assert view.locator(".node.cut:visible").count() == 36
        assert view.locator(".told:visible").count() == 1
        for name in ("#searched", ".chips", ".controls", ".line", ".about p"):
            assert view.locator(f".tree {name}:visible").count() == 0


@in_a_browser
@pytest.mark.parametrize(
    "settings", [{"color_scheme": "dark"}, {"forced_colors": "active"}, {"color_scheme": "light"}]
)
def test_it_can_be_read_in_all_colours(browser, made, settings):
    page = opened(browser, made, **settings)
    stands(page, "step 12$")
    seen = """name => {
        const style = getComputedStyle(document.querySelector(name));
        return [style.stroke, style.backgroundColor, style.borderTopWidth];
    }"""
    best, cut, node, fork, key, line = (
        page.evaluate(seen, name)
        for name in (
            "path.best",
            "path.cut",
            ".node.best",
            ".node.fork",
            ".key",
            ".line-of-the-cut",
        )
    )
    assert best[0] != cut[0]
    assert node[2] == "2px"
    assert fork[1] != key[1]
    assert line[2] != "0px"
    assert without_violations(page)
