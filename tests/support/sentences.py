"""Finds code that decides by a sentence: it looks into the message of an error, or into words made for people.

What it looks for are ``in``, methods of text and regular expressions over ``str(error)`` of a caught error, over
attributes that hold sentences, and over what makes sentences of findings.
"""

import ast
from collections.abc import Iterator

ATTRIBUTES = frozenset({"cause", "costs", "message", "note", "reason", "says", "why"})
MAKERS = frozenset({"called", "explained", "in_sentences", "words"})
METHODS = frozenset(
    {
        "count",
        "endswith",
        "find",
        "index",
        "partition",
        "removeprefix",
        "removesuffix",
        "rpartition",
        "split",
        "startswith",
    }
)
PATTERNS = frozenset({"finditer", "findall", "fullmatch", "match", "search", "split", "sub"})


def _is_sentence(node: ast.expr, errors: set[str]) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id == "str" and node.args:
            return isinstance(node.args[0], ast.Name) and node.args[0].id in errors
        return isinstance(function, ast.Name) and function.id in MAKERS
    if isinstance(node, ast.Subscript):  # error.args[0]
        of = node.value
        return (
            isinstance(of, ast.Attribute)
            and of.attr == "args"
            and isinstance(of.value, ast.Name)
            and of.value.id in errors
        )
    return isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES


def _looked_into(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose text a node looks into."""
    if isinstance(node, ast.Compare):
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                yield right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in METHODS and (node.args or node.keywords):  # split() alone makes one line of several
            yield node.func.value
        if node.func.attr in PATTERNS:
            yield from node.args


def found_in(source: str) -> list[int]:
    """The lines of a module that look into a sentence."""
    tree = ast.parse(source)
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name is not None}
    lines = {
        node.lineno
        for node in ast.walk(tree)
        for looked in _looked_into(node)
        if _is_sentence(looked, errors) and isinstance(node, ast.expr)
    }
    return sorted(lines)
