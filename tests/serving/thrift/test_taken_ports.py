"""A port that something else has: often a metastore, which has the same one by default."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from serving.http.front import Front
from serving.metrics import FrontMetrics
from serving.reads.spaces import TableSpace
from serving.thrift.listener import ListenerSettings, ThriftListener, ThriftListenError, check_thrift
from stream.access.certificates import Certificates
from stream.access.listening import PlainListenRefused
from stream.wire.keys import Layout
from tests.serving.thrift.test_settings_of_metastores import Source


def test_a_port_that_is_taken_is_told_with_the_setting_that_chose_it() -> None:
    """It said that a file can't be read, and asked whether there is space."""
    space = TableSpace("hive", Layout(1), Source())
    reads = dict.fromkeys(("owners", "tables", "objects"))
    front = SimpleNamespace(table_space=lambda _: space, now_ms=lambda: 0, metrics=FrontMetrics(), **reads)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = ThriftListener(cast("Front", front), "hive", ListenerSettings("127.0.0.1", port, []))
        with pytest.raises(ThriftListenError, match=f"cannot listen for engines of hive on 127.0.0.1:{port}") as failed:
            asyncio.run(listener.start())
    assert failed.value.code == "cannot_listen"
    assert "[serve.thrift.hive]" in failed.value.hint


def test_a_plain_listener_beyond_this_machine_is_refused_with_its_own_setting() -> None:
    """There may be several of them."""
    with pytest.raises(PlainListenRefused) as refused:
        check_thrift("sales", "0.0.0.0", Certificates(), plain=False)
    assert "serve.thrift.sales.plain" in (refused.value.hint or "")
    check_thrift("sales", "0.0.0.0", Certificates(), plain=True)
