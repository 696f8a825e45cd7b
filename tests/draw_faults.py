"""Draw faults at random in what Parts 1 to 4 teach, and see which of them a check cell notices.

    python tests/draw_faults.py [--record] SEED [SEED ...]

A fault changes one node of the syntax tree: an operator, a comparison, a number or truth value, a
negation. Forty are drawn for each seed, in the functions and classes of cells that are not folded.
Settings, defaults and sizes are not drawn, nor is what only checks use. A fault is seen when a
check of the script fails, in any Part, or takes longer than two minutes. `--record` keeps what
came out in docs/results/faults.json.
"""

import ast
import contextlib
import copy
import hashlib
import io
import os
import random
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, ModuleType

import rhythm

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "the_annotated_transformer.py"
FAULTS_A_SEED = 40
SECONDS = 120
# What only checks use: a fault there is one of a check.
APPARATUS = "random_attention_inputs copy_attention copy_layer tiny_model".split()
# Keywords and functions whose numbers are settings or sizes.
SETTINGS = "lr betas eps fused factor warmup dropout N d_model d_ff h".split()
EXPERIMENTS = "new_copy_model train_briefly".split()
# Faults that no permitted input can tell from the original, each with its reason.
EQUIVALENT = {
    "greedy_decode: following = model.generator(states[:, -1]).argmax(-1).masked_fill(ended, pad)"
    "  # (B,) | -1 -> 1": "of two axes the last is the second"
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


def taught(text: str) -> Iterator[int]:
    """Numbers of the code cells of Parts 1 to 4 that are not folded."""
    part = 0
    for number, cell in enumerate(rhythm.cells(text)):
        if cell.prose:
            for found in re.findall(r"(?m)^# # Part (\d+)", cell.source):
                part = int(found)
        elif 1 <= part <= 4 and not cell.folded:
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
    sources = [cell.source for cell in rhythm.cells(text)]
    for number in taught(text):
        tree = ast.parse(sources[number])
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
                line = sources[number].splitlines()[node.lineno - 1].strip()
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


def module_of(codes: Iterable[CodeType]) -> ModuleType:
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


@dataclass
class Draw:
    """What became of the faults of a seed."""

    seed: int
    seen: dict[str, str]  # the check that fails
    not_seen: list[str]
    equivalent: list[str]


def drawn(seed: int, pool: list[list[Fault]], text: str) -> Draw:
    """Draw forty faults, and run all checks with each of them."""
    cells = {n: cell.source for n, cell in enumerate(rhythm.cells(text)) if not cell.prose}
    codes = {number: compile(source, str(SCRIPT), "exec") for number, source in cells.items()}
    draw = random.Random(seed)
    result = Draw(seed, {}, [], [])
    for number, faults in enumerate(draw.sample(pool, FAULTS_A_SEED), 1):
        fault = draw.choice(faults)
        told = f"{number}. {fault.told}"
        if fault.told in EQUIVALENT:
            result.equivalent.append(f"{told} ({EQUIVALENT[fault.told]})")
            continue
        changed = codes | {fault.cell: code_with(fault, cells[fault.cell])}
        if name := seen_by(module_of(changed.values())):
            result.seen[told] = name
        else:
            result.not_seen.append(told)
        print(f"  {name or 'NOT SEEN'}  {told}", flush=True)
    return result


def main(seeds: list[int], record: bool) -> None:
    os.environ["ANNOTATED_RUN"] = "smoke"
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, too_long)
    text = SCRIPT.read_text("utf-8")
    pool = all_faults(text)
    print(f"{len(pool)} nodes in Parts 1 to 4")
    draws = [drawn(seed, pool, text) for seed in seeds]
    for draw in draws:
        rest = FAULTS_A_SEED - len(draw.equivalent)
        share = len(draw.seen) / rest
        print(f"seed {draw.seed}: {len(draw.seen)} of {rest} seen, {share:.0%}")
        for told in draw.not_seen:
            print(f"  not seen: {told}")
        for told in draw.equivalent:
            print(f"  equivalent: {told}")
    if record:
        sys.path.insert(0, str(ROOT / "tools"))
        from tools import records

        code = {"script": hashlib.sha256(text.encode()).hexdigest()[:16]}
        made = records.circumstances() | {"code": code}
        content = {"made": made, "nodes": len(pool), "draws": list(map(asdict, draws))}
        records.write("faults", content)


if __name__ == "__main__":
    chosen = [int(each) for each in sys.argv[1:] if each != "--record"]
    main(chosen, "--record" in sys.argv)
