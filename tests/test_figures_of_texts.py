"""Small figures of texts: subwords are those of the script, and BLEU is that of sacreBLEU."""

import itertools
import random
import re
from pathlib import Path

import pytest
from pages import engine_in, figure, page_of, watched
from sacrebleu.metrics import BLEU

from tools.page.bundle import bundle
from tools.page.markup import FIGURES, BuildError

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ODD = [
    "",
    "   ",
    "Łódź, 日本 🙂!",
    "u\u0308ber Cafe\u0301",  # as two characters each
    "<s> <unk> ▁a\u00a0b\u0085c\ufeff \x07",
    "“Café”—naïve…1,000.50",
    "Donaudampfschifffahrtsgesellschaftskapitän",
]


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the shipped model and the figures' functions, and no page."""
    tab = engine_in(chromium)
    for name in ("pieces", "bleu"):
        tab.add_script_tag(content=bundle(FIGURES / f"{name}.js", name))
    return tab


# They compute what the script computes ------------------------------------------------------------


@pytest.fixture(scope="module")
def lines(at) -> list[str]:
    """Captions, and lines of prose of the script."""
    captions = [text for pair in at.builtin_corpus()["train"] for text in pair]
    script = Path(at.__file__).read_text("utf-8").splitlines()
    prose = [line[2:] for line in script if line.startswith("# ") and len(line.split()) > 6]
    return captions + prose[:200]


@pytest.mark.long
def test_a_text_is_cut_as_the_script_cuts_it(at, engine, shipped, lines):
    subwords = shipped.vocabularies[0]
    words = sorted({word for line in lines for word in line.split()})
    backwards = [word[::-1] for word in words]  # that it has never seen
    texts = [*ODD, *lines, *words, *backwards]
    assert len(words) > 300
    cut = """texts => texts.map((text) =>
        stills.finish(pieces.sceneOf(model, { text })).words)"""
    scenes = engine.evaluate(cut, texts)
    for text, ids, scene in zip(texts, subwords.encode(texts), scenes, strict=True):
        assert [box["id"] for word in scene for box in word] == ids, text
        spelt = "".join(box["piece"] for word in scene for box in word)
        assert spelt == "".join(f"▁{word}" for word in at.clean(text).split()), text
        for word in scene:
            for box in word:
                known = "whole" if len(word) == 1 else "part"
                assert box["kind"] == ("unknown" if box["id"] == at.UNKNOWN else known)


def bleu_of(engine, pairs: list[tuple[str, str]]) -> list[float]:
    """What the figure makes of pairs of a translation and its reference."""
    score = """pairs => pairs.map(([translation, reference]) =>
        bleu.sceneOf({ reference, translation }).bleu)"""
    return engine.evaluate(score, pairs)


def spoilt(text: str, chance: random.Random) -> str:
    """Some words of a text, dropped, doubled, moved or replaced."""
    words = text.split()
    for _ in range(chance.randrange(5)):
        at = chance.randrange(len(words))
        change = chance.choice(
            ([], [words[at]] * 2, ["dog,"], ["3.5-4,0"], ["it's"], ["a", "(b)"], ["<unk>"])
        )
        words[at : at + 1] = change
        words = words or ["a"]
        if chance.random() < 0.3:
            chance.shuffle(words)
    return " ".join(words)


def test_bleu_is_that_of_sacrebleu(engine, lines):
    chance = random.Random(1)
    pairs = [(spoilt(text, chance), spoilt(text, chance)) for text in lines]
    pairs += [(spoilt(text, chance), other) for text, other in itertools.pairwise(lines)]
    pairs = [(h.replace("<unk>", "x"), r) for h, r in pairs]
    metric = BLEU(tokenize="13a")
    pairs = [(h, r) for h, r in pairs if len(metric.tokenizer(r).split()) > 3]
    expected = [metric.corpus_score([h], [[r]]).score for h, r in pairs]
    assert len({round(score, 1) for score in expected}) > 100
    assert bleu_of(engine, pairs) == pytest.approx(expected, abs=1e-9)


def test_short_odd_and_unknown_texts_score_as_in_the_script(at, engine):
    chance = random.Random(2)
    words = ["a", "b", "c.", "<unk>", "d,e", "1.5", "...", "(x)", "don't", "-", "2-3", "5."]
    pairs = [
        tuple(" ".join(chance.choices(words, k=chance.randrange(7))) for _ in range(2))
        for _ in range(300)
    ]
    pairs += [(one, other) for one in ODD for other in ODD]
    expected = [at.corpus_bleu([h], [r])[0] for h, r in pairs]
    assert bleu_of(engine, pairs) == pytest.approx(expected, abs=1e-9)


@pytest.mark.long
def test_n_grams_that_match_are_those_that_sacrebleu_counts(engine, lines):
    chance = random.Random(3)
    pairs = [(spoilt(text, chance), text) for text in lines]
    pairs += [("the the the the", "the cat the mat")]
    for translation, reference in pairs:
        wish = {"translation": translation, "reference": reference}
        scene = engine.evaluate("wish => bleu.sceneOf(wish)", wish)
        counted = BLEU().corpus_score([translation.replace("<unk>", "\ufffd")], [[reference]])
        counts = [sum(gram["matches"] for gram in row) for row in scene["rows"]]
        assert (counts, [*map(len, scene["rows"])]) == (counted.counts, counted.totals)
        assert scene["lengths"] == [counted.ref_len, counted.sys_len]
        assert sum(gram["matches"] for gram in scene["wanted"]) == counted.counts[0]


# The figures --------------------------------------------------------------------------------------


def test_a_comment_that_asks_for_no_figure_is_refused(tmp_path):
    with pytest.raises(BuildError, match=r"figure: nothing.*moments, .*bleu"):
        page_of(tmp_path, "# Part\n\n<!-- figure: nothing -->\n\nAfter.")


@pytest.fixture
def tab(browser, figures_page):
    tab = watched(browser, figures_page)
    yield tab
    assert tab.faults == []


def box_texts(box) -> list[str]:
    """The subwords in sight, without their ids."""
    texts = box.locator("ol .box").evaluate_all("all => all.map((b) => b.firstChild.data)")
    return [text.strip() for text in texts]


def test_what_is_typed_is_cut_at_once(at, tab, shipped):
    box = figure(tab, "pieces")
    assert len(tab.asked) == 1, "nothing is asked for before the first touch"
    subwords = shipped.vocabularies[0]
    for text in ("Ein Schneeräumfahrzeug.", "日", ""):
        box.get_by_role("textbox").fill(text)
        [ids] = subwords.encode([text])
        box.get_by_role("status").get_by_text(re.compile(rf"^{len(ids)} subwords?\.$")).wait_for()
        names = [subwords.words[number] for number in ids]
        shown = box_texts(box)
        pairs = zip(shown, names, strict=True)
        assert all(name in (text, "<unk>") for text, name in pairs)
        assert [*map(int, box.locator("ol small").all_text_contents())] == ids
    assert [address.rsplit("/")[-1] for address in tab.asked] == ["page.html", "model.js"]


def test_examples_of_words_show_all_three_looks(tab):
    box = figure(tab, "pieces")
    seen = set()
    look = "all => all.map((b) => [getComputedStyle(b).borderStyle, b.className].join())"
    for button in box.get_by_role("button").all():
        button.click()
        field = box.get_by_role("textbox")
        assert field.input_value() == button.text_content()
        wanted = "▁" + button.text_content().replace(" ", "▁")
        tab.wait_for_function(
            """text => [...document.querySelectorAll("[data-play=pieces] ol .box")]
                .map((b) => b.firstChild.data).join("") === text""",
            arg=wanted,
        )
        seen |= {*box.locator("ol .box").evaluate_all(look)}
    assert len(seen) == len({each.split(",")[0] for each in seen}) == 3


def score_of(box) -> float:
    return float(box.locator(".result b").text_content())


def test_bleu_opens_with_the_example_of_the_text(at, tab):
    box = figure(tab, "bleu")
    result = box.get_by_role("status").text_content()
    assert "5/6 · 4/5 · 3/4 · 2/3" in result
    expected, _ = at.corpus_bleu(["A man is throwing a stone"], ["A man is throwing a log"])
    assert score_of(box) == pytest.approx(expected, abs=0.05)
    assert round(score_of(box)) == 76


@pytest.mark.parametrize("name", ["drop a word", "swap two words", "change a word"])
def test_a_button_spoils_the_reference_at_one_place_after_another(at, tab, name):
    box = figure(tab, "bleu")
    reference = "Two dogs play with a ball."
    box.get_by_label("Reference").fill(reference)
    words = reference.split()
    places = len(words) - (name == "swap two words")
    seen = []
    for _ in range(places):
        box.get_by_role("button", name=name).click()
        seen.append(box.get_by_label("Translation").input_value())
        expected, _ = at.corpus_bleu([seen[-1]], [reference])
        assert score_of(box) == pytest.approx(expected, abs=0.05)
        written = seen[-1].split()
        kept = sorted({*words} & {*written})
        if name == "swap two words":
            assert kept == sorted(words) and written != words
        else:
            assert len(kept) == len(words) - 1
            assert len(written) == len(words) - (name == "drop a word")
    assert len(set(seen)) == places
    box.get_by_role("button", name=name).click()
    assert box.get_by_label("Translation").input_value() == seen[0], "and from the start again"


def test_what_cannot_be_scored_is_explained(tab):
    box = figure(tab, "bleu")
    result = box.get_by_role("status")
    box.get_by_label("Translation").fill("")
    assert "No word matches" in result.text_content()
    box.get_by_label("Translation").fill("A man is")
    assert "no four words" in result.text_content()
    box.get_by_label("Translation").fill("A log is throwing a man")
    assert "half a match" in result.text_content()
    box.get_by_label("Reference").fill("A man")
    box.get_by_label("Translation").fill("A man is")
    assert "only shorter n-grams" in result.text_content()
    box.get_by_label("Reference").fill("")
    assert box.get_by_role("button", name="drop a word").get_attribute("aria-disabled") == "true"


def test_without_a_model_the_field_says_so(browser, figures_page, tmp_path):
    alone = tmp_path / "page.html"
    alone.write_bytes(figures_page.read_bytes())
    box = figure(watched(browser, alone), "pieces")
    before = box_texts(box)
    box.get_by_role("textbox").fill("Ein Hund")
    box.get_by_role("status").get_by_text("model.js").wait_for()
    assert box_texts(box) == before
