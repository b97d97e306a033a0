"""What settings are made of: sections, and the kinds of values that many of them have."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from freshet.sections.secrets import from_files, names, secrets_of
from freshet.settings_errors import parse_object, split_list


def is_address(text: str) -> bool:
    """Whether ``text`` names a place of files (``s3://…``, ``file:///…``) and no directory."""
    return "://" in text


def _http_url(text: str) -> str:
    """Raises ``ValueError``, which does not repeat the text: it may have a password."""
    if len(text) > 1_000 or not re.fullmatch(r"(https?://[^\s/@?#]+(/[^\s@?#]*)?)?", text):
        raise ValueError("must be as http://host:8080 or https://host/path, without user, password and query")
    return text


Port = Annotated[int, Field(ge=0, le=65_535)]
Host = Annotated[str, Field(min_length=1, max_length=253)]
Addresses = Annotated[
    list[Annotated[str, Field(pattern=r"^[^\s:/]+(:[0-9]{1,5})?$", max_length=260)]],
    BeforeValidator(split_list),
    Field(max_length=64),
]
"""Hosts, some with their port: ``replica-1.internal:3307``."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")]
Shard = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]{1,150}$")]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
"""Of a server's interface, or "". It stands in errors, so what is to be shown there has settings of its own."""
Json = BeforeValidator(parse_object)
Names = Annotated[list[str], BeforeValidator(split_list), Field(max_length=10_000)]


class Section(BaseModel):
    """A part of the settings; an unknown key in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        names.update(secrets_of(cls.model_fields))

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return from_files(cls.model_fields, parse_object(value))
