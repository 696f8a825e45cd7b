"""Code in colours."""

import html

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
    """A block of code with an id."""
    coloured = ""
    for token, text in get_lexer_by_name(language, stripnl=False).get_tokens(code.rstrip("\n")):
        inks = (ink for ink, kinds in INKS.items() if any(token in kind for kind in kinds))
        ink = next(inks, "")
        text = html.escape(text, quote=False)
        coloured += f'<span class="{ink}">{text}</span>' if ink else text
    address = f' id="{name}"' if name else ""
    return f'<div class="code"{address}><pre><code>{coloured.rstrip()}</code></pre></div>\n'


def colours() -> str:
    """The rules of the style sheet for both themes."""
    rules = []
    for theme, name in STYLES.items():
        for ink, [token, *_] in INKS.items():
            colour = get_style_by_name(name).style_for_token(token)["color"]
            rules.append(f':root[data-theme="{theme}"] .code .{ink}{{color:#{colour}}}')
    return "\n".join(rules)
