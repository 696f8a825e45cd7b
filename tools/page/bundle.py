"""Join modules of JavaScript into one script, so that a page needs no server and a build no node.

Each module becomes a function of its own, which runs once, after those that it imports, and returns
what it exports. It may use `import { a, b as c } from "…"`, `import a from "…"`, `import "…"`,
`export { a as b }`, `export default`, and `export` before a declaration: each at the beginning of
a line or, in minified files, at either end. Other syntax raises an error.
"""

import re
from pathlib import Path

VENDOR = Path(__file__).resolve().parent / "vendor" / "preact"
PACKAGES = {
    "preact": VENDOR / "preact.mjs",
    "preact/hooks": VENDOR / "hooks.mjs",
    "preact-render-to-string": VENDOR / "render-to-string.mjs",
    "htm": VENDOR / "htm.mjs",
}
IMPORT = re.compile(r'^import\s*(?:(?:(\w+)|\{([^}]*)\})\s*from\s*)?"([^"]+)";?', re.M)
LIST = re.compile(r"(?:^|(?<=[;}]))export\s*\{([^}]*)\};?\s*$", re.M)
DEFAULT = re.compile(r"(?:^|(?<=[;}]))export default ", re.M)
DECLARED = re.compile(r"^export ((?:async )?function\*?|const|let|class) (\w+)", re.M)
LEFT = re.compile(r"^\s*(import|export)\b.*", re.M)


def pairs(names: str) -> list[tuple[str, str]]:
    """What stands in braces: ("a", "c") of `a as c`, ("b", "b") of `b`."""
    split = [name.split(" as ") for name in map(str.strip, names.split(",")) if name]
    return [(each[0].strip(), each[-1].strip()) for each in split]


def bundle(entry: Path, name: str = "") -> str:
    """A script that does what the module `entry` does; ValueError for syntax that it does not know.

    If a name is given, the script defines it as what the module exports.
    """
    entry = entry.resolve()
    order: list[Path] = []  # a module after those that it imports
    joined: dict[Path, str] = {}
    exports: dict[Path, set[str]] = {}

    def add(path: Path, importers: tuple[Path, ...]) -> None:
        if path in importers:
            circle = " -> ".join(each.name for each in (*importers[importers.index(path) :], path))
            raise ValueError(f"modules that import each other: {circle}")
        if path in joined:
            return
        if not path.is_file():
            raise ValueError(f"{importers[-1].name} imports {path}, which does not exist")
        given: dict[str, str] = {}  # name outside -> name inside

        def imported(found: re.Match) -> str:
            whole, names, name = found.groups()
            source = PACKAGES[name] if name in PACKAGES else (path.parent / name).resolve()
            add(source, (*importers, path))
            wanted = [("default", whole)] if whole else pairs(names or "")
            for outside, _ in wanted:
                if outside not in exports[source]:
                    raise ValueError(f"{path.name} imports {outside}, which {name} does not export")
            if not wanted:
                return ""
            taken = ", ".join(f"{outside}: {inside}" for outside, inside in wanted)
            return f"const {{ {taken} }} = {variable(source)};"

        def variable(module: Path) -> str:
            return f"module{order.index(module)}"

        def listed(found: re.Match) -> str:
            given.update((outside, inside) for inside, outside in pairs(found[1]))
            return ""

        def declared(found: re.Match) -> str:
            given[found[2]] = found[2]
            return f"{found[1]} {found[2]}"

        def default(found: re.Match) -> str:
            given["default"] = "theDefault"
            return "const theDefault = "

        code = IMPORT.sub(imported, path.read_text("utf-8"))
        code = DECLARED.sub(declared, DEFAULT.sub(default, LIST.sub(listed, code)))
        if left := LEFT.search(code):
            raise ValueError(f"{path.name}: cannot join {left[0].strip()[:60]!r}")
        order.append(path)
        exports[path] = set(given)
        names = ", ".join(f"{outside}: {inside}" for outside, inside in given.items())
        joined[path] = (
            f"// {path.name}\nconst {variable(path)} = (() => {{\n{code.strip()}\n"
            f"return {{ {names} }};\n}})();\n"
        )

    add(entry, ())
    kept = f"globalThis.{name} = module{len(order) - 1};\n" if name else ""
    script = "\n".join(joined[path] for path in order)
    return f"{{\n{script}\n{kept}}}\n"
