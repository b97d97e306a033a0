"""The buttons of the page of dead letters, if ``serve.dead_letter_buttons`` is set: they do what `freshet dlq` does.

A front that has them writes to Kafka, with rights of its own there (decision 0137).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
import structlog
from msgspec import Meta

from serving.errors import ReadError
from serving.http.front import Front
from serving.http.letters.page import letters_page, told_on_the_page
from serving.http.letters.routes import ask_kafka, kafka_of
from serving.http.responses import Response, html_response
from serving.http.route import Route
from stream.access.grants import ADMIN
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import dismiss, retry

_log = structlog.get_logger(__name__)
Text = Annotated[str, Meta(min_length=1, max_length=1_000)]


class FormParameters(msgspec.Struct, forbid_unknown_fields=True):
    """One letter, always: neither button is for all of them."""

    keyspace: Text
    letter: Text


def _retry(kafka: KafkaCluster, keyspace: str, letter: str) -> str:
    [result] = retry(kafka, keyspace, letter)
    if not result.problem:
        _log.info("dead letter put back", keyspace=keyspace, letter=letter)
    return result.problem


def _dismiss(kafka: KafkaCluster, keyspace: str, letter: str) -> str:
    dismiss(kafka, keyspace, letter)
    _log.info("dead letter dismissed", keyspace=keyspace, letter=letter)
    return ""


async def post_retry(front: Front, given: FormParameters, _: None) -> Response:
    """Puts a letter back into its topic, if the topic bears out that it was there."""
    return await _resolve(front, given, _retry, "put back")


async def post_dismiss(front: Front, given: FormParameters, _: None) -> Response:
    """Takes a letter off the list."""
    return await _resolve(front, given, _dismiss, "taken off the list")


async def _resolve(
    front: Front, given: FormParameters, resolve: Callable[[KafkaCluster, str, str], str], what: str
) -> Response:
    with told_on_the_page(front, given.keyspace):  # a press that outlasts its request goes on: its thread logs the end
        kafka = kafka_of(front, given.keyspace)
        problem = await ask_kafka(lambda: resolve(kafka, given.keyspace, given.letter))
        if problem:
            raise ReadError("letter_refused", f"{given.letter} was not {what}: {problem}")
        return html_response(letters_page(front, given.keyspace, None, done=f"{given.letter} was {what}."))


def _form(action: str, handler: Callable[[Front, FormParameters, None], Any]) -> Route[FormParameters, None]:
    return Route(
        method="POST",
        path=f"/dead-letters/{action}",
        handler=handler,
        parameters=FormParameters,
        role=ADMIN,
        is_form=True,
        name=f"{action}DeadLetter",
        tag="page",
        summary="A button of the page.",
        text="",
        returns="HTML.",
    )


LETTER_FORMS: Final[tuple[Route[Any, Any], ...]] = (_form("retry", post_retry), _form("dismiss", post_dismiss))
"""For browsers: not described."""
