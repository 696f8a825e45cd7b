"""Models of 2018, 2022 and the third edition become models of this one; models are rounded to int8.

What older code computes is written here from its description alone."""

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import the_annotated_transformer as at
from the_annotated_transformer import END, SPECIALS, START, Batch
from tools import models

S = 11
T = 13
N = 2
D = 12
HIDDEN = 20
POSITIONS = 5000
HEADS = 3


def older_state() -> dict[str, Tensor]:
    """Random weights under the names, and in the shapes, of the older code."""
    torch.manual_seed(0)
    shapes = {"generator.proj": (T, D)}
    norms = ["encoder.norm", "decoder.norm"]
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "src_attn"])):
        for layer in (f"{stack}.layers.{n}" for n in range(N)):
            shapes |= {f"{layer}.{a}.linears.{n}": (D, D) for a in attentions for n in range(4)}
            shapes[f"{layer}.feed_forward.w_1"] = HIDDEN, D
            shapes[f"{layer}.feed_forward.w_2"] = D, HIDDEN
            norms += [f"{layer}.sublayer.{n}.norm" for n in range(1 + len(attentions))]
    state = {f"{name}.weight": torch.randn(shape) * 0.3 for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) * 0.3 for name, shape in shapes.items()}
    state |= {f"{name}.a_2": torch.rand(D) + 0.5 for name in norms}
    state |= {f"{name}.b_2": torch.randn(D) * 0.3 for name in norms}
    column = torch.arange(D)
    angle = torch.arange(POSITIONS).double().unsqueeze(1) / 10_000 ** (column // 2 * 2 / D)
    sinusoids = torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()
    for side, words in (("src", S), ("tgt", T)):
        state[f"{side}_embed.0.lut.weight"] = torch.randn(words, D) * D**-0.5
        state[f"{side}_embed.1.pe"] = sinusoids.unsqueeze(0)
    return state


def older_log_probs(state: dict[str, Tensor], h: int, batch: Batch) -> Tensor:
    """What the older code computes with such a state dict, step by step."""

    def norm(x: Tensor, name: str) -> Tensor:
        deviation, mean = torch.std_mean(x, dim=-1, unbiased=True, keepdim=True)
        return state[f"{name}.a_2"] * (x - mean) / (deviation + 1e-6) + state[f"{name}.b_2"]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def attend(x: Tensor, y: Tensor, mask: Tensor, name: str) -> Tensor:
        projected = [linear(z, f"{name}.linears.{n}") for n, z in enumerate((x, y, y))]
        q, k, v = (torch.stack(z.chunk(h, dim=-1), dim=1) for z in projected)  # (B, h, T, d_k)
        heads = F.scaled_dot_product_attention(q, k, v, mask.unsqueeze(1))
        return linear(torch.cat(heads.unbind(1), dim=-1), f"{name}.linears.3")

    def run(stack: str, side: str, ids: Tensor, mask: Tensor, memory=None) -> Tensor:
        table = state[f"{side}_embed.0.lut.weight"]
        pe = state[f"{side}_embed.1.pe"]
        x = table[ids] * math.sqrt(table.size(1)) + pe[:, : ids.size(1)]
        layers = {name.split(".")[2] for name in state if name.startswith(f"{stack}.layers.")}
        for layer in (f"{stack}.layers.{n}" for n in sorted(layers)):
            y = norm(x, f"{layer}.sublayer.0.norm")
            last = 1
            x = x + attend(y, y, mask, f"{layer}.self_attn")
            if memory is not None:
                y = norm(x, f"{layer}.sublayer.1.norm")
                last = 2
                x = x + attend(y, memory, batch.src_mask, f"{layer}.src_attn")
            y = norm(x, f"{layer}.sublayer.{last}.norm")
            hidden = linear(y, f"{layer}.feed_forward.w_1").relu()
            x = x + linear(hidden, f"{layer}.feed_forward.w_2")
        return norm(x, f"{stack}.norm")

    memory = run("encoder", "src", batch.src, batch.src_mask)
    states = run("decoder", "tgt", batch.tgt, batch.tgt_mask, memory)
    return linear(states, "generator.proj").log_softmax(dim=-1)


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
    state = older_state()
    batch = some_batch()
    translator = converted(tmp_path, state, None, h, _use_new_zipfile_serialization=zipped)
    ours = log_probs(translator.model, batch)
    torch.testing.assert_close(ours, older_log_probs(state, h, batch), atol=1e-4, rtol=0)
    result = (translator.name, translator.languages)
    expected = ("older", ("fr", "en"))
    assert result == expected
    source, target = (list(one.words) for one in translator.vocabularies)
    result = {"source": source[:S], "target": target}
    assert result == some_words()


def test_the_special_symbols_of_2018_find_their_places(tmp_path):
    """<unk> and <blank> came first, and the source had neither start nor end."""
    state = older_state()
    words = some_words()
    words["source"][:4] = ["<unk>", "<blank>", "one", "two"]
    words["target"][:4] = ["<unk>", "<blank>", "<s>", "</s>"]
    translator = converted(tmp_path, state, words)
    source, target = (one.words for one in translator.vocabularies)
    assert source[:4] == target[:4] == SPECIALS
    assert translator.model.src_embed[0].lut.weight[[START, END]].eq(0).all()
    src = torch.tensor([[4, 8, 0], [7, 1, 1]])
    tgt = torch.tensor([[2, 4, 0, 8, 3]] * 2)
    new_source = torch.tensor([source.index(word) for word in words["source"]])
    new_target = torch.tensor([target.index(word) for word in words["target"]])
    ours = log_probs(translator.model, Batch(new_source[src], new_target[tgt]))
    expected = older_log_probs(state, HEADS, Batch(src, tgt, pad=1))
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
    result = target.decode([4, 5, 6, 7, END])
    assert result == "It's on."


def test_what_does_not_fit_is_named(tmp_path):
    state = older_state()
    for name, message in (
        ("encoder.norm.a_2", "size mismatch for encoder.norm.weight"),
        ("decoder.layers.2.feed_forward.w_1.bias", '"decoder.layers.2.'),
    ):
        expected = refused(tmp_path, state | {name: torch.ones(1)})
        assert message in expected
    del state["decoder.norm.b_2"]
    assert 'Missing key(s) in state_dict: "decoder.norm.bias"' in refused(tmp_path, state)
    assert "KeyError: 'src_embed.0.lut.weight'" in refused(tmp_path, {"model": state})
    expected = refused(tmp_path, at.tiny_model().state_dict())
    assert "KeyError: 'src_embed.1.pe'" in expected


def test_words_and_heads_that_do_not_fit(tmp_path):
    state = older_state()
    words = some_words()
    for side in words:
        for wrong in (words[side][:-1], [*words[side], "more"], [*words[side][:-1], SPECIALS[0]]):
            message = refused(tmp_path, state, words | {side: wrong})
            assert f"needs one {side} word for each row, all different" in message
    expected = refused(tmp_path, state, {"source": words["source"]})
    assert "KeyError: 'target'" in expected
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
OF_THE_THIRD = ("attention", "feed_forward", "norm", "positions")
SINCE = ("tie_output", "encoder_layer", "decoder_layer")


def third_edition(translator: at.Translator, folder: Path, int8: bool = False) -> Path:
    """A model in a folder as the third edition wrote it."""
    at.save_model(translator, folder, int8)
    about = json.loads((folder / "config.json").read_bytes())
    about |= {"kind": "make_model", "text": "ab12", "sha256": {"config.json": "cd34"}}
    del about["longest"]
    for name in SINCE:
        del about["model"][name]
    for name in OF_THE_THIRD:
        kind = about["model"][name]
        about["model"][name] = CLASSES.get(kind, kind)
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


def test_what_of_the_third_edition_has_no_place_here_is_refused(tmp_path):
    folder = third_edition(toy(), tmp_path / "third")
    about = json.loads((folder / "config.json").read_bytes())

    def refuses(message: str, **changes) -> None:
        changed = about | changes
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            convert(folder)

    refuses("it is a language model", kind="LanguageModel")
    for rotary in ("RotaryAttention", "RotaryGroupedAttention(groups=2)"):
        refuses("cross-attention is rotary too", model=about["model"] | {"attention": rotary})
    refuses(r'ATTENTION\["Mine"\] = YourClass', model=about["model"] | {"attention": "Mine"})
    refuses("do not fit", model=about["model"] | {"d_ff": 33})
    with pytest.raises(at.UserError, match=r"config\.json cannot be read"):
        convert(tmp_path)


def test_a_part_of_a_reader_comes_along(tmp_path, capsys):
    """By the name of its class, under which a file adds it."""
    folder = third_edition(toy(), tmp_path / "third")
    about = json.loads((folder / "config.json").read_bytes())
    about["model"]["feed_forward"] = "Mine"
    (folder / "config.json").write_text(json.dumps(about))
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
    result = models.main(["convert", source, new, *given])
    assert result == 0
    assert models.main(["round", new, small]) == 0
    printed = f"{new}: model a\n{small}: model a, int8\n"
    assert capsys.readouterr().out == printed
    for command in (["convert", source, new, *given], ["round", small, new]):
        assert models.main(command) == 1
        assert f"error: {new} holds a model already" in capsys.readouterr().err
    assert models.main(["convert", none, none]) == 1
    assert none in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert not Path(none).exists()
