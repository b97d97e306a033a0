"""What is decoded is known to msgspec before there are threads.

msgspec builds what it knows of a Struct where it is first decoded. Another thread that decodes the same Struct
meanwhile ends the process (0.22.0: a null pointer). A decoder in a module is built when that is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = ("tokens", "stream", "consumers", "serving", "freshet", "spark_jobs")
ROOT = Path(__file__).parents[1]
PLAIN = {"str", "bytes", "int", "float", "bool", "None", "list", "dict", "tuple", "Any", "Raw", "msgspec"}
ONE_THREAD = {"serving/http/route.py", "serving/http/query.py", "stream/sources/debezium/connector.py"}
"""These are given a type, and no other thread decodes it."""


def _types_in_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines where a function decodes into a type that has no decoder yet, and the type."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for call in (node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        if name.endswith(("json.decode", "msgpack.decode")):
            kinds = [each.value for each in call.keywords if each.arg == "type"]
        elif name == "msgspec.convert":
            kinds = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "type")]
        else:
            continue
        for kind in kinds:
            if {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)} - PLAIN:
                yield call.lineno, ast.unparse(kind)


@pytest.mark.parametrize("room", ROOMS)
def test_no_function_is_the_first_to_decode_a_type(room: str) -> None:
    """It may run in two threads at once: the types of a node's owner and front are the same."""
    found = []
    for path in sorted((ROOT / room).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place not in ONE_THREAD:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{place}:{line}: {kind}" for line, kind in _types_in_functions(tree)]
    assert found == []
