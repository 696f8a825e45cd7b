"""Code, in which the style sheet can colour what matters."""

import html

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


def code_block(code: str, language: str = "python", name: str = "") -> str:
    """A block of code with an id."""
    coloured = ""
    for token, text in get_lexer_by_name(language, stripnl=False).get_tokens(code.rstrip("\n")):
        inks = (ink for ink, kinds in INKS.items() if any(token in kind for kind in kinds))
        ink = next(inks, "")
        text = html.escape(text, quote=False)
        coloured += f'<span class="{ink}">{text}</span>' if ink else text
    address = f' id="{name}"' if name else ""
    return f'<div class="code"{address}><pre><code>{coloured.rstrip()}</code></pre></div>\n'
