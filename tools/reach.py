"""A hash of the code that decides a number: all that some functions reach, without its messages.

A function reaches what it names. It does not reach what it knows as an attribute only, nor what a
text names: that must be named beside it. A message is what `raise`, `warnings.warn`, `print`, a
failed `assert` and a progress bar say, and any text that is made for them alone. Docstrings,
`__str__` and annotations are for readers too. A message that a function returns is taken for code.
"""

import ast
import functools
import hashlib
import symtable
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

FOR_READERS = "__str__", "__repr__"
SAYS = "print", "warnings.warn", "tqdm.write", "sys.stderr.write", "sys.stdout.write"


def is_text(node: ast.expr) -> bool:
    """True for what can only be a text, or texts."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.Call(func=ast.Name(id="str" | "repr")):
            return True
        case ast.Call(func=ast.Attribute(value=inner)):  # a method of a text
            return is_text(inner)
        case ast.Subscript(value=inner):
            return is_text(inner)
        case ast.BinOp(left=left, right=right):
            return is_text(left) or is_text(right)
        case ast.IfExp(body=one, orelse=other):
            return is_text(one) and is_text(other)
    return False


def may_act(node: ast.AST) -> bool:
    """True where more may happen than that a value is found."""
    able = ast.Call | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr
    return any(isinstance(each, able) for each in ast.walk(node))


def is_bar(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("tqdm", "tqdm.tqdm")


def names_of_bars(statement: ast.stmt) -> set[str]:
    """What progress bars are called in a statement."""
    names = set()
    for node in ast.walk(statement):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_bar(value):
                names.add(name)
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)) if is_bar(value):
                names.add(name)
    return names


def names_read(function: ast.FunctionDef) -> set[str]:
    """Names that a function reads, or shares with the code around it."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            names.update(node.names)
    return names


class Mute(ast.NodeTransformer):
    """Takes from a statement what only a reader meets."""

    def __init__(self, statement: ast.stmt):
        self.bars = names_of_bars(statement)
        self.read: set[str] | None = None  # inside a function: the names that it reads

    def generic_visit(self, node):
        super().generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]
        return node

    def visit_ClassDef(self, node):
        around = self.read
        self.read = None  # what a class binds is read from elsewhere
        self.generic_visit(node)
        self.read = around
        return node

    def visit_FunctionDef(self, node):
        if node.name in FOR_READERS:
            return None
        around = self.read
        node.returns = None
        size = 0
        while size != (size := sum(1 for _ in ast.walk(node))):  # a text may be part of a text
            self.read = names_read(node)
            self.generic_visit(node)
        self.read = around
        return node

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_AnnAssign(self, node):
        if self.read is None:  # a field, of whatever type
            node.annotation = ast.Constant(...)
            return self.generic_visit(node)
        return node.value and self.visit_Assign(ast.Assign([node.target], node.value, lineno=0))

    def visit_Assign(self, node):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        parts = [part for target in targets for part in ast.walk(target)]
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        values = getattr(node.value, "elts", [node.value])
        if self.read is None or names & self.read:
            return self.generic_visit(node)
        idle = all(is_text(value) or not may_act(value) for value in values)
        return None if idle else self.generic_visit(node)

    visit_AugAssign = visit_Assign

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            spoken = called in SAYS or called.partition(".")[0] in self.bars
        else:
            spoken = isinstance(node.value, ast.Constant)  # a docstring
        return None if spoken else self.generic_visit(node)

    def visit_Raise(self, node):
        node.exc = getattr(node.exc, "func", node.exc)
        node.cause = None
        return node

    def visit_Assert(self, node):
        node.msg = None
        return self.generic_visit(node)

    def visit_Call(self, node):
        if is_bar(node):  # what it counts is no message
            node.args = node.args[:1]
            node.keywords = []
        return self.generic_visit(node)

    def visit_If(self, node):
        self.generic_visit(node)
        empty = isinstance(node.body[0], ast.Pass) and not node.orelse
        return None if empty and not may_act(node.test) else node

    def visit_Try(self, node):
        self.generic_visit(node)
        return node if node.handlers or node.finalbody else node.body

    def visit_ExceptHandler(self, node):
        self.generic_visit(node)
        if not any(isinstance(part, ast.Name) and part.id == node.name for part in ast.walk(node)):
            node.name = None
        return node


@dataclass(frozen=True)
class Statement:
    """A statement of a script, without messages."""

    code: str
    binds: frozenset[str]  # or changes
    reads: frozenset[str]


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A table of symbols and those of the scopes inside it."""
    yield table
    for child in table.get_children():
        yield from tables(child)


def changed_in_place(statement: ast.stmt) -> set[str]:
    """Names whose value a statement changes without binding it: NAME[…] = …, NAME.method(…)."""
    changed = []
    names = set()
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        for part in ast.walk(statement):
            changed += getattr(part, "targets", [])
            changed += [part.target] if isinstance(part, ast.AugAssign) else []
    if isinstance(statement, ast.Expr):
        changed.append(getattr(statement.value, "func", statement.value))
    for node in changed:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
            names.add(getattr(node, "id", ""))
    return names


def as_statement(node: ast.stmt) -> Statement:
    code = ast.unparse(node)  # without comments, in one layout
    scopes = list(tables(symtable.symtable(code, "statement", "exec")))
    outside = scopes[0].get_symbols()
    binds = {each.get_name() for each in outside if each.is_assigned() or each.is_imported()}
    read = [each for each in outside if each.is_referenced()]
    read += [each for scope in scopes[1:] for each in scope.get_symbols() if each.is_global()]
    names = frozenset(each.get_name() for each in read)
    return Statement(code, frozenset(binds | changed_in_place(node)), names)


@functools.cache
def statements(source: str) -> list[Statement]:
    """The statements of some lines. An import of several names is several statements."""
    nodes = []
    for node in ast.parse(source).body:
        match node:
            case ast.Import(names):  # `import a.b` only makes sure that `a` has its part b
                named = [name for name in names if name.asname or "." not in name.name]
                nodes += [ast.Import([name]) for name in named]
            case ast.ImportFrom(module, names, level):
                nodes += [ast.ImportFrom(module, [name], level) for name in names]
            case _:
                nodes.append(node)
    muted = [Mute(node).visit(node) for node in nodes]
    return [as_statement(node) for node in muted if node]


@functools.lru_cache(maxsize=1)
def makers(script: str) -> dict[str, set[Statement]]:
    """The statements of a script by the names that they bind or change."""
    by_name = defaultdict(set)
    lines = script.splitlines()
    for node in ast.parse(script).body:
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", [])))
        for statement in statements("\n".join(lines[first - 1 : node.end_lineno])):
            for name in statement.binds:
                by_name[name].add(statement)
    return by_name


def reached(script: str, roots: Collection[str], without: Collection[str] = ()) -> set[str]:
    """The code of each statement on which `roots` depend, directly or through others.

    Names in `without` are not followed, unless they are roots. ValueError where the script does
    not bind a name.
    """
    by_name = makers(script)
    if unknown := {*roots, *without} - by_name.keys():
        raise ValueError(f"the script does not define {', '.join(sorted(unknown))}")
    todo = [*roots]
    seen = {*roots, *without}
    found = set()
    while todo:
        new = by_name.get(todo.pop(), set()) - found
        found |= new
        names = set().union(*(statement.reads for statement in new)) - seen
        seen |= names
        todo += names
    return {statement.code for statement in found}


def code_hash(script: str, roots: Collection[str], without: Collection[str] = ()) -> str:
    """A hash of what is reached, in whatever order it stands."""
    code = "\n".join(sorted(reached(script, roots, without)))
    return hashlib.sha256(code.encode()).hexdigest()[:16]
