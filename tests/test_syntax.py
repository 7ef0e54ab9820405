"""Syntax trees, while other threads parse."""

import ast

from tapelab.process import syntax

import pytest


@pytest.fixture
def interfering(monkeypatch):
    """A function: `ast.parse` fails so often before it parses, as it does when threads change in the middle."""
    original = ast.parse

    def interfere(times):
        left = [times]

        def parse(source):
            if left[0]:
                left[0] -= 1
                raise SystemError("AST constructor recursion depth mismatch (before=39, after=35)")
            return original(source)

        monkeypatch.setattr(ast, "parse", parse)

    return interfere


def test_another_thread_in_the_way_is_waited_for(interfering):
    interfering(3)
    assert ast.unparse(syntax.parse("x = 1")) == "x = 1"


def test_an_interpreter_that_always_fails_is_not_asked_for_ever(interfering):
    interfering(10**9)
    with pytest.raises(SystemError, match="recursion depth"):
        syntax.parse("x = 1")


def test_errors_are_those_of_the_source():
    with pytest.raises(SyntaxError):
        syntax.parse("x = = 1")
