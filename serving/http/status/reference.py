"""The page at ``/docs``: the description of the API for people, rendered here from what ``/openapi.json`` says.

No script and nothing from elsewhere, as the page at ``/`` (decision 0084): it can be read where there is no way out.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jinja2 import ChainableUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup

from serving.http.responses import Response, html_response
from serving.http.status.page import environment

JsonObject = dict[str, Any]
_LIMITS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")


def reference_response(description: JsonObject) -> Response:
    """The page of an OpenAPI document."""
    by_tag: dict[str, list[tuple[str, str, JsonObject]]] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    schemas = description["components"]["schemas"]
    return html_response(_template().render(info=description["info"], by_tag=by_tag, schemas=schemas))


def shown_type(schema: JsonObject) -> Markup:
    """A schema in words: ``integer, 0 to 5``, ``array of`` a link to another one, ``"leader" or "any"``."""
    if reference := schema.get("$ref"):
        name = str(reference).rpartition("/")[2]
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return Markup(" or ").join(map(shown_type, options))
    if "enum" in schema:
        return Markup(" or ").join(Markup("<code>{}</code>").format(json.dumps(each)) for each in schema["enum"])
    kind = schema.get("type", "anything")
    text = Markup.escape(kind if isinstance(kind, str) else " or ".join(kind))
    if kind == "array" and schema.get("items"):
        text = Markup("array of {}").format(shown_type(schema["items"]))
    if isinstance(values := schema.get("additionalProperties"), dict):
        text = Markup("object of {}").format(shown_type(values))
    limits = [f"{name} {schema[name]}" for name in _LIMITS if name in schema]
    return Markup("{}, {}").format(text, ", ".join(limits)) if limits else text


def prose(text: str) -> Markup:
    """Markdown as HTML. HTML in it is shown, not taken. What is wide can be moved by keys: it takes the focus."""
    return Markup(_markdown().render(text).replace("<pre>", '<pre tabindex="0">'))


def curl(method: str, path: str, operation: JsonObject) -> str:
    """The request as a command, with the names of what stands in the path."""
    body = " -H 'Content-Type: application/json' -d @body.json" if "requestBody" in operation else ""
    verb = "" if method == "GET" else f" -X {method}"
    return f'curl{verb} -H "Authorization: Bearer $TOKEN"{body} "$FRONT{path}"'


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("js-default")


@cache
def _template() -> Template:
    made = environment()
    made.undefined = ChainableUndefined  # OpenAPI leaves out what is empty
    made.filters |= {"type": shown_type, "prose": prose}
    made.globals |= {"curl": curl}
    return made.get_template("reference.html")
