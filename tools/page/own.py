"""One HTML file of a translator of your own: its weights are inside, and figures to play with.

    python -m tools.page.own make MODEL     a model, or the best of a run: build/model-NAME.html

TEXT in the environment is the first sentence. Figures compute with plain parts and subwords.
"""

import html
import json
import os
import sys
from pathlib import Path

import the_annotated_transformer as at
from tools import records
from tools.page import assets
from tools.page.bundle import bundle
from tools.page.markup import FIGURES, PARTS, BuildError, filled, json_script
from tools.page.playable import check_parts, packed

LARGEST = 64e6  # bytes of weights
LONGEST = 120  # letters of a sentence; the figures read so many
ENOUGH = 5  # sentences to try
CORPUS = {FIGURES / "lib/corpus.js": PARTS / "script/own-corpus.js"}
SECTIONS = {  # by figure
    "translator": (
        "Translator",
        "Type a sentence. The arcs show where the model looks while it writes a subword. "
        "Choose another subword, and it writes the rest anew.",
    ),
    "tree": (
        "Beam search",
        "Each step keeps the likeliest hypotheses. Width and length penalty decide which one wins.",
    ),
    "map": (
        "Map",
        "A sentence on its way through the layers: vectors, attention weights, and what the "
        "generator would say. Each part can be switched off.",
    ),
}
NO_MAP = "The map is left out: it draws pre-norm models, and this one is post-norm."


def refuse(folder: Path, about: dict) -> None:
    """BuildError for a model that a page cannot hold."""
    if "src_vocab" not in about["model"]:
        raise BuildError(f"{folder} is a language model: the figures need an encoder and a decoder")
    check_parts(folder, about["model"])
    if (folder / "words.json").is_file():
        way = "train one with --vocab-size 5000"
        raise BuildError(f"{folder} has a vocabulary of words, the figures cut subwords: {way}")
    weights = folder / "model.safetensors"
    if weights.is_file() and (size := weights.stat().st_size) > LARGEST:
        rounding = f'make export ARGS="{folder} FOLDER" makes it a quarter of that'
        sizes = f"{size / 1e6:.0f} MB, a page holds {LARGEST / 1e6:.0f}"
        raise BuildError(f"{folder} is too large ({sizes}): {rounding}, once")


def sentences_to_try(folder: Path, languages: list[str], text: str) -> list[str]:
    """The text, then short sentences that the run was validated on, or else ours."""
    if len(text) > LONGEST:
        raise BuildError(f"TEXT has {len(text)} letters, the figures take {LONGEST}: shorten it")
    sources = []
    if (folder / "val.json").is_file():
        sources = [source for source, _ in json.loads((folder / "val.json").read_bytes())]
    elif set(languages) <= {"de", "en"}:
        sources = [source for source, _ in at.read_builtin(tuple(languages)).pairs("train")]
    short = [source.strip() for source in sources if 0 < len(source.strip()) <= LONGEST]
    if not text and not short:
        raise BuildError(f'{folder} holds no sentence to begin with: give one, as TEXT="…"')
    return list(dict.fromkeys([text] * bool(text) + short))[:ENOUGH]


def summary(translator: at.Translator) -> str:
    """What the model is, in a sentence."""
    arguments = translator.model.arguments
    way = " → ".join(translator.languages)
    order = "pre-norm" if arguments["norm_first"] else "post-norm"
    return (
        f"A Transformer ({way}) trained on {translator.corpus}: {arguments['N']} layers in each "
        f"stack, width {arguments['d_model']}, {arguments['h']} heads, {order}, "
        f"{len(translator.vocabularies[0]):,} subwords, "
        f"{at.count_parameters(translator.model):,} parameters."
    )


def section(name: str) -> str:
    """A figure under its heading."""
    title, text = SECTIONS[name]
    stage = '<div class="stage"><p role="status">Reading the model …</p></div>'
    heading = f'<hgroup><h2 id="{name}">{title}</h2><p>{text}</p></hgroup>'
    return f'{heading}\n<figure class="playable" data-play="{name}">{stage}</figure>'


def page(folder: Path, text: str = "") -> str:
    """The page of a model; `text` is the first sentence.

    BuildError or UserError for a model that it cannot hold.
    """
    about = at.read_config(folder)
    refuse(folder, about)
    sentences = sentences_to_try(folder, about["languages"], text)
    translator = at.load_trained_model(folder, at.torch.device("cpu"))
    has_map = translator.model.arguments["norm_first"]
    sections = [section(name) for name in SECTIONS if name != "map" or has_map]
    if not has_map:
        sections.append(f"<p>{NO_MAP}</p>")
    return filled(
        "own.html",
        {
            "title": html.escape(translator.name),
            "summary": html.escape(summary(translator)),
            "sections": "\n".join(sections),
            "styles": assets.styles(article=False),
            "licences": assets.licences("preact"),
            "about": json_script(
                {"languages": about["languages"], "sentences": sentences}, "about"
            ),
            "model": json_script(packed(folder), "model-inside"),
            "script": bundle(PARTS / "script/own.js", instead=CORPUS),
        },
    )


def make(model: Path, /) -> None:
    """Write the page of a model, or of the best of a run."""
    made = page(model, os.environ.get("TEXT", "").strip())
    output = records.PROJECT / "build" / f"model-{model.resolve().name}.html"
    records.write_text(output, made)
    print(f"written: {output}, {len(made.encode()) / 1e6:.1f} MB")
    if NO_MAP in made:
        print(NO_MAP)


main = records.command_line(make=make)

if __name__ == "__main__":
    sys.exit(main())
