"""Weights of 2018, of 2022 and of the first edition become a model of this one; models are rounded
to int8 and averaged. The older code is built here from its description alone."""

import dataclasses
import functools
import json
import math
import shutil
from pathlib import Path

import models
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from test_pretrained import toy
from torch import Tensor

import the_annotated_transformer as at
from the_annotated_transformer import END, SPECIALS, START, Batch

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
        ("encoder.norm.a_2", "size mismatch for encoder.norm.scale"),
        ("decoder.layers.2.feed_forward.w_1.bias", '"decoder.layers.2.'),
    ):
        expected = refused(tmp_path, state | {name: torch.ones(1)})
        assert message in expected
    del state["decoder.norm.b_2"]
    assert 'Missing key(s) in state_dict: "decoder.norm.shift"' in refused(tmp_path, state)
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


of_words = functools.partial(toy, 0)
of_subwords = functools.partial(toy, 60, share_embeddings=True)


@pytest.mark.parametrize("make", [of_words, of_subwords], ids=["words", "subwords"])
def test_a_model_in_int8(make, tmp_path):
    """Each weight misses by half a step of its row at most."""
    whole = make()
    matrix = whole.model.generator.proj.weight
    matrix.data *= torch.logspace(-6, 3, len(matrix)).unsqueeze(1)
    matrix.data[-2:] = torch.tensor([[0.0], [1e-43]])  # 0 / 0 would be no number
    at.save_model(whole, tmp_path / "epoch-003")
    rounded = models.round_model(tmp_path / "epoch-003", tmp_path / "rounded")
    state = rounded.model.state_dict()
    for name, value in whole.model.state_dict().items():
        steps = value.abs().amax(-1, keepdim=True) / 127
        limit = 0.5001 * steps + 1e-40 if value.dim() == 2 else torch.zeros(1)
        assert ((state[name] - value).abs() <= limit).all(), name
    for name, value in load_file(tmp_path / "rounded" / "model.safetensors").items():
        assert (value.dtype == torch.int8) == (value.dim() == 2), name
        assert not name.endswith(".steps") or value.gt(0).all()
    expected = dataclasses.replace(whole, name="toy, int8", model=rounded.model)
    assert rounded == expected


def test_the_mean_of_models_is_a_model(tmp_path, capsys):
    names = []
    states = []
    for seed in (1, 2, 3):
        names.append(str(tmp_path / f"epoch-00{seed}"))
        at.save_model(of_subwords(seed=seed), names[-1])
        states.append(at.load_trained_model(names[-1]).model.state_dict())
    assert models.main(["average", *names]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'average'}: the mean of 3 models\n"
    mean = at.load_trained_model(tmp_path / "average")
    assert mean.vocabularies == of_subwords().vocabularies
    for name, value in mean.model.state_dict().items():
        torch.testing.assert_close(value, sum(state[name] for state in states) / 3)
    subwords = at.Subwords(mean.vocabularies[0].settings.replace('"ü"', '"µ"'))
    other_subwords = dataclasses.replace(of_subwords(), vocabularies=(subwords, subwords))
    for other in (other_subwords, of_subwords(h=4), of_subwords(norm_first=False)):
        at.save_model(other, tmp_path / "other")
        with pytest.raises(ValueError, match=r"other has other tokens or sizes than .*001"):
            models.average_models([names[0], tmp_path / "other"])


@pytest.mark.parametrize("change", [{"name": "another run"}, {"text": "of another text"}])
def test_models_of_two_runs_have_no_mean(tmp_path, change):
    first, other = tmp_path / "first", tmp_path / "other"
    at.save_model(of_subwords(), first)
    at.save_model(dataclasses.replace(of_subwords(), **change), other)
    with pytest.raises(ValueError, match=r"other is of the run .*, .*first of toy: .* no mean"):
        models.average_models([first, other])
    with pytest.raises(ValueError, match="a model is named twice"):
        models.average_models([first, first])


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
    average = ["average", small, "--output", new]
    for command in (["convert", source, new, *given], ["round", small, new], average):
        assert models.main(command) == 1
        assert f"error: {new} holds a model already" in capsys.readouterr().err
    assert models.main(["convert", none, none]) == 1
    assert none in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    bad = of_words()
    bad.model.encoder.norm.scale.data[3] = math.nan
    at.save_model(bad, tmp_path / "bad")
    result = models.main(["round", str(tmp_path / "bad"), none])
    assert result == 1
    assert capsys.readouterr().err.startswith("error: encoder.norm.scale holds NaN or infinity")
    assert not Path(none).exists()
