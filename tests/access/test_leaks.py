"""What may not be shown is not."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from serving.http.guard import Guard
from serving.http.limits import RequestLimits
from serving.metrics import FrontMetrics
from stream.access.grants import Access
from tests.serving.test_guard import ask, scope_of

PROGRAM = """
import structlog
from freshet.logs import configure_logs
configure_logs({form!r})
def read(password, row):
    raise ValueError("failed")
try:
    read("hunter" + "2", {{"iban": "DE" + "89"}})
except ValueError:
    structlog.get_logger("x").exception("request failed")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_variables(form: str) -> None:
    """A traceback says where it was; the values of variables, passwords and rows among them, stay out of the log."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(form=form)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "ValueError: failed" in found.stderr
    assert "hunter2" not in found.stderr
    assert "DE89" not in found.stderr


FORGES = """
import logging, structlog
from freshet.logs import configure_logs
configure_logs({form!r})
name = "shop\\n2026-01-01T00:00:00Z [info] audit who=forged\\x1b[2J\\u202e\\x9b2J"
structlog.get_logger("x").warning("refused", table=name)
logging.getLogger("y").warning("a library says %s", name)
try:
    raise ValueError(name)
except ValueError:
    structlog.get_logger("x").exception("failed")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_name_makes_no_line_and_no_colour_of_its_own(form: str) -> None:
    """Callers choose names: one with a line break is no line of the log, one with an escape changes no terminal."""
    found = subprocess.run(
        [sys.executable, "-c", FORGES.format(form=form)], capture_output=True, text=True, check=True, timeout=60
    )
    lines = found.stderr.split("\n")
    assert len([line for line in lines if "forged" in line]) == 3
    assert not [line for line in lines if line.startswith("2026-01-01T00:00:00Z [info] audit")]
    assert all(line.isprintable() for line in lines)


def test_an_unexpected_error_tells_no_key_of_a_row() -> None:
    """What was asked is told as the audit tells it; the rest of the path is data."""

    async def fails(_: Scope, __: Receive, ___: Send) -> None:
        raise ZeroDivisionError

    guard = Guard(fails, access=Access(), limits=RequestLimits(), metrics=FrontMetrics())
    with capture_logs() as logged:
        status, _ = asyncio.run(ask(guard, scope_of("/v1/rows/shop/users/planted@example.org")))
    assert status == 500
    assert [(each["event"], each["what"], each["keyspace"]) for each in logged] == [
        ("request failed", "GET /v1/rows", "shop")
    ]
    assert "planted" not in str([{**each, "exc_info": ""} for each in logged])


CHATTY = """
import logging
from freshet.logs import configure_logs
configure_logs("json", {level!r})
for name in ("botocore.auth", "s3fs", "urllib3.connectionpool", "httpx2", "py4j"):
    logging.getLogger(name).debug("signed with hunter" + "2")
    logging.getLogger(name).info("sent with hunter" + "2")
    logging.getLogger(name).warning(name)
"""


@pytest.mark.parametrize(("level", "warns"), [("debug", True), ("info", True), ("error", False)])
def test_what_libraries_say_of_their_requests_is_in_no_log(level: str, warns: bool) -> None:
    """They say how requests are signed. Their warnings are told as ours are."""
    found = subprocess.run(
        [sys.executable, "-c", CHATTY.format(level=level)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "hunter2" not in found.stderr
    assert found.stderr.count('"level": "warning"') == (5 if warns else 0)
