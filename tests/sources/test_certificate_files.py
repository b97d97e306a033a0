"""A file of a certificate that can't be used is told by its name: not that the server can't be reached."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import trustme

from stream.sources.hive.rpc.connection import MetastoreConnection, MetastoreUnreachable
from stream.sources.hive.rpc.transport import Access
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable, connect
from stream.sources.postgres.connection import translated
from tests.access.certifying import write


@pytest.fixture
def good(tmp_path: Path) -> ConnectionSettings:
    """With certificates that can be used, of a server that is away."""
    files = write(trustme.CA(), tmp_path, "client", "freshet")
    return ConnectionSettings(port=1, ssl_ca=files.ca, ssl_cert=files.certificate)


@pytest.fixture
def wrong(good: ConnectionSettings, tmp_path: Path) -> list[tuple[ConnectionSettings, str]]:
    """Settings with a file that can't be used, and its name."""
    (tmp_path / "text.pem").write_text("no certificate")
    gone, text = str(tmp_path / "gone.pem"), str(tmp_path / "text.pem")
    return [
        (replace(good, ssl_ca=gone), gone),
        (replace(good, ssl_ca=text), text),
        (replace(good, ssl_cert=gone), gone),
        (replace(good, ssl_key=gone), gone),
        (replace(good, ssl_key=good.ssl_ca), str(good.ssl_ca)),
    ]


def test_a_file_of_mariadbs_certificate_is_named(
    good: ConnectionSettings, wrong: list[tuple[ConnectionSettings, str]]
) -> None:
    """Of a misspelled one the error was that the server could not be reached: is it running? It may come: retry."""
    for settings, name in wrong:
        with pytest.raises(MariaDBUnreachable) as refused:
            connect(settings)
        assert (refused.value.code, name in str(refused.value)) == ("bad_certificate", True)
        assert "PEM" in refused.value.hint
    with pytest.raises(MariaDBUnreachable) as away:
        connect(good)
    assert away.value.code == "mariadb_unreachable"


def test_a_file_of_postgresqls_certificate_is_named(
    good: ConnectionSettings, wrong: list[tuple[ConnectionSettings, str]]
) -> None:
    """Its driver says that a file does not exist, which was taken for a database or user that does not."""
    error = psycopg.OperationalError('root certificate file "gone.pem" does not exist')
    for settings, name in wrong:
        with pytest.raises(MariaDBUnreachable) as refused, translated(replace(settings, product="PostgreSQL")):
            raise error
        assert (refused.value.code, name in str(refused.value)) == ("bad_certificate", True)
    with pytest.raises(MariaDBError) as denied, translated(replace(good, product="PostgreSQL")):
        raise psycopg.OperationalError('database "x" does not exist')
    assert denied.value.code == "postgres_access_denied"


def test_a_file_of_the_metastores_certificate_is_what_its_hint_is_about(tmp_path: Path) -> None:
    """The metastore runs, and its address is right."""
    access = Access(ssl_ca=str(tmp_path / "gone.pem"))
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        MetastoreConnection((listening.getsockname(),), access=access) as connection,
        pytest.raises(MetastoreUnreachable, match=r"gone\.pem.*No such file") as refused,
    ):
        connection.call("get_databases", {})
    assert "ssl_ca" in refused.value.hint
