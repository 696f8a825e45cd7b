"""Bring models of 2018 and 2022 into the present format, and round models to int8.

    python -m tools.models convert SOURCE FOLDER --words WORDS   a state dict and its words
    python -m tools.models round SOURCE FOLDER     a model, or a run, in a quarter of the bytes

What the code of 2018 or 2022 saved as `torch.save(model.state_dict(), …)` lacks two things: the
number of heads (with a wrong one a model talks nonsense), and the words in the order of their ids:

    source, target = torch.load("vocab.pt")  # 2022; in 2018 SRC.vocab.itos and TGT.vocab.itos
    words = {"source": source.get_itos(), "target": target.get_itos()}
    json.dump(words, open("words.json", "w"))

Nothing in a file is executed, and no model is written over.
"""

import dataclasses
import io
import json
import pickle
import sys
import zipfile
import zlib
from pathlib import Path

import torch

import the_annotated_transformer as at
from tools import records

CPU = torch.device("cpu")
OUR_NAMES = {"a_2": "weight", "b_2": "bias", "w_1": "widen", "w_2": "narrow"}
SOURCE = "src_embed.0.lut.weight"
TARGET = "tgt_embed.0.lut.weight"
OUTPUT = "generator.proj.weight"
BIAS = "generator.proj.bias"
# What torch and zipfile raise when a file is damaged, or is no state dict.
DAMAGE = (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError, IndexError, KeyError)
DAMAGE += (AttributeError, RuntimeError, TypeError, ValueError)
GLUED = *".,;:!?)]}%'’", "n't"  # a target word that begins so is written without a space before it


def read_tensors(data: bytes) -> dict:
    """Tensors and plain values by name; nothing in the file is executed."""
    try:
        if zipfile.is_zipfile(io.BytesIO(data)) and zipfile.ZipFile(io.BytesIO(data)).testzip():
            raise ValueError("a checksum differs")
        return dict(torch.load(io.BytesIO(data), weights_only=True, map_location="cpu"))
    except DAMAGE:
        message = "it is damaged, or a whole pickled model, of which nothing was loaded"
        raise ValueError(f"{message}: save its state_dict() by the code that wrote it") from None


def older_model(state: dict[str, torch.Tensor], heads: int) -> at.EncoderDecoder:
    """A model with the weights of a state dict of 2018 or 2022."""
    N = len({name.split(".")[2] for name in state if name.startswith("encoder.layers.")})
    src_vocab = len(state[SOURCE])
    tgt_vocab = len(state[BIAS])
    _, max_len, d_model = state["src_embed.1.pe"].shape
    d_ff = len(state["encoder.layers.0.feed_forward.w_1.bias"])
    model = at.make_model(src_vocab, tgt_vocab, N, d_model, d_ff, heads, max_len=max_len)
    weights = {}
    for name, tensor in state.items():
        if name.endswith(".pe"):  # sinusoids, which the model has made itself
            continue
        weights[".".join(OUR_NAMES.get(part, part) for part in name.split("."))] = tensor
    model.load_state_dict(weights)
    # The older norm divides by (deviation over D - 1) + 1e-6, ours by the root of variance + 1e-6.
    # The scale absorbs D - 1; what is left changes no log-probability by more than 1e-4.
    for norm in model.modules():
        if isinstance(norm, torch.nn.LayerNorm):
            norm.weight.detach().mul_((1 - 1 / d_model) ** 0.5)
    return model


def read_older(path: Path, heads: int, words_file: Path, languages: str) -> at.Translator:
    """A state dict of 2018 or 2022 and its words; the special tokens take the first four ids.

    They do not say whether a space stood before a word; here `‿.` is a full stop without one. So
    each source word is entered a second time with the mark; target words like `n't` only so.
    """
    state = read_tensors(path.read_bytes())
    words = json.loads(words_file.read_bytes())
    missing = [token for token in at.SPECIALS[: at.PAD] if token not in words["source"]]
    words["source"] += missing  # 2018 had no start and no end here: they get zeros
    state[SOURCE] = torch.nn.functional.pad(state[SOURCE], (0, 0, 0, len(missing)))
    for side, names in (("source", [SOURCE]), ("target", [TARGET, OUTPUT, BIAS])):
        rows = {word: row for row, word in enumerate(words[side])}
        if not len(state[names[0]]) == len(words[side]) == len(rows):
            raise ValueError(f"{names[0]} needs one {side} word for each row, all different")
        words[side] = [*at.SPECIALS, *(word for word in rows if word not in at.SPECIALS)]
        for name in names:
            state[name] = state[name][[rows[word] for word in words[side]]]
    state[SOURCE] = torch.cat([state[SOURCE], state[SOURCE][len(at.SPECIALS) :]])
    source = words["source"] + [at.JOIN + word for word in words["source"][len(at.SPECIALS) :]]
    target = [at.JOIN + word if word.startswith(GLUED) else word for word in words["target"]]
    vocabularies = at.Vocabulary(tuple(source)), at.Vocabulary(tuple(target))
    model = older_model(state, heads).eval()
    return at.Translator(path.stem, model, "unknown", tuple(languages.split("-")), vocabularies)


def convert(source: Path, heads: int, words: Path, languages: str) -> at.Translator:
    """A model of 2018 or 2022; ValueError says what is wrong with it."""
    try:
        return read_older(source, heads, words, languages)
    except DAMAGE as error:  # no JSON, no such key, a shape that does not fit
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message = f"{source} with {words} is no older model that can be converted: {reason}"
        raise ValueError(message) from error


def round_model(source: Path, folder: Path) -> str:
    """Write a model, or the best of a run, with its matrices in int8; its name."""
    whole = at.load_trained_model(source, CPU)
    rounded = dataclasses.replace(whole, name=f"{whole.name}, int8")
    at.save_model(rounded, folder, int8=True)
    return rounded.name


def run_round(source: Path, folder: Path, /, parts: Path | None = None) -> None:
    """Store a model, or the best of a run, in a quarter of the bytes.

    Args:
        parts: a Python file that adds the kinds of parts of which the model was made
    """
    at.read_parts(parts)
    print(f"{folder}: model {round_model(source, folder)}")


def run_convert(
    source: Path, folder: Path, /, words: Path, heads: int = 8, languages: str = "de-en"
) -> None:
    """Make a model of this edition of a state dict of 2018 or 2022.

    Args:
        words: a JSON file with the words of both sides
        heads: how many it was trained with
    """
    translator = convert(source, heads, words, languages)
    at.save_model(translator, folder)
    print(f"{folder}: model {translator.name}")


main = records.command_line(round=run_round, convert=run_convert)

if __name__ == "__main__":
    sys.exit(main())
