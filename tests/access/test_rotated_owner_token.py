"""What a front shows to owners is the token of now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from consumers.owner.client import Identity
from freshet.commands.serve import open_front
from freshet.settings import Settings, load_settings
from stream.kafka.connection import KafkaCluster

SETTINGS = """
[keyspaces.shop]
[consumer]
owner_token = "{}"
"""


class Locations:
    """Nobody is announced."""

    def __init__(self, _: KafkaCluster) -> None: ...

    def start(self, *, patient: bool) -> Self:
        assert patient
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class AtOnce:
    """A reloader that sees a change before anybody is answered."""

    def __init__(self, renew: Callable[[Settings], None]) -> None:
        self._renew = renew

    def __enter__(self) -> Self:
        self._renew(load_settings())
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_front_shows_the_owner_token_that_the_settings_have_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners forget the one of before: from then on the front would be refused by all of them, until a restart."""
    config, shown = tmp_path / "freshet.toml", list[Identity]()
    config.write_text(SETTINGS.format("first"))
    settings = load_settings(config)
    config.write_text(SETTINGS.format("second"))
    monkeypatch.setattr("stream.kafka.locations.LocationsReader", Locations)
    monkeypatch.setattr("freshet.access.reloading.Reloader", AtOnce)
    monkeypatch.setattr("serving.http.server.make_server", lambda *_, **__: None)
    monkeypatch.setattr("freshet.commands.serve._front", lambda *given: shown.append(given[-1]))
    with open_front(settings):
        assert [each.secret() for each in shown] == ["second"]
