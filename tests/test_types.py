"""Public functions say what they take and return."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "tapelab"
# Where the rule holds. Sheets are left out: their functions are answers to exercises, as a learner would write them.
TYPED = (
    "*.py",
    "collection/**/*.py",
    "derivatives/**/*.py",
    "exercises/*.py",
    "explain/**/*.py",
    "interactive/*.py",
    "optimize/*.py",
    "process/*.py",
)
# Of all functions, the private ones too: the share of which each argument and the result is typed. It may only grow.
SHARE = 0.99
FILES = [path for pattern in TYPED for path in sorted(SOURCE.glob(pattern))]


def public_functions(tree):
    """The functions of a module and the methods of its classes whose names begin with no underscore."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def untyped_arguments(function):
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [a.arg for a in every if a is not None and a.annotation is None and a.arg not in ("self", "cls")]


def untyped(tree):
    """What public functions do not say: "function: argument" or "function: return"."""
    found = []
    for function in public_functions(tree):
        found += [f"{function.name}: {name}" for name in untyped_arguments(function)]
        found += [] if function.returns is not None else [f"{function.name}: return"]
    return found


def wholly_typed(tree):
    """For each function of a module, those within others too, whether it says all that it takes and returns."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [not untyped_arguments(one) and (one.returns is not None or one.name == "__init__") for one in functions]


def test_public_functions_are_typed():
    found = {str(path.relative_to(SOURCE)): untyped(ast.parse(path.read_text(encoding="utf-8"))) for path in FILES}
    assert len(found) > 200
    assert {path: names for path, names in found.items() if names} == {}


def test_what_is_not_typed_is_found():
    source = "def f(a, *b, c: int = 0, **d): ...\nclass C:\n    def g(self) -> None: ...\n    def _h(self, x): ...\n"
    assert untyped(ast.parse(source)) == ["f: a", "f: b", "f: d", "f: return"]
    assert untyped(ast.parse("async def f(a): ...")) == ["f: a", "f: return"]


def test_most_private_functions_are_typed_too():
    files = [path for path in SOURCE.rglob("*.py") if "sheets" not in path.parts]
    found = [typed for path in files for typed in wholly_typed(ast.parse(path.read_text(encoding="utf-8")))]
    assert sum(found) / len(found) >= SHARE


def test_a_function_within_another_counts_too():
    source = "class C:\n    def __init__(self, a: int): ...\n    def _f(self):\n        def g(b) -> int: ...\n"
    assert wholly_typed(ast.parse(source)) == [True, False, False]
