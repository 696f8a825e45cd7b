"""The model in JavaScript is that of PyTorch, whole or with parts switched off.

The browser's engine computes it, much faster than QuickJS.
"""

import contextlib
import functools

import pytest
import torch
from pages import CAPTION, engine_in

from tools.page import bundle, playable
from tools.page.markup import FIGURES

ODD = [
    "",
    "  Zwei  Hunde ",
    "Café „Zür ich“, naïve—ok?",
    "<s> ‿\x07 ▁a\u00a0b\u0085c\ufeff",
    "Mäd\xadchen\u200e, Schnee\u2060ball\u202c \ufeffHund",  # nobody sees these
    "Ein\u200bHund a\xad\u0308 \x9b?",  # a space, and a letter in three characters
    "Hu\u200cnd \U0001f469\u200d\U0001f680 lacht",  # joiners stay
    "日本 🙂!",
    "u\u0308ber Cafe\u0301",  # as two characters each
]
OPEN = "const { finish, Search } = stills; const search = finish(Search.opening(model, text));"
TRANSLATE = f"""([text, beam]) => {{ {OPEN}
    return model.decode(finish(search.translating(beam, 0.6)).written);
}}"""
LOG_PROBS = f"""(text) => {{ {OPEN}
    return [...search.greedy()].map((path) => [path.written, [...path.from.next.logProbs]]);
}}"""


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the shipped model, and no page."""
    tab = engine_in(chromium)
    tab.add_script_tag(content=bundle.bundle(FIGURES / "model/unplug.js", "unplug"))
    return tab


@pytest.fixture(scope="module")
def texts(at) -> list[str]:
    return [*ODD, *(german for german, _ in at.builtin_corpus()["train"][:8])]


def test_subwords_equal_those_of_python(at, engine, shipped, texts):
    texts = [*texts, *(f"Hu{chr(number)}nd" for number in range(0x3100))]
    ours = engine.evaluate("texts => texts.map((text) => model.encode(text))", texts)
    assert ours == [[*ids, at.END] for ids in shipped.vocabularies[0].encode(texts)]


@pytest.mark.parametrize("width", [1, 4])
def test_translations_equal_those_of_pytorch(at, engine, shipped, texts, width):
    search = functools.partial(at.beam_search, beam=width, alpha=0.6)
    texts = texts[1:]  # an empty text is not translated by the script
    ours = [engine.evaluate(TRANSLATE, [text, width]) for text in texts]
    assert ours == at.translate(shipped, texts, search)


def test_log_probabilities_equal_those_of_pytorch(at, engine, shipped, texts):
    for text in texts[1:5]:  # an empty text is not translated by the script
        written, log_probs = zip(*engine.evaluate(LOG_PROBS, text), strict=True)
        src = at.source_batch(shipped, [text]).src
        batch = at.Batch(src, torch.tensor([[at.START, *written[-1]]]))
        with torch.no_grad():
            states = shipped.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            theirs = shipped.model.generator(states)[0]
        torch.testing.assert_close(torch.tensor(log_probs), theirs, atol=1e-3, rtol=0)


@pytest.mark.parametrize("width", [1, 3])
def test_a_beam_grows_step_by_step_as_in_the_script(at, engine, shipped, width):
    batch = at.source_batch(shipped, [CAPTION])
    log_probs_after = at.log_probs_of(shipped.model, batch.src, batch.src_mask)
    steps = engine.evaluate(
        """([text, width]) => {
            const { finish, Search } = stills;
            const search = finish(Search.opening(model, text));
            const steps = [...search.beam(width, 0.6)];
            return steps.map(({ paths }) => paths.map(({ logp, written }) => [logp, written]));
        }""",
        [CAPTION, width],
    )
    hypotheses = [(0.0, [at.START])]
    for kept in steps:
        with torch.no_grad():
            hypotheses = at.grow(hypotheses, log_probs_after, width)
        theirs = {tuple(ids[1:]): logp for logp, ids in hypotheses}
        assert {tuple(ids): logp for logp, ids in kept} == pytest.approx(theirs, abs=1e-3)


# Parts switched off -------------------------------------------------------------------------------

CUTS = [
    ["encoder attention"],
    ["encoder feed-forward"],
    ["decoder attention"],
    ["decoder cross"],
    ["decoder feed-forward"],
    ["mask"],
    ["positions"],
    ["source 1", "source 4"],
    ["source 2", "decoder feed-forward", "mask"],
    ["decoder cross", "encoder attention", "mask", "positions"],
]
LENGTH = 24  # tokens of a translation, which may find no end
PARTS = {"attention": "self_attn", "cross": "src_attn", "feed-forward": "feed_forward"}
GREEDY_WITHOUT = """([texts, cuts, most]) => texts.map((text) => {
    const { finish, Search } = stills;
    const search = finish(Search.opening(unplug.unplugged(model, cuts), text));
    let last = null;
    for (last of search.greedy()) if (last.written.length >= most) break;
    const { written, from } = last;
    const steps = [];
    for (let path = from; path; path = path.from)
        steps.unshift([...path.next.logProbs.keys()].filter((id) => path.next.logProbs[id] > -7)
            .map((id) => [id, path.next.logProbs[id]]));
    return [written, steps];
})"""


@contextlib.contextmanager
def switched_off(model, cuts: list[str]):
    """The model of PyTorch with the same parts switched off; afterwards it is as before."""
    hooks, kept = [], []
    for cut in cuts:
        if cut == "positions":
            waves = [model.src_embed[1].pe, model.tgt_embed[1].pe]
            kept += [(each, each.clone()) for each in waves]
            [each.zero_() for each in waves]
        elif cut != "mask" and not cut.startswith("source"):
            side, part = cut.split()
            for layer in getattr(model, side).layers:
                module = getattr(layer, PARTS[part])
                hooks.append(module.register_forward_hook(lambda *given: given[-1] * 0))
    yield
    for hook in hooks:
        hook.remove()
    for tensor, before in kept:
        tensor.copy_(before)


def log_probs_without(at, model, src, read: list[int], cuts: list[str]) -> torch.Tensor:
    """Log-probabilities of the symbol after each prefix of what was read: (T, V)."""
    seen = torch.ones(1, *src.shape, dtype=torch.bool)
    seen[..., [int(cut.split()[1]) for cut in cuts if cut.startswith("source")]] = False
    tgt = torch.tensor([read])
    memory = model.encode(src, seen)
    if "mask" not in cuts:
        return model.generator(model.decode(memory, seen, tgt, at.subsequent_mask(len(read))))[0]
    prefixes = [tgt[:, : number + 1] for number in range(len(read))]
    opened = [torch.ones(1, each.size(1), each.size(1), dtype=torch.bool) for each in prefixes]
    states = [
        model.decode(memory, seen, *each)[:, -1] for each in zip(prefixes, opened, strict=True)
    ]
    return model.generator(torch.cat(states))


@pytest.fixture(scope="module")
def captions(at) -> list[str]:
    return [german for german, _ in at.builtin_corpus()["train"][:20]]


@pytest.mark.parametrize("cuts", CUTS, ids="+".join)
def test_a_part_switched_off_is_as_in_pytorch(at, engine, shipped, captions, cuts):
    ours = engine.evaluate(GREEDY_WITHOUT, [captions, cuts, LENGTH])
    with torch.no_grad(), switched_off(shipped.model, cuts):
        for caption, (written, steps) in zip(captions, ours, strict=True):
            src = at.source_batch(shipped, [caption]).src
            read = [at.START, *written[:-1]]
            theirs = log_probs_without(at, shipped.model, src, read, cuts)
            for row, token, likely in zip(theirs, written, steps, strict=True):
                numbers, log_probs = zip(*likely, strict=True)
                there = row[list(numbers)]
                torch.testing.assert_close(torch.tensor(log_probs), there, atol=1e-3, rtol=0)
                assert row[token] > row.max() - 1e-3


def test_a_model_with_parts_switched_off_leaves_the_model_as_it_was(at, engine, shipped, texts):
    every = [cut for cuts in CUTS for cut in cuts]
    before = engine.evaluate(TRANSLATE, [CAPTION, 1])
    engine.evaluate(GREEDY_WITHOUT, [[CAPTION], every, LENGTH])
    assert engine.evaluate(TRANSLATE, [CAPTION, 1]) == before
    search = functools.partial(at.beam_search, beam=1, alpha=0.6)
    assert [before] == at.translate(shipped, [CAPTION], search)


@pytest.mark.parametrize("name", ["sampling", pytest.param("translator", marks=pytest.mark.slow)])
def test_the_build_draws_what_the_browser_draws(engine, name):
    """QuickJS computes the pictures that the page is built with, and answers to first touches."""
    assert playable.still(name, {}) == engine.evaluate(
        "name => stills.still(model, name, {})", name
    )
