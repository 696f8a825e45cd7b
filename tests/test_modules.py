"""Modules of JavaScript: joined without node, and what they compute without a browser."""

import json
from pathlib import Path

import pytest
import quickjs
from conftest import PROJECT
from pages import javascript

from tools.page import bundle

PARTS = PROJECT / "tools" / "page"


def run(script: str, expression: str, context: quickjs.Context | None = None):
    """What an expression is worth after a script, as JSON gives it back."""
    context = context or quickjs.Context()
    context.eval(script)
    return json.loads(context.eval(f"JSON.stringify({expression})"))


def written(folder: Path, **modules: str) -> Path:
    """Modules in files; the first of them is what is joined."""
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, "utf-8")
    return folder / f"{next(iter(modules))}.js"


# Joining ----------------------------------------------------------------------------------------


def test_modules_are_joined_in_order_and_keep_their_names_to_themselves(tmp_path):
    entry = written(
        tmp_path,
        main='import { one, two as second } from "./a.js";\nimport whole from "./b.js";\n'
        'import "./c.js";\nconst own = 4;\nexport const all = [one, second(), whole, own];\n',
        a="const own = 1;\nexport const one = own;\nexport function two() {\n  return 2;\n}\n",
        b='import { one } from "./a.js";\nexport default one + 2;\n',
        c='import { one } from "./a.js";\nglobalThis.ran = (globalThis.ran ?? 0) + one;\n',
    )
    script = bundle.bundle(entry, "joined")
    assert run(script, "[joined.all, ran]") == [[1, 2, 3, 4], 1], "each module runs once"


def test_packed_exports_at_the_end_of_a_line_are_known(tmp_path):
    entry = written(tmp_path, main='import { a, c } from "./p.js";\nexport const x = a + c;\n')
    (tmp_path / "p.js").write_text("var n=1,t=2;function f(){}export{n as a,t as c};\n")
    assert run(bundle.bundle(entry, "joined"), "joined.x") == 3


@pytest.mark.parametrize(
    "text, message",
    [
        ('import { b } from "./a.js";', r"main.js imports b, which ./a.js does not export"),
        ('import { a } from "./gone.js";', r"main.js imports .*gone.js, which does not exist"),
        ('import * as a from "./a.js";', r"main.js: cannot join 'import \* as a"),
        ('export * from "./a.js";', r"main.js: cannot join 'export \* from"),
        (
            'import { m } from "./main.js";\nexport const m = 1;',
            "import each other: main.js -> main",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path, text, message):
    entry = written(tmp_path, main=f"{text}\n", a="export const a = 1;\n")
    with pytest.raises(ValueError, match=message):
        bundle.bundle(entry)


# The player -------------------------------------------------------------------------------------

PLAYING = """
const told = [];
const waits = [];
const clock = () => new Promise((tick) => waits.push(tick));
const player = new player_module.Player(4, {
  at: 2, wait: clock, still: () => globalThis.motionless, changed: () => told.push(player.at),
});
"""


@pytest.fixture
def player() -> quickjs.Context:
    """A player of four steps, of which the second is shown; `tick()` lets its clock go on."""
    context = quickjs.Context()
    context.eval(bundle.bundle(PARTS / "figures/lib/player.js", "player_module"))
    context.eval(PLAYING)
    return context


def after(context: quickjs.Context, *actions: str) -> list:
    """[step, playing, all that was told] after some calls, and all that they set off."""
    for action in actions:
        context.eval("waits.splice(0).forEach((go) => go())" if action == "tick" else action)
        while context.execute_pending_job():
            pass
    return json.loads(context.eval("JSON.stringify([player.at, player.playing, told])"))


@pytest.mark.parametrize(
    "actions, expected",
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
def test_the_player_goes_on_stops_and_is_overruled(player, actions, expected):
    assert after(player, *actions) == expected


# The model and its search -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> quickjs.Context:
    context = javascript()
    context.eval("const { finish, Search } = stills")
    return context


def asked(engine: quickjs.Context, expression: str):
    return run("", expression, engine)


def test_subwords_and_greedy_decoding_are_those_of_pytorch(engine, at):
    shipped = at.load_trained_model(PROJECT / "pretrained")
    text = "Zwei Schornsteinfeger lachen,  „Café“ 日!"
    theirs = [*shipped.vocabularies[0].encode([text])[0], at.END]
    assert asked(engine, f"model.encode({json.dumps(text)})") == theirs
    greedy = f"[...finish(Search.opening(model, {json.dumps(text)})).greedy()].slice(-1)[0].written"
    [translation] = at.translate(shipped, [text], at.greedy_decode)
    assert asked(engine, f"model.decode({greedy})") == translation


def test_a_beam_of_one_is_greedy_and_a_wider_one_scores_no_less(engine):
    text = json.dumps("Ein Kind schläft auf dem Schoß seiner Mutter.")
    engine.eval(f"const search = finish(Search.opening(model, {text}))")
    greedy, *beams = asked(
        engine,
        "[[...search.greedy()].slice(-1)[0], finish(search.translating(1, 0.6)),"
        " finish(search.translating(4, 0.6))]"
        ".map((path) => [path.written, search.score(path, 0.6)])",
    )
    assert beams[0] == greedy
    assert beams[1][1] >= greedy[1]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_side_file_is_refused(engine, place):
    changed = ["translatorFiles[0] + 1", "translatorFiles[1] + ' '", "'A' + translatorFiles[2]"]
    files = ", ".join(
        changed[n] if n == place else f"translatorFiles[{n}]" for n in range(len(changed))
    )
    with pytest.raises(quickjs.JSException, match="the model's file is damaged"):
        engine.eval(f"finish(stills.readingModel([{files}]))")
