"""The mistakes that are made in the code, and what is left alone."""

from __future__ import annotations

import ast

import pytest

from lab.mutation.operators import OPERATORS, Definition, places


def mutations(source: str) -> list[tuple[str, str]]:
    """(operator, the function's body afterwards, on one line) of each mutation of a function of these statements."""
    tree = ast.parse("def f(a, b):\n" + "\n".join(f"    {line}" for line in source.splitlines()))
    function = tree.body[0]
    assert isinstance(function, Definition)
    before, found = ast.unparse(tree), []
    for place in list(places(function)):
        for name, operator in OPERATORS.items():
            for node in operator(place.node):
                place.put(node)
                text = ast.unparse(ast.fix_missing_locations(tree))
                found.append((name, "; ".join(line.strip() for line in text.splitlines()[1:])))
                compile(text, "mutated", "exec")
                place.put(place.node)
    assert ast.unparse(tree) == before, "all undone"
    return found


@pytest.mark.parametrize(
    ("source", "operator", "made"),
    [
        ("x = a < b", "comparison", ["x = a >= b", "x = a <= b"]),
        ("x = a == b", "comparison", ["x = a != b"]),
        ("x = a is not None", "comparison", ["x = a is None"]),
        ("x = a <= b < 3", "comparison", ["x = a > b < 3", "x = a < b < 3", "x = a <= b >= 3", "x = a <= b <= 3"]),
        ("x = b if a else 2", "condition negated", ["x = b if not a else 2"]),
        ("x = b if not a else 2", "condition negated", []),
        ("x = b if a == 1 else 2", "condition negated", []),
        ("x = [y for y in a if y]", "filter dropped", ["x = [y for y in a]"]),
        ("x = a and b", "and, or", ["x = a or b", "x = b", "x = a"]),
        ("x = a or b or 3", "and, or", ["x = a and b and 3", "x = b or 3", "x = a or 3", "x = a or b"]),
        ("x = not a", "not dropped", ["x = a"]),
        ("x = max(a)", "another chosen", ["x = min(a)", "x = list(a)[-1]"]),
        ("x = min(a, b)", "another chosen", ["x = max(a, b)", "x = b"]),
        ("x = any(a)", "another chosen", ["x = all(a)"]),
        ("x = a[0]", "constant", ["x = a[-1]", "x = a[1]"]),
        ("x = a[-1]", "constant", ["x = a[0]", "x = a[-2]", "x = a[-0]"]),
        ("x = True", "constant", ["x = False"]),
        ("x = 5", "constant", ["x = 6"]),
        ("x = a + b", "arithmetic", ["x = a - b"]),
        ("x = a & b", "arithmetic", ["x = a | b"]),
        ("x = a(b, key=b, **b)", "argument left out", ["x = a(b, **b)"]),
        ("a.append(b)", "statement dropped", ["pass"]),
        ("a.b = b", "statement dropped", ["pass"]),
        ("a[b] = b", "statement dropped", ["pass"]),
        ("a += b", "statement dropped", ["pass"]),
        ("del a[b]", "statement dropped", ["pass"]),
        ("raise ValueError(a < b)", "statement dropped", ["pass"]),
        ("return a", "nothing returned", ["return None"]),
        ("return", "nothing returned", ["pass"]),
        ("return None", "nothing returned", []),
    ],
)
def test_each_operator_makes_its_mistakes(source: str, operator: str, made: list[str]) -> None:
    """A developer could have written each of them."""
    assert [text for name, text in mutations(source) if name == operator] == made


def test_a_handler_lets_the_error_pass() -> None:
    """An error that is not handled any more is a mistake too."""
    found = mutations("try:\n    a()\nexcept ValueError:\n    x = b")
    assert ("not handled", "try:; a(); except ValueError:; raise") in found


def test_jumps_are_dropped_and_exchanged() -> None:
    """A loop that goes on where it should end, and the other way round."""
    texts = [text for name, text in mutations("for x in a:\n    continue") if name == "statement dropped"]
    assert texts == ["for x in a:; pass"]
    texts = [text for name, text in mutations("for x in a:\n    break") if name == "statement dropped"]
    assert texts == ["for x in a:; continue"]


@pytest.mark.parametrize(
    "source",
    [
        "'''Returns a if a < b, else 1.'''",
        "log.info('moved', by=a + 1)",
        "self._log.warning('lost', at=a[0])",
        "def g(c=1, d=not True) -> not 0:\n    pass",
        "x: 'not 1' = a",
        "x = zip(a, b, strict=True)",
    ],
)
def test_what_is_for_people_or_for_types_stays(source: str) -> None:
    """A changed text of a log line, a default or an annotation would be no mistake of the logic."""
    assert mutations(source) == []
