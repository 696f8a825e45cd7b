"""The hashes of the code: what changes a training changes one, what changes a scoring the other."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import reach
import results
import torch
from conftest import PROJECT

SCRIPT = (PROJECT / "the_annotated_transformer.py").read_text(encoding="utf-8")


def changed(script: str) -> set[str]:
    """Which of the two hashes a script does not share with the real one."""
    return {
        what
        for what, roots in (("training", results.TRAINING), ("scoring", results.SCORING))
        if reach.code_hash(script, roots, results.NOT_FOLLOWED) != results.code(*roots)
    }


# Changes of the real script ---------------------------------------------------------------------

TRAINING_ONLY = {
    "/ math.sqrt(d_k)  # (..., T, S)": "/ d_k",
    "eps: float = 1e-6": "eps: float = 1e-5",
    "10_000": "20_000",
    "xavier_uniform_(module.weight)": "xavier_uniform_(module.weight, gain=0.5)",
    "smoothing / (size - 2)": "smoothing / (size - 1)",
    "betas=(0.9, 0.98)": "betas=(0.9, 0.99)",
    "eps=1e-9, fused": "eps=1e-8, fused",
    "warmup**-1.5": "warmup**-1.4",
    "min_freq: int = 2": "min_freq: int = 3",
    "* (len(batches[-1]) + 1) > budget": "* len(batches[-1]) > budget",
    'Punctuation("isolated")': 'Punctuation("removed")',
    "dropout: float = 0.25": "dropout: float = 0.2",
    "round(256 * self.p)": "round(128 * self.p)",
    "clip / norm": "clip / (norm + 1e-6)",
    "random.Random(": "random.SystemRandom(",
}
SCORING_ONLY = {
    "((5 + length) / 6)": "((5 + length) / 7)",
    "value / count for": "value / (count + 1) for",
    "numbers * steps.view": "numbers / steps.view",
    "decode: Callable = beam_search,": "decode: Callable = greedy_decode,",
}
BOTH = {
    '("<s>", "</s>", "<blank>", "<unk>")': '("<s>", "</s>", "<unk>", "<blank>")',
    'JOIN = "‿"': 'JOIN = "_"',
    r"\\x0e-\\x1f": r"\\x0f-\\x1f",
    "source_length + 50": "source_length + 40",
    "logp + 1e9": "logp + 1e8",
    r'UNKNOWN_WORD = "\ufffd"': 'UNKNOWN_WORD = "?"',
    "len(metric.tokenizer(x).split()) < 4": "len(metric.tokenizer(x).split()) < 3",
    '{"zh": "zh"}': '{"zh": "char"}',
    ".strip(), ": ".rstrip(), ",
    "9204244e408ccb38": "0204244e408ccb38",
}
NEITHER = {
    # what is said, and texts that are made for it
    "smoothing must be in [0": "the smoothing must be in [0",
    'sizes = f"{len(source.weight)} and': 'sizes = f"{len(source.weight)} but',
    "bytes are replaced": "bytes were replaced",
    "more than {limit}: cut": "more than {limit}",
    "decoded without a cache, which takes longer": "decoded slowly",
    "is no part of this text, nor handed in": "is unknown",
    'example = "GroupedAttention(groups=2)"': 'example = "Mine(a=1)"',
    'return f"model {self.name}': 'return f"{self.name}',
    'ADVICE = "': 'ADVICE = "sorry: ',
    # what is written for a reader of the code
    'for name in "stdin", "stdout"': 'for name in "stderr", "stdout"',
    '"""Lists of sentence numbers, alike in length': '"""Numbers of sentences, alike in length',
    "  # so far: they are sorted": "",
    "def rate(step: int,": "def rate(step: float,",
    # what no record rests on
    "isclose(max(rates), 3 / math.sqrt(512 * 4000))": "isclose(max(rates), 0.002)",
    "range(1, 20_001, 500)": "range(1, 20_001, 100)",
    "ein Mann: a man": "ein Herr: a gentleman",
    "raw.githubusercontent.com": "example.org",
    "    import vl_convert\n": "    import torch.utils.data\n",
    "class RMSNorm(nn.Module):": "class RMSNorm(nn.Module):\n    power = 2",
}


@pytest.mark.parametrize(
    ("old", "new", "hashes"),
    [
        pytest.param(old, new, hashes, id=old)
        for hashes, changes in (
            ({"training"}, TRAINING_ONLY),
            ({"scoring"}, SCORING_ONLY),
            ({"training", "scoring"}, BOTH),
            (set(), NEITHER),
        )
        for old, new in changes.items()
    ],
)
def test_a_change_changes_the_hash_of_what_it_decides(old, new, hashes):
    assert old in SCRIPT
    assert changed(SCRIPT.replace(old, new)) == hashes


def reworded(tree: ast.Module) -> None:
    """Every message says more than before."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call() as said) | ast.Assert(msg=ast.expr() as said):
                parts = [said]
            case ast.Call(func=ast.Name("print") | ast.Attribute(attr="warn"), args=parts):
                pass
            case ast.Call(ast.Attribute(attr="set_postfix_str" | "write"), [ast.JoinedStr()]):
                parts = node.args
            case ast.Call(func=ast.Name("tqdm"), args=[_, *parts], keywords=more):
                parts += more
            case _:
                continue
        for text in (text for part in parts for text in ast.walk(part)):
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                text.value += ", and more"


def without_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]


def without_examples(tree: ast.Module) -> None:
    """No figure, no check, and nothing that is only shown."""

    def is_shown(node: ast.stmt) -> bool:
        marks = map(ast.unparse, getattr(node, "decorator_list", []))
        return isinstance(node, ast.Expr) or "example" in marks

    tree.body = [node for node in tree.body if not is_shown(node)]


def upside_down(tree: ast.Module) -> None:
    tree.body.reverse()


@pytest.mark.parametrize("change", [reworded, without_docstrings, without_examples, upside_down])
def test_what_decides_nothing_changes_no_hash(change: Callable):
    tree = ast.parse(SCRIPT)
    change(tree)
    expected = ast.unparse(ast.parse(SCRIPT))
    assert ast.unparse(tree) != expected
    assert not changed(ast.unparse(tree))


def test_no_message_is_hashed():
    """What is left of a `raise` is the kind of its error, and nobody is told anything."""
    code = "\n".join(
        reach.reached(SCRIPT, {*results.TRAINING, *results.SCORING}, results.NOT_FOLLOWED)
    )
    assert not re.search(r'raise \w+\(|warnings|print\(|bar\.|"""', code)


def test_a_search_with_one_place_has_no_use_for_a_length_penalty(at):
    model = at.tiny_model()
    batch = at.Batch(at.pad_ids([[4, 5, 6, 7, 8], [9, 4], [10, 7, 7]]))
    model.generator.proj.bias.data[at.END] = 1.0
    written = [
        at.beam_search(model, batch.src, batch.src_mask, 12, beam=1, alpha=alpha)
        for alpha in (0.0, 10.0)
    ]
    assert torch.equal(*written)


# A small script ---------------------------------------------------------------------------------

SMALL = '''\
# %% [markdown]
# Some prose.

# %%
import math
import random
from tqdm import tqdm, trange

SIZES: dict = {"small": 1}
SIZES["large"] = 2
SIZES["large"] += 3
SIZES.update(huge=4)
for name in ("tiny",):
    SIZES[name] = 0
WIDTH = 300
ADVICE = "start again"

# %%
class Model:
    """What it is."""

    name: str = "a model"

    def __str__(self):
        return self.name

    def forward(self, x: "Tensor"):
        return scaled(x)  # a remark


# %%
@example
def a_figure():
    model = "local"
    return train(WIDTH)


def scaled(x):
    """What it does."""
    if not x:
        what = "nothing"
        what += f" of {len(x)}"
        where: str = str(x).split()[0] if x else "here: " + ADVICE.upper()
        reason = f"{what} {where}"
        raise ValueError(reason)
    assert len(x) > 1, f"only {x}"
    return [math.sqrt(y) for y in x]


def update(step, tries=1):
    global SIZES
    SIZES = {step: tries}

    class Done:
        kind = "plain"

    return Done


def train(steps):
    unused = "a text"
    first = update(0)
    random, path = steps, "a/path"
    losses = open(path)
    bar = tqdm(range(random), "epoch", leave=False)
    for step in bar:
        loss = update(step)
        shown = f"loss {loss}"
        bar.set_postfix_str(shown)
        if step == 100:
            bar.write("a hundred are done")
        if update(loss):
            print("done")
    with tqdm(total=1) as last:
        last.update(1)
    try:
        losses.write("all")
    except OSError as error:
        print(f"cannot be written: {error}")
    try:
        return Model().forward(SIZES)
    finally:
        bar.close()
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Some prose", "Other prose"),
        ("  # a remark", ""),
        ("What it is.", "What it is,\n    and more."),
        ('    """What it does."""\n', ""),
        ("WIDTH = 300", "WIDTH = 420"),
        ("return train(WIDTH)", "return WIDTH"),
        ("tqdm, trange", "tqdm"),
        ("import random", "import secrets as random"),
        ("name: str", "name: int"),
        ("return self.name", "return ADVICE"),
        (': "Tensor"', ""),
        ('what = "nothing"', 'what = "nobody"'),
        (" of {len(x)}", ""),
        ("where: str", "where"),
        ("[0] if x", "[-1] if x"),
        ("here: ", "there: "),
        ("start again", "sleep first"),
        ("ValueError(reason)", "ValueError(what) from None"),
        (', f"only {x}"', ""),
        ("a text", "another text"),
        ('"epoch", leave=False', '"lap"'),
        ("loss {loss}", "at {step}: loss {loss}"),
        ("step == 100", "step == 50"),
        ("a hundred are done", "done"),
        ("last.update(1)", "last.close()"),
        (
            'OSError as error:\n        print(f"cannot be written: {error}")',
            "OSError:\n        pass",
        ),
        ("bar.close()", "bar.refresh()"),
    ],
)
def test_the_hash_stays_whatever_is_said(old, new):
    assert old in SMALL
    now = reach.code_hash(SMALL.replace(old, new), ["train"])
    assert now == reach.code_hash(SMALL, ["train"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.sqrt", "math.cbrt"),
        ('"small": 1', '"small": 3'),
        ('SIZES["large"] = 2', 'SIZES["large"] = 3'),
        ("+= 3", "+= 4"),
        ("huge=4", "huge=5"),
        ("SIZES[name] = 0", "SIZES[name] = 1"),
        ("a model", "our model"),
        ("scaled(x)  # a remark", "scaled(x[::-1])"),
        ("if not x", "if x"),
        ("raise ValueError", "raise TypeError"),
        ("len(x) > 1", "len(x) > 2"),
        ("tries=1", "tries=2"),
        ("{step: tries}", "{step: 2}"),
        ("plain", "fancy"),
        ("a/path", "another/path"),
        ("range(random)", "range(1, random)"),
        ("update(step)", "update(step + 1)"),
        ("update(loss)", "update(step)"),
        ("update(0)", "update(1)"),
        ('losses.write("all")', 'losses.write("some")'),
        ("except OSError", "except ValueError"),
        ("class Model:", "@example\nclass Model:"),
    ],
)
def test_the_hash_changes_with_what_is_done(old, new):
    assert old in SMALL
    now = reach.code_hash(SMALL.replace(old, new), ["train"])
    assert now != reach.code_hash(SMALL, ["train"])


def test_the_hash_is_the_same_in_every_process():
    code = f"import reach; print(reach.code_hash({SMALL!r}, ['train']))"
    for seed in "123":
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(PROJECT / "tools")}
        said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        expected = reach.code_hash(SMALL, ["train"])
        assert said.strip() == expected


def test_the_hash_follows_its_roots():
    result = reach.code_hash(SMALL, ["scaled"])
    expected = reach.code_hash(SMALL, ["train"])
    assert result != expected
    whole = reach.reached(SMALL, ["train"])
    part = reach.reached(SMALL, ["train"], ["scaled"])
    assert "import math" in whole - part
    assert len(whole - part) == 2
    assert reach.reached(SMALL, ["scaled"], ["scaled"]) == whole - part
    for names in (["train", "evaluate"], []), (["train"], ["evaluate"]):
        with pytest.raises(ValueError, match="does not define evaluate"):
            reach.code_hash(SMALL, *names)
