"""Settings: the TOML file and the environment."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import tomli_w

from freshet.settings import Settings, load_settings
from freshet.settings_errors import SettingsError
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, some_text, some_tree
from tests.fuzz.targets.store import _Directory

GOOD: dict[str, Any] = {
    "data_dir": ".freshet",
    "kafka": {"bootstrap": "127.0.0.1:9092", "replication_factor": 1, "extra": {"client.id": "x"}},
    "keyspaces": {
        "shop": {
            "kind": "rows",
            "partitions": 4,
            "source": {
                "kind": "mariadb",
                "databases": ["shop"],
                "password": "hunter2",
                "key_prefix_columns": {"a.b": 1},
            },
        },
        "hive": {"kind": "catalog", "source": {"kind": "workload", "seed": 1}},
    },
    "publisher": {"batch_interval_ms": 25},
    "consumer": {"group": "g", "owner_token": "hunter2"},
    "serve": {"port": 8480, "locations": {"shop/0": "127.0.0.1:1"}},
    "log": {"format": "json"},
}
VARIABLES = {
    "FRESHET_KAFKA__BOOTSTRAP": "127.0.0.1:9092",
    "FRESHET_KAFKA__EXTRA": '{"a": "b"}',
    "FRESHET_KEYSPACES": '{"shop": {"source": {"kind": "mariadb", "databases": "a,b"}}}',
    "FRESHET_SERVE__PORT": "8480",
    "FRESHET_SERVE": '{"port": 1}',
    "FRESHET_SERVE__LOCATIONS": '{"shop/0": "127.0.0.1:1"}',
    "FRESHET_LOG__LEVEL": "info",
    "FRESHET_CONSUMER__OWNER_TOKEN": "hunter2",
    "FRESHET_DATA_DIR": ".freshet",
}
SECRET = "hunter2"
DEEP = ("[" * 3_000, "{a=" * 3_000, '{"a":' * 3_000, "\n[[a.b]]\n", "\na.b.c = 1\n", '"""', "1979-05-27", "0x", "nan")


def _checked(load: Any) -> Settings | None:
    try:
        found: Settings | None = refused(SettingsError, load)
    except SettingsError as error:  # pragma: no cover - refused() lets none through
        raise Misbehaved(str(error)) from error
    if found is not None:
        if SECRET in repr(found):
            raise Misbehaved("a secret is shown")
        for name in found.keyspaces:
            found.shard_of(name)
    return found


def _toml() -> Case:
    place = _Directory("freshet.toml")
    text = tomli_w.dumps(GOOD)

    def draw(rng: Rng) -> bytes:
        if rng.random() < 0.6:
            try:
                return tomli_w.dumps(some_tree(rng, GOOD)).encode("utf-8", "surrogatepass")
            except (TypeError, AttributeError, RecursionError, ValueError):
                pass  # TOML has no null, and a file has no other top than a table
        return some_text(rng, [text], DEEP).encode("utf-8", "surrogatepass")

    def run(data: bytes) -> None:
        place.file.write_bytes(data)
        _checked(lambda: load_settings(place.file))

    return Case(draw, run, place.directory.cleanup)


def _environment() -> Case:
    empty = _Directory("freshet.toml")
    empty.file.write_text("")

    def draw(rng: Rng) -> dict[str, str]:
        found = {}
        for _ in range(rng.choice((1, 1, 2, 4))):
            name = rng.choice(list(VARIABLES))
            value = some_text(rng, [VARIABLES[name]], DEEP) if rng.random() < 0.8 else VARIABLES[name]
            name = some_text(rng, [name], ("__", "FRESHET_")) if rng.random() < 0.1 else name
            name, value = (text.replace("\0", "").encode("utf-8", "replace").decode() for text in (name, value))
            if name and "=" not in name and len(name) < 10_000:
                found[name] = value
        return found

    def run(variables: dict[str, str]) -> None:
        with _environ(variables):
            _checked(lambda: load_settings(empty.file))

    return Case(draw, run, empty.directory.cleanup)


@contextlib.contextmanager
def _environ(variables: dict[str, str]) -> Any:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


TARGETS = (
    Target("settings_toml", "the settings file", _toml, 0.25),
    Target("settings_env", "FRESHET_ variables", _environment, 0.25),
)
