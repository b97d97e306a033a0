"""The pages of a front in a real browser: what they show of real data, by keyboard, on a phone, and as axe-core judges.

With FRESHET_TEST_SCREENSHOTS=docs/operating the pictures of docs/operating/page.md are made anew.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from stream.access.grants import digest_of, new_secret
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.dead_letters import DeadLetter, DeadLetterPublisher, read_letters
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import events_topic
from tests.patience import PATIENCE_S
from tests.servers.browser import chromium
from tests.servers.choice import used
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KEYSPACE: Final = "shop"
TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, item VARCHAR(40), total DECIMAL(10,2))",
    "INSERT INTO orders VALUES (7, 'lamp', 39.90), (8, 'desk', 240)",
    "CREATE TABLE plain (id INT PRIMARY KEY, v INT) ENGINE=MyISAM",
    "INSERT INTO plain VALUES (1, 1)",
)
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1100, "height": 1000}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1100, "height": 1000}},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}},
    "dark-phone": {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}},
}
PICTURES: Final = {("/", "light"): "page", ("/", "dark-phone"): "page-phone", ("/key", "dark"): "page-key"}
"""(path, look) → the name of its picture in the pages of docs."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real one."""
    with chromium() as found:
        if found is None:
            pytest.skip(used["chromium"])
        yield found


@pytest.fixture(scope="module")
def stack(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A stack with a whole table, answers from the cache and from the source, and a dead letter."""
    directory = tmp_path_factory.mktemp("page")
    cluster = cluster_of(kafka)
    with (
        own_database(mariadb, *TABLES) as database,
        ServingStack(directory, cluster, mariadb, KEYSPACE, database, backfill=["*"]) as running,
    ):
        eventually(lambda: whole_in(running) == 2, what="a whole table")
        producer = Producer(client_settings(cluster))
        producer.produce(events_topic(cluster, KEYSPACE), b"not a message of ours", partition=0)
        assert producer.flush(30) == 0
        eventually(lambda: running.get(f"/v1/dead-letters/{KEYSPACE}").json()["letters"], what="a dead letter")
        running.run("UPDATE orders SET total = 35 WHERE id = 7")
        token = settled(running)
        for _ in range(40):
            assert running.get(f"/v1/rows/{KEYSPACE}/orders/7", token=token).json()["freshness"] == "fresh"
        running.get(f"/v1/rows/{KEYSPACE}/plain/1")
        yield running


def cluster_of(kafka: KafkaCluster) -> KafkaCluster:
    """Where the stack's topics are."""
    return KafkaCluster(kafka.bootstrap, prefix=f"page{os.getpid()}")


def whole_in(stack: ServingStack) -> int:
    """In how many partitions the table of orders is whole."""
    [keyspace] = stack.get("/v1/status").json()["keyspaces"]
    return sum(each["tables"].get(f"{stack.database}.orders", False) for each in keyspace["partitions"])


@contextmanager
def patient(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page whose server and browser may be slow."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_S * 1_000)
    try:
        yield context.new_page()
    finally:
        context.close()


@contextmanager
def opened(browser: Browser, url: str, look: str = "light") -> Iterator[Page]:
    """A page, which must load nothing from elsewhere, and have no error."""
    elsewhere: list[str] = []
    errors: list[str] = []
    host = re.match(r"http://[^/]+", url)
    assert host is not None
    with patient(browser, **LOOKS[look]) as page:
        page.on("request", lambda each: elsewhere.append(each.url) if not each.url.startswith(f"{host[0]}/") else None)
        page.on("console", lambda each: errors.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda each: errors.append(str(each)))
        page.goto(url)
        yield page
        assert elsewhere == []
        assert errors == []


def complaints(page: Page) -> str:
    """What axe-core has against a page; "" for nothing."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page)
    return str(found.generate_report()) if found.violations_count else ""


def path_with_everything(stack: ServingStack, path: str) -> str:
    """The URL of a page that has something to show."""
    if path == "/key":
        return f"{stack.url}/key?{urlencode({'keyspace': KEYSPACE, 'table': 'orders', 'key': '7', 'back': 'all'})}"
    if path == "/dead-letters":
        [letter] = stack.get(f"/v1/dead-letters/{KEYSPACE}").json()["letters"]
        return f"{stack.url}/dead-letters?{urlencode({'keyspace': KEYSPACE, 'letter': letter['id']})}"
    return stack.url + path


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("path", ["/", "/?hours=24", "/key", "/dead-letters", "/docs"])
def test_everybody_can_read_the_pages(browser: Browser, stack: ServingStack, path: str, look: str) -> None:
    """axe-core finds nothing: contrast, names, order, roles. On a phone nothing but tables moves sideways."""
    with opened(browser, path_with_everything(stack, path), look) as page:
        assert complaints(page) == ""
        assert page.evaluate("document.documentElement.scrollWidth") <= LOOKS[look]["viewport"]["width"]
        if (kept := os.environ.get("FRESHET_TEST_SCREENSHOTS")) and (name := PICTURES.get((path, look))):
            eventually(lambda: len(stack.get("/v1/status/history").json()["at"]) >= 5, what="lines in the charts")
            page.reload()
            page.screenshot(path=Path(kept) / f"{name}.png", full_page=look != "dark-phone")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("document.documentElement.removeAttribute('lang')", "html-has-lang"),
        ("document.querySelector('td').style.color = '#ddd'", "color-contrast"),
        ("document.querySelector('svg').removeAttribute('aria-label')", "svg-img-alt"),
    ],
)
def test_what_hinders_somebody_would_be_found(browser: Browser, stack: ServingStack, change: str, rule: str) -> None:
    """The judge is awake: each of these hinders somebody."""
    with opened(browser, f"{stack.url}/?refresh=false") as page:
        eventually(lambda: page.locator("svg").count() or not page.reload(), what="a chart")
        page.evaluate(change)
        assert rule in complaints(page)


def test_the_page_shows_what_there_is(browser: Browser, stack: ServingStack) -> None:
    """Badge, the way of a change, the worst partition, whole tables, answers and misses: and it is fetched again."""
    with opened(browser, stack.url) as page:
        # an owner that is slow to answer is not ready on the page that was made meanwhile
        eventually(lambda: page.title() == "Freshet: ready" or not page.reload(), what="a page of what is ready")
        assert page.get_by_role("heading", name="shop ready").is_visible()
        assert page.get_by_label("The way of a change").get_by_role("listitem").count() == 4
        partitions = page.get_by_role("region", name="Partitions of shop").get_by_role("row")
        assert partitions.count() == 3  # a header and two partitions
        assert "ready" in (partitions.nth(1).text_content() or "")
        tables = page.get_by_role("region", name="Tables of shop").get_by_role("row", name="orders")
        assert page.get_by_role("img", name="reads that the cache did not answer").is_visible()
        assert "1 of 2 partitions" in (tables.text_content() or "")  # the dead letter may have been one of the other's

        def served() -> tuple[int, int]:
            told = re.search(r"cache: ([\d,]+)\. From the source: ([\d,]+)\.", page.locator("main").inner_text())
            return (int(told[1].replace(",", "")), int(told[2].replace(",", ""))) if told else (0, 0)

        def misses() -> str:
            return page.get_by_role("region", name="Misses").inner_text() if served()[1] else ""

        eventually(lambda: served()[0] >= 40 and "never_cached" in misses(), what="the last hour")
        before = served()
        stack.get(f"/v1/rows/{KEYSPACE}/plain/1")
        eventually(lambda: served()[1] > before[1], what="the page is fetched again by itself")


def press_until(page: Page, key: str, is_there: Callable[[], bool], times: int = 20) -> None:
    """Presses a key until something has the focus."""
    for _ in range(times):
        page.keyboard.press(key)
        if is_there():
            return
    raise AssertionError(f"{key} does not lead there; the focus is at {focused(page)!r}")


def focused(page: Page) -> str:
    """The text of what has the focus; of a field its name."""
    return str(page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))


def test_a_key_is_looked_up_by_keyboard_alone(browser: Browser, stack: ServingStack) -> None:
    """From the page by Tab and Enter to the form, through its fields, and to the decision; nothing needs a mouse."""
    with opened(browser, f"{stack.url}/?refresh=false") as page:
        page.keyboard.press("Tab")
        assert focused(page) == "To the keyspaces"
        assert page.get_by_role("link", name="To the keyspaces").is_visible()
        press_until(page, "Tab", lambda: focused(page) == "One key")
        page.keyboard.press("Enter")
        page.wait_for_url("**/key")
        press_until(page, "Tab", lambda: focused(page) == "keyspace")
        for name, text in (("keyspace", KEYSPACE), ("table", "orders"), ("key", "7")):
            assert focused(page) == name
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        assert focused(page) == "token"
        page.keyboard.type(settled(stack))
        page.keyboard.press("Enter")
        page.wait_for_url("**/key?**")
        told = page.get_by_role("heading", name="orders 7 may be served: fresh")
        eventually(lambda: told.is_visible() or not page.reload(), what="the owner's word, which may be late")
        assert '"total": "35.00"' in page.locator("pre").inner_text()
        press_until(page, "Tab", lambda: '"total"' in focused(page))  # what is wide can be moved by keys
        last, *before = page.get_by_role("region", name="Its changes").get_by_role("row").all()[1:]
        assert "made the entry" in (last.text_content() or "")
        assert '"total":"35.00"' in (last.text_content() or "")
        assert any('"total":"39.90"' in (each.text_content() or "") for each in before)
        assert not any("made the entry" in (each.text_content() or "") for each in before)


def test_a_day_is_chosen_by_keyboard_and_a_look_keeps_the_focus(browser: Browser, stack: ServingStack) -> None:
    """By Tab and Enter; and what has the focus has it still when the page was fetched again by itself."""
    with opened(browser, stack.url) as page:
        eventually(lambda: page.locator("svg.small").count() or not page.reload(), what="a chart of a partition")
        press_until(page, "Tab", lambda: focused(page) == "The last day")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?hours=24")
        assert page.get_by_role("heading", name="The last day").is_visible()
        assert page.get_by_role("link", name="The last day").get_attribute("aria-current") == "page"
        held = "document.activeElement.id"
        press_until(page, "Tab", lambda: page.evaluate(held) == "oldest1")
        page.evaluate("document.getElementById('main').dataset.before = 'yes'")
        eventually(lambda: page.evaluate("!document.getElementById('main').dataset.before"), what="a fetched page")
        assert page.evaluate(held) == "oldest1"
        assert page.get_by_role("heading", name="The last day").is_visible()


def letter_of_a_real_message(kafka: KafkaCluster) -> DeadLetter:
    """A letter, as a consumer keeps it, whose message is in the topic and can be decoded."""
    topic = events_topic(kafka, KEYSPACE)
    [end] = end_offsets(kafka, topic, [0]).values()
    letters = [
        DeadLetter(topic, 0, each.offset() or 0, "unknown_schema", "of a test", value, len(value))
        for each in read_range(kafka, topic, 0, 0, end)
        if (value := each.value())
    ]
    letter = next(each for each in letters if (each.record() or {}).get("name") == "TableSchema")
    publisher = DeadLetterPublisher(kafka, KEYSPACE)
    publisher.send(letter)
    publisher.flush()
    return letter


def test_a_letter_is_put_back_by_keyboard_and_by_no_other_site(
    browser: Browser, stack: ServingStack, kafka: KafkaCluster
) -> None:
    """With the password, a page of another site is refused; the front's own page has a button that does it."""
    topics = cluster_of(kafka)
    letter = letter_of_a_real_message(topics)
    secret, port = new_secret(), free_ports(1)[0]
    oncall = {"hash": digest_of(secret.encode()), "roles": ["admin"]}
    front = f"http://127.0.0.1:{port}"
    with stack.add_front({"port": port, "dead_letter_buttons": True, "tokens": {"oncall": oncall}}):
        asked = urlencode({"keyspace": KEYSPACE, "letter": letter.id})
        basic = b64encode(f"me:{secret}".encode()).decode()
        with patient(browser, extra_http_headers={"Authorization": f"Basic {basic}"}) as page:
            page.set_content(f'<form method="post" action="{front}/dead-letters/retry?{asked}"><button>')
            with page.expect_navigation() as refused:
                page.get_by_role("button").click()
            assert refused.value is not None
            assert (refused.value.status, refused.value.json()["code"]) == (403, "forbidden")
            assert letter in read_letters(topics, KEYSPACE)
            page.goto(f"{front}/dead-letters?{asked}")
            assert complaints(page) == ""
            press_until(page, "Tab", lambda: focused(page) == "Put it back")
            page.keyboard.press("Enter")
            page.wait_for_url("**/dead-letters/retry?**")
            assert f"{letter.id} was put back." in page.get_by_role("status").inner_text()
            assert complaints(page) == ""
            page.get_by_role("link", name=f"Dead letters of {KEYSPACE}").click()
            assert page.get_by_role("row", name=letter.id).count() == 0
    assert letter not in read_letters(topics, KEYSPACE)


def test_programs_get_what_the_page_of_a_key_shows(stack: ServingStack) -> None:
    """The entry, the decision on a token, and the changes; and how far backfills are: none is under way."""
    path = f"/v1/status/rows/{KEYSPACE}/orders/7"
    told = stack.get(path, token=settled(stack), back="1").json()
    assert (told["served"], told["freshness"], told["image"]["total"]) == (True, "fresh", "35.00")
    assert [each["made_entry"] for each in told["history"]["changes"]][:1] == [True]
    assert stack.get(path).json()["history"] is None
    assert stack.get(path, back="2").json()["code"] == "bad_parameter"
    assert stack.get(f"/v1/status/backfills/{KEYSPACE}").json() == {"backfills": []}


def test_a_wrong_key_is_said_where_a_screen_reader_hears_it(browser: Browser, stack: ServingStack) -> None:
    """The reason is an alert, and what was typed is still there."""
    asked = urlencode({"keyspace": KEYSPACE, "table": "nothing", "key": "7"})
    with patient(browser, **LOOKS["light"]) as page:
        page.goto(f"{stack.url}/key?{asked}")
        assert "unknown_table" in page.get_by_role("alert").inner_text()
        assert page.get_by_label("Table", exact=True).input_value() == "nothing"
        assert complaints(page) == ""
