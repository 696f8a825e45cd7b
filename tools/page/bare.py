"""Write the bare model: the script's cells with the tag `bare`, without prose and checks.

    python -m tools.page.bare make SCRIPT FILE

The file trains the copy task when it is run.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jupytext

from tools.records import command_line, write_text

OPENING = '''"""The Transformer of "Attention Is All You Need", bare. Run it, and it learns to copy.

Made from the cells of The Annotated Transformer, which explains them. Unlike in the paper, norms
stand before the sub-layers (`norm_first=False` puts them after the sums), and dropout also acts on
attention weights and hidden units. In comments, B is sentences in a batch, S and T are lengths of
source and target, D is the width, H heads, d_k the width of a head, V the vocabulary.
"""

'''
CLOSING = """
if __name__ == "__main__":
    model = new_copy_model()
    for hundred, loss in enumerate(train_to_copy(model, data_gen), 1):
        print(f"{100 * hundred} updates: loss {loss:.3f}")
    batch = next(data_gen(COPY_VOCAB, 1, 1))
    copied = greedy_decode(model, batch.src, batch.src_mask, 12, START)
    print("source", *batch.src[0].tolist())
    print("copy  ", *copied[0, 1:-1].tolist())
"""


def without_examples(source: str) -> str:
    """A cell's definitions without examples and checks, and with the first line of docstrings.

    A check stays where that line names the error: nothing else would notice the mistake.
    """
    lines = source.split("\n")
    drop = set()
    for node in ast.walk(ast.parse(source)):
        marks = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
        if "example" in marks:
            drop |= {*range(node.decorator_list[0].lineno, node.end_lineno + 1)}
            continue
        if isinstance(node, ast.Module):
            calls = (each for each in node.body if isinstance(each, ast.Expr))
            drop |= {number for each in calls for number in range(each.lineno, each.end_lineno + 1)}
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        text = node.body[0]
        if ast.get_docstring(node) and text.end_lineno > text.lineno:
            drop |= {*range(text.lineno + 1, text.end_lineno + 1)}
            lines[text.lineno - 1] += '"""'
        for each in node.body:
            check = isinstance(each, ast.If) and isinstance(each.body[0], ast.Raise)
            if check and "Error" not in lines[text.lineno - 1]:
                drop |= {*range(each.lineno, each.end_lineno + 1)}
    kept = (line for number, line in enumerate(lines, 1) if number not in drop)
    return "\n".join(kept).strip()


def bare(script: str) -> str:
    """The bare model of the script's text, formatted, without imports that it does not use."""
    text = OPENING
    heading = ""
    for cell in jupytext.reads(script, "py:percent").cells:
        if cell.cell_type == "markdown" and (part := re.search(r"(?m)^# (Part .*)", cell.source)):
            heading = f"# {part[1]} ".ljust(100, "-") + "\n"
        if "bare" in cell.metadata.get("tags", []):
            text += heading + without_examples(cell.source) + "\n\n\n"
            heading = ""
    text += CLOSING
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
