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


def test_public_functions_are_typed():
    found = {str(path.relative_to(SOURCE)): untyped(ast.parse(path.read_text(encoding="utf-8"))) for path in FILES}
    assert found
    assert {path: names for path, names in found.items() if names} == {}
