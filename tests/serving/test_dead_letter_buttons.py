"""The buttons of the page of dead letters: off unless set, for admins, from the front's own page, and audited."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import httpx2
import pytest
from structlog.testing import capture_logs

from freshet.commands.serve import open_front
from freshet.settings import KeyspaceSettings, ServeSettings, Settings
from freshet.settings_errors import SettingsError
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.access.grants import ADMIN, FILL, READ, Access, Credential, Grant, digest_of
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter, read_letters
from stream.kafka.reader import end_offsets
from stream.kafka.topics import ensure_topics, events_topic
from stream.wire.keys import Layout
from tests.serving.asking import client_of
from tests.stream.test_dead_letters import GOOD, publish, send_letters

OWN_PAGE = {"sec-fetch-site": "same-origin"}


def access_of(keyspace: str) -> Access:
    """An admin, one of another keyspace, and one with every other role. The secret is the name."""
    everything_else = frozenset({READ, FILL})
    grants = [
        Grant("admin", frozenset({ADMIN}), frozenset({keyspace})),
        Grant("other", frozenset({ADMIN}), frozenset({"payroll"})),
        Grant("reader", everything_else),
    ]
    return Access(Credential(grant, digest_of(grant.name.encode())) for grant in grants)


class Pressed:
    """A front with buttons, and what was answered and audited when they were pressed."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, *, has_buttons: bool = True, is_open: bool = False) -> None:
        self.kafka, self.keyspace = kafka, keyspace
        self._front = make_front(
            [RowSpace(keyspace, Layout(2)), RowSpace("payroll", Layout(2))],
            Locations(),
            kafka=kafka,
            resolves_letters=has_buttons,
            access=Access() if is_open else access_of(keyspace),
        )

    def press(
        self, action: str, letter: DeadLetter, who: str = "admin", headers: dict[str, str] = OWN_PAGE
    ) -> tuple[httpx2.Response, list[tuple[str, str, str, str]]]:
        """As a browser sends the form that has this button; the answer, and the lines of the audit."""
        basic = b64encode(f"somebody:{who}".encode()).decode()
        asked = {"keyspace": self.keyspace, "letter": letter.id}
        with capture_logs() as logs:
            answer = self._ask("POST", f"/dead-letters/{action}", asked, headers | {"authorization": f"Basic {basic}"})
        lines = [each for each in logs if each["event"] == "audit"]
        return answer, [(each["who"], each["what"], each["keyspace"], each["outcome"]) for each in lines]

    def page(self, letter: DeadLetter | None = None) -> str:
        """The page, of one letter or of all."""
        asked = {"keyspace": self.keyspace} | ({"letter": letter.id} if letter else {})
        return self._ask("GET", "/dead-letters", asked, {"authorization": "Bearer admin"}).text

    def _ask(self, method: str, path: str, asked: dict[str, str], headers: dict[str, str]) -> httpx2.Response:
        async def story() -> httpx2.Response:
            async with client_of(make_app(self._front)) as client:
                return await client.request(method, path, params=asked, headers=headers)

        return asyncio.run(story())


@pytest.fixture
def letter(kafka: KafkaCluster, keyspace_name: str) -> DeadLetter:
    """A letter whose message is in its topic, and can be decoded."""
    ensure_topics(kafka, keyspace_name, 2)
    [found] = publish(kafka, keyspace_name, GOOD)
    send_letters(kafka, keyspace_name, found)
    return found


def events(kafka: KafkaCluster, keyspace: str) -> int:
    """Messages in the topic of events."""
    return sum(end_offsets(kafka, events_topic(kafka, keyspace), [0, 1]).values())


def test_a_letter_is_put_back_and_the_page_shows_it_no_more(
    kafka: KafkaCluster, keyspace_name: str, letter: DeadLetter
) -> None:
    """The page says so, the topic has the message again, and the audit has a line that says who."""
    pressed = Pressed(kafka, keyspace_name)
    assert "Put it back" in pressed.page(letter)
    answer, audited = pressed.press("retry", letter)
    assert answer.status_code == 200
    assert f"{letter.id} was put back." in answer.text
    assert events(kafka, keyspace_name) == 2
    assert f"No dead letters in {keyspace_name}" in pressed.page()
    assert audited == [("token admin", "POST /dead-letters/retry", keyspace_name, "done")]
    again, audited = pressed.press("retry", letter)
    assert (again.status_code, 'role="alert"' in again.text) == (404, True)
    assert audited == [("token admin", "POST /dead-letters/retry", keyspace_name, "not_found")]
    assert events(kafka, keyspace_name) == 2


def test_a_letter_is_dismissed_alone(kafka: KafkaCluster, keyspace_name: str, letter: DeadLetter) -> None:
    """It is off the list, nothing is in the topic that was not there, and other letters stay."""
    other = DeadLetter(letter.topic, 0, 17, "not_freshet", "no frame", b"{}", 2)
    send_letters(kafka, keyspace_name, other)
    pressed = Pressed(kafka, keyspace_name)
    answer, audited = pressed.press("dismiss", letter)
    assert f"{letter.id} was taken off the list." in answer.text
    assert audited == [("token admin", "POST /dead-letters/dismiss", keyspace_name, "done")]
    assert read_letters(kafka, keyspace_name) == [other]
    assert events(kafka, keyspace_name) == 1


def test_what_the_topic_does_not_bear_out_is_refused_and_audited(
    kafka: KafkaCluster, keyspace_name: str, letter: DeadLetter
) -> None:
    """A letter that somebody made up becomes no event: the page says why, and it stays."""
    forged = DeadLetter(letter.topic, letter.partition, 99, "unknown_schema", "made up", GOOD, len(GOOD))
    send_letters(kafka, keyspace_name, forged)
    answer, audited = Pressed(kafka, keyspace_name).press("retry", forged)
    assert answer.status_code == 409
    assert "letter_refused" in answer.text
    assert audited == [("token admin", "POST /dead-letters/retry", keyspace_name, "letter_refused")]
    assert read_letters(kafka, keyspace_name) == [letter, forged]
    assert events(kafka, keyspace_name) == 1


@pytest.mark.parametrize("action", ["retry", "dismiss"])
@pytest.mark.parametrize(
    ("who", "headers", "status", "outcome"),
    [
        ("admin", {"sec-fetch-site": "cross-site"}, 403, "forbidden"),
        ("admin", {"sec-fetch-site": "same-site"}, 403, "forbidden"),
        ("admin", {"sec-fetch-site": "none"}, 403, "forbidden"),
        ("admin", {}, 403, "forbidden"),
        ("reader", OWN_PAGE, 403, "forbidden"),
        ("other", OWN_PAGE, 404, "unknown_keyspace"),
        ("nobody", OWN_PAGE, 401, "unauthorized"),
    ],
)
def test_nobody_else_presses_them(
    kafka: KafkaCluster,
    keyspace_name: str,
    letter: DeadLetter,
    action: str,
    who: str,
    headers: dict[str, str],
    status: int,
    outcome: str,
) -> None:
    """Not a page of another site with an admin's password, nor who lacks the role, the keyspace or a token."""
    answer, audited = Pressed(kafka, keyspace_name).press(action, letter, who, headers)
    assert answer.status_code == status
    assert [line[3] for line in audited] == [outcome]
    assert read_letters(kafka, keyspace_name) == [letter]
    assert events(kafka, keyspace_name) == 1


def test_where_no_token_is_asked_for_they_do_nothing(
    kafka: KafkaCluster, keyspace_name: str, letter: DeadLetter, tmp_path: Path
) -> None:
    """A name that is made to lead to the front would be the same site; and such a front does not start."""
    answer, _ = Pressed(kafka, keyspace_name, is_open=True).press("retry", letter)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert events(kafka, keyspace_name) == 1
    buttons = ServeSettings(dead_letter_buttons=True)
    settings = Settings(keyspaces={"shop": KeyspaceSettings()}, data_dir=tmp_path, serve=buttons)
    with pytest.raises(SettingsError, match="nobody is asked for a token"), open_front(settings):
        pass


def test_off_there_is_no_button_and_no_path(kafka: KafkaCluster, keyspace_name: str, letter: DeadLetter) -> None:
    """Unless set, whoever asks: the page has the commands only, and the forms' paths are not there."""
    pressed = Pressed(kafka, keyspace_name, has_buttons=False)
    assert "<form" not in pressed.page(letter)
    for action in ("retry", "dismiss"):
        answer, _ = pressed.press(action, letter)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_path")
    assert read_letters(kafka, keyspace_name) == [letter]


def test_a_browsers_password_counts_for_these_forms_alone(kafka: KafkaCluster, keyspace_name: str) -> None:
    """Anything else that changes something needs a bearer token, whatever a browser says of its site."""
    front = Pressed(kafka, keyspace_name)._front
    basic = b64encode(b"somebody:admin").decode()

    async def story() -> None:
        async with client_of(make_app(front)) as client:
            path = f"/v1/locations:refresh?keyspace={keyspace_name}&partition=0"
            answer = await client.post(path, headers=OWN_PAGE | {"authorization": f"Basic {basic}"})
            assert answer.status_code == 401

    asyncio.run(story())
