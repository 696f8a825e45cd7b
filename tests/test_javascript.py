"""JavaScript without a page: modules are joined, the player plays, the model is that of PyTorch."""

import contextlib
import functools
import itertools
import json
from pathlib import Path

import pytest
import quickjs
import torch
from conftest import PROJECT
from pages import engine_in

from tools.page import bundle, playable
from tools.page.markup import FIGURES

CAPTION = "Ein kleines Mädchen hebt einen roten Ball auf."
ODD = [
    "",
    "  Zwei  Hunde ",
    "Café „Zür ich“, naïve—ok?",
    "<s> ‿\x07 ▁a\u00a0b\u0085c\ufeff",
    "日本 🙂!",
    "u\u0308ber Cafe\u0301",  # as two characters each
]


def worth(context: quickjs.Context, expression: str):
    """The value of an expression, by way of JSON."""
    return json.loads(context.eval(f"JSON.stringify({expression})"))


# Joining modules ----------------------------------------------------------------------------------


def written(folder: Path, **modules: str) -> Path:
    """Write modules into files; returns the first, which imports the others."""
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, "utf-8")
    return folder / f"{next(iter(modules))}.js"


def joined(entry: Path) -> quickjs.Context:
    """A context in which the joined script has run; what it exports is in `joined`."""
    context = quickjs.Context()
    context.eval(bundle.bundle(entry, "joined"))
    return context


def test_each_module_runs_once_in_order_with_names_of_its_own(tmp_path):
    entry = written(
        tmp_path,
        main='import { one, two as second } from "./a.js";\nimport whole from "./b.js";\n'
        'import "./c.js";\nconst own = 4;\nexport const all = [one, second(), whole, own];\n',
        a="const own = 1;\nexport const one = own;\nexport function two() {\n  return 2;\n}\n",
        b='import { one } from "./a.js";\nexport default one + 2;\n',
        c='import { one } from "./a.js";\nglobalThis.ran = (globalThis.ran ?? 0) + one;\n',
    )
    assert worth(joined(entry), "[joined.all, ran]") == [[1, 2, 3, 4], 1]


def test_exports_at_the_end_of_a_packed_line_are_found(tmp_path):
    entry = written(
        tmp_path,
        main='import { a, c } from "./p.js";\nexport const x = a + c;\n',
        p="var n=1,t=2;function f(){}export{n as a,t as c};\n",
    )
    assert worth(joined(entry), "joined.x") == 3


def test_a_module_can_be_taken_as_the_text_of_a_script_that_stands_alone(tmp_path):
    entry = written(
        tmp_path,
        main='import script from "./worker.js" with { type: "text" };\nexport { script };\n',
        worker='import { one } from "./a.js";\nglobalThis.quoted = `"${one}"\n`;\n',
        a="export const one = 1;\n",
    )
    context = joined(entry)
    assert context.eval("globalThis.quoted") is None
    context.eval(context.eval("joined.script"))
    assert context.eval("quoted") == '"1"\n'


@pytest.mark.parametrize(
    "text, message",
    [
        ('import { b } from "./a.js";', r"main.js imports b, which ./a.js does not export"),
        ('import { a } from "./gone.js";', r"main.js imports .*gone.js, which does not exist"),
        ('import * as a from "./a.js";', r"main.js: cannot join 'import \* as a"),
        ('export * from "./a.js";', r"main.js: cannot join 'export \* from"),
        ('import { m } from "./main.js";\nexport const m = 1;', "import each other: main.js"),
    ],
)
def test_modules_that_cannot_be_joined_raise_an_error(tmp_path, text, message):
    entry = written(tmp_path, main=f"{text}\n", a="export const a = 1;\n")
    with pytest.raises(ValueError, match=message):
        bundle.bundle(entry)


# The player ---------------------------------------------------------------------------------------

PLAYING = """
const told = [];
const waits = [];
const clock = () => new Promise((tick) => waits.push(tick));
const player = new joined.Player(4, {
  at: 2, wait: clock, still: () => globalThis.motionless, changed: () => told.push(player.at),
});
"""


@pytest.mark.parametrize(
    "actions, expected",  # a "tick" is one of the clock; the step, whether it plays, steps told
    [
        (["player.step()"], [3, False, [3]]),
        (["player.back()", "player.back()"], [1, False, [1, 1]]),
        (["player.play()"], [2, True, [2]]),
        (["player.play()", "tick", "tick"], [4, False, [2, 3, 4, 4]]),
        (["player.play()", "tick", "player.pause()", "tick"], [3, False, [2, 3, 3]]),
        (["player.play()", "player.step()", "tick"], [3, False, [2, 3]]),
        (["player.play()", "player.play()", "tick"], [3, True, [2, 2, 3]]),
        (["player.show(4)", "player.play()"], [1, True, [4, 1]]),
        (["player.show(4)", "player.step()"], [1, False, [4, 1]]),
        (["player.show(9)", "player.show(0)"], [1, False, [4, 1]]),
        (["player.restart(2)", "player.show(9)"], [2, False, [1, 2]]),
        (["motionless = true", "player.play()"], [4, False, [4, 4]]),
    ],
)
def test_a_player_of_four_steps(actions, expected):
    context = joined(FIGURES / "lib/player.js")
    context.eval(PLAYING)
    for action in actions:
        context.eval("waits.splice(0).forEach((go) => go())" if action == "tick" else action)
        while context.execute_pending_job():
            pass
    assert worth(context, "[player.at, player.playing, told]") == expected


# The model, in the browser's engine: it is much faster than QuickJS -------------------------------

OPEN = "const { finish, Search } = stills; const search = finish(Search.opening(model, text));"
TRANSLATE = f"""([text, beam]) => {{ {OPEN}
    return model.decode(finish(search.translating(beam, 0.6)).written);
}}"""
LOG_PROBS = f"""(text) => {{ {OPEN}
    return [...search.greedy()].map((path) => [path.written, [...path.from.next.logProbs]]);
}}"""


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the shipped model and the map's functions, and no page."""
    tab = engine_in(chromium)
    tab.add_script_tag(content=bundle.bundle(FIGURES / "map.js", "map"))
    return tab


@pytest.fixture(scope="module")
def shipped(at):
    return at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))


@pytest.fixture(scope="module")
def texts(at) -> list[str]:
    return [*ODD, *(german for german, _ in at.builtin_corpus()["train"][:8])]


@pytest.mark.browser
def test_subwords_equal_those_of_python(at, engine, shipped, texts):
    ours = engine.evaluate("texts => texts.map((text) => model.encode(text))", texts)
    assert ours == [[*ids, at.END] for ids in shipped.vocabularies[0].encode(texts)]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1, 4])
def test_translations_equal_those_of_pytorch(at, engine, shipped, texts, width):
    search = functools.partial(at.beam_search, beam=width, alpha=0.6)
    ours = [engine.evaluate(TRANSLATE, [text, width]) for text in texts]
    assert ours == at.translate(shipped, texts, search)


@pytest.mark.browser
def test_log_probabilities_equal_those_of_pytorch(at, engine, shipped, texts):
    for text in texts[1:5]:  # an empty text is not translated by the script
        written, log_probs = zip(*engine.evaluate(LOG_PROBS, text), strict=True)
        [ids] = at.source_ids(shipped, [text])
        batch = at.Batch(torch.tensor([ids]), torch.tensor([[at.START, *written[-1]]]))
        with torch.no_grad():
            states = shipped.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
            theirs = shipped.model.generator(states)[0]
        torch.testing.assert_close(torch.tensor(log_probs), theirs, atol=1e-3, rtol=0)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1, 3])
def test_a_beam_grows_step_by_step_as_in_the_script(at, engine, shipped, width):
    [ids] = at.source_ids(shipped, [CAPTION])
    batch = at.Batch(torch.tensor([ids]))
    log_probs_after = at.log_probs_of(shipped.model, batch.src, batch.src_mask)
    steps = engine.evaluate(
        """([text, width]) => {
            const { finish, Search } = stills;
            const search = finish(Search.opening(model, text));
            return [...search.beam(width, 0.6)].map((paths) =>
                paths.map(({ logp, written }) => [logp, written]));
        }""",
        [CAPTION, width],
    )
    hypotheses = [(0.0, [at.START])]
    for ours in steps:
        with torch.no_grad():
            hypotheses = at.grow(hypotheses, log_probs_after, width)
        theirs = {tuple(ids[1:]): logp for logp, ids in hypotheses}
        assert {tuple(ids): logp for logp, ids in ours} == pytest.approx(theirs, abs=1e-3)


class Looked:
    """What PyTorch's modules compute of a caption and its translation."""

    def __init__(self, at, translator, written: list[str]) -> None:
        self.model = translator.model
        self.words = translator.vocabularies[0].words
        [src] = translator.vocabularies[0].encode([CAPTION])
        tgt = torch.tensor([[at.START, *(self.words.index(word) for word in written[:-1])]])
        src = torch.tensor([[*src, at.END]])
        self.seen: dict[str, list] = {}
        for name, module in self.model.named_modules():
            module.register_forward_hook(functools.partial(self.keep, name))
        with torch.no_grad():
            everything = torch.ones(1, 1, src.size(1), dtype=torch.bool)
            self.model(src, tgt, everything, at.subsequent_mask(tgt.size(1)))

    def keep(self, name: str, _, given, result) -> None:
        self.seen.setdefault(name, []).append((given and given[0], result))

    def lens(self, side: str, name: str, position: int, added: bool = False) -> dict[str, float]:
        """The five likeliest subwords of a module's result, or of what it adds."""
        given, result = self.seen[name][0 if side == "encoder" else -1]
        with torch.no_grad():
            normed = getattr(self.model, side).norm(result - given if added else result)
            best = self.model.generator(normed)[0, position].exp().topk(5)
        words = [self.words[number] for number in best.indices]
        return dict(zip(words, best.values.tolist(), strict=True))

    def weights(self, name: str, position: int) -> list[list[float]]:
        """The weights of a position, by head."""
        return self.model.get_submodule(name).attn[0, :, position].tolist()


def scene(engine, place: str, layer: int = 0, position: int = 0) -> dict:
    """All that the map shows of a place."""
    side = place.split()[0]
    wish = {"text": CAPTION, "place": place, "layer": layer, "encoder": 0, "decoder": 0}
    look = "wish => stills.finish(map.sceneOf(model, wish))"
    return engine.evaluate(look, wish | {side: position})


@pytest.fixture(scope="module")
def looked(at, engine):
    """What PyTorch computes of the caption and of the translation that the map shows."""
    written = scene(engine, "decoder final")["pieces"]["written"]
    return Looked(at, at.load_trained_model(PROJECT / "pretrained", torch.device("cpu")), written)


PLACES = [  # a box of the map, layer, position, and the module that computes what it shows
    ("encoder embedding", 0, 2, "src_embed.0"),
    ("decoder positions", 0, 4, "tgt_embed"),
    ("encoder attention", 0, 6, "encoder.layers.0.sublayer.0"),
    ("encoder memory", 2, 9, "encoder.layers.2.sublayer.1"),
    ("decoder attention norm", 2, 5, "decoder.layers.2.sublayer.0.norm"),
    ("decoder cross", 1, 7, "decoder.layers.1.sublayer.1"),
    ("decoder cross sum", 1, 7, "decoder.layers.1.sublayer.1"),
    ("decoder feed-forward", 2, 3, "decoder.layers.2.sublayer.2"),
    ("decoder generator", 0, 3, "decoder.layers.2.sublayer.2"),
]


@pytest.mark.browser
@pytest.mark.parametrize("place, layer, position, name", PLACES)
def test_the_logit_lens_equals_that_of_pytorch(engine, looked, place, layer, position, name):
    side, part, *kind = place.split()
    added = not kind and part in ("attention", "cross", "feed-forward")
    ours = {each["piece"]: each["share"] for each in scene(engine, place, layer, position)["says"]}
    assert ours == pytest.approx(looked.lens(side, name, position, added), abs=1e-3)


@pytest.mark.browser
@pytest.mark.parametrize(
    "place, name",
    [
        ("encoder attention", "encoder.layers.{}.self_attn"),
        ("decoder attention", "decoder.layers.{}.self_attn"),
        ("decoder cross", "decoder.layers.{}.src_attn"),
    ],
)
def test_attention_weights_equal_those_of_pytorch(engine, looked, place, name):
    for layer, position in itertools.product(range(3), (0, 3, 8)):
        ours = scene(engine, place, layer, position)["weights"]
        theirs = looked.weights(name.format(layer), position)
        for row, expected in zip(ours, theirs, strict=True):
            assert row == pytest.approx(expected[: len(row)], abs=1e-3)
            assert sum(expected[len(row) :]) == 0, "later positions are masked"


# Parts switched off -------------------------------------------------------------------------------

CUTS = [
    ["encoder attention 0"],
    ["encoder feed-forward 1"],
    ["decoder attention 2"],
    ["decoder cross 2"],
    ["decoder feed-forward 0"],
    ["encoder attention 1 head 2"],
    ["decoder attention 0 head 0"],
    ["decoder cross 1 head 1"],
    ["mask"],
    ["positions"],
    ["decoder cross 0", "encoder attention 2 head 0", "mask", "positions"],
]
LENGTH = 24  # tokens of a translation, which may find no end
PARTS = {"attention": "self_attn", "cross": "src_attn", "feed-forward": "feed_forward"}
GREEDY_WITHOUT = """([texts, cuts, most]) => texts.map((text) => {
    const { written, from } = stills.finish(unplug.greedyWithout(model, text, cuts, most));
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
        elif cut != "mask":
            side, part, layer, *head = cut.split()
            module = getattr(getattr(model, side).layers[int(layer)], PARTS[part])
            if head:
                output = module.linears[-1].weight
                kept.append((output, output.clone()))
                width = len(output) // module.h
                output[:, int(head[1]) * width : (int(head[1]) + 1) * width] = 0
            else:
                hooks.append(module.register_forward_hook(lambda *given: given[-1] * 0))
    yield
    for hook in hooks:
        hook.remove()
    for tensor, before in kept:
        tensor.copy_(before)


def log_probs_without(at, model, ids: list[int], read: list[int], cuts: list[str]) -> torch.Tensor:
    """Log-probabilities of the symbol after each prefix of what was read: (T, V)."""
    seen = torch.ones(1, 1, len(ids), dtype=torch.bool)
    tgt = torch.tensor([read])
    memory = model.encode(torch.tensor([ids]), seen)
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


@pytest.mark.browser
@pytest.mark.parametrize("cuts", CUTS, ids="+".join)
def test_a_part_switched_off_is_as_in_pytorch(at, engine, shipped, captions, cuts):
    engine.add_script_tag(content=bundle.bundle(FIGURES / "model/unplug.js", "unplug"))
    ours = engine.evaluate(GREEDY_WITHOUT, [captions, cuts, LENGTH])
    with torch.no_grad(), switched_off(shipped.model, cuts):
        sources = at.source_ids(shipped, captions)
        for ids, (written, steps) in zip(sources, ours, strict=True):
            read = [at.START, *written[:-1]]
            theirs = log_probs_without(at, shipped.model, ids, read, cuts)
            for row, token, likely in zip(theirs, written, steps, strict=True):
                numbers, log_probs = zip(*likely, strict=True)
                there = row[list(numbers)]
                torch.testing.assert_close(torch.tensor(log_probs), there, atol=1e-3, rtol=0)
                assert row[token] > row.max() - 1e-3


@pytest.mark.browser
def test_a_model_with_parts_switched_off_leaves_the_model_as_it_was(at, engine, shipped, texts):
    engine.add_script_tag(content=bundle.bundle(FIGURES / "model/unplug.js", "unplug"))
    every = [cut for cuts in CUTS for cut in cuts]
    greedy = "stills.finish(unplug.greedyWithout(model, text, [], 80))"
    translate = f"([text]) => model.decode({greedy}.written)"
    before = engine.evaluate(translate, [CAPTION])
    engine.evaluate(GREEDY_WITHOUT, [[CAPTION], every, LENGTH])
    assert engine.evaluate(translate, [CAPTION]) == before
    search = functools.partial(at.beam_search, beam=1, alpha=0.6)
    assert [before] == at.translate(shipped, [CAPTION], search)


@pytest.mark.browser
def test_the_build_draws_what_the_browser_draws(engine):
    """QuickJS computes the pictures that the page is built with."""
    drawn = playable.still("translator")["html"]
    assert drawn == engine.evaluate("stills.still(model, 'translator', null).html")
