"""The description of the service as a plain page: made from its OpenAPI description, without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from string import Template
from typing import Any

from distilcal.serve.pages import read_page

EXAMPLE_BODIES = {
    "texts": '{"texts": ["a fine film", "a waste of time"], "accuracy": 0.9}',
    "choices": '{"choices": [["The cat", ["sleeps.", "divides."]]]}',
    "images": '{"images": ["iVBORw0KGgoAAAANSUhEUg…"]}',
    "vectors": '{"vectors": [[0.5, -1.25, 3.0]]}',
}


def render_documentation(openapi: Mapping[str, Any], input_kind: str) -> str:
    """Return the page that describes a service.

    Parameters
    ----------
    openapi : mapping
        The OpenAPI description of the service.
    input_kind : {"texts", "choices", "images", "vectors"}
        What its model reads, for the example.

    Returns
    -------
    str
        HTML, all text escaped.
    """
    schemas = openapi["components"]["schemas"]
    parts = [part for path, methods in openapi["paths"].items() for part in _describe_path(path, methods, schemas)]
    command = (
        f"curl -H 'Content-Type: application/json' \\\n  -d '{EXAMPLE_BODIES[input_kind]}' \\\n  http://127.0.0.1:8000/predict"
    )
    page = Template(read_page("docs.html"))
    return page.substitute(model=escape(openapi["info"]["title"]), example=escape(command), paths="\n".join(parts))


def _describe_path(path: str, methods: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    for method, operation in methods.items():
        yield f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
        if "requestBody" in operation:
            yield "<h3>Request</h3>" + _table(_json_schema(operation["requestBody"]), schemas)
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                yield "<h3>Response</h3>" + _table(_json_schema(response), schemas)
        errors = [status for status in operation["responses"] if not status.startswith("2")]
        if errors:
            yield f'<h3>Errors</h3><p>{escape(", ".join(errors))}, each with <code>{{"error": "…"}}</code>.</p>'
        yield "</section>"


def _json_schema(content: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = content["content"]["application/json"]["schema"]
    return schema


def _table(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the properties of an object as a table; those of objects inside it have dotted names."""
    rows = "".join(
        f"<tr><th scope='row'><code>{escape(name)}</code></th><td>{escape(kind)}</td><td>{escape(description)}</td></tr>"
        for name, kind, description in _properties(schema, schemas)
    )
    return f"<div class='scroll'><table><tr><th>Key</th><th>Type</th><th>Meaning</th></tr>{rows}</table></div>"


def _properties(schema: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, described in _resolve(schema, schemas)["properties"].items():
        yield prefix + name, _type_name(described), described.get("description", "")
        inner = _resolve(described.get("items", described), schemas)
        if "properties" in inner:
            yield from _properties(inner, schemas, f"{prefix}{name}{'[]' if 'items' in described else ''}.")


def _resolve(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def _type_name(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        inner = schema.get("items") or {"anyOf": schema["prefixItems"]}
        names = dict.fromkeys(_type_name(inner).split(" or "))
        return f"list of {' or '.join(names)}"
    if "$ref" in schema:
        return "object"
    return str(schema["type"])
