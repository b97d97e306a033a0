"""The rooms keep to themselves: who may import whom, what the pure core may not touch, and nothing that is not read."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.import_graph import circles, folders, imports, modules
from tests.unread import Definition, unread

REPOSITORY = Path(__file__).parents[1]

MAY_IMPORT = {
    "schemas": set[str](),
    "tokens": set[str](),
    "stream": {"tokens", "schemas"},
    "consumers": {"stream", "tokens"},
    "serving": {"consumers", "stream", "tokens"},
    "spark_jobs": {"consumers", "stream", "tokens"},
    "freshet": {"schemas", "tokens", "stream", "consumers", "serving", "spark_jobs"},
    "lab": {"schemas", "tokens", "stream", "consumers", "serving", "spark_jobs", "freshet"},
}
"""docs/internals/architecture.md, *Rooms*."""

SUBMITTED: Final = "spark_jobs/submitted.py"
"""What spark-submit runs is the command: it loads freshet inside a function."""
COMMANDS: Final = "freshet/commands"
"""One file a command: it may hold many files, and load lab inside functions."""
MODULES_MAX: Final = 13
REGISTERING: Final = ("app.", "atexit.", "model_validator", "field_validator", "pytest.hookimpl")
"""Decorators that hand a function to typer, the interpreter, pydantic or pytest."""
CALLED_BY_LIBRARIES: Final = {
    "_fetch_range": "fsspec's AbstractBufferedFile",
    "authenticate": "PyMySQL, of a class in its auth_plugin_map",
    "connection_lost": "asyncio.Protocol",
    "service_actions": "socketserver.BaseServer",
    "pause_writing": "asyncio.Protocol",
    "resume_writing": "asyncio.Protocol",
    "list_commands": "click.Group",
    "format_commands": "click.Group",
    "settings_customise_sources": "pydantic-settings",
    "get_field_value": "pydantic-settings",
    "visit_Name": "ast.NodeTransformer",
    "matches": "starlette.routing.BaseRoute",
    "should_exit": "uvicorn.Server",
    "shutdown": "uvicorn.Server",
    "capture_signals": "uvicorn.Server",
    "send_400_response": "uvicorn's protocol",
    "_timer_handle_cancelled": "asyncio",
    "call_exception_handler": "asyncio",
    "get_debug": "asyncio",
    "not_done": "concurrent.futures.wait's result",
    "handle_request": "httpx2.BaseTransport",
    "handle_async_request": "httpx2.AsyncBaseTransport",
    "on_header": "httptools",
    "on_headers_complete": "httptools",
    "on_message_complete": "httptools",
    "do_GET": "http.server",
    "do_HEAD": "http.server",
    "log_message": "http.server",
    "handle_error": "socketserver",
    "pushFilters": "pyspark.sql.datasource",
    "streamReader": "pyspark.sql.datasource",
    "initialOffset": "pyspark.sql.datasource",
    "latestOffset": "pyspark.sql.datasource",
}
CALLED_BY_NAME: Final = {
    ("lab/simulation", "op_"): "an op of a history names its method",
    ("lab/simulation/warehouse/serving.py", "call_"): "a call of the product names its method",
    ("lab/simulation/warehouse/statistics.py", "call_"): "the same",
    ("lab/faults/failing_disk.py", "_"): "a request of the kernel names its method",
    ("lab/simulation/kafka/", "delete_"): "as confluent_kafka's, for scripts that run on a real Kafka too",
    ("lab/simulation/kafka/", "abort_transaction"): "as confluent_kafka's, for scripts that run on a real Kafka too",
}
READ_ELSEWHERE: Final = {
    "serving/bytecache/filesystem/file.py:readinto": "as `io` has it, for programs that read into their memory",
    "lab/simulation/mariadb/log/binlog.py:purge": "a fault of that world",
    "freshet/settings.py:public": "the one way to show settings without their secrets",
    "serving/client/cache/objects.py:ObjectCache": "for applications",
    "serving/client/cache/stores.py:MemcachedStore": "for applications",
    "serving/client/sessions/aio.py:track_async": "for applications",
    "serving/client/sessions/asgi.py:AsgiSessions": "for applications",
    "serving/client/sessions/current.py:current_async_session": "for applications",
    "serving/client/sessions/current.py:current_session": "for applications",
    "serving/client/sessions/django.py:track_database": "for applications",
    "serving/client/sessions/sqlalchemy.py:track_engine": "for applications",
    "serving/client/sessions/wsgi.py:WsgiSessions": "for applications",
    "spark_jobs/output.py:read_report": "rebuild.json is a kept format: every version of it must stay readable",
}
"""path:name → why it stays although the product does not read it."""

PURE = [
    "tokens",
    "stream/shards/map.py",
    "stream/wire/events.py",
    "stream/wire/keys.py",
    "stream/wire/values.py",
    "stream/wire/batch.py",
    "stream/changes/assembling.py",
    "stream/changes/checkpoint.py",
    "stream/changes/items.py",
    "stream/changes/start.py",
    "consumers/fold/entry.py",
    "consumers/fold/state.py",
    "consumers/fold/messages.py",
    "consumers/fold/rows.py",
    "consumers/fold/catalog.py",
    "consumers/fold/objects.py",
    "stream/sources/hive/objects.py",
    "stream/sources/hive/structs.py",
    *(
        f"serving/locations/{name}.py"
        for name in (
            "absent",
            "cache",
            "errors",
            "limits",
            "peers",
            "places",
            "queues",
            "snapshot",
        )
    ),
    "serving/bytecache/policy",
    "serving/bytecache/disk/layout.py",
    "serving/bytecache/reading/plan.py",
    "serving/bytecache/reading/footers.py",
]
IMPURE_MODULES = {
    "asyncio",
    "confluent_kafka",
    "http",
    "logging",
    "multiprocessing",
    "os",
    "random",
    "rocksdict",
    "secrets",
    "shutil",
    "socket",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today", "read_text", "read_bytes", "write_text"}
VAGUE = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}


def sources(*rooms: str) -> Iterator[Path]:
    """The Python files of rooms (or single files), relative to the repository."""
    for room in rooms:
        path = REPOSITORY / room
        for found in [path] if path.is_file() else sorted(path.rglob("*.py")):
            yield found.relative_to(REPOSITORY)


def imported(path: Path, *, lazy: bool = True) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import of a file; ``lazy``: also of those inside functions."""
    tree = ast.parse((REPOSITORY / path).read_text(), str(path))
    for line, name in imports(tree, ".".join(path.parent.parts), lazy=lazy):
        yield line, name.split(".")[0]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    """Data goes one way, source → stream → consumers → serving, and so do imports; only commands load lab, lazily.

    A job that was submitted loads its command, lazily too.
    """
    forbidden = (set(MAY_IMPORT) | {"tests", "benchmarks"}) - MAY_IMPORT[room] - {room}
    broken = []
    for path in sources(room):
        lazily = set(imported(path)) - set(imported(path, lazy=False)) if path.is_relative_to(COMMANDS) else set()
        allowed = {place for place in lazily if place[1] == "lab"}
        if path == Path(SUBMITTED):
            allowed = {
                place for place in set(imported(path)) - set(imported(path, lazy=False)) if place[1] == "freshet"
            }
        broken += [f"{path}:{line} imports {name}" for line, name in {*imported(path)} - allowed if name in forbidden]
    assert not broken


def test_no_module_imports_itself_over_others() -> None:
    """Each module can be read, and imported, after those that it needs."""
    assert circles(modules(REPOSITORY, *MAY_IMPORT)) == []


def test_no_two_folders_side_by_side_import_each_other() -> None:
    """Sibling folders are ordered: imports between two of them go one way."""
    assert circles(folders(modules(REPOSITORY, *MAY_IMPORT))) == []


def test_no_folder_holds_more_than_about_a_dozen_modules() -> None:
    """A larger folder should be split."""
    sizes = Counter(str(path.parent) for path in sources(*MAY_IMPORT) if path.name != "__init__.py")
    assert {folder: size for folder, size in sizes.items() if size > MODULES_MAX and folder != COMMANDS} == {}


def test_everything_defined_is_read() -> None:
    """Everything in the product is used outside tests, except for the listed exceptions, which are needed."""
    found = unread(REPOSITORY, list(MAY_IMPORT))
    left = [each for each in found if not _called_from_outside(each)]
    excused = set(READ_ELSEWHERE)
    assert [str(each) for each in left if f"{each.path}:{each.name}" not in excused] == []
    assert excused - {f"{each.path}:{each.name}" for each in left} == set()


def _called_from_outside(each: Definition) -> bool:
    if any(decorator.startswith(REGISTERING) for decorator in each.decorators):
        return True
    return each.name in CALLED_BY_LIBRARIES or any(
        each.path.startswith(path) and each.name.startswith(prefix) for path, prefix in CALLED_BY_NAME
    )


def test_what_the_checks_above_look_for_is_found(tmp_path: Path) -> None:
    """A circle of three modules and a field that is only written are found; lazy imports do not make a circle."""
    room = tmp_path / "room"
    for name, text in {
        "one/a.py": "from room.two import b",
        "two/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import room.one.c",
        "one/c.py": "from room.one import a\ndef f():\n    import room.d",
        "d.py": "from room.one.c import f\nclass X:\n    def __init__(self):\n        self.left = self.kept = 1",
        "e.py": "from room.d import X\nprint(X().kept)",
    }.items():
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        (room / name).write_text(text)
    graph = modules(tmp_path, "room")
    assert circles(graph) == [["room.one.a", "room.one.c", "room.two.b"]]
    assert circles(folders(graph)) == [["room.one", "room.two"]]
    assert [str(each) for each in unread(tmp_path, ["room"])] == [
        "room/d.py:4 field left",
        "room/one/c.py:2 function f",
    ]


def test_ruff_refuses_unread_parameters() -> None:
    """Unused parameters are found by ruff, which the check above does not do."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "ARG" in settings["select"]
    assert not {rule for rule in settings["ignore"] if rule.startswith("ARG")}


def test_the_client_stands_alone() -> None:
    """The client is a separate distribution: it imports its own folder only, and tokens through one module."""
    folder = Path("serving/client")
    found = {
        (path.name, name)
        for path in sources(str(folder))
        for _, name in imports(ast.parse((REPOSITORY / path).read_text()), ".".join(path.parent.parts), lazy=True)
        if name.split(".")[0] in MAY_IMPORT and not name.startswith("serving.client.")
    }
    assert {(file, name.split(".")[0]) for file, name in found} == {
        ("_locations.py", "serving"),
        ("_tokens.py", "tokens"),
    }


def test_schemas_runs_nothing() -> None:
    """The room of the wire schemas holds data only."""
    assert [path for path in sources("schemas") if (REPOSITORY / path).read_text().strip()] == []


@pytest.mark.parametrize("part", PURE)
def test_the_pure_core_touches_no_world(part: str) -> None:
    """The fold and the comparator give the same answer anywhere: no I/O, no clock, no randomness, no log."""
    broken = [
        f"{path}:{line} imports {name}"
        for path in sources(part)
        for line, name in imported(path)
        if name in IMPURE_MODULES
    ]
    for path in sources(part):
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in IMPURE_CALLS:
                    broken.append(f"{path}:{node.lineno} calls {name}")
    assert not broken


def test_every_part_of_the_pure_core_is_there() -> None:
    """A renamed module does not escape the check above."""
    assert [part for part in PURE if not (REPOSITORY / part).exists()] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    """A module is named after what it holds."""
    assert [path for path in sources(*MAY_IMPORT, "tests", "benchmarks") if path.stem in VAGUE] == []


def test_only_the_mariadb_front_imports_the_mariadb_source() -> None:
    """Generic code works for any source: only MariaDB's front, what reads its connector, and commands import it."""
    allowed = (
        "stream/sources/mariadb/",
        "stream/sources/debezium/",
        "stream/sources/postgres/",
        "serving/sources/mariadb.py",
    )
    broken = [
        f"{path}:{node.lineno} imports {node.module}"
        for path in sources("tokens", "stream", "consumers", "serving", "spark_jobs")
        if not path.as_posix().startswith(allowed)
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stream.sources.mariadb")
    ]
    assert not broken
