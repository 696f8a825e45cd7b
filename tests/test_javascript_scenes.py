"""What the map and the maps of Part 9 show equals what PyTorch's modules compute."""

import functools
import itertools

import pytest
import torch
from conftest import PROJECT
from pages import CAPTION, engine_in

from tools.page import bundle
from tools.page.markup import FIGURES


@pytest.fixture(scope="module")
def engine(chromium):
    """A window with the shipped model, and no page."""
    tab = engine_in(chromium)
    tab.add_script_tag(content=bundle.bundle(FIGURES / "model-map.js", "map"))
    tab.add_script_tag(content=bundle.bundle(FIGURES / "attention-maps/scene.js", "maps"))
    return tab


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

    def vector(self, side: str, name: str, position: int, added: bool = False) -> torch.Tensor:
        """A module's result at a position, or what it adds to what it was given."""
        given, result = self.seen[name][0 if side == "encoder" else -1]
        return (result - given if added else result)[0, position]

    def weights(self, name: str, position: int) -> list[list[float]]:
        """The weights of a position, by head."""
        return self.model.get_submodule(name).attn[0, :, position].tolist()


def scene(engine, place: str, layer: int = 0, position: int = 0, cuts: tuple = ()) -> dict:
    """All that the map shows of a place."""
    side = place.split()[0]
    choice = {
        "text": CAPTION,
        "place": place,
        "layer": layer,
        "encoder": 0,
        "decoder": 0,
        "cuts": cuts,
    }
    look = "choice => stills.finish(map.sceneOf(model, choice))"
    return engine.evaluate(look, choice | {side: position})


@pytest.fixture(scope="module")
def looked(at, engine):
    """What PyTorch computes of the caption and of the translation that the map shows."""
    written = scene(engine, "decoder final")["pieces"]["written"]
    return Looked(at, at.load_trained_model(PROJECT / "pretrained", torch.device("cpu")), written)


PLACES = [  # a box of the map, layer, position, and the module that computes what it shows
    ("encoder embedding", 0, 2, "src_embed.0"),
    ("decoder positions", 0, 4, "tgt_embed"),
    ("encoder attention", 0, 6, "encoder.layers.0.sublayer.0"),
    ("encoder memory", 2, 9, "encoder.norm"),
    ("decoder attention norm", 2, 5, "decoder.layers.2.sublayer.0.norm"),
    ("decoder cross", 1, 7, "decoder.layers.1.sublayer.1"),
    ("decoder cross sum", 1, 7, "decoder.layers.1.sublayer.1"),
    ("decoder feed-forward", 2, 3, "decoder.layers.2.sublayer.2"),
    ("decoder final", 0, 3, "decoder.norm"),
]


@pytest.mark.parametrize("place, layer, position, name", PLACES)
def test_the_vector_of_a_box_is_that_of_pytorch(engine, looked, place, layer, position, name):
    side, part, *kind = place.split()
    added = not kind and part in ("attention", "cross", "feed-forward")
    ours = scene(engine, place, layer, position)["strip"]
    expected = looked.vector(side, name, position, added)
    assert ours["length"] == pytest.approx(expected.norm().item(), abs=0.06)
    assert ours["largest"] == pytest.approx(expected.abs().max().item(), abs=0.06)
    assert [shade > 0 for shade in ours["shades"]] == (expected > 0).tolist()


def test_the_generator_says_what_pytorchs_says(engine, looked):
    ours = {
        each["piece"]: each["share"] for each in scene(engine, "decoder generator", 0, 3)["says"]
    }
    state = looked.vector("decoder", "decoder.norm", 3)
    with torch.no_grad():
        best = looked.model.generator(state).exp().topk(5)
    words = [looked.words[number] for number in best.indices]
    expected = dict(zip(words, best.values.tolist(), strict=True))
    assert ours == pytest.approx(expected, abs=1e-3)


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


def test_the_boxes_of_a_model_with_parts_unplugged_are_those_of_pytorch(at, engine):
    cuts = ("encoder attention", "decoder feed-forward")
    translator = at.load_trained_model(PROJECT / "pretrained", torch.device("cpu"))
    for layer in translator.model.encoder.layers:
        layer.self_attn.register_forward_hook(lambda *given: given[-1] * 0)
    for layer in translator.model.decoder.layers:
        layer.feed_forward.register_forward_hook(lambda *given: given[-1] * 0)
    looked = Looked(at, translator, scene(engine, "decoder final", cuts=cuts)["pieces"]["written"])
    for place, name in (("encoder memory", "encoder.norm"), ("decoder final", "decoder.norm")):
        ours = scene(engine, place, 0, 3, cuts)["strip"]
        expected = looked.vector(place.split()[0], name, 3)
        assert ours["largest"] == pytest.approx(expected.abs().max().item(), abs=0.06)
        assert [shade > 0 for shade in ours["shades"]] == (expected > 0).tolist()


# All maps of a sentence ---------------------------------------------------------------------------

SENTENCES = [CAPTION, "Zwei Hunde.", "Eine Frau, die ein rotes Kleid trägt, tanzt im Weltraum."]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_all_maps_equal_those_of_the_script(at, engine, shipped, sentence):
    scene = engine.evaluate("text => stills.finish(maps.sceneOf(model, { text }))", sentence)
    kinds = {
        "cross-attention": "cross",
        "encoder self-attention": "encoder",
        "decoder self-attention": "decoder",
    }
    theirs = at.attention_maps(shipped, sentence)
    assert len(theirs) == sum(len(layers) * len(layers[0]) for layers in scene["maps"].values())
    for row in theirs.itertuples():
        layer = scene["maps"][kinds[row.attention]][int(row.layer) - 1]
        ours = layer[-1 if row.head == "mean" else int(row.head) - 1]
        width = len(row.keys)
        assert [len(ours), max(map(len, ours))] == [len(row.queries), width]
        padded = [weight for line in ours for weight in line + [0] * (width - len(line))]
        assert padded == pytest.approx(row.weights, abs=1)
    assert scene["translation"] == at.translate(shipped, [sentence], at.beam_search)[0]
    assert scene["greedy"] == at.translate(shipped, [sentence])[0]


def test_a_sentence_that_finds_no_end_has_maps_and_a_hint(engine):
    scene = engine.evaluate("text => stills.finish(maps.sceneOf(model, { text }))", "ab" * 40)
    rows = len(scene["sides"]["cross"]["queries"])
    assert str(rows) in scene["hint"]
    assert len(scene["maps"]["cross"][0][0]) == rows
