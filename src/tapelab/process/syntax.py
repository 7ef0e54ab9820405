"""Source code as a syntax tree, also while other threads parse."""

import ast

_TRIES = 20


def parse(source: str) -> ast.Module:
    """Return `ast.parse(source)`.

    CPython before 3.13 counts how deep a tree is in one place for all threads. Where they change in the middle of two
    trees, `ast.parse` raises "SystemError: AST constructor recursion depth mismatch" for source that nothing is wrong
    with (https://github.com/python/cpython/issues/106905; seen on 3.11.7). So it is asked again.

    Raises:
        SyntaxError: if the source has one.
    """
    for _ in range(_TRIES):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)
