"""The files of a Hive Metastore 4.0.1: unpacked, its notification listener compiled, an empty Derby schema made.

The listener belongs to the server's version, but Maven Central has only that of 4.2.0, as source. It is compiled here
against 4.0.1, without what came later. It builds no message itself: those come from the unmodified server.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from freshet.local.artifacts import prepared
from freshet.local.errors import ArtifactError
from freshet.local.hive.site import DerbyDatabase, MetastoreDatabase, write_site
from freshet.local.java import QUICK_START, find_java
from freshet.local.process import run_tool

TARBALL, LISTENER, COMPILER = "hive-standalone-metastore-server", "hive-hcatalog-server-extensions", "ecj"
LISTENER_SOURCE: Final = "org/apache/hive/hcatalog/listener/DbNotificationListener.java"
OTHER_DATABASES: Final = re.compile(r"/(derby|mssql|mysql|postgresql)-[^/]*$")
"""The tarball's Derby is a debug build, in which open_txns(2) ends in an assertion."""

_LATER: Final = (
    (r"import org\.apache\.hadoop\.hive\.metastore\.events\.AlterPartitionsEvent;\n", ""),
    (r"import org\.apache\.hadoop\.hive\.metastore\.messaging\.AlterPartitionsMessage;\n", ""),
    (r"(?s)  @Override\n  public void onAlterPartitions\(AlterPartitionsEvent.*?\n  }\n\n", ""),
    (
        r"commitTxnEvent\.getTxnId\(\), commitTxnEvent\.getDatabases\(\), commitTxnEvent\.getWriteId\(\)",
        "commitTxnEvent.getTxnId()",
    ),
    (r"abortTxnEvent\.getDbsUpdated\(\), abortTxnEvent\.getWriteId\(\)", "abortTxnEvent.getDbsUpdated()"),
    (r"reloadEvent\.getPartitionObj\(\), reloadEvent\.getPartitions\(\), ", "reloadEvent.getPartitionObj(), "),
    (
        r"(event\.setDbName\(dbName\);\n)    event\.setCatName\(getDefaultCatalog\(conf\)\);\n"
        r"(    try \{\n      addNotificationLog\(event, allocWriteIdEvent)",
        r"\1\2",
    ),
    (
        r"(event\.setTableName\(commitCompactionEvent\.getTableName\(\)\);\n)"
        r"    event\.setCatName\(getDefaultCatalog\(conf\)\);\n",
        r"\1",
    ),
)
"""What 4.2.0 added: (pattern, replacement), each found exactly once."""

_STUBS: Final = {
    "AcidInputFormat": "package org.apache.hadoop.hive.ql.io; public interface AcidInputFormat {}",
    "AcidOutputFormat": "package org.apache.hadoop.hive.ql.io; public interface AcidOutputFormat {}",
    "OrcInputFormat": "package org.apache.hadoop.hive.ql.io.orc; "
    "public class OrcInputFormat implements org.apache.hadoop.hive.ql.io.AcidInputFormat {}",
    "OrcOutputFormat": "package org.apache.hadoop.hive.ql.io.orc; "
    "public class OrcOutputFormat implements org.apache.hadoop.hive.ql.io.AcidOutputFormat {}",
}
"""Classes of Hive's engine: the metastore asks whether a table's formats are these."""


def metastore_home() -> Path:
    """The directory with ``lib``, ``classes``, ``scripts`` and ``derby.empty``, made on first use.

    Raises `ArtifactError`, `JavaError`, `LocalServerError`.
    """
    return prepared("hive", _prepare)


def classpath(home: Path, conf: Path) -> str:
    """Java's class path for a metastore whose settings are in the directory ``conf``."""
    found = [conf, home / "classes", *sorted((home / "lib").glob("*.jar"))]
    return os.pathsep.join(str(each) for each in found if each.exists())


def init_schema(home: Path, conf: Path, database: MetastoreDatabase | DerbyDatabase) -> None:
    """Create the metastore's tables in ``database``, which has none. Raises `LocalServerError`."""
    write_site(conf, database, conf.parent / "warehouse")
    tool = "org.apache.hadoop.hive.metastore.tools.schematool.MetastoreSchemaTool"
    errors = f"-Dderby.stream.error.file={conf.parent / 'derby.log'}"
    run_tool(
        "schematool",
        [
            find_java().path,
            *QUICK_START,
            "-Xmx256m",
            errors,
            "-cp",
            classpath(home, conf),
            tool,
            "-dbType",
            database.kind,
            "-initSchema",
        ],
        env={**os.environ, "METASTORE_HOME": str(home)},
        cwd=conf.parent,
    )


def _prepare(files: dict[str, Path], home: Path) -> None:
    lib = home / "lib"
    lib.mkdir()
    for artifact, file in files.items():
        if artifact not in (TARBALL, LISTENER, COMPILER):
            shutil.copy(file, lib)
    _unpack(files[TARBALL], home)
    _compile_listener(files, home)
    scratch = home / "scratch"
    init_schema(home, scratch / "conf", DerbyDatabase(home / "derby.empty"))
    shutil.rmtree(scratch)


def _unpack(tarball: Path, home: Path) -> None:
    """The tarball's jars, and its schema scripts of the databases that can be used here."""
    with tarfile.open(tarball) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            opened = archive.extractfile(member) if member.isfile() else None
            if opened is None:
                continue
            if name.startswith("lib/") and name.endswith(".jar") and not OTHER_DATABASES.search(name):
                (home / "lib" / Path(name).name).write_bytes(opened.read())
            elif name.startswith(("scripts/metastore/upgrade/derby/", "scripts/metastore/upgrade/mysql/")):
                target = home / "scripts" / "metastore" / "upgrade" / Path(name).parent.name / Path(name).name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(opened.read())


def _compile_listener(files: dict[str, Path], home: Path) -> None:
    source = home / "src"
    source.mkdir()
    with zipfile.ZipFile(files[LISTENER]) as archive:
        text = archive.read(LISTENER_SOURCE).decode()
    for pattern, replacement in _LATER:
        text, found = re.subn(pattern, replacement, text)
        if found != 1:
            raise ArtifactError(f"{files[LISTENER].name} has {found} times what version 4.0.1 lacks: {pattern}")
    (source / "DbNotificationListener.java").write_text(text)
    for name, stub in _STUBS.items():
        (source / f"{name}.java").write_text(stub)
    sources = [str(each) for each in sorted(source.iterdir())]
    classes = home / "classes"
    classes.mkdir()
    compiler = [find_java().path, "-jar", str(files[COMPILER]), "-17", "-proc:none", "-nowarn"]
    run_tool("ecj", [*compiler, "-cp", classpath(home, home / "conf"), "-d", str(classes), *sources])
