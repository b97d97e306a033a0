"""Names from outside that become names of files, directories or tables: none leads out of what was configured."""

from __future__ import annotations

import json
import posixpath
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from consumers.store.directory import partition_directory
from consumers.store.errors import StoreError
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading, LogFiles
from serving.client.answers import DescribedColumn, DescriptionAnswer
from serving.sink.errors import SinkError
from serving.sink.state import STATE_NAME
from serving.sink.tables import check_described, drop_table, open_table
from spark_jobs.export import COMMIT_NAME, NOTES, Commit, ExportError, place_of, read_commit
from spark_jobs.exporting.changes import Changes, Exported, day_of
from spark_jobs.exporting.delta import table_in
from stream.wire.events import VALUE
from tests.consumers.histories import frame
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, integer, odd_value, some_text, some_tree

ODD: Final = ("/", "..", "../", "%2f", "%2e%2e", "%252e", "\\", "\0", "\n", "~", "//", ".", "s3://", NOTES, " ", "é")
NAMES: Final = ("shop.orders", "..", ".", "", "a/b", "../../etc/passwd", "/etc/passwd", NOTES, "%2e%2e", STATE_NAME)
STAGED_NAME: Final = "0123456789abcdef.parquet"


def within(root: str, path: str, depth: int = 1) -> None:
    """Raises `Misbehaved` unless ``path`` is ``depth`` or more levels below ``root``, without a step up."""
    found = posixpath.normpath(path)
    if "\0" in path or ".." in path.split("/") or found.count("/") - root.count("/") < depth:
        raise Misbehaved(f"{path!r} is not {depth} below {root}")
    if not found.startswith(f"{root}/"):
        raise Misbehaved(f"{path!r} leads out of {root}")


def _exports() -> Case:
    def draw(rng: Rng) -> tuple[str, int]:
        return some_text(rng, NAMES, ODD), integer(rng, wide=True)

    def run(drawn: tuple[str, int]) -> None:
        table, time = drawn
        key = table.encode(errors="replace") + b"\0[1]"
        changes = Changes(0, Exported(0))
        changes.add([0], [frame([(key, VALUE, b"{}", 2)])])
        for named, day, _, rows in changes.take():
            place = place_of(named, day, 0, rows[0]["_offset"], STAGED_NAME)
            within("/out", f"/out/{place}", 3)
            within("/out", f"/out/{table_in(place)}")
            if table_in(place) == NOTES:
                raise Misbehaved(f"{named!r} would be where the export has its notes")
            within("/out", f"/out/{place_of(named, day_of(time), 0, 0, STAGED_NAME)}", 3)

    return Case(draw, run)


def _commits() -> Case:
    made = tempfile.TemporaryDirectory(prefix="freshet-fuzz-")
    directory = Path(made.name)
    (directory / NOTES).mkdir()
    good = Commit("shop", "t", 1, 1, {0: Exported(7)}, {STAGED_NAME: place_of("a.b", "2026-01-02", 0, 0, STAGED_NAME)})

    def draw(rng: Rng) -> Any:
        def odd(rng: Rng) -> Any:
            return some_text(rng, [*NAMES, *good.files.values()], ODD) if rng.random() < 0.7 else odd_value(rng)

        found = some_tree(rng, json.loads(json.dumps(asdict(good))), odd)
        if rng.random() < 0.5 and isinstance(found, dict):
            found["files"] = {some_text(rng, [STAGED_NAME], ODD): some_text(rng, list(good.files.values()), ODD)}
        return found

    def run(drawn: Any) -> None:
        (directory / NOTES / COMMIT_NAME).write_text(json.dumps(drawn))
        found = refused(ExportError, read_commit, directory)
        for name, place in found.files.items() if found is not None else ():
            within(f"/out/{NOTES}", f"/out/{NOTES}/{name}")
            within("/out", f"/out/{place}", 3)
            within("/out", f"/out/{table_in(place)}")

    return Case(draw, run, made.cleanup)


def _checkpoints() -> Case:
    """Of stores, of their checkpoints, and of logs: all are below a directory, under the keyspace's name."""
    made = tempfile.TemporaryDirectory(prefix="freshet-fuzz-")
    directory = Path(made.name)
    place = directory / "logs"
    place.mkdir()

    def draw(rng: Rng) -> tuple[str, int]:
        return some_text(rng, ("shop", *NAMES), ODD)[:200], rng.randrange(1 << 16)

    def run(drawn: tuple[str, int]) -> None:
        keyspace, partition = drawn
        store = refused(StoreError, partition_directory, Path("/data"), keyspace, partition)
        if store is not None:
            within("/data", str(store), 2)
            if len(store.parts) != 4:
                raise Misbehaved(f"{keyspace!r} is several directories: {store}")
        try:
            with LogFiles(place, Heading(keyspace, [])):
                pass
        except (ChangeLogError, OSError, UnicodeEncodeError):  # a name that is too long
            pass
        if {each.name for each in directory.iterdir()} - {"logs"} or any(each.is_dir() for each in place.iterdir()):
            raise Misbehaved(f"a log of {keyspace!r} made {sorted(directory.rglob('*'))}")
        for each in place.iterdir():
            each.unlink()

    return Case(draw, run, made.cleanup)


def _sinks() -> Case:
    """Names of tables and columns that a front tells: only the table that was asked for is made, or dropped."""
    pieces = (*ODD, '"', "'", "`", ";", "--", "]", '"; DROP TABLE kept; --', "%s", ":x", "kept", STATE_NAME)

    def draw(rng: Rng) -> tuple[str, str, list[tuple[str, str]], list[str]]:
        def text(of: str) -> str:
            return some_text(rng, [of], pieces) if rng.random() < 0.4 else of

        wanted = text("shop.orders")
        columns = [(text(name), text(kind)) for name, kind in (("id", "int"), ("v", "text"))]
        return wanted, text(wanted), columns, [rng.choice([columns[0][0], text("id")])]

    def run(drawn: tuple[str, str, list[tuple[str, str]], list[str]]) -> None:
        wanted, table, columns, key = drawn
        if wanted.partition(".")[2] == "kept":  # whoever runs the sink may say so
            return
        engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE kept (id INTEGER)")
            connection.exec_driver_sql("INSERT INTO kept VALUES (7)")
        described = DescriptionAnswer(table, [DescribedColumn(*each) for each in columns], key, cacheable=True)
        try:
            check_described(described, wanted)
            open_table(engine, sa.MetaData(), described)
            drop_table(engine, described)
            open_table(engine, sa.MetaData(), described)
        except (SinkError, sa.exc.SQLAlchemyError, UnicodeEncodeError):
            pass
        with engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT id FROM kept").fetchall()
        if rows != [(7,)] or set(sa.inspect(engine).get_table_names()) - {"kept", wanted.partition(".")[2]}:
            raise Misbehaved(f"{drawn} made {sa.inspect(engine).get_table_names()}")
        engine.dispose()

    return Case(draw, run)


TARGETS = (
    Target("exports", "tables and times that name an export's files", _exports, 0.5),
    Target("export_commit", "an export's commit.json, which names files to move", _commits, 0.2),
    Target("checkpoints", "keyspaces that name stores, checkpoints and logs", _checkpoints, 0.2),
    Target("sinks", "tables and columns that a front tells a sink", _sinks, 0.05),
)
