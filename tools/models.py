"""What is done to finished models: older ones are read, one is rounded to int8, several averaged.

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
from collections.abc import Iterator, Sequence
from pathlib import Path

import records
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import the_annotated_transformer as at

CPU = torch.device("cpu")
OUR_NAMES = {"a_2": "scale", "b_2": "shift", "w_1": "widen", "w_2": "narrow"}
SOURCE = "src_embed.0.lut.weight"
TARGET = "tgt_embed.0.lut.weight"
OUTPUT = "generator.proj.weight"
BIAS = "generator.proj.bias"
# What torch and zipfile raise when a file is damaged, or is no state dict.
DAMAGE = (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError, IndexError, KeyError)
DAMAGE += (RuntimeError, TypeError, ValueError)
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
        parts = [OUR_NAMES.get(part, part) for part in name.split(".")]
        weights[".".join(parts)] = tensor
    model.load_state_dict(weights)
    # The older norm divides by (deviation over D - 1) + 1e-6, ours by the root of variance + 1e-6.
    # The scale absorbs D - 1; what is left changes no log-probability by more than 1e-4.
    for norm in model.modules():
        if isinstance(norm, at.LayerNorm):
            norm.scale.detach().mul_((1 - 1 / d_model) ** 0.5)
    return model


def read_older(path: Path, heads: int, words_file: Path | None, languages: str) -> at.Translator:
    """A state dict of 2018 or 2022 and its words; the special tokens take the first four ids.

    They do not say whether a space stood before a word; here `‿.` is a full stop without one. So
    each source word is entered a second time with the mark; target words like `n't` only so.
    """
    state = read_tensors(path.read_bytes())
    if words_file is None:
        raise ValueError("its words lie elsewhere: name them by --words; --help says how")
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
    model = older_model(state, heads)
    return at.Translator(path.stem, model, "unknown", languages.split("-"), vocabularies)


def convert(source: Path, heads: int, words: Path | None, languages: str) -> at.Translator:
    """A model of an earlier version; ValueError says what is wrong with it."""
    try:
        return read_older(source, heads, words, languages)
    except (AttributeError, *DAMAGE) as error:  # no JSON, no such key, a shape that does not fit
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        files = f"{source} with {words}" if words else source
        raise ValueError(f"{files} is no older model that can be converted: {reason}") from error


def round_model(source: Path, folder: Path, parts: Sequence[type] = ()) -> at.Translator:
    """Write a model, or the best of a run, with its matrices in int8, and load it from there."""
    whole = at.load_trained_model(source, CPU, parts)
    tensors = dict(whole.model.named_parameters())
    for name, value in list(tensors.items()):
        if not value.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity: take an earlier epoch")
        if value.dim() == 2:
            steps = value.abs().amax(dim=1).clamp(min=1e-30) / 127  # a row may be all zeros
            tensors[name] = (value / steps.unsqueeze(1)).round().to(torch.int8)
            tensors[f"{name}.steps"] = steps
    at.save_model(dataclasses.replace(whole, name=f"{whole.name}, int8"), folder, tensors)
    return at.load_trained_model(folder, CPU, parts)


def average_models(folders: Sequence[Path | str], parts: Sequence[type] = ()) -> at.Translator:
    """The mean of several models of one run; ValueError where it would be no model at all."""
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise ValueError("a model is named twice: it would count twice in the mean")
    first = at.load_trained_model(folders[0], CPU, parts)
    sizes = at.with_names(first.model.arguments)

    def models() -> Iterator[at.EncoderDecoder]:
        for folder in folders:
            other = at.load_trained_model(folder, CPU, parts)
            same_tokens = other.vocabularies == first.vocabularies
            if not same_tokens or at.with_names(other.model.arguments) != sizes:
                raise ValueError(f"{folder} has other tokens or sizes than {folders[0]}")
            if (other.name, other.text) != (first.name, first.text):
                raise ValueError(
                    f"{folder} is of the run {other.name}, {folders[0]} of {first.name}: "
                    "trained from other beginnings, they have no mean that translates"
                )
            yield other.model

    at.average(first.model, models())
    return dataclasses.replace(first, name=f"{first.name}, {len(folders)} averaged")


def new(folder: Path) -> Path:
    """The folder, unless a model lies there already."""
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} holds a model already: name another folder")
    return folder


def run_average(
    first: Path, others: tuple[Path, ...], /, output: Path | None = None, parts: Path | None = None
) -> None:
    """Average models of one run, into the folder `average` beside the first or another.

    Args:
        parts: a Python file with classes of yours, of which the models were made
    """
    output = new(output or first.resolve().parent / "average")
    at.save_model(average_models([first, *others], at.read_parts(parts)), output)
    print(f"{output}: the mean of {1 + len(others)} models")


def run_round(source: Path, folder: Path, /, parts: Path | None = None) -> None:
    """Store a model, or the best of a run, in a quarter of the bytes.

    Args:
        parts: a Python file with classes of yours, of which the model was made
    """
    print(f"{folder}: model {round_model(source, new(folder), at.read_parts(parts)).name}")


def run_convert(
    source: Path, folder: Path, /, heads: int = 8, words: Path | None = None, languages="de-en"
) -> None:
    """Make a model of this edition of a state dict of 2018 or 2022.

    Args:
        heads: of 2018 or 2022: how many it was trained with
        words: of 2018 or 2022: a JSON file with the words of both sides
        languages: of 2018 or 2022
    """
    translator = convert(source, heads, words, languages)
    at.save_model(translator, new(folder))
    print(f"{folder}: model {translator.name}")


main = records.command_line(average=run_average, round=run_round, convert=run_convert)

if __name__ == "__main__":
    sys.exit(main())
