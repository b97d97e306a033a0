"""Files that hold secrets or rows are for their own user, and the doctor says where they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from freshet import cli
from freshet.checks.files import examine_files, others_may_read
from freshet.commands.local import _write_settings
from freshet.local.hive.site import MetastoreDatabase, write_site
from freshet.local.mariadb import MariaDBAddress, MariaDBServer
from freshet.local.state import ServerRecord
from freshet.sections.secrets import read_files
from freshet.settings import load_settings
from freshet.together.alone import alone

SETTINGS = """
data_dir = "stores"
[kafka]
extra = { "ssl.key.location" = "kafka.key" }
[kafka.extra_files]
"sasl.password" = "kafka.password"
[keyspaces.shop.source]
kind = "mariadb"
databases = ["shop"]
password_file = "db.password"
ssl_ca = "ca.pem"
ssl_cert = "db.pem"
[keyspaces.bank.source]
kind = "debezium"
databases = ["bank"]
topic_prefix = "bank"
connect_url = "https://connect.internal:8083"
connect_tls = { certificate = "connect.pem" }
[serve.tls]
certificate = "serve.pem"
key = "serve.key"
[schema_registry.tls]
certificate = "registry.pem"
"""
PRIVATE = (
    *("stores", "kafka.password", "kafka.key", "db.password", "db.pem", "connect.pem", "serve.key", "registry.pem"),
)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all may enter, with the files of `SETTINGS`, private ones. Not pytest's, which are closed."""
    with TemporaryDirectory() as directory:
        yield filled(Path(directory), monkeypatch)


def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory with its files; the current one."""
    assert all(above.stat().st_mode & 0o001 for above in tmp_path.parents), "TMPDIR must be open to all"
    monkeypatch.chdir(tmp_path)
    read_files.clear()
    tmp_path.chmod(0o755)
    for name in (*PRIVATE[1:], "ca.pem", "serve.pem"):
        (tmp_path / name).write_text("secret")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "stores").mkdir(mode=0o700)
    (tmp_path / "freshet.toml").write_text(SETTINGS)
    (tmp_path / "freshet.toml").chmod(0o644)
    return tmp_path


def test_private_files_are_no_warning(place: Path) -> None:
    """Certificates, authorities and a settings file without secrets may be read by all."""
    (place / "serve.pem").chmod(0o644)
    (place / "ca.pem").chmod(0o644)
    assert examine_files(load_settings()).status == "ok"


@pytest.mark.parametrize("name", PRIVATE)
def test_each_file_that_others_can_read_is_named(place: Path, name: str) -> None:
    """Secrets, keys (also one in its certificate's file) and the stores."""
    (place / name).chmod(0o755 if name == "stores" else 0o604)
    found = examine_files(load_settings())
    assert found.status == "warning"
    assert name in found.found
    (place / name).chmod(0o750)
    assert examine_files(load_settings()).status == "ok"


@pytest.mark.parametrize(
    ("instead_of", "secret"),
    [
        ('password_file = "db.password"', 'password = "geheim"'),
        ('{ "ssl', '{ "ssl.keystore.password" = "geheim", "ssl'),
        ("connect_tls", 'connect_user = "u"\nconnect_password = "geheim"\nconnect_tls'),
    ],
)
def test_a_settings_file_with_a_secret_is_named(place: Path, instead_of: str, secret: str) -> None:
    """The same file with a password in it must not be read by all."""
    (place / "freshet.toml").write_text(SETTINGS.replace(instead_of, secret))
    found = examine_files(load_settings())
    assert "freshet.toml" in found.found
    assert "geheim" not in str(found)


def test_a_closed_directory_above_protects(place: Path) -> None:
    """A file that all may read, in a directory that nobody else may enter, is private."""
    (place / "serve.key").chmod(0o644)
    assert others_may_read(place / "serve.key")
    place.chmod(0o700)
    assert not others_may_read(place / "serve.key")
    assert not others_may_read(place / "nothing")


@pytest.mark.parametrize(
    ("words", "before", "mask"),
    [
        ("consume --keyspace export", "0o0", "0o77"),
        ("snapshots make", "0o300", "0o377"),
        ("export shop", "0o0", "0o0"),
    ],
)
def test_a_process_makes_private_files(words: str, before: str, mask: str) -> None:
    """The real program takes the rights of others from what it will make, whoever started it; but for exports."""
    code = f"import os; os.umask({before}); from freshet import cli; "
    code += "cli.run = lambda: print(oct(os.umask(0))) or 0; cli.main()"
    command = [sys.executable, "-c", code, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == mask


def test_the_doctor_tells_it(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`freshet doctor` has the warning among its checks, and it is no failure."""
    monkeypatch.setattr("freshet.checks.machine.examine", lambda _: [])
    (place / "db.password").chmod(0o644)
    assert cli.run(["doctor", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["checks"]
    assert (found["name"], found["status"]) == ("files", "warning")
    assert "db.password" in found["found"]


def settings_of_local_servers(place: Path) -> Path:
    """They have the password of the MariaDB."""
    _write_settings(place, {"mariadb": ServerRecord("mariadb", 1, 0.0, "127.0.0.1:3306", "data", "log")})
    return place / "freshet.toml"


def site_of_a_metastore(place: Path) -> Path:
    """It has the password of its database."""
    address = MariaDBAddress("127.0.0.1", 3306, "root", "geheim")
    write_site(place / "conf", MetastoreDatabase(address, "metastore"), place / "warehouse")
    return place / "conf" / "metastore-site.xml"


def accounts_of_a_database(place: Path) -> Path:
    """They have the password of its administrator."""
    server = MariaDBServer(place, port=1)
    server._ports = (1,)
    server._arguments(place / "data")
    return place / "init.sql"


def directory_of_stores(place: Path) -> Path:
    """It will have rows."""
    with alone(place / "stores"):
        return place / "stores"


@pytest.mark.parametrize(
    "make", [settings_of_local_servers, site_of_a_metastore, accounts_of_a_database, directory_of_stores]
)
def test_what_local_servers_keep_is_private(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their commands leave the mask as it is, since servers make files for others, too."""
    monkeypatch.setattr("freshet.local.mariadb.server_home", lambda: tmp_path)
    before = os.umask(0)
    try:
        made = make(tmp_path)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o077 == 0
