"""What a metastore says of its settings: whether it answers from a cache, and whether it logs its changes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from freshet.local.hive.server import HiveServer
from stream.sources.hive.live.metastore import (
    Metastore,
    MetastoreCaches,
    MetastoreSettings,
    MetastoreUnlogged,
    check_settings,
)
from stream.sources.hive.live.object_calls import AGGREGATES_CACHED, LISTENER, LISTENERS, RAW_STORE
from stream.sources.hive.rpc.connection import MetastoreError, MetastoreRefused
from stream.sources.hive.rpc.thrift import EXCEPTION, integer, message, record, text
from stream.sources.hive.structs import Struct
from tests.sources.hive.test_connection import listening

ASKED = "get_config_value"
OLDER_NAME = "hive.metastore.aggregate.stats.cache.enabled"


@pytest.mark.parametrize(
    ("answer", "caches"),
    [
        ({0: text("false")}, False),
        ({0: text("true")}, True),
        ({1: record({1: text("the config key cannot be accessed")})}, True),
    ],
    ids=["false", "true", "refused"],
)
def test_a_metastore_is_asked_once_on_each_connection(answer: Struct, caches: bool) -> None:
    """Several metastores of one source may differ, and one may be started anew with other settings."""
    asked: list[bytes] = []

    def say(accepted: socket.socket, request: bytes) -> None:
        while request:
            asked.append(request)
            is_it = ASKED.encode() in request
            name = ASKED if is_it else "get_current_notificationEventId"
            reply = bytearray(message(name, len(asked), answer if is_it else {1: record({1: text("no")})}))
            reply[3] = 2  # a REPLY, not a CALL
            accepted.sendall(reply)
            request = accepted.recv(65536)

    with listening(say) as address, Metastore(MetastoreSettings((address,))) as metastore:
        assert [metastore.caches_aggregates() for _ in range(2)] == [caches] * 2
        assert len(asked) == 1
        assert all(part in asked[0] for part in (ASKED.encode(), AGGREGATES_CACHED.encode()))
        metastore.close()
        with pytest.raises(MetastoreRefused):  # some call opens another connection
            metastore.last_event()
        assert metastore.caches_aggregates() is caches
        assert len(asked) == 3


@pytest.mark.parametrize("is_on", [False, True])
def test_a_metastore_says_what_its_settings_say(is_on: bool, new_hive: Callable[..., HiveServer]) -> None:
    """Without it there is no such cache. Hive's older name for it counts as well."""
    server = new_hive(settings={OLDER_NAME: "true"} if is_on else {})
    with Metastore(MetastoreSettings(((server.host, server.port),))) as metastore:
        assert metastore.caches_aggregates() is is_on


def _reply(accepted: socket.socket, sequence: int, result: Struct) -> None:
    """Of ``get_config_value``."""
    reply = bytearray(message(ASKED, sequence, result))
    reply[3] = 2  # a REPLY, not a CALL
    accepted.sendall(reply)


CACHED = "org.apache.hadoop.hive.metastore.cache.CachedStore"


@pytest.mark.parametrize(("answer", "is_refused"), [(CACHED, True), ("o.a.h.h.metastore.ObjectStore", False)])
def test_no_metastore_is_used_that_answers_all_from_a_cache(answer: str, is_refused: bool) -> None:
    """What it answers may be from before an event that was read. One that is down is no reason to wait."""

    def say(accepted: socket.socket, request: bytes) -> None:
        assert RAW_STORE.encode() in request
        _reply(accepted, 1, {0: text(answer)})
        if accepted.recv(65536):
            _reply(accepted, 2, {0: text(LISTENER)})

    with socket.create_server(("127.0.0.1", 0)) as unused:
        down = unused.getsockname()
    with (
        listening(say) as address,
        pytest.raises(MetastoreCaches, match=str(address[1])) if is_refused else nullcontext(),
    ):
        check_settings(MetastoreSettings((down, address)))


@pytest.mark.parametrize(
    ("listeners", "is_refused"),
    [
        ({0: text("")}, True),
        ({0: text("com.example.Audit")}, True),
        ({0: text(f"com.example.Audit,{LISTENER}")}, False),
        ({0: text("com.example.OurNotificationListener")}, False),
        ({1: record({1: text("the config key cannot be accessed")})}, False),
        ({}, False),
    ],
    ids=["none", "another", "two", "made of it", "refused", "untold"],
)
def test_no_metastore_is_used_that_logs_nothing(listeners: Struct, is_refused: bool) -> None:
    """No event would tell of a change, and what was cached before it would be fresh for good."""

    def say(accepted: socket.socket, _: bytes) -> None:
        _reply(accepted, 1, {0: text("o.a.h.h.metastore.ObjectStore")})
        assert LISTENERS.encode() in accepted.recv(65536)
        _reply(accepted, 2, listeners)

    with (
        listening(say) as address,
        pytest.raises(MetastoreUnlogged, match=str(address[1])) if is_refused else nullcontext(),
    ):
        check_settings(MetastoreSettings((address,)))


OLD_LISTENERS = "hive.metastore.transactional.event.listeners"


@pytest.mark.parametrize(
    ("settings", "is_refused"), [({LISTENERS: ""}, True), ({LISTENERS: "", OLD_LISTENERS: LISTENER}, False)]
)
def test_a_real_metastore_says_whether_it_logs(
    settings: dict[str, str], is_refused: bool, new_hive: Callable[..., HiveServer]
) -> None:
    """By the setting's older name, too."""
    server = new_hive(settings=settings)
    with pytest.raises(MetastoreUnlogged) if is_refused else nullcontext():
        check_settings(MetastoreSettings(((server.host, server.port),)))


def test_a_real_metastore_says_which_store_it_has(new_hive: Callable[..., HiveServer]) -> None:
    """It is asked by the name that it has in Hive 4."""
    server = new_hive()
    settings = MetastoreSettings(((server.host, server.port),))
    check_settings(settings)
    with Metastore(settings) as metastore:
        assert metastore._setting(RAW_STORE, "").endswith("ObjectStore")


def test_a_metastore_that_keeps_its_log_to_proxy_users_is_told_from_a_broken_one() -> None:
    """That is its default, and all that it says is that there was an internal error."""
    call = "get_current_notificationEventId"
    failure: Struct = {1: text(f"Internal error processing {call}"), 2: integer(6)}

    def say(accepted: socket.socket, _: bytes) -> None:
        reply = bytearray(message(call, 1, failure))
        reply[3] = EXCEPTION
        accepted.sendall(reply)

    with listening(say) as address, Metastore(MetastoreSettings((address,))) as metastore:
        with pytest.raises(MetastoreError, match="Internal error") as raised:
            metastore.last_event()
        assert "notification.api.auth" in raised.value.hint
