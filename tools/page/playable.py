"""Figures that can be played with: their model, and their pictures before anybody has played."""

import base64
import functools
import json
import zlib
from pathlib import Path

import vl_convert
from bs4 import Tag

from tools import records
from tools.page import javascript
from tools.page.bundle import bundle
from tools.page.cache import cached
from tools.page.markup import FIGURES, HERE, BuildError, json_script, parsed
from tools.records import PROJECT

MODEL = PROJECT / "pretrained"
# Of these the figures compute the plain ones.
KINDS = ("attention", "feed_forward", "norm", "positions", "encoder_layer", "decoder_layer")


def packed(model: Path) -> list:
    """A model for the figures: checksum, settings and subwords, weights.

    BuildError for a part that they do not compute.
    """
    config = json.loads((model / "config.json").read_bytes())["settings"]
    for kind in KINDS:
        if config[kind] != "plain":
            way = f"train one with --{kind.replace('_', '-')} plain"
            raise BuildError(f"{model}: {kind} {config[kind]} has no JavaScript: {way}")
    if not config["norm_first"]:
        raise BuildError(f"{model}: post-norm has no JavaScript: train one with --norm-first")
    tokenizer = json.loads((model / "tokenizer.json").read_bytes())["model"]
    words = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    merges = [" ".join(pair) for pair in tokenizer["merges"]]
    settings = json.dumps({"config": config, "words": words, "merges": merges})
    weights = base64.b64encode((model / "model.safetensors").read_bytes()).decode()
    check = zlib.adler32((settings + weights).encode())
    return [check, settings, weights]


@functools.cache
def side_file(model: Path = MODEL) -> str:
    """The model as a script beside the page."""
    return f"self.translatorFiles = {json.dumps(packed(model))};\n"


@functools.cache
def stills() -> str:
    """A script with all figures."""
    return bundle(FIGURES / "stills.js", "stills")


@functools.cache
def registry() -> dict[str, dict]:
    """The figures of figures/registry.js, by what they replace."""
    figures = json.loads(javascript.call(stills(), "() => stills.FIGURES"))
    return {about["replaces"]: {"name": name, **about} for name, about in figures.items()}


@functools.cache
def engine() -> str:
    """A script with the model of the side file, and what the build asks of the figures."""
    model = "const model = stills.finish(stills.readingModel(translatorFiles));"
    return side_file() + stills() + model


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


def data_of(figure: Tag, record: str) -> object:
    """What a figure is drawn from besides the model, see figures/registry.js."""
    if record:
        data = records.read(record)
        run = data.get("run")
        return data | {"log": records.read(f"runs/{run}")["log"]} if run else data
    if rows := figure.find("script", type="application/json"):
        return json.loads(rows.string)
    return {box["data-place"]: box["href"] for box in figure.select("[data-place]")}


def make_playable(figure: Tag) -> None:
    """Put a figure that can be played with in the place of the notebook's, if there is one."""
    about = registry().get(figure["data-name"])
    if about is None:
        return
    first = still(about["name"], data_of(figure, about.get("record", "")))
    whole = f"<noscript>{first['whole']}</noscript>" if first["whole"] else ""
    stage = f'<div class="stage">{first["html"]}</div>{whole}{json_script(first["scene"])}'
    figure["class"] = "playable"
    figure["data-play"] = about["name"]
    figure.clear()
    figure.append(parsed(stage))


def first_translation() -> str:
    """The content of the SVG that the translator shows on paper."""
    return parsed(still("translator", {})["html"]).select_one(".still svg").decode_contents()


def preview() -> bytes:
    """The picture beside a link to the page: its first translation, as a PNG."""
    frame = (HERE / "preview.svg").read_text("utf-8")
    return vl_convert.svg_to_png(frame.replace("{{drawing}}", first_translation()))
