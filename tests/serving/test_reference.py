"""The page at ``/docs``: all of the description, readable without a script, and nothing that runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from serving.http.openapi import describe
from serving.http.routes import ROUTES
from serving.http.status.reference import prose, reference_response, shown_type
from tests.serving.test_status import served

DESCRIPTION = describe(ROUTES)


class Read(HTMLParser):
    """What a page has: identities, where its links lead, its texts, and the tags that load or run something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One tag."""
        of = {name: value or "" for name, value in attrs}
        self.ids += [of["id"]] if "id" in of else []
        if tag == "a":
            self.links.append(of["href"])
        if tag in ("script", "style", "iframe", "object") or any(
            name.startswith("on") or name == "style" for name in of
        ):
            self.loads.append(tag)
        if tag in ("link", "img"):
            self.loads.append(of.get("href", "") or of.get("src", ""))

    def handle_data(self, data: str) -> None:
        """Text between tags."""
        self.text += data


def shown(description: dict[str, Any] = DESCRIPTION) -> Read:
    """The page."""
    return Read(reference_response(description).body.decode())


def test_every_operation_parameter_error_and_field_is_shown() -> None:
    """Nothing that `/openapi.json` says is missing."""
    page = shown()
    for path, operations in DESCRIPTION["paths"].items():
        for method, operation in operations.items():
            assert operation["operationId"] in page.ids
            assert f"{method.upper()} {path}" in page.text
            assert all(each["name"] in page.text for each in operation["parameters"])
            for answer in operation["responses"].values():
                assert all(code in page.text for code in re.findall(r"^- `(\w+)`", answer["description"], re.M))
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        assert f"schema-{name}" in page.ids
        assert all(field in page.text for field in schema["properties"])


def test_every_link_leads_somewhere() -> None:
    """Within the page to something that has that identity; identities are not given twice."""
    page = shown()
    assert len(page.ids) == len(set(page.ids))
    inner = {link[1:] for link in page.links if link.startswith("#")}
    assert inner <= set(page.ids)
    assert {link for link in page.links if not link.startswith("#")} == {"/", "/openapi.json"}


def test_it_runs_nothing_and_loads_only_the_pages_own_files() -> None:
    """A strict policy would hold it back; nothing is there to be held back."""
    response = served("/docs")
    assert response.text == reference_response(DESCRIPTION).body.decode()
    assert set(shown().loads) == {"/files/icon.svg", "/files/page.css"}
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert response.headers["content-type"] == "text/html; charset=utf-8"


def test_text_of_a_description_is_no_html() -> None:
    """Whatever a description says is shown, and does nothing."""
    evil = "<script>alert(1)</script> `<b>` [x](javascript:alert(1))"
    made = Read(str(prose(evil)))
    assert made.loads == []
    assert "<script>" in made.text
    assert made.links == []
    assert str(shown_type({"enum": ["<i>"]})) == "<code>&#34;&lt;i&gt;&#34;</code>"


def test_types_are_told_in_words() -> None:
    """References are links; choices, lists and limits are said."""
    optional = {"anyOf": [{"$ref": "#/components/schemas/Row"}, {"type": "null"}]}
    assert str(shown_type(optional)) == '<a href="#schema-Row">Row</a> or null'
    assert (
        str(shown_type({"type": "array", "items": {"type": "integer", "minimum": 0}})) == "array of integer, minimum 0"
    )
    assert str(shown_type({"type": ["object", "null"]})) == "object or null"
    assert str(shown_type({"type": "object", "additionalProperties": {"type": "string"}})) == "object of string"
    assert str(shown_type({})) == "anything"
