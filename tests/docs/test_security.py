"""The threat model: each row names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trustme

from freshet.settings import load_settings
from serving.http.server import check_front
from stream.access.grants import Access
from tests.docs.naming import ROOT
from tests.docs.test_docs import names_of_tests, text_of

PAGE = ROOT / "docs/operating/security.md"


def test_each_row_of_the_threat_model_has_its_test() -> None:
    """A defence that nothing checks is a hope."""
    table = text_of(PAGE).split("## What could go wrong, and what stops it")[1].split("## Hardening")[0]
    rows = [row for row in table.splitlines() if row.startswith("|")][2:]
    assert len(rows) >= 15
    named = [re.findall(r"`(test_\w+)`", row.rpartition("| ")[2]) for row in rows]
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert {test for tests in named for test in tests} - names_of_tests() == set()


def test_the_hardening_page_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are valid with its files in place, and open the front and the owner beyond this machine."""
    [shown] = re.findall(r"```toml\n(.*?)```", text_of(PAGE).split("## Hardening")[1], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for name in ("kafka", "owner"):
        (tmp_path / name).write_text("secret\n")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "kafka-ca.pem"))
    here = re.sub("/run/secrets/|/etc/freshet/", f"{tmp_path}/", shown)
    Path("freshet.toml").write_text(here)
    found = load_settings()
    check_front(found.serve.host, Access(found.serve.credentials), found.serve.tls.files, plain=found.serve.plain)
    assert found.consumer.identity.secret() == "secret"
    assert found.consumer.identity.networks
    assert {each.grant.name for each in found.consumer.credentials} >= {"front"}
    assert found.serve.limits.of_caller.rate_per_s > 0
    assert found.kafka.cluster.extra["sasl.password"] == "secret"
