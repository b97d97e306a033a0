"""The routes of dead letters: which messages could not be folded, and why. They only read Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from serving.errors import ReadError
from serving.http.front import Front
from serving.http.letters.answers import LetterAnswer, LettersAnswer
from serving.http.letters.page import letters_page, told_on_the_page
from serving.http.responses import Response, html_response, plain_response
from serving.http.route import Route
from stream.access.grants import ADMIN
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter, find_letter, read_letters
from tokens.errors import FreshetError

LETTERS_MAX: Final = 500
"""Letters in one answer, the oldest first."""
BYTES_SHOWN: Final = 256
Found = TypeVar("Found")


class LettersParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of the letters of a keyspace."""

    keyspace: str
    letter: Annotated[str, Meta(description="The id of one letter: its content is told, too.")] = ""


class LettersPageParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of the page; without a keyspace the first one."""

    keyspace: str = ""
    letter: str = ""


async def get_letters(front: Front, parameters: LettersParameters, _: None) -> Response:
    """One `LettersAnswer`."""
    return plain_response(await _read(front, parameters.keyspace, parameters.letter))


async def get_letters_page(front: Front, parameters: LettersPageParameters, _: None) -> Response:
    """The page of dead letters."""
    keyspace = parameters.keyspace or next(iter((*front.row_spaces, *front.table_spaces)), "")
    with told_on_the_page(front, keyspace):
        return html_response(letters_page(front, keyspace, await _read(front, keyspace, parameters.letter)))


def kafka_of(front: Front, keyspace: str) -> KafkaCluster:
    """Where the letters of a keyspace are. Raises `ReadError`."""
    if keyspace not in front.row_spaces and keyspace not in front.table_spaces:
        raise ReadError("unknown_keyspace", f"no keyspace {keyspace!r} is served here")
    if front.kafka is None:
        raise ReadError("letters_unavailable", "this front reads no Kafka")
    return front.kafka


async def ask_kafka(ask: Callable[[], Found]) -> Found:
    """``ask`` in a thread, since Kafka's client blocks. Raises `ReadError`."""
    try:
        return await asyncio.to_thread(ask)
    except FreshetError as error:
        if error.code == "no_such_letter":
            raise ReadError("not_found", str(error), hint=error.hint) from error
        raise ReadError("letters_unavailable", str(error), hint=error.hint) from error


async def _read(front: Front, keyspace: str, letter: str) -> LettersAnswer:
    kafka = kafka_of(front, keyspace)
    if letter:
        return LettersAnswer(1, [_told(await ask_kafka(lambda: find_letter(kafka, keyspace, letter)), whole=True)])
    found = await ask_kafka(lambda: read_letters(kafka, keyspace, values=False))
    return LettersAnswer(len(found), [_told(each, whole=False) for each in found[:LETTERS_MAX]])


def _told(letter: DeadLetter, *, whole: bool) -> LetterAnswer:
    told = LetterAnswer(letter.id, letter.code, letter.reason, letter.size)
    if whole:
        problem = letter.problem()
        told.problem = f"{problem.code}: {problem}" if problem else ""
        told.record = letter.record()
        told.start = letter.value[:BYTES_SHOWN].hex()
    return told


LETTERS: Final[tuple[Route[Any, Any], ...]] = (
    Route(
        method="GET",
        path="/v1/dead-letters/{keyspace}",
        handler=get_letters,
        parameters=LettersParameters,
        answer=LettersAnswer,
        role=ADMIN,
        errors=("unknown_keyspace", "not_found", "letters_unavailable"),
        name="getDeadLetters",
        tag="operations",
        summary="Which messages could not be folded, and why?",
        text="What they would have changed is void, and read from the source. `freshet dlq retry` and `freshet dlq "
        "dismiss` resolve them, and so does the page, if `serve.dead_letter_buttons` is set.",
        returns="The letters.",
    ),
)
LETTERS_PAGE: Final[Route[Any, Any]] = Route(
    method="GET",
    path="/dead-letters",
    handler=get_letters_page,
    parameters=LettersPageParameters,
    role=ADMIN,
    name="getDeadLettersPage",
    tag="page",
    summary="Dead letters, for people.",
    text="",
    returns="HTML.",
)
"""For browsers: not described."""
