"""Models of 2018 and 2022 become models of this edition; models are rounded to int8."""

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
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
    monkeypatch.setitem(at.PARTS["norm"], "older", OlderNorm)
    monkeypatch.setitem(at.PARTS["feed_forward"], "older", OlderFeedForward)


def older_model(h: int = HEADS) -> at.EncoderDecoder:
    """Random weights under the names, and in the shapes, of the older code."""
    torch.manual_seed(0)
    model = at.make_model(S, T, 2, 12, 20, h, norm=OlderNorm, feed_forward=OlderFeedForward)
    return at.draw_weights(model).eval()


def state_of(model: at.EncoderDecoder) -> dict[str, Tensor]:
    """The state dict of an older model, which held its sinusoids."""
    pe = model.src_embed[1].pe
    return model.state_dict() | {"src_embed.1.pe": pe, "tgt_embed.1.pe": pe}


def log_probs(model: torch.nn.Module, batch: Batch) -> Tensor:
    with at.evaluating(model):
        return model.generator(model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask))


def some_words() -> dict[str, list[str]]:
    sizes = {"source": S, "target": T}
    return {side: [*SPECIALS, *(f"{side}{n}" for n in range(4, sizes[side]))] for side in sizes}


def converted(folder: Path, state: object, words: object = None, h: int = HEADS, **how):
    """The model of a state dict and its words, each in a file."""
    torch.save(state, folder / "older.pt", **how)
    (folder / "words.json").write_text(json.dumps(words or some_words()))
    return models.convert(folder / "older.pt", h, folder / "words.json", "fr-en")


def refused(folder: Path, state: object, *more, **how) -> str:
    with pytest.raises(ValueError, match=r"older\.pt with .*words\.json is no older") as caught:
        converted(folder, state, *more, **how)
    return str(caught.value)


@pytest.mark.parametrize("h, zipped", [(6, True), (2, False)], ids=["2022", "2018"])
def test_the_same_log_probabilities(h, zipped, tmp_path):
    """In both formats of a file: 2018 wrote no zip."""
    older = older_model(h)
    how = {"h": h, "_use_new_zipfile_serialization": zipped}
    translator = converted(tmp_path, state_of(older), **how)
    src = torch.randint(3, S, (2, 6))
    tgt = torch.randint(3, T, (2, 7))
    src[0, 4:] = tgt[1, 3:] = at.PAD
    ours, theirs = (log_probs(each, Batch(src, tgt)) for each in (translator.model, older))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert (translator.name, translator.languages) == ("older", ("fr", "en"))
    source, target = (list(one.words) for one in translator.vocabularies)
    assert {"source": source[:S], "target": target} == some_words()


def test_the_special_symbols_of_2018_find_their_places(tmp_path):
    """<unk> and <blank> came first, and the source had neither start nor end."""
    older = older_model()
    words = some_words()
    words["source"][:4] = ["<unk>", "<blank>", "one", "two"]
    words["target"][:4] = ["<unk>", "<blank>", "<s>", "</s>"]
    translator = converted(tmp_path, state_of(older), words)
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
    state = {name: tensor.half() for name, tensor in state_of(older_model()).items()}
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
    state = state_of(older_model())
    narrow = state | {"encoder.norm.a_2": torch.ones(1)}
    assert "size mismatch for encoder.norm.weight" in refused(tmp_path, narrow)
    assert "KeyError: 'src_embed.0.lut.weight'" in refused(tmp_path, {"model": state})
    del state["decoder.norm.b_2"]
    assert 'Missing key(s) in state_dict: "decoder.norm.bias"' in refused(tmp_path, state)


def test_words_and_heads_that_do_not_fit_are_refused(tmp_path):
    state = state_of(older_model())
    words = some_words()
    for side in words:
        for wrong in (words[side][:-1], [*words[side], "more"], [*words[side][:-1], SPECIALS[0]]):
            message = refused(tmp_path, state, words | {side: wrong})
            assert f"needs one {side} word for each row, all different" in message
    assert "KeyError: 'target'" in refused(tmp_path, state, {"source": words["source"]})
    assert "must be divisible by h (5)" in refused(tmp_path, state, words, 5)


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


def test_damage_to_a_state_dict_is_noticed():
    norm = torch.randn(12)
    file = io.BytesIO()
    torch.save({"encoder.norm.a_2": norm}, file)
    good = file.getvalue()
    place = good.index(norm.numpy().tobytes())
    flipped = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
    for bad in (b"", good[:place], good[:-1], flipped):
        with pytest.raises(ValueError, match="damaged"):
            models.read_tensors(bad)


# Rounding, and the commands -----------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [0, 60], ids=["words", "subwords"])
def test_a_model_in_int8(vocab_size, tmp_path):
    """Each weight misses by half a step of its row at most."""
    corpus = at.read_builtin()
    learn = at.learn_subwords if vocab_size else lambda corpus, _: at.learn_words(corpus)
    vocabularies = learn(corpus, vocab_size)
    tied = {"share_embeddings": vocab_size > 0}
    model = at.draw_weights(at.make_model(*map(len, vocabularies), 1, 16, 32, 4, **tied))
    matrix = model.generator.proj.weight
    matrix.data *= torch.logspace(-6, 3, len(matrix)).unsqueeze(1)
    matrix.data[-2:] = torch.tensor([[0.0], [1e-43]])  # 0 / 0 would be no number
    whole = at.Translator("toy", model, corpus.name, corpus.languages, vocabularies)
    at.save_model(whole, tmp_path / "whole")
    assert models.round_model(tmp_path / "whole", tmp_path / "rounded") == "toy, int8"
    rounded = at.load_trained_model(tmp_path / "rounded")
    state = rounded.model.state_dict()
    for name, value in model.state_dict().items():
        steps = value.abs().amax(-1, keepdim=True) / 127
        limit = 0.5001 * steps + 1e-40 if value.dim() == 2 else torch.zeros(1)
        assert ((state[name] - value).abs() <= limit).all(), name
    for name, value in load_file(tmp_path / "rounded" / "model.safetensors").items():
        assert (value.dtype == torch.int8) == (value.dim() == 2), name
        assert not name.endswith(".steps") or value.gt(0).all()
    for ours, theirs in zip(rounded.vocabularies, vocabularies, strict=True):
        assert ours.words == theirs.words


def test_the_commands(tmp_path, capsys):
    source, new, small = (str(tmp_path / name) for name in ("a.pt", "new", "small"))
    torch.save(state_of(older_model()), source)
    (tmp_path / "words.json").write_text(json.dumps(some_words()))
    given = ["--heads", str(HEADS), "--words", str(tmp_path / "words.json")]
    assert models.main(["convert", source, new, *given]) == 0
    assert models.main(["round", new, small]) == 0
    assert capsys.readouterr().out == f"{new}: model a\n{small}: model a, int8\n"
    for command in (["convert", source, new, *given], ["round", small, new]):
        assert models.main(command) == 1
        assert f"error: {new} holds " in capsys.readouterr().err
