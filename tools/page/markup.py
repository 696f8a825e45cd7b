"""What the modules of the page's builder share."""

import base64
import functools
import json
import re
from pathlib import Path

from bs4 import BeautifulSoup

HERE = Path(__file__).parent  # template, style sheet, scripts
VENDOR = HERE / "vendor"
FIGURES = HERE / "figures"

parsed = functools.partial(BeautifulSoup, features="html.parser")


class BuildError(ValueError):
    """Something in the notebook that must not reach a reader; the message says what and where."""


def data_uri(kind: str, data: bytes) -> str:
    """The bytes as a URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def compact_json(value: object) -> str:
    """A value as JSON without a space, and safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", r"\u003c")


def json_script(value: object) -> str:
    """A value in a script element, where the page's script reads it."""
    return f'<script type="application/json">{compact_json(value)}</script>'


def filled(template: str, values: dict[str, str]) -> str:
    """A template of the page with a value in the place of each {{name}}."""
    text = (HERE / template).read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)
