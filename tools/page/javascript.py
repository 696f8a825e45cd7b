"""JavaScript that runs while the page is built, in QuickJS."""

import functools

import quickjs


@functools.cache
def context(script: str) -> quickjs.Context:
    """A context in which the script has run."""
    made = quickjs.Context()
    made.eval("globalThis.self = globalThis;")
    made.eval(script)
    return made


def call(script: str, function: str, *arguments: str | bool | int) -> str:
    """The result of a function, in JSON; the function may use what the script defines."""
    as_json = f"(...given) => JSON.stringify(({function})(...given))"
    return context(script).eval(as_json)(*arguments)
