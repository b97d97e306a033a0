"""TLS to MySQL, as to MariaDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_tls import check_tls


def test_tls_is_used_and_mysql_is_verified(
    tmp_path: Path, new_mysql: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """Queries and the binlog are encrypted; another authority, or another host's certificate, is refused."""
    check_tls(tmp_path, new_mysql, source_of, {})
