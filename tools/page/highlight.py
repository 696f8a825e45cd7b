"""Code, in which the style sheet can colour what matters."""

import html
import re
from itertools import pairwise

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String

INKS = {  # what is coloured: class, kinds of tokens
    "c": [Comment],
    "s": [String],
    "k": [Keyword, Operator.Word],
    "f": [Name.Function, Name.Class],
    "d": [Name.Decorator],
    "m": [Number],
}


UNBROKEN = re.compile(r"\S{16,}")  # too much for the end of a line on a phone
BREAKS = re.compile(r"(?:(?<=[(\[{,=|])|(?<=\w/))(?=[^)\]}=,])|(?<=[\w)\]])(?=\.[a-zA-Z_])")


def breakable(code: str) -> set[int]:
    """Where a line may be broken although there is no space: never inside a name."""
    runs = UNBROKEN.finditer(code)
    return {at.start() for run in runs for at in BREAKS.finditer(code, *run.span())}


def code_block(code: str, language: str = "python", name: str = "") -> str:
    """A block of code with an id."""
    code = code.rstrip("\n")
    breaks = breakable(code)
    coloured = ""
    place = 0
    for token, text in get_lexer_by_name(language, stripnl=False).get_tokens(code):
        inks = (ink for ink, kinds in INKS.items() if any(token in kind for kind in kinds))
        ink = next(inks, "")
        end = place + len(text)
        stops = [place, *(at for at in range(place, end) if at in breaks), end]
        pieces = (html.escape(code[i:j], quote=False) for i, j in pairwise(stops))
        text = "<wbr>".join(pieces)
        place = end
        coloured += f'<span class="{ink}">{text}</span>' if ink else text
    address = f' id="{name}"' if name else ""
    return f'<div class="code"{address}><pre><code>{coloured.rstrip()}</code></pre></div>\n'
