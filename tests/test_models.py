"""Models of earlier versions become models of this one; models are rounded to int8."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import the_annotated_transformer as at
from the_annotated_transformer import END, SPECIALS, START, Batch
from tools import models

S = 11
T = 13
HEADS = 3


class OlderNorm(nn.Module):
    """The norm of 2018 and 2022: it divides by the deviation over D - 1."""

    def __init__(self, features: int):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(x, dim=-1, unbiased=True, keepdim=True)
        return self.a_2 * (x - mean) / (deviation + 1e-6) + self.b_2


class OlderFeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int, dropout: float):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.w_1(x).relu())


@pytest.fixture(autouse=True)
def older_parts(monkeypatch):
    monkeypatch.setitem(at.NORM, "older", OlderNorm)
    monkeypatch.setitem(at.FEED_FORWARD, "older", OlderFeedForward)


def older_model(h: int = HEADS) -> at.EncoderDecoder:
    """Random weights under the names, and in the shapes, of the older code."""
    torch.manual_seed(0)
    model = at.make_model(S, T, 2, 12, 20, h, norm="older", feed_forward="older")
    return at.draw_weights(model).eval()


def older_state(model: at.EncoderDecoder | None = None) -> dict[str, Tensor]:
    """The state dict of an older model, which held its sinusoids."""
    model = model or older_model()
    return model.state_dict() | {
        f"{side}_embed.1.pe": model.src_embed[1].pe for side in ("src", "tgt")
    }


def some_batch() -> Batch:
    """Two pairs of unequal lengths, so that both sides have padding."""
    src = torch.randint(3, S, (2, 6))
    tgt = torch.randint(3, T, (2, 7))
    src[0, 4:] = tgt[1, 3:] = at.PAD
    return Batch(src, tgt)


def log_probs(model: torch.nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model.generator(model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask))


def some_words() -> dict[str, list[str]]:
    words = {"source": range(4, S), "target": range(4, T)}
    return {side: [*SPECIALS, *(f"{side}{n}" for n in words[side])] for side in words}


def convert(source: Path, heads: int = 8, words: Path | None = None) -> at.Translator:
    """The model that the command line writes beside the source."""
    folder = source.parent / "model"
    shutil.rmtree(folder, ignore_errors=True)
    at.save_model(models.convert(source, heads, words, "fr-en"), folder)
    return at.load_trained_model(folder)


def converted(folder: Path, state: object, words: object = None, h: int = HEADS, **how):
    """A state dict as a file, and the words as another, made into a model of this edition."""
    torch.save(state, folder / "older.pt", **how)
    (folder / "words.json").write_text(json.dumps(words or some_words()))
    return convert(folder / "older.pt", h, folder / "words.json")


def refused(folder: Path, state: object, *more, **how) -> str:
    """The error, which names the files."""
    with pytest.raises(ValueError, match=r"older\.pt with .*words\.json is no older") as caught:
        converted(folder, state, *more, **how)
    return str(caught.value)


@pytest.mark.parametrize("h, zipped", [(6, True), (2, False)], ids=["2022", "2018"])
def test_the_same_log_probabilities(h, zipped, tmp_path):
    """In both formats of a file: 2018 wrote no zip."""
    older = older_model(h)
    batch = some_batch()
    state = older_state(older)
    translator = converted(tmp_path, state, None, h, _use_new_zipfile_serialization=zipped)
    ours = log_probs(translator.model, batch)
    torch.testing.assert_close(ours, log_probs(older, batch), atol=1e-4, rtol=0)
    assert (translator.name, translator.languages) == ("older", ("fr", "en"))
    source, target = (list(one.words) for one in translator.vocabularies)
    assert {"source": source[:S], "target": target} == some_words()


def test_the_special_symbols_of_2018_find_their_places(tmp_path):
    """<unk> and <blank> came first, and the source had neither start nor end."""
    older = older_model()
    words = some_words()
    words["source"][:4] = ["<unk>", "<blank>", "one", "two"]
    words["target"][:4] = ["<unk>", "<blank>", "<s>", "</s>"]
    translator = converted(tmp_path, older_state(older), words)
    source, target = (one.words for one in translator.vocabularies)
    assert source[:4] == target[:4] == SPECIALS
    assert translator.model.src_embed[0].lut.weight[[START, END]].eq(0).all()
    src = torch.tensor([[4, 8, 0], [7, 1, 1]])
    tgt = torch.tensor([[2, 4, 0, 8, 3]] * 2)
    new_source = torch.tensor([source.index(word) for word in words["source"]])
    new_target = torch.tensor([target.index(word) for word in words["target"]])
    ours = log_probs(translator.model, Batch(new_source[src], new_target[tgt]))
    expected = log_probs(older, Batch(src, tgt, pad=1))
    torch.testing.assert_close(ours[..., new_target], expected, atol=1e-4, rtol=0)


def test_a_word_may_follow_without_a_space(tmp_path):
    """2022 knew no mark for it: a source word is the same with and without one."""
    state = {name: tensor.half() for name, tensor in older_state().items()}
    words = some_words()
    words["source"][4:7] = ["Hund", ".", ")"]
    words["target"][4:8] = ["It", "'s", "on", "."]
    translator = converted(tmp_path, state, words)
    source, target = translator.vocabularies
    (ids,) = source.encode(["Hund (Hund)."], "de")
    matrix = translator.model.src_embed[0].lut.weight
    assert torch.equal(matrix[ids], state["src_embed.0.lut.weight"][[4, 3, 4, 6, 5]].float())
    assert target.decode([4, 5, 6, 7, END]) == "It's on."


def test_weights_that_do_not_fit_are_named(tmp_path):
    state = older_state()
    wrong = state | {"encoder.norm.a_2": torch.ones(1)}
    assert "size mismatch for encoder.norm.weight" in refused(tmp_path, wrong)
    assert "KeyError: 'src_embed.0.lut.weight'" in refused(tmp_path, {"model": state})
    assert "KeyError: 'src_embed.1.pe'" in refused(tmp_path, at.tiny_model().state_dict())
    del state["decoder.norm.b_2"]
    assert 'Missing key(s) in state_dict: "decoder.norm.bias"' in refused(tmp_path, state)


def test_words_and_heads_that_do_not_fit_are_refused(tmp_path):
    state = older_state()
    words = some_words()
    for side in words:
        for wrong in (words[side][:-1], [*words[side], "more"], [*words[side][:-1], SPECIALS[0]]):
            message = refused(tmp_path, state, words | {side: wrong})
            assert f"needs one {side} word for each row, all different" in message
    assert "KeyError: 'target'" in refused(tmp_path, state, {"source": words["source"]})
    assert "must be divisible by h (5)" in refused(tmp_path, state, words, 5)
    with pytest.raises(ValueError, match=r"older\.pt is no older .*name them by --words"):
        convert(tmp_path / "older.pt")


def test_a_pickled_model_is_not_loaded(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return print, ("executed",)

    for content in (Trap(), {"encoder.norm.a_2": Trap()}):
        for zipped in (True, False):
            message = refused(tmp_path, content, _use_new_zipfile_serialization=zipped)
            assert "whole pickled model" in message
    assert "whole pickled model" in refused(tmp_path, at.tiny_model())
    assert "executed" not in capsys.readouterr().out


def test_damage_to_a_state_dict_is_noticed(tmp_path):
    state = older_state()
    path = tmp_path / "older.pt"
    torch.save(state, path)
    good = path.read_bytes()
    place = good.index(state["encoder.norm.a_2"].numpy().tobytes())
    flipped = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
    for bad in (b"", good[:place], good[:-1], flipped):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"older\.pt is no .* damaged"):
            convert(path)


# The third edition --------------------------------------------------------------------------------


def toy(vocab_size: int = 60, **changes) -> at.Translator:
    """An untrained model of words (0) or subwords; all its weights are drawn at random."""
    corpus = at.read_builtin()
    learn = at.learn_subwords if vocab_size else lambda corpus, _: at.learn_words(corpus)
    vocabularies = learn(corpus, vocab_size)
    torch.manual_seed(0)
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 4, "max_len": 32} | changes
    model = at.draw_weights(at.make_model(*map(len, vocabularies), **sizes).eval())
    return at.Translator("toy", model, corpus.name, corpus.languages, vocabularies)


def assert_same_facts(one: at.Translator, other: at.Translator) -> None:
    """All that two models have, but for their weights."""
    parts = {"model": None, "vocabularies": None}
    assert dataclasses.replace(one, **parts) == dataclasses.replace(other, **parts)
    for ours, theirs in zip(one.vocabularies, other.vocabularies, strict=True):
        assert type(ours) is type(theirs)
        assert ours.words == theirs.words


CLASSES = {  # of the third edition, by the kinds of this one
    "plain": "MultiHeadedAttention", "grouped": "GroupedAttention(groups=2)",
    "relu": "PositionwiseFeedForward", "swiglu": "SwiGLU",
    "layer": "LayerNorm", "rms": "RMSNorm",
    "sinusoids": "PositionalEncoding", "learnt": "LearntPositions", "none": "NoPositions",
}  # fmt: skip


def third_edition(translator: at.Translator, folder: Path, int8: bool = False, **changes) -> Path:
    """A model in a folder as the third edition wrote it; `changes` are of its config.json."""
    at.save_model(translator, folder, int8)
    about = json.loads((folder / "config.json").read_bytes())
    about["kind"] = "make_model"
    del about["longest"]
    for name in ("tie_output", "encoder_layer", "decoder_layer"):  # new in this edition
        del about["model"][name]
    for name in ("attention", "feed_forward", "norm", "positions"):
        kind = about["model"][name]
        about["model"][name] = CLASSES.get(kind, kind)
    about["model"] |= changes
    (folder / "config.json").write_text(json.dumps(about))
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "norm" in name:
            name = name.replace("norm.weight", "norm.scale").replace("norm.bias", "norm.shift")
        weights[name] = tensor
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"share_embeddings": True},
        {"vocab_size": 0, "norm_first": False, "bias": False},
        {"feed_forward": "swiglu", "norm": "rms", "positions": "learnt"},
        {"positions": "none"},
    ],
    ids=["subwords", "words", "today", "none"],
)
def test_a_folder_of_the_third_edition_gives_the_same_model(tmp_path, changes, int8):
    ours = toy(**changes)
    at.save_model(ours, tmp_path / "ours", int8)
    expected = at.load_trained_model(tmp_path / "ours")
    found = convert(third_edition(ours, tmp_path / "third", int8))
    assert_same_facts(found, expected)
    assert found.model.arguments == expected.model.arguments
    for name, value in expected.model.named_parameters():
        assert torch.equal(found.model.get_parameter(name), value), name


def test_groups_of_the_third_edition_were_in_cross_attention_too(tmp_path):
    """Heads shared keys and values there; now each has a copy."""
    folder = third_edition(toy(attention="grouped"), tmp_path / "third")
    path = folder / "model.safetensors"
    weights = load_file(path)
    for number, kind in itertools.product((1, 2), ("weight", "bias")):
        name = f"decoder.layers.0.src_attn.linears.{number}.{kind}"
        weights[name] = weights[name][:8].clone()  # two heads of width four
    save_file(weights, path)
    model = convert(folder).model
    grouped = at.GroupedAttention(4, 16)
    prefix = "decoder.layers.0.src_attn."
    own = {name: value for name, value in weights.items() if name.startswith(prefix)}
    grouped.load_state_dict({name.removeprefix(prefix): own[name] for name in own})
    x = torch.randn(2, 3, 16)
    memory = torch.randn(2, 5, 16)
    cross = model.decoder.layers[0].src_attn
    torch.testing.assert_close(cross.eval()(x, memory, memory), grouped.eval()(x, memory, memory))
    assert type(model.decoder.layers[0].self_attn) is at.GroupedAttention


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "RotaryAttention"}, "cross-attention is rotary too"),
        ({"attention": "RotaryGroupedAttention(groups=2)"}, "cross-attention is rotary too"),
        ({"attention": "Mine"}, r'ATTENTION\["Mine"\] = YourClass'),
        ({"d_ff": 33}, "do not fit"),
    ],
)
def test_a_folder_that_makes_no_model_is_refused(tmp_path, changes, message):
    folder = third_edition(toy(), tmp_path / "third", **changes)
    with pytest.raises(ValueError, match=message):
        convert(folder)


def test_a_language_model_and_an_empty_folder_are_refused(tmp_path):
    folder = third_edition(toy(), tmp_path / "third")
    about = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(about | {"kind": "LanguageModel"}))
    with pytest.raises(ValueError, match="it is a language model"):
        convert(folder)
    with pytest.raises(at.UserError, match=r"config\.json cannot be read"):
        convert(tmp_path)


def test_a_part_of_a_reader_comes_along(tmp_path):
    """By the name of its class, under which a file adds it."""
    folder = third_edition(toy(), tmp_path / "third", feed_forward="Mine")
    parts = tmp_path / "mine.py"
    parts.write_text(
        "from the_annotated_transformer import FEED_FORWARD, PositionwiseFeedForward\n"
        'FEED_FORWARD["Mine"] = PositionwiseFeedForward\n'
    )
    new = tmp_path / "new"
    try:
        assert models.main(["convert", str(folder), str(new), "--parts", str(parts)]) == 0
        assert at.load_trained_model(new).model.arguments["feed_forward"] == "Mine"
    finally:
        del at.FEED_FORWARD["Mine"]


# Rounding, and the commands -----------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [0, 60], ids=["words", "subwords"])
def test_a_model_in_int8(vocab_size, tmp_path):
    """Each weight misses by half a step of its row at most."""
    whole = toy(vocab_size, share_embeddings=vocab_size > 0)
    matrix = whole.model.generator.proj.weight
    matrix.data *= torch.logspace(-6, 3, len(matrix)).unsqueeze(1)
    matrix.data[-2:] = torch.tensor([[0.0], [1e-43]])  # 0 / 0 would be no number
    at.save_model(whole, tmp_path / "whole")
    assert models.round_model(tmp_path / "whole", tmp_path / "rounded") == "toy, int8"
    rounded = at.load_trained_model(tmp_path / "rounded")
    state = rounded.model.state_dict()
    for name, value in whole.model.state_dict().items():
        steps = value.abs().amax(-1, keepdim=True) / 127
        limit = 0.5001 * steps + 1e-40 if value.dim() == 2 else torch.zeros(1)
        assert ((state[name] - value).abs() <= limit).all(), name
    for name, value in load_file(tmp_path / "rounded" / "model.safetensors").items():
        assert (value.dtype == torch.int8) == (value.dim() == 2), name
        assert not name.endswith(".steps") or value.gt(0).all()
    assert_same_facts(rounded, dataclasses.replace(whole, name="toy, int8"))


def test_the_commands(tmp_path, capsys):
    source, new, small, none = (str(tmp_path / name) for name in ("a.pt", "new", "small", "none"))
    torch.save(older_state(), source)
    (tmp_path / "words.json").write_text(json.dumps(some_words()))
    given = ["--heads", str(HEADS), "--words", str(tmp_path / "words.json")]
    assert models.main(["convert", source, new, *given]) == 0
    assert models.main(["round", new, small]) == 0
    assert capsys.readouterr().out == f"{new}: model a\n{small}: model a, int8\n"
    for command in (["convert", source, new, *given], ["round", small, new]):
        assert models.main(command) == 1
        assert f"error: {new} holds a model already" in capsys.readouterr().err
    assert models.main(["convert", none, none]) == 1
    assert none in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert not Path(none).exists()
