"""Code in colours."""

import html
from itertools import groupby

from pygments.lexers import get_lexer_by_name
from pygments.styles import get_style_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String

STYLES = {"light": "github-light-high-contrast", "dark": "github-dark"}
INKS = {  # what is coloured: class, kinds of tokens
    "c": [Comment],
    "s": [String],
    "k": [Keyword, Operator.Word],
    "f": [Name.Function, Name.Class],
    "d": [Name.Decorator],
    "m": [Number],
}


def code_block(code: str, language: str = "python", name: str = "") -> str:
    """A block of code with an id; neighbours of one colour share an element."""
    pieces = []
    ink = ""
    for token, text in get_lexer_by_name(language, stripnl=False).get_tokens(code):
        if not text.isspace():
            inks = (ink for ink, kinds in INKS.items() if any(token in kind for kind in kinds))
            ink = next(inks, "")
        pieces.append((ink, html.escape(text, quote=False)))
    coloured = ""
    for ink, group in groupby(pieces, key=lambda piece: piece[0]):
        text = "".join(text for _, text in group)
        seen = text.rstrip()
        coloured += f'<span class="{ink}">{seen}</span>{text[len(seen) :]}' if ink else text
    address = f' id="{name}"' if name else ""
    code = coloured.rstrip("\n")
    return f'<div class="code"{address}><pre><code>{code}</code></pre></div>\n'


def colours() -> str:
    """The rules of the style sheet for both themes."""
    rules = []
    for theme, name in STYLES.items():
        for ink, [token, *_] in INKS.items():
            colour = get_style_by_name(name).style_for_token(token)["color"]
            rules.append(f':root[data-theme="{theme}"] .code .{ink}{{color:#{colour}}}')
    return "\n".join(rules)
