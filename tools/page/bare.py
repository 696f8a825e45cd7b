"""Write the bare model: the script's cells with the tag `bare`, without prose and checks.

    python -m tools.page.bare make SCRIPT FILE

The file trains the copy task when it is run.
"""

import ast
import subprocess
import sys
from pathlib import Path

import jupytext

from tools.records import command_line, write_text

DOCUMENTED = (ast.FunctionDef, ast.ClassDef)
OPENING = '''"""The Transformer of "Attention Is All You Need", bare.

Made from the cells of The Annotated Transformer, which explains each line and checks it.
Run this file to train a small model to copy sequences.
"""

'''
CLOSING = """

if __name__ == "__main__":
    model = new_copy_model()
    for hundred, loss in enumerate(train_to_copy(model), 1):
        print(f"{100 * hundred} updates: loss {loss:.3f}")
    batch = next(data_gen(COPY_VOCAB, 1, 1))
    copied = greedy_decode(model, batch.src, batch.src_mask, 12, START)
    print("source", *batch.src[0].tolist())
    print("copy  ", *copied[0, 1:-1].tolist())
"""


def without_examples(source: str) -> str:
    """A cell's code without the functions that only show or check something."""
    lines = source.split("\n")
    for node in reversed(ast.parse(source).body):
        marks = [
            each for each in getattr(node, "decorator_list", ()) if ast.unparse(each) == "example"
        ]
        if marks:
            del lines[marks[0].lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip()


def with_short_docstrings(text: str) -> str:
    """Code whose docstrings have their first line only."""
    lines = text.split("\n")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    for node in sorted(nodes, key=lambda node: -node.lineno):
        first = node.body[0]
        if ast.get_docstring(node) and first.end_lineno > first.lineno:
            lines[first.lineno - 1] += '"""'
            del lines[first.lineno : first.end_lineno]
    return "\n".join(lines)


def bare(script: str) -> str:
    """The bare model of the script's text, formatted, without imports that it does not use."""
    cells = jupytext.reads(script, "py:percent").cells
    tagged = [cell.source for cell in cells if "bare" in cell.metadata.get("tags", [])]
    code = "\n\n\n".join(map(without_examples, tagged))
    text = OPENING + with_short_docstrings(code) + CLOSING
    for command in (["check", "--select", "F401,I", "--fix-only", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--line-length", "100", "-"]
        text = subprocess.run(ruff, input=text, text=True, capture_output=True, check=True).stdout
    return text


def make(script: Path, file: Path, /) -> None:
    """Write the bare model of a script."""
    write_text(file, bare(script.read_text("utf-8")))


main = command_line(make=make)

if __name__ == "__main__":
    sys.exit(main())
