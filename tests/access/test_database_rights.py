"""The grants that the pages of MariaDB and MySQL name: a source works with them, and each one is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.sources.mariadb.connection import connect
from stream.sources.mariadb.requirements import check_server
from tests.sources.mariadb.conftest import Source, settings_of
from tokens.errors import FreshetError

PAGES = Path(__file__).parents[2] / "docs/start"
Product = Literal["MariaDB", "MySQL"]


def grants(product: Product) -> list[str]:
    """The privileges of the page's command."""
    text = (PAGES / f"own-{product.lower()}.md").read_text()
    [found] = re.findall(r"^GRANT (.*) ON \*\.\* TO freshet;$", text, re.MULTILINE)
    return str(found).split(", ")


class User:
    """A user at a real server, with an own database and a table of it."""

    def __init__(self, root: Source, given: list[str]) -> None:
        self.root, self.name = root, f"u_{root.database[-12:]}"
        root.run("CREATE TABLE t (id INT PRIMARY KEY)", f"CREATE USER {self.name}@'%' IDENTIFIED BY 'secret'")
        if given:
            root.run(f"GRANT {', '.join(given)} ON *.* TO {self.name}@'%'")

    def work(self) -> None:
        """What a source does: checks the server, reads the schema, a row, and the binlog. Raises `FreshetError`."""
        settings = replace(self.root.settings, user=self.name, password="secret")
        with closing(connect(settings)) as session:
            check_server(session)
        mine = Source(settings, self.root.database)
        try:
            self.root.run("INSERT INTO t VALUES (1)")
            assert len(mine.transactions()) == 1
            assert len(mine.selected("t")) == 1
        finally:
            mine.close()

    def drop(self) -> None:
        """Ends it."""
        self.root.run(f"DROP USER {self.name}@'%'")
        self.root.close()


@pytest.fixture
def root(request: pytest.FixtureRequest, product: Product) -> Source:
    """A session of who may do everything, over an empty database of the shared server."""
    kind = product.lower()
    address: MariaDBAddress = request.getfixturevalue(kind)
    return Source(
        settings_of(address, product), request.getfixturevalue({"mysql": "mysql_database"}.get(kind, "database"))
    )


@pytest.fixture
def user(root: Source, product: Product, lacking: str) -> Iterator[User]:
    """One with the page's grants but for the one that it lacks."""
    made = User(root, [each for each in grants(product) if each != lacking])
    yield made
    made.drop()


EVERY: list[tuple[Product, str]] = [
    (each, lacking) for each in ("MariaDB", "MySQL") for lacking in ("", *grants(each)) if lacking != "SELECT"
]
"""Without ``SELECT`` a source sees no tables; `freshet doctor` names those that it may not read."""


@pytest.mark.integration
@pytest.mark.parametrize(("product", "lacking"), EVERY)
def test_each_grant_of_the_page_is_needed(user: User, lacking: str) -> None:
    """With all of them a source works; without one it is refused, and the hint names it."""
    if not lacking:
        user.work()
        return
    with pytest.raises(FreshetError) as refused:
        user.work()
    assert refused.value.code == "mariadb_access_denied"
    assert lacking in refused.value.hint
