"""The audit: which requests leave a line, what is in it, and how many lines there can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumers.owner.client import Identity, OwnerClient
from freshet.access.reloading import renewed
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.access.audit import DONE, LINES_AT_ONCE, PAIRS_MAX, Audit
from stream.access.grants import Access, Credential, Grant, digest_of
from stream.wire.keys import Layout
from tests.access.test_owner_roles import code_of, owner_of
from tests.consumers.owning import KEYSPACE
from tests.serving.asking import ask_app

GRANTS = (
    Grant("shopper", frozenset({"read"}), frozenset({"shop"})),
    Grant("root", frozenset({"admin"})),
)
ACCESS = Access([Credential(each, digest_of(each.name.encode())) for each in GRANTS])


def lines(method: str, path: str, token: str) -> list[dict[str, Any]]:
    """What one request leaves in the audit."""
    spaces = [RowSpace(name, Layout(1), name) for name in ("shop", "bank")]
    app = make_app(make_front(spaces, Locations(), access=ACCESS))
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with capture_logs() as found:
        ask_app(app, method, path, headers=headers)
    return [dict(each) for each in found if each["event"] == "audit"]


@pytest.mark.parametrize(
    ("method", "path", "token", "who", "what", "keyspace", "outcome"),
    [
        ("GET", "/v1/rows/shop/t/1", "wrong", "127.0.0.1", "GET /v1/rows", "shop", "unauthorized"),
        ("GET", "/v1/rows/bank/t/1", "shopper", "token shopper", "GET /v1/rows", "bank", "unknown_keyspace"),
        ("PUT", "/v1/rows/shop/t/1", "shopper", "token shopper", "PUT /v1/rows", "shop", "forbidden"),
        ("POST", "/v1/locations:refresh", "shopper", "token shopper", "POST /v1/locations", "", "forbidden"),
        ("GET", "/metrics", "shopper", "token shopper", "GET /metrics", "", "forbidden"),
    ],
)
def test_refused_and_administrative_requests_leave_a_line(
    method: str, path: str, token: str, who: str, what: str, keyspace: str, outcome: str
) -> None:
    """Who, what, on which keyspace and how it ended; once, and at a level that is on."""
    [line] = lines(method, path, token)
    assert [line[name] for name in ("who", "what", "keyspace", "outcome")] == [who, what, keyspace, outcome]
    assert line["log_level"] == "warning"


def test_what_an_administrator_did_leaves_a_line() -> None:
    """Also when it failed."""
    [line] = lines("POST", "/v1/locations:refresh?keyspace=shop&partition=0", "root")
    assert (line["who"], line["what"]) == ("token root", "POST /v1/locations")
    assert line["outcome"] != "forbidden"


def test_an_owner_tells_of_checkpoints_and_refusals(tmp_path: Path) -> None:
    """The owner protocol has the same lines: who began a checkpoint, who was refused, and who could not connect."""
    owner = owner_of(tmp_path, Grant("admin", frozenset({"admin"})), Grant("reader", frozenset({"read"})))

    async def use(client: OwnerClient) -> None:
        await code_of(client, "get")
        await code_of(client, "checkpoint")

    def told(secret: str) -> list[tuple[str, str, str, str]]:
        with capture_logs() as found:
            owner.run(use, identity=Identity(lambda: secret))
        lines = [each for each in found if each["event"] == "audit"]
        return [(each["who"], each["what"], each["keyspace"], each["outcome"]) for each in lines]

    assert told("admin") == [("token admin", "Checkpoint", KEYSPACE, "begun")]
    assert told("reader") == [("token reader", "Checkpoint", KEYSPACE, "forbidden")]
    assert {each[:2] + each[3:] for each in told("wrong")} == {("127.0.0.1", "connect", "unauthorized")}


def test_ordinary_reads_leave_none() -> None:
    """A line for each read would be another log of everything; a keyspace that is nowhere is a slip, no trespass."""
    assert lines("GET", "/v1/rows/shop/t/1", "shopper") == []
    assert lines("GET", "/v1/status", "shopper") == []
    assert lines("GET", "/v1/rows/nowhere/t/1", "root") == []
    assert lines("GET", "/healthz", "wrong") == []


def test_a_flood_of_refusals_is_told_in_few_lines() -> None:
    """Lines of one caller are bounded, the next says what is missing, and other callers are still told."""
    now = [0.0]
    audit = Audit("front", lambda: now[0])
    with capture_logs() as found:
        for _ in range(1_000):
            audit.note("10.0.0.1", "GET /v1/rows", "shop", "unauthorized")
        audit.note("10.0.0.2", "GET /v1/rows", "shop", "unauthorized")
        for now[0] in (1.5, 3.0):
            audit.note("10.0.0.1", "GET /v1/rows", "shop", "unauthorized")
    assert len(found) == LINES_AT_ONCE + 3
    assert found[-2]["left_out"] == 1_000 - LINES_AT_ONCE
    assert not {"left_out"} & {*found[0], *found[-1]}, "each is told once"


def test_what_was_left_out_is_told_although_many_others_came_since() -> None:
    """Who asks slowly enough, behind a crowd, would hide how much was refused."""
    now = [0.0]
    audit = Audit("front", lambda: now[0])
    with capture_logs() as found:
        for _ in range(int(LINES_AT_ONCE) + 5):
            audit.note("hidden", "GET /metrics", "", "unauthorized")
        for number in range(PAIRS_MAX):
            audit.note(str(number), "GET /metrics", "", "unauthorized")
            now[0] += 1.0
        audit.note("hidden", "GET /metrics", "", "unauthorized")
    assert (found[-1]["who"], found[-1].get("left_out")) == ("hidden", 5)


def test_callers_without_number_are_told_as_one() -> None:
    """Addresses cost nothing: neither memory nor lines grow with them."""
    audit = Audit("front", lambda: 0.0)
    with capture_logs() as found:
        for number in range(3 * PAIRS_MAX):
            audit.note(str(number), "GET /metrics", "", "unauthorized")
    assert len(audit._told) <= PAIRS_MAX + 1
    assert len(found) <= PAIRS_MAX + LINES_AT_ONCE + 1


def test_a_caller_writes_no_line_of_its_own() -> None:
    """A name from a path can't break a line, colour a terminal, or be as long as it likes."""
    with capture_logs() as found:
        Audit("front").note("x", "GET", 'a\n{"event":"audit"}\x1b[31m' + "z" * 10_000, "forbidden")
    assert found[0]["keyspace"].isprintable()
    assert len(found[0]["keyspace"]) == 200


def test_changed_tokens_leave_a_line() -> None:
    """A rotation says which names changed, never a hash; without a change there is no line."""
    new = [*ACCESS.credentials[:1], Credential(Grant("later", frozenset({"read"})), digest_of(b"later"))]
    access = Access(ACCESS.credentials)
    with capture_logs() as found:
        renewed(access, ACCESS.credentials, "front")
        renewed(access, new, "front")
    [line] = found
    assert (line["what"], line["outcome"]) == ("tokens changed: later, root", DONE)
    assert digest_of(b"later") not in str(line)
