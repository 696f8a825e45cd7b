"""Figures that can be played with: their model, and their pictures before anybody has played."""

import base64
import functools
import json
import zlib
from pathlib import Path

import vl_convert
from bs4 import BeautifulSoup, Comment, Tag

from tools import records
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
    "figure-inner-products-by-distance": "positions",
    "figure-penalty-on-over-confidence": "smoothing",
    "figure-three-schedules": "schedule",
    "figure-attention-of-a-copy": "learn",
    "figure-one-search": "tree",
    "figure-next-token": "sampling",
    "figure-attention-maps": "maps",
}
CAPTIONS = {  # of figures that stand where a comment asks for them
    "moments": (
        "<strong>Watch it learn.</strong> What a model writes while it trains for {epochs} epochs, "
        "and the mean cross-attention of its last layer: columns are read, rows are written. The "
        "loss is that on held-out sentences."
    ),
    "ask": (
        "<strong>Let a word ask.</strong> Choose who asks, or turn its query away from its vector, "
        "and see who answers."
    ),
    "batches": (
        "<strong>Fill batches.</strong> A row is a sentence, a block is a batch; what is hatched "
        "is padding. Sort the sentences, or change the budget."
    ),
    "pieces": (
        "<strong>Cut a text.</strong> The subwords that the published model reads, each with its "
        "id. Type whatever you like."
    ),
    "bleu": (
        "<strong>Spoil a translation.</strong> BLEU of one sentence, as <code>corpus_bleu</code> "
        "computes it: the n-grams of the translation, and those that match the reference."
    ),
}

# Of these the figures compute the plain ones.
KINDS = ("attention", "feed_forward", "norm", "positions", "encoder_layer", "decoder_layer")


def check_parts(model: Path, config: dict) -> None:
    """BuildError for a part that the figures do not compute."""
    for kind in KINDS:
        if config[kind] != "plain":
            way = f"train one with --{kind.replace('_', '-')} plain"
            raise BuildError(f"{model}: {kind} {config[kind]} has no JavaScript: {way}")


def packed(model: Path) -> list:
    """A model for the figures: checksum, settings and subwords, weights."""
    config = json.loads((model / "config.json").read_bytes())["model"]
    check_parts(model, config)
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


def staged(name: str, data: object) -> str:
    """The first picture of a figure, what stands there without scripts, and its scene."""
    first = still(name, data)
    stage = f'<div class="stage">{first["html"]}</div>'
    whole = f"<noscript>{first['whole']}</noscript>" if first["whole"] else ""
    return stage + whole + json_script(first["scene"])


def make_playable(figure: Tag, name: str) -> None:
    """Replace the notebook's picture by the still picture of a figure that can be played with."""
    spec = figure.find("script", type="application/json")
    if spec:  # of a chart: its rows
        [data] = json.loads(spec.string)["datasets"].values()
    else:  # of a drawing: where its boxes lead
        boxes = figure.find_all("a", attrs={"data-place": True})
        data = {box["data-place"]: box["href"] for box in boxes}
    figure["class"] = "playable"
    figure["data-play"] = name
    figure.find(class_=["chart", "picture", "table"]).replace_with(parsed(staged(name, data)))


def training_at_moments() -> dict | None:
    """What is on record of a training that was watched: its moments, and its losses by update.

    None if there is no such record. BuildError if it does not fit that of the run.
    """
    watched = records.read("learning")
    if not watched:
        return None
    log = records.read(f"runs/{watched['run']}").get("log", [])
    losses = [[entry["updates"], round(entry["nll"], 4)] for entry in log]
    moments = watched["moments"]
    if not losses or losses[-1][0] != moments[-1]["updates"]:
        raise BuildError(f"learning.json does not fit runs/{watched['run']}.json: make both anew")
    return {"epochs": len(log), "moments": moments, "losses": losses}


def words_in_the_plane(article: BeautifulSoup) -> dict | None:
    """The words that Figure 7 has, and who asks; None without that figure."""
    figure = article.find(attrs={"data-play": "by-hand"})
    if figure is None:
        return None
    scene = json.loads(figure.find("script", type="application/json").string)
    words = scene["rows"]
    return {"words": words, "asks": [row["word"] for row in words].index(scene["asks"])}


def data_of(name: str, article: BeautifulSoup) -> dict | None:
    """What a figure is drawn from besides the model; None if that is not there."""
    if name == "ask":
        return words_in_the_plane(article)
    return training_at_moments() if name == "moments" else {}


def place_figures(article: BeautifulSoup) -> None:
    """Put figures where comments ask for them; BuildError for a name that no figure has."""
    for comment in article.find_all(string=lambda text: isinstance(text, Comment)):
        asks, _, name = comment.strip().partition(": ")
        if asks != "figure":
            continue
        if name not in CAPTIONS:
            raise BuildError(f"<!--{comment}-->: no such figure; there are {', '.join(CAPTIONS)}")
        if (data := data_of(name, article)) is not None:
            caption = CAPTIONS[name].format(**data)
            inside = f"{staged(name, data)}<figcaption>{caption}</figcaption>"
            about = f'id="figure-{name}" class="playable" data-play="{name}"'
            comment.replace_with(parsed(f"<figure {about}>{inside}</figure>"))


def preview() -> bytes:
    """The picture beside a link to the page: its first translation, as a PNG."""
    drawing = parsed(still("picture")["html"]).svg.decode_contents()
    frame = (PARTS / "preview.svg").read_text("utf-8")
    return vl_convert.svg_to_png(frame.replace("{{drawing}}", drawing))
