"""TLS to MariaDB: an encrypted connection, to the server that the certificates name and to no other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.connection import MariaDBError, connect, fetch_all
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import current_position
from tests.sources.mariadb.conftest import Source


def certificate(directory: Path, name: str, signer: str, address: str) -> None:
    """A key and a certificate ``name`` for ``address``, signed by ``signer``."""
    (directory / f"{name}.ext").write_text(f"subjectAltName=IP:{address}\n")
    asked = f"openssl req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
    signed = f"openssl x509 -req -in {name}.csr -CA {signer}.pem -CAkey {signer}.key -days 2 -out {name}.pem"
    for command in (asked, f"{signed} -CAcreateserial -extfile {name}.ext"):
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)


def authority(directory: Path, name: str) -> str:
    """A certificate that signs others; returns its file."""
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return str(directory / f"{name}.pem")


def test_tls_is_used_and_the_server_is_verified(
    tmp_path: Path, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """Queries and the binlog are encrypted; another authority, or another host's certificate, is refused."""
    check_tls(tmp_path, new_mariadb, source_of, {"ssl": "ON"})


def check_tls(
    tmp_path: Path, new_server: Callable[..., Any], source_of: Callable[[Any, str], Source], on: dict[str, str]
) -> None:
    """Of MariaDB and MySQL. ``on``: what turns TLS on."""
    ours, other = authority(tmp_path, "ours"), authority(tmp_path, "other")
    certificate(tmp_path, "server", "ours", "127.0.0.9")
    certificate(tmp_path, "client", "ours", "127.0.0.1")
    certificate(tmp_path, "stranger", "other", "127.0.0.1")
    files = {"ssl-cert": str(tmp_path / "server.pem"), "ssl-key": str(tmp_path / "server.key"), "ssl-ca": ours}
    server = new_server(durable=False, options=on | files)
    source = source_of(server.address, "d")
    source.run("CREATE USER tls@'%' IDENTIFIED BY 'x' REQUIRE SSL", "GRANT ALL ON *.* TO tls@'%'")
    at = replace(source.settings, user="tls", password="x", ssl_ca=ours, ssl_verify_host=False)
    session = connect(at)
    ((_, cipher),) = fetch_all(session, "SHOW STATUS LIKE 'Ssl_cipher'")
    assert cipher
    before = current_position(session).position
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    dump = BinlogDump(at, GtidPosition.parse(before).bare, 4_712)
    assert any(b"CREATE TABLE t" in dump.read() for _ in range(50))
    dump.close()
    session.close()
    for wrong in (replace(at, ssl_verify_host=True), replace(at, ssl_ca=other)):
        with pytest.raises(MariaDBError):
            connect(wrong)
    source.run("CREATE USER x509@'%' IDENTIFIED BY 'x' REQUIRE X509", "GRANT ALL ON *.* TO x509@'%'")
    with_own = {name: replace(at, user="x509", **_own(tmp_path, name)) for name in ("client", "stranger")}
    connect(with_own["client"]).close()
    for wrong in (replace(at, user="x509"), with_own["stranger"]):
        with pytest.raises(MariaDBError):
            connect(wrong)


def _own(directory: Path, name: str) -> dict[str, Any]:
    return {"ssl_cert": str(directory / f"{name}.pem"), "ssl_key": str(directory / f"{name}.key")}
