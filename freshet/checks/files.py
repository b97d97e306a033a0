"""Whether files that hold secrets or rows can be read by other users of this machine."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from freshet.checks.finding import Check
from freshet.sections.access import OwnCertificate
from freshet.sections.secrets import read_files
from freshet.sections.sources import EncryptedSettings
from freshet.settings import Settings, config_in_use

_SECRETS: Final = ("password", "token", "secret", "key.pem", "jaas.config", "oauthbearer.config")
"""Ends of keys of the settings file, and of librdkafka's in it, whose values are secrets."""
_KEYS_OF_KAFKA: Final = ("ssl.key.location", "ssl.keystore.location")
_TOLD_MAX: Final = 20


def examine_files(settings: Settings) -> Check:
    """A warning that names the files and directories that others can read. Never raises."""
    found = sorted({str(path) for path in _private(settings) if others_may_read(path)})
    if not found:
        return Check("files", "ok", "no other user can read the secrets and stores of the settings here")
    told = ", ".join(found[:_TOLD_MAX]) + (f" and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else "")
    return Check("files", "warning", f"other users of this machine can read {told}", "chmod o= for each of them")


def others_may_read(path: Path) -> bool:
    """Whether a user who is neither its owner nor of its group may read a file, or look into a directory.

    A directory above that lets nobody through protects it.
    """
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
        if not mode & (stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
            return False
        return all(above.stat().st_mode & stat.S_IXOTH for above in real.parents)
    except (OSError, RuntimeError):  # it is not there, or we may not look ourselves
        return False


def _private(settings: Settings) -> Iterator[Path]:
    yield settings.data_dir
    yield from (Path(each.partition(":")[0]) for each in settings.bytes.dirs)
    yield from read_files
    if os.path.isfile(config_in_use()) and _holds_secrets(_parsed(config_in_use())):
        yield config_in_use()
    named = [*settings.kafka.extra_files.values(), settings.bytes.key_file]
    named += [settings.kafka.extra.get(name, "") for name in _KEYS_OF_KAFKA]
    # without a file of its own the key is beside the certificate
    named += [tls.key or tls.certificate for tls in _certificates(settings)]
    for name in settings.keyspaces:
        for shard in settings.shards_of(name):
            source = settings.source_of(name, shard)
            if isinstance(source, EncryptedSettings):
                named.append(source.ssl_key or source.ssl_cert)
    yield from (Path(each) for each in named if each)


def _certificates(section: object) -> Iterator[OwnCertificate]:
    if isinstance(section, OwnCertificate):
        yield section
        return
    parts = section.values() if isinstance(section, dict) else ()
    for part in [value for _, value in section] if isinstance(section, BaseModel) else parts:
        yield from _certificates(part)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _holds_secrets(section: dict[str, Any]) -> bool:
    return any(
        _holds_secrets(value) if isinstance(value, dict) else bool(value) and name.endswith((*_SECRETS, "extra"))
        for name, value in section.items()
        if name != "extra_files"
    )
