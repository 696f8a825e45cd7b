"""Change operators and numbers of Parts 1 to 4 at random, and see which changes the tests notice.

    python -m tools.results.mutants SEED [--count 20]

Cosmic Ray makes one change at a time in a copy of the project and runs the tests there, about
15 seconds for each. A change that is not noticed may be a gap in the tests, or equivalent code.
"""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.records import PROJECT

SCRIPT = "the_annotated_transformer.py"
NEEDED = ("tests", "tools", "pretrained", "results", "pyproject.toml", SCRIPT)
TESTS = "-m pytest -q -x -p no:cacheprovider tests/test_model.py tests/test_examples.py -k check_"
CONFIG = """\
[cosmic-ray]
module-path = "{script}"
test-command = "'{python}' {tests}"
timeout = 180.0
distributor.name = "local"
"""
CHANGES = (  # the others hardly ever run, such as a shift of a floating-point number
    r"NumberReplacer|AddNot|Replace(True|False|And|Or)With|ZeroIteration|UnaryOperator_Delete|"
    r"Comparison|BinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|Pow_Mul|Mod_FloorDiv|BitAnd_BitOr)"
)


def taught_lines(text: str) -> set[int]:
    """Lines in functions and methods of Parts 1 to 4 that are not folded, examples or checks."""
    first = text.index("\n# # Part 1. ")
    above = text[:first].count("\n")
    taught = set()
    examples = set()
    for cell in re.split(r"(?m)^(?=# %%)", text[first : text.index("\n# # Part 5. ")]):
        folded = re.match("# %%.*hide-input", cell)
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.FunctionDef) and not folded:
                lines = range(above + node.body[0].lineno, above + node.end_lineno + 1)
                is_example = "example" in map(ast.unparse, node.decorator_list)
                (examples if is_example else taught).update(lines)
        above += cell.count("\n")
    return taught - examples


def draw(changes: Path, text: str, seed: int, count: int) -> None:
    """Keep a few of the changes, at most one at each place in the code."""
    from cosmic_ray.work_db import use_db

    lines = taught_lines(text)
    places = {}
    with use_db(changes) as database:
        for item in database.work_items:
            [change] = item.mutations
            if change.start_pos[0] in lines and re.search(CHANGES, change.operator_name):
                places.setdefault(change.start_pos, []).append(item)
        chance = random.Random(seed)
        drawn = chance.sample(sorted(places), count)
        database.clear()
        database.add_work_items(chance.choice(places[place]) for place in drawn)
    print(f"{len(places)} places, of which {count} are drawn with seed {seed}")


def report(changes: Path) -> None:
    """Print each change and the test that failed."""
    from cosmic_ray.work_db import use_db

    with use_db(changes) as database:
        results = [result for _, result in database.completed_work_items]
    for result in sorted(results, key=lambda result: result.is_killed):
        failed = re.search(r"(?m)^FAILED \S+?::(\S+)", result.output or "")
        noticed = failed[1] if failed else "noticed (no test ran to its end)"
        print(f"\n{noticed if result.is_killed else 'NOT NOTICED'}")
        print("\n".join(re.findall(r"(?m)^@@.*|^[-+](?![-+]).*", result.diff or "")))
    print(f"\n{sum(result.is_killed for result in results)} of {len(results)} are noticed")


def main(seed: int, /, count: int = 20) -> None:
    """Draw `count` changes and run the tests with each of them."""
    environment = os.environ | {"ANNOTATED_RUN": "smoke", "OMP_NUM_THREADS": "1"}
    cosmic_ray = Path(sys.executable).with_name("cosmic-ray")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in NEEDED:
            copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
            copy(PROJECT / name, place / name)
        config = CONFIG.format(script=SCRIPT, python=sys.executable, tests=TESTS)
        (place / "config.toml").write_text(config)

        def run(*arguments: str) -> None:
            subprocess.run([cosmic_ray, *arguments], cwd=place, env=environment, check=True)

        run("baseline", "config.toml")
        run("init", "config.toml", "changes.sqlite")
        draw(place / "changes.sqlite", (place / SCRIPT).read_text("utf-8"), seed, count)
        run("exec", "config.toml", "changes.sqlite")
        report(place / "changes.sqlite")


if __name__ == "__main__":
    import tyro

    tyro.cli(main)
