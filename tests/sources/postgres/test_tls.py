"""TLS to PostgreSQL: an encrypted session, with the server that the certificates name and with no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from stream.access.certificates import Certificates
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.postgres.connection import fetch_all, session
from tests.access.certifying import write
from tests.servers.choice import used
from tests.servers.postgres import PostgresServer, can_be_had


def private(files: Certificates) -> Certificates:
    """Server and driver refuse a key that others can read."""
    Path(files.certificate).chmod(0o600)
    return files


@pytest.mark.integration
def test_tls_is_used_and_postgresql_is_verified(tmp_path: Path) -> None:
    """Another authority, or another host's certificate, is refused; ours is shown."""
    if not can_be_had():
        pytest.skip(used.get("postgres", "no PostgreSQL here"))
    authority = trustme.CA()
    mine = private(write(authority, tmp_path, "mine", "source.internal"))
    foreign = write(trustme.CA(), tmp_path, "foreign", "127.0.0.1")
    with PostgresServer(tmp_path / "data", private(write(authority, tmp_path, "server", "127.0.0.1"))) as server:
        plain = ConnectionSettings(server.host, server.port, "postgres", "", product="PostgreSQL", database="postgres")
        at = replace(plain, ssl_ca=mine.ca, ssl_cert=mine.certificate)
        with session(at) as opened:
            sql = "SELECT ssl, client_serial IS NOT NULL FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            assert fetch_all(opened, sql) == [(True, True)]
        for wrong in (replace(at, ssl_ca=foreign.ca), replace(at, host="localhost")):
            with pytest.raises(MariaDBError), session(wrong):
                pass
        with session(replace(at, host="localhost", ssl_verify_host=False)):
            pass
