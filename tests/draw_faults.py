"""Draw faults at random in what Parts 1 to 4 teach, and see which of them a check cell notices.

    python tests/draw_faults.py SEED [SEED ...]

A fault changes one node of the syntax tree: an operator, a comparison, a number or truth value, a
negation. Forty are drawn for each seed, in the functions and classes of cells that are not folded.
Settings, defaults and sizes are not drawn, nor is what only checks use. A fault is seen when a
check of the script fails, in any Part, or takes longer than two minutes.
"""

import ast
import contextlib
import copy
import io
import os
import random
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "the_annotated_transformer.py"
FAULTS_A_SEED = 40
SECONDS = 120
# What only checks use: a fault there is one of a check.
APPARATUS = "refuses random_attention_inputs copy_attention copy_layer tiny_model Parrot".split()
# Keywords and functions whose numbers are settings or sizes.
SETTINGS = "lr betas eps fused factor warmup dropout N d_model d_ff h".split()
EXPERIMENTS = "new_copy_model copy_model train_briefly copy_without batches_without".split()
# Faults that no permitted input can tell from the original, each with its reason.
EQUIVALENT = {
    "copied_exactly: len(copies[0]) -> len(copies[-1])": "the rows of a tensor are equally long"
}

OPERATORS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}


@dataclass
class Fault:
    """One node written otherwise: the cell, the node's place in a walk of its tree, and how."""

    cell: int
    place: int
    variant: int
    told: str = ""


def cells_of(text: str) -> list[tuple[str, str]]:
    """(first line, source) of every cell."""
    chunks = re.split(r"(?m)^(?=# %%)", text)
    return [(chunk.partition("\n")[0], chunk.partition("\n")[2]) for chunk in chunks]


def taught(text: str) -> Iterator[int]:
    """Numbers of the code cells of Parts 1 to 4 that are not folded."""
    part = 0
    for number, (head, source) in enumerate(cells_of(text)):
        if "[markdown]" in head:
            for found in re.findall(r"(?m)^# # Part (\d+)", source):
                part = int(found)
        elif 1 <= part <= 4 and "hide-input" not in head:
            yield number


def variants_of(node: ast.AST) -> list[ast.AST]:
    """Other forms of a node, each with one fault."""
    found = []
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for other in OPERATORS.get(type(node.op), []):
            changed = copy.deepcopy(node)
            changed.op = other()
            found.append(changed)
    if isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            for other in OPERATORS[type(operator)]:
                changed = copy.deepcopy(node)
                changed.ops[number] = other()
                found.append(changed)
    if isinstance(node, ast.UnaryOp):
        found.append(copy.deepcopy(node.operand))
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        changed = copy.deepcopy(node)
        changed.test = ast.UnaryOp(ast.Not(), changed.test)
        found.append(changed)
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        value = node.value
        others = [not value] if isinstance(value, bool) else [value + 1, value - 1]
        found += [ast.Constant(other) for other in others]
    return found


def left_out(function: ast.AST) -> set[int]:
    """Nodes of a function or class that are not drawn, by `id`."""
    out = set()

    def leave_out(node: ast.AST | None) -> None:
        if node is not None:
            out.update(map(id, ast.walk(node)))

    for node in ast.walk(function):
        if isinstance(node, ast.arguments):
            leave_out(node)
        if isinstance(node, ast.FunctionDef):
            leave_out(node.returns)
        if isinstance(node, ast.AnnAssign):
            leave_out(node.annotation)
            if node in function.body:
                leave_out(node)  # the default of a field
        if isinstance(node, ast.Raise):
            leave_out(node)
        if isinstance(node, ast.keyword) and node.arg in SETTINGS:
            leave_out(node)
        if isinstance(node, ast.Constant) and function.name in EXPERIMENTS:
            leave_out(node)
        if isinstance(node, ast.UnaryOp) and function.name in EXPERIMENTS:
            leave_out(node)
    return out


def teaches(top: ast.stmt) -> bool:
    """Is it a function or class that is no example, and not what only checks use?"""
    if not isinstance(top, ast.FunctionDef | ast.ClassDef) or top.name in APPARATUS:
        return False
    return "example" not in [getattr(each, "id", "") for each in top.decorator_list]


def all_faults(text: str) -> list[list[Fault]]:
    """Of each node that can be drawn the faults that it can have."""
    found = []
    cells = cells_of(text)
    for number in taught(text):
        tree = ast.parse(cells[number][1])
        drawn = {}
        for top in filter(teaches, tree.body):
            out = left_out(top)
            drawn |= {id(node): top.name for node in ast.walk(top) if id(node) not in out}
        for place, node in enumerate(ast.walk(tree)):
            if id(node) not in drawn:
                continue
            faults = []
            for variant, changed in enumerate(variants_of(node)):
                old = ast.unparse(node).partition("\n")[0]
                new = ast.unparse(ast.fix_missing_locations(changed)).partition("\n")[0]
                line = cells[number][1].splitlines()[node.lineno - 1].strip()
                told = f"{drawn[id(node)]}: {line} | {old} -> {new}"
                faults.append(Fault(number, place, variant, told))
            if faults:
                found.append(faults)
    return found


class Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self.old = old
        self.new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def code_with(fault: Fault, source: str) -> CodeType:
    """The code of a cell with a fault in it."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[fault.place]
    tree = Replace(node, variants_of(node)[fault.variant]).visit(tree)
    return compile(ast.fix_missing_locations(tree), str(SCRIPT), "exec")


def module_of(codes: list[CodeType]) -> ModuleType:
    """The script, run cell by cell."""
    module = ModuleType("faulty")
    module.__file__ = str(SCRIPT)
    sys.modules["faulty"] = module  # dataclasses look for it there
    for code in codes:
        exec(code, vars(module))
    return module


def too_long(*_) -> None:
    raise TimeoutError


def seen_by(module: ModuleType) -> str:
    """The first check that fails, or nothing."""
    for name, check in module.EXAMPLES.items():
        if name.startswith("check_"):
            signal.alarm(SECONDS)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    check()
            except Exception:
                return name
            finally:
                signal.alarm(0)
    return ""


def main(seeds: list[int]) -> None:
    os.environ["ANNOTATED_RUN"] = "smoke"
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, too_long)
    text = SCRIPT.read_text("utf-8")
    sources = [source for head, source in cells_of(text) if "[markdown]" not in head]
    numbers = [n for n, (head, _) in enumerate(cells_of(text)) if "[markdown]" not in head]
    codes = [compile(source, str(SCRIPT), "exec") for source in sources]
    assert seen_by(module_of(codes)) == "", "without a fault nothing is seen"
    pool = all_faults(text)
    print(f"{len(pool)} nodes in Parts 1 to 4")
    for seed in seeds:
        draw = random.Random(seed)
        seen = 0
        equivalent = 0
        for faults in draw.sample(pool, FAULTS_A_SEED):
            fault = draw.choice(faults)
            if fault.told in EQUIVALENT:
                equivalent += 1
                print(f"  equivalent  {fault.told} ({EQUIVALENT[fault.told]})")
                continue
            place = numbers.index(fault.cell)
            changed = codes.copy()
            changed[place] = code_with(fault, sources[place])
            name = seen_by(module_of(changed))
            seen += bool(name)
            print(f"  {name or 'NOT SEEN':12}  {fault.told}", flush=True)
        rest = FAULTS_A_SEED - equivalent
        print(f"seed {seed}: {seen} of {rest} seen, {seen / rest:.0%}; {equivalent} equivalent")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]])
