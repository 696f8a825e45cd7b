"""Figures that can be played with: their model, and their pictures before anybody has played."""

import base64
import functools
import json
import zlib
from pathlib import Path

import vl_convert
from bs4 import Tag

from tools.page import javascript
from tools.page.bundle import bundle
from tools.page.cache import cached
from tools.page.markup import FIGURES, PARTS, BuildError, json_script, parsed
from tools.records import PROJECT

MODEL = PROJECT / "pretrained"
PLAYABLE = {  # figures of the notebook, and what takes their place on the page
    "figure-first-translation": "translator",
    "figure-attention-by-hand": "by-hand",
    "figure-architecture": "map",
    "figure-attention-of-a-copy": "learn",
    "figure-one-search": "tree",
    "figure-attention-maps": "maps",
}
KNOWN = {  # the settings that the page's translator can compute with
    "attention": "plain",
    "feed_forward": "plain",
    "norm": "plain",
    "positions": "plain",
    "encoder_layer": "plain",
    "decoder_layer": "plain",
    "bias": True,
    "norm_first": True,
    "share_embeddings": True,
}


@functools.cache
def side_file(model: Path = MODEL) -> str:
    """The model as a script beside the page: checksum, settings and subwords, weights."""
    config = json.loads((model / "config.json").read_bytes())["model"]
    for name, known in KNOWN.items():
        if config[name] != known:
            raise BuildError(f"{model.name}: the page computes with {name} {known} only")
    tokenizer = json.loads((model / "tokenizer.json").read_bytes())["model"]
    words = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    merges = [" ".join(pair) for pair in tokenizer["merges"]]
    settings = json.dumps({"config": config, "words": words, "merges": merges})
    weights = base64.b64encode((model / "model.safetensors").read_bytes()).decode()
    check = zlib.adler32((settings + weights).encode())
    return f"self.translatorFiles = {json.dumps([check, settings, weights])};\n"


@functools.cache
def engine() -> str:
    """A script with the model of the side file, and what the build asks of the figures."""
    model = "const model = stills.finish(stills.readingModel(translatorFiles));"
    return side_file() + bundle(FIGURES / "stills.js", "stills") + model


@cached
def still_from(script: str, name: str, data: str) -> str:
    """JSON of what a figure shows first, computed by the script."""
    draw = "(name, data) => stills.still(model, name, JSON.parse(data))"
    return javascript.call(script, draw, name, data)


def still(name: str, data: object = None) -> dict[str, str]:
    """What a figure shows first, drawn by its own code.

    That is `scene`, as data, `html`, and `whole`, which takes its place where scripts are off.
    """
    return json.loads(still_from(engine(), name, json.dumps(data, ensure_ascii=False)))


def make_playable(figure: Tag, name: str) -> None:
    """Replace the notebook's picture by the still picture of a figure that can be played with."""
    spec = figure.find("script", type="application/json")
    if spec:  # of a chart: its rows
        [data] = json.loads(spec.string)["datasets"].values()
    else:  # of a drawing: where its boxes lead
        boxes = figure.find_all("a", attrs={"data-place": True})
        data = {box["data-place"]: box["href"] for box in boxes}
    first = still(name, data)
    figure["class"] = "playable"
    figure["data-play"] = name
    old = figure.find(class_=["chart", "picture", "table"])
    stage = f'<div class="stage">{first["html"]}</div>'
    whole = f"<noscript>{first['whole']}</noscript>" if first["whole"] else ""
    old.replace_with(parsed(stage + whole + json_script(first["scene"])))


def preview() -> bytes:
    """The picture beside a link to the page: its first translation, as a PNG."""
    drawing = parsed(still("picture")["html"]).svg.decode_contents()
    frame = (PARTS / "preview.svg").read_text("utf-8")
    return vl_convert.svg_to_png(frame.replace("{{drawing}}", drawing))
