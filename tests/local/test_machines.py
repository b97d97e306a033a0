"""Where the local MariaDB runs: on which machines, and at which places in them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from freshet.checks import machine
from freshet.local import mariadb
from freshet.local.errors import LocalServerError
from freshet.local.mariadb import MariaDBServer, server_home

SCRIPT = """#!/bin/sh
# As MariaDB's: what it is given, and its own name, it splits at spaces.
cd `dirname $0`/.. || exit 1
for each in $*; do
    case $each in --basedir=*) base=${each#*=} ;; --datadir=*) data=${each#*=} ;; esac
done
test -x $base/bin/mariadbd && mkdir $data
"""


def test_the_place_of_the_cache_may_have_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`freshet up --local` ended with "Could not find my_print_defaults" below a home like that."""
    base = tmp_path / "My Disk" / "mariadb-11.4" / "linux"
    for name, text in (("bin/mariadbd", ""), ("scripts/mariadb-install-db", SCRIPT)):
        (base / name).parent.mkdir(parents=True)
        (base / name).write_text(text)
        (base / name).chmod(0o755)
    monkeypatch.setattr(mariadb, "server_home", lambda: base)
    assert MariaDBServer(tmp_path / "data")._empty_data() == base.parent / "empty-data"
    assert (base.parent / "empty-data").is_dir()


def test_a_machine_for_which_it_is_not_built_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the doctor, and before anything is fetched: what was said was that a file has a wrong format."""
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(LocalServerError, match="aarch64") as refused:
        server_home()
    assert not (tmp_path / "cache").exists()
    [check] = machine._processor()
    assert (check.status, check.fix) == ("warning", refused.value.hint)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert machine._processor()[0].status == "ok"
