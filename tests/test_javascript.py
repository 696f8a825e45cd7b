"""JavaScript without a page: modules are joined, the player plays, a sentence is cut to fit."""

import json
from pathlib import Path

import pytest
import quickjs

from tools.page import bundle
from tools.page.markup import FIGURES


def worth(context: quickjs.Context, expression: str):
    """The value of an expression, by way of JSON."""
    return json.loads(context.eval(f"JSON.stringify({expression})"))


# Joining modules ----------------------------------------------------------------------------------


def written(folder: Path, **modules: str) -> Path:
    """Write modules into files; returns the first, which imports the others."""
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, "utf-8")
    return folder / f"{next(iter(modules))}.js"


def joined(entry: Path) -> quickjs.Context:
    """A context in which the joined script has run; what it exports is in `joined`."""
    context = quickjs.Context()
    context.eval(bundle.bundle(entry, "joined"))
    return context


def test_each_module_runs_once_in_order_with_names_of_its_own(tmp_path):
    entry = written(
        tmp_path,
        main='import { one, two as second } from "./a.js";\nimport whole from "./b.js";\n'
        'import "./c.js";\nconst own = 4;\nexport const all = [one, second(), whole, own];\n',
        a="const own = 1;\nexport const one = own;\nexport function two() {\n  return 2;\n}\n",
        b='import { one } from "./a.js";\nexport default one + 2;\n',
        c='import { one } from "./a.js";\nglobalThis.ran = (globalThis.ran ?? 0) + one;\n',
    )
    assert worth(joined(entry), "[joined.all, ran]") == [[1, 2, 3, 4], 1]


def test_exports_at_the_end_of_a_packed_line_are_found(tmp_path):
    entry = written(
        tmp_path,
        main='import { a, c } from "./p.js";\nexport const x = a + c;\n',
        p="var n=1,t=2;function f(){}export{n as a,t as c};\n",
    )
    assert worth(joined(entry), "joined.x") == 3


@pytest.mark.parametrize(
    "text, message",
    [
        ('import { b } from "./a.js";', r"main.js imports b, which ./a.js does not export"),
        ('import { a } from "./gone.js";', r"main.js imports .*gone.js, which does not exist"),
        ('import * as a from "./a.js";', r"main.js: cannot join 'import \* as a"),
        ('export * from "./a.js";', r"main.js: cannot join 'export \* from"),
        ('import { m } from "./main.js";\nexport const m = 1;', "import each other: main.js"),
    ],
)
def test_modules_that_cannot_be_joined_raise_an_error(tmp_path, text, message):
    entry = written(tmp_path, main=f"{text}\n", a="export const a = 1;\n")
    with pytest.raises(ValueError, match=message):
        bundle.bundle(entry)


# The player ---------------------------------------------------------------------------------------

PLAYING = """
const told = [];
const waits = [];
const clock = () => new Promise((tick) => waits.push(tick));
const player = new joined.Player(4, {
  at: 2, wait: clock, still: () => globalThis.motionless, changed: () => told.push(player.at),
});
"""


@pytest.mark.parametrize(
    "actions, expected",  # a "tick" is one of the clock; the step, whether it plays, steps told
    [
        (["player.step()"], [3, False, [3]]),
        (["player.back()", "player.back()"], [1, False, [1, 1]]),
        (["player.play()"], [2, True, [2]]),
        (["player.play()", "tick", "tick"], [4, False, [2, 3, 4, 4]]),
        (["player.play()", "tick", "player.pause()", "tick"], [3, False, [2, 3, 3]]),
        (["player.play()", "player.step()", "tick"], [3, False, [2, 3]]),
        (["player.play()", "player.play()", "tick"], [3, True, [2, 2, 3]]),
        (["player.show(4)", "player.play()"], [1, True, [4, 1]]),
        (["player.show(4)", "player.step()"], [1, False, [4, 1]]),
        (["player.show(9)", "player.show(0)"], [1, False, [4, 1]]),
        (["player.restart(2)", "player.show(9)"], [2, False, [1, 2]]),
        (["motionless = true", "player.play()"], [4, False, [4, 4]]),
    ],
)
def test_a_player_of_four_steps(actions, expected):
    context = joined(FIGURES / "lib/player.js")
    context.eval(PLAYING)
    for action in actions:
        context.eval("waits.splice(0).forEach((go) => go())" if action == "tick" else action)
        while context.execute_pending_job():
            pass
    assert worth(context, "[player.at, player.playing, told]") == expected


# A sentence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed, asked",
    [
        ("  Ein Hund. ", "Ein Hund."),
        ("  ", ""),
        ("ab " * 39 + "abc", "ab " * 39 + "abc"),  # 120 letters
        ("ab " * 39 + "abcd", ("ab " * 39).strip()),
        ("ab " * 50, ("ab " * 40).strip()),
        ("日" * 130, "日" * 120),
        ("🙂" * 130, "🙂" * 120),
    ],
)
def test_of_a_long_sentence_the_words_that_fit_are_asked_for(typed, asked):
    context = joined(FIGURES / "lib/sentence.js")
    assert worth(context, f"joined.fitted({json.dumps(typed)})") == asked
