"""Turns pydantic's validation errors into one line and a hint, without any secret in them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from freshet.sections.secrets import BothSetError
from tokens.errors import FreshetError

SECRET_WORDS = ("password", "token", "secret", "extra")
UNION_TAGS = ("mariadb", "mysql", "debezium", "workload", "hive", "names", "ranges")
_KINDS: Final = sorted(UNION_TAGS[:5])


class SettingsError(FreshetError):
    """A setting that is missing, unknown or out of its limits. The message names the key.

    Code ``unknown_keyspace`` for a keyspace that is not in the settings; ``which_shard`` where one of several is meant;
    ``no_tracing`` where a package for traces is missing.
    """

    code = "bad_settings"


def split_list(value: Any) -> Any:
    """Parses a list given as text (environment, flags): ``a,b`` or a JSON array. Other values pass unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _json(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def parse_object(value: Any) -> Any:
    """Parses a table given as text (environment): a JSON object. Other values pass unchanged."""
    return _json(value) if isinstance(value, str) else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"cannot be read as JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("cannot be read as JSON (nested too deep)") from None


def unknown_keyspace(name: str, known: Iterable[str], *, also: str = "", hint: str = "") -> SettingsError:
    """The error for a keyspace that is not in the settings. ``also``: a second problem. ``hint``: another solution."""
    names = sorted(known)
    advice = f"known: {', '.join(names)}" if names else f"there are no keyspaces; add [keyspaces.{name}] to the file"
    return SettingsError(
        f"no keyspace {name!r} in the settings" + (f", and {also}" if also else ""),
        hint=f"{advice}; or {hint}" if hint else advice,
        code="unknown_keyspace",
    )


def unknown_variables(environment: Mapping[str, str], sections: Mapping[str, Iterable[str]]) -> SettingsError | None:
    """An error if a FRESHET_ variable names an unknown section, or a setting with other underscores.

    pydantic would ignore it. ``sections``: each with its settings. Other variables may be anybody's, as Kubernetes'
    ``FRESHET_SERVE_PORT=tcp://…`` of a service.
    """
    right = (
        f"FRESHET_{name}".upper()
        for section, names in sections.items()
        for name in (section, *(f"{section}__{each}" for each in names))
    )
    meant = {name.replace("_", ""): name for name in right}
    for variable in sorted(environment):
        if not variable.startswith("FRESHET_"):
            continue
        likely = meant.get(variable.replace("_", ""), variable)
        if likely != variable and not environment[variable].startswith(("tcp://", "udp://", "sctp://")):
            return SettingsError(f"{variable}: no such setting", hint=f"did you mean {likely}?")
        section = variable.removeprefix("FRESHET_").split("__")[0].lower()
        if "__" in variable and section not in sections:
            return SettingsError(f"{variable}: no section {section!r}", hint=_did_you_mean(section, sorted(sections)))
    return None


def from_validation(
    error: ValidationError, file: Path, known_keys: Callable[[Sequence[str]], Iterable[str]]
) -> SettingsError:
    """The first finding as one line, with the number of other findings and a hint where to set the key.

    ``known_keys``: path of a section → its keys; empty if there is no such section.
    """
    findings = error.errors(include_url=False)
    first = findings[0]
    path = _path(first["loc"]) + (["kind"] if _is_of_kind(first) else [])
    key = ".".join(path)
    same = [each for each in findings[1:] if _path(each["loc"]) == path]
    words = [each["ctx"]["expected"] for each in same if each["type"] == "literal_error"]
    message = f"{key}: {_what(first)}{''.join(f'; or {each}' for each in words)}"
    more = len({tuple(_path(each["loc"])) for each in findings}) - 1
    if more:
        message += f" (and {more} more)"
    return SettingsError(message, hint=_hint(first, path, file, known_keys))


_OF_A_UNION: Final = re.compile(r"constrained-|literal\[")
"""Where a setting may be of several types, each has a finding, whose path ends with the type."""


def _path(loc: tuple[int | str, ...]) -> list[str]:
    """The key as users write it, without the union tags and key markers that pydantic inserts."""
    parts = [str(part) for part in loc]
    return [
        part
        for number, part in enumerate(parts)
        if part != "[key]"
        and not _OF_A_UNION.match(part)
        and not (part in UNION_TAGS and number and parts[number - 1] in ("source", "shards"))
    ]


def _is_of_kind(finding: Any) -> bool:
    """Whether a source's ``kind`` is missing, or none."""
    return bool(finding.get("ctx", {}).get("discriminator") == "'kind'")


def _what(finding: Any) -> str:
    kind = finding["type"]
    if kind == "union_tag_not_found" and _is_of_kind(finding):
        given = finding["input"] if isinstance(finding["input"], Mapping) else {}
        near = difflib.get_close_matches("kind", [str(each) for each in given], n=1)
        return f"must be set, to one of: {', '.join(_KINDS)}" + (f" ({near[0]} is no setting)" if near else "")
    if kind == "union_tag_invalid" and _is_of_kind(finding):
        return f"{finding['ctx']['tag']!r} is none of: {', '.join(_KINDS)}"
    if kind == "path_type":
        return f"{finding['input']!r} is not a path"
    if kind == "string_pattern_mismatch" and finding["loc"][-1] == "[key]":
        return f"a name can't have all of these letters: it must fit {finding['ctx']['pattern']}"
    if kind == "extra_forbidden":
        return "no such setting"
    if kind == "missing":
        return "must be set"
    text = str(finding["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    value = finding.get("input")
    secret = any(word in str(part).lower() for part in finding["loc"] for word in SECRET_WORDS)
    if secret or kind == "value_error" or not isinstance(value, str | int | float | bool):
        return text
    return f"{text}, not {value!r}"


def _hint(finding: Any, path: list[str], file: Path, known_keys: Callable[[Sequence[str]], Iterable[str]]) -> str:
    if finding["type"] == "extra_forbidden":
        known = sorted(known_keys(path[:-1]))
        if path[-1] in known and (kind := finding["loc"][-2]) in _KINDS:
            return f"remove it: a source of kind {kind} has no such setting"
        return _did_you_mean(path[-1], known) if known else "remove it"
    if finding["loc"][-1:] == ("[key]",):
        return f"give it another name in {file}"
    if isinstance(finding.get("ctx", {}).get("error"), BothSetError):
        return "take one of them away"
    section, name = ".".join(path[:-1]), path[-1] if path else ""
    where = f"[{section}] {name}" if section else name
    variable = "FRESHET_" + "__".join(path).upper()
    return f"set it in {file} ({where}), by {variable}, or by a flag"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
