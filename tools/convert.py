"""Turn weights of the earlier versions into a folder that this edition reads.

    python tools/convert.py SOURCE FOLDER [--heads 8] [--words words.json] [--languages de-en]

SOURCE is one of three things, and which one is seen from the files themselves:

- a state dict of the code of 2018 or 2022, `torch.save(model.state_dict(), …)`. Two things are not
  in it. `--heads` is the number of heads it was trained with: a wrong one that divides d_model
  gives a model that runs and talks nonsense. `--words` is a JSON file {"source": [...],
  "target": [...]} with the words in the order of their ids. Where the old packages still load:

      source, target = torch.load("vocab.pt")  # 2022; in 2018 SRC.vocab.itos and TGT.vocab.itos
      words = {"source": source.get_itos(), "target": target.get_itos()}
      json.dump(words, open("words.json", "w"))

- a checkpoint of the first edition (best.pt, last.pt, average.pt, epoch-007.pt), or its run;
- a folder that the first edition's `export` wrote, such as its `pretrained/`.

Nothing in a file is ever executed: a pickled model, as published in 2018, is refused. FOLDER gets
`config.json`, `model.safetensors` and `tokenizer.json` or `words.json`.

What changes on the way from 2018 and 2022:

- The special symbols take the first four ids. Where the source has no start or end (2018), they get
  a vector of zeros.
- The older words do not say whether a space stood before them; here `‿.` is a full stop without
  one. Each source word is entered with and without the mark, with the same vector, and target
  words such as `.` and `n't` with it.
- The older norm divides by (deviation over D - 1) + 1e-6, ours by the root of (variance + 1e-6).
  The scale absorbs D - 1. What is left is a share of 1e-6/σ - 5e-7/σ² of the result: nothing for
  a deviation σ of about 1, one part in 25,000 at σ = 0.1; positions alone bring σ to 0.7.

For the same ids the log-probabilities agree to 1e-4. But the ids of a sentence are not quite what
the model has seen: 2022 put <s> before it and 2018 no </s> behind it; here </s> alone is added.
"""

import argparse
import hashlib
import io
import json
import math
import sys
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import the_annotated_transformer as at

MAGIC = b"annotated-transformer-1 "  # then the SHA-256 sum of all that follows the line
SETTINGS = "N d_model d_ff h dropout attention_dropout norm_first share_embeddings max_len".split()
OLDER_NAMES = {"scale": "a_2", "shift": "b_2", "widen": "w_1", "narrow": "w_2"}
SOURCE, TARGET = "src_embed.0.lut.weight", "tgt_embed.0.lut.weight"
OUTPUT, BIAS = "generator.proj.weight", "generator.proj.bias"
GLUED = *".,;:!?)]}%'’", "n't"  # a target word that begins so is written without a space before it

Model = tuple[dict, dict[str, bytes]]  # what config.json says but for sums; the other files


# The folder -------------------------------------------------------------------------------------


def write_folder(folder: Path, about: dict, files: dict[str, bytes]) -> None:
    """Write a model; config.json, which says what belongs together, comes last."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    sums["config.json"] = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    text = json.dumps(about | {"sha256": sums}, indent=1)
    for name, data in (files | {"config.json": f"{text}\n".encode()}).items():
        at.write_atomically(folder / name, data)


def new_folder(text: str) -> Path:
    """The folder that the command line named; a model that lies there is not written over."""
    if (Path(text) / "config.json").exists():
        raise argparse.ArgumentTypeError(f"{text} holds a model already: name another folder")
    return Path(text)


def read_tensors(data: bytes) -> dict:
    """Tensors and plain values by name; nothing in the file is executed."""
    file = io.BytesIO(data)
    try:
        if zipfile.is_zipfile(file) and (entry := zipfile.ZipFile(file).testzip()):
            raise ValueError(entry)
        file.seek(0)
        return dict(torch.load(file, weights_only=True, map_location="cpu"))
    except Exception:  # torch and zipfile raise errors of many kinds
        message = "it is damaged, or no state dict but a whole pickled model; nothing was loaded"
        way_out = "if you trust it, load it by the code that wrote it and save its state_dict()"
        raise ValueError(f"{message}; {way_out}") from None


# The first edition ------------------------------------------------------------------------------


def settings_of(config: dict, state: dict[str, Tensor]) -> dict:
    """Arguments of `make_model` from settings of the first edition, and sizes from the weights."""
    sizes = {"src_vocab": len(state[SOURCE]), "tgt_vocab": len(state[BIAS])}
    return sizes | {name: config[name] for name in SETTINGS}


def read_exported(folder: Path) -> Model:
    """A folder written by `export`: the files stay as they are, the settings become ours."""
    about, files = at.read_checked(folder)
    if "config" not in about:
        raise ValueError("it is no model of the first edition; is it one of this already?")
    config = about.pop("config")
    about["name"] += ", int8"  # its reader said so
    about["languages"] = config["languages"]
    return about | {"model": settings_of(config, load(files["model.safetensors"]))}, files


def read_checkpoint(path: Path) -> Model:
    """A checkpoint of the first edition; its optimizer is left behind."""
    first, _, payload = path.read_bytes().partition(b"\n")
    if hashlib.sha256(payload).hexdigest().encode() != first.removeprefix(MAGIC):
        raise ValueError("it is damaged, its checksum differs: take an older one of the run")
    content = read_tensors(payload)
    config, state, saved = content["config"], content["model"], content["vocabularies"]
    about = {"name": f"{path.resolve().parent.name}, {path.stem}", "corpus": content["corpus"]}
    about |= {"languages": list(config["languages"]), "model": settings_of(config, state)}
    model = at.make_model(**about["model"])
    model.load_state_dict(state)
    if isinstance(saved[0], str):  # pieces: all that the library learnt, as its JSON
        vocabularies = {"tokenizer.json": saved[0].encode()}
    else:
        words = {"source": list(saved[0]), "target": list(saved[1])}
        vocabularies = {"words.json": json.dumps(words).encode()}
    return about, {"model.safetensors": save(dict(model.named_parameters()))} | vocabularies


# 2018 and 2022 ----------------------------------------------------------------------------------


def older_name(name: str) -> str:
    """What the older code called a tensor: `encoder.norm.scale` -> `encoder.norm.a_2`."""
    return ".".join(OLDER_NAMES.get(part, part) for part in name.split("."))


def older_settings(state: dict[str, Tensor], heads: int) -> dict[str, int]:
    """Arguments of `make_model` from an older state dict; ValueError where one is missing."""

    def size(name: str, axis: int) -> int:
        shape = getattr(state.get(name), "shape", ())
        if axis >= len(shape):
            raise ValueError(f"no older state dict: it lacks {name}, or that is no matrix")
        return shape[axis]

    settings = {
        "src_vocab": size(SOURCE, 0),
        "tgt_vocab": size(OUTPUT, 0),
        "N": len({name.split(".")[2] for name in state if name.startswith("encoder.layers.")}),
        "d_model": size(SOURCE, 1),
        "d_ff": size("encoder.layers.0.feed_forward.w_1.weight", 0),
        "h": heads,
        "max_len": size("src_embed.1.pe", 1),
    }
    if heads < 1 or settings["d_model"] % heads:
        raise ValueError(f"d_model ({settings['d_model']}) does not divide into {heads} heads")
    return settings


def from_older_checkpoint(state: dict[str, Tensor], h: int = 8) -> at.EncoderDecoder:
    """A model in eval mode with the weights of a state dict of the code of 2018 or 2022.

    `h` is the number of heads it was trained with. ValueError names an entry that does not fit.
    """
    model = at.make_model(**older_settings(state, h))
    ours = {older_name(n): t for n, t in [*model.named_parameters(), *model.named_buffers()]}
    for name in sorted(ours | state):
        wanted = getattr(ours.get(name), "shape", "nothing")
        shape = getattr(state.get(name), "shape", "no tensor")
        if shape != wanted:
            raise ValueError(f"{name}: an older model has {wanted} here, this one {shape}")
        if name.endswith(".pe"):  # far positions differ by the rounding of large angles
            if not torch.allclose(state[name].float(), ours[name], rtol=0, atol=0.01):
                raise ValueError(f"{name}: these are no sinusoids, and others cannot be kept")
            continue
        ours[name].detach().copy_(state[name])
    for norm in model.modules():
        if isinstance(norm, at.LayerNorm):
            norm.scale.detach().mul_(math.sqrt(1 - 1 / norm.scale.numel()))
    return model.eval()


def words_as_here(tensors: dict[str, Tensor], words: dict[str, list[str]]) -> None:
    """Bring rows and words into the order and the spelling that `Vocabulary` expects, in place."""
    for side, names in (("source", [SOURCE]), ("target", [TARGET, OUTPUT, BIAS])):
        listed, rows = list(words[side]), len(tensors[names[0]])
        if not rows == len(listed) == len(set(listed)):
            raise ValueError(
                f"{names[0]} has {rows} rows, no other number of different {side} words fits"
            )
        missing = [symbol for symbol in at.SPECIALS if symbol not in listed]
        if missing and side == "target":
            raise ValueError(f"the target words lack {missing}: without them nothing is written")
        if missing:
            warnings.warn(f"the source words lack {missing}: they get zeros", stacklevel=2)
            tensors[SOURCE] = F.pad(tensors[SOURCE], (0, 0, 0, len(missing)))
            listed += missing
        first = [listed.index(symbol) for symbol in at.SPECIALS]
        order = first + sorted(set(range(len(listed))) - set(first))
        for name in names:
            tensors[name] = tensors[name][order]
        words[side] = [listed[row] for row in order]
    ordinary = words["source"][len(at.SPECIALS) :]
    words["source"] += [at.JOIN + word for word in ordinary]
    tensors[SOURCE] = torch.cat([tensors[SOURCE], tensors[SOURCE][len(at.SPECIALS) :]])
    words["target"] = [at.JOIN + w if w.startswith(GLUED) else w for w in words["target"]]


def read_older(path: Path, heads: int, words_file: Path | None, languages: str) -> Model:
    """A state dict of 2018 or 2022, and the words of its vocabularies."""
    state = read_tensors(path.read_bytes())
    model = from_older_checkpoint(state, heads)
    if words_file is None:
        raise ValueError("its words lie elsewhere: name them by --words; --help says how")
    try:
        words = dict(json.loads(words_file.read_bytes()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{words_file} does not hold source and target words: {error}") from None
    tensors = {name: value.detach() for name, value in model.named_parameters()}
    words_as_here(tensors, words)
    sizes = {"src_vocab": len(words["source"]), "tgt_vocab": len(words["target"])}
    about = {"name": path.stem, "corpus": "unknown", "languages": languages.split("-")}
    about["model"] = older_settings(state, heads) | sizes
    return about, {"model.safetensors": save(tensors), "words.json": json.dumps(words).encode()}


# Any of them ------------------------------------------------------------------------------------


def convert(
    source: Path, folder: Path, heads: int = 8, words: Path | None = None, languages: str = "de-en"
) -> at.Translator:
    """Write `source` into `folder` as a model of this edition, and load it from there.

    FileNotFoundError, or ValueError that says what is wrong with `source`: nothing is written then.
    """
    if (source / "best.pt").is_file():
        source = source / "best.pt"
    try:
        if source.is_dir():
            model = read_exported(source)
        elif source.read_bytes()[: len(MAGIC)] == MAGIC:
            model = read_checkpoint(source)
        else:
            model = read_older(source, heads, words, languages)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        message = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{source} cannot be converted: {message}") from None
    write_folder(folder, *model)
    return at.load_trained_model(folder, torch.device("cpu"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("convert.py", description=__doc__, formatter_class=plain)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=new_folder)
    parser.add_argument("--heads", type=int, default=8, help="of 2018 or 2022 (default: 8)")
    parser.add_argument("--words", type=Path, help="of 2018 or 2022: a JSON file, see above")
    parser.add_argument("--languages", default="de-en", help="of 2018 or 2022 (default: de-en)")
    options = parser.parse_args(arguments)
    try:
        how = options.heads, options.words, options.languages
        translator = convert(options.source, options.folder, *how)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder}: model {translator.name}, trained on {translator.corpus}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
