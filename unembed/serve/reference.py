"""The description of the API: OpenAPI with what the framework cannot know, and /docs made from it on the server."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from unembed.serve import models
from unembed.serve.limits import Limits

EVENTS: dict[str, type[BaseModel]] = {
    "queued": models.QueuedEvent,
    "step": models.StepEvent,
    "done": models.DoneEvent,
    "error": models.ErrorEvent,
}
RETRY = {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}}


def describe(app: FastAPI, dim: int, limits: Limits) -> None:
    """Add to the app's OpenAPI: the events of the stream, the limits of this server, and Retry-After."""
    made: dict[str, Any] = {}
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(plain())
            _add_events(made)
            _add_limits(made["components"]["schemas"], dim, limits)
            for operation in _operations(made):
                _add_errors(operation)
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _add_events(api: dict[str, Any]) -> None:
    """OpenAPI 3.2's `itemSchema`: each event by its name, `data` as the JSON that it holds."""
    template = "#/components/schemas/{model}"
    _, schemas = models_json_schema([(model, "serialization") for model in EVENTS.values()], ref_template=template)
    api["components"]["schemas"].update(schemas["$defs"])
    stream = api["paths"]["/decode"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    stream["itemSchema"] = {"oneOf": [_event(name, model.__name__) for name, model in EVENTS.items()]}


def _event(name: str, model: str) -> dict[str, Any]:
    content = {"$ref": f"#/components/schemas/{model}"}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    properties = {"event": {"type": "string", "const": name}, "data": data}
    return {"type": "object", "required": ["event", "data"], "properties": properties}


def _add_limits(schemas: dict[str, Any], dim: int, limits: Limits) -> None:
    exact = {"minItems": dim, "maxItems": dim}
    schemas["DecodeRequest"]["properties"]["vector"].update(exact)
    vectors = schemas["InvertRequest"]["properties"]["vectors"]
    vectors["maxItems"] = limits.vectors
    vectors["items"].update(exact)
    schemas["EncodeRequest"]["properties"]["text"]["maxLength"] = limits.text_chars


def _add_errors(operation: dict[str, Any]) -> None:
    """Errors are JSON on every address, that of the stream included; those that pass say when."""
    for code, response in operation["responses"].items():
        if not code.startswith("2"):
            response["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
        if code in ("429", "503"):
            response["headers"] = {"Retry-After": RETRY}


def _operations(api: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for methods in api["paths"].values() for operation in methods.values()]


def page(api: dict[str, Any]) -> str:
    """The description for people: one page without scripts."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(api['info']['title'])}: API</title>"
        '<link rel="stylesheet" href="/docs.css"></head><body><main>'
        f"<h1>{escape(api['info']['title'])} API</h1>"
        f"<p>{escape(api['info'].get('summary', ''))} Version {escape(api['info']['version'])}. "
        '<a href="/">The live page</a>, <a href="/openapi.json">this description as OpenAPI</a>.</p>'
    ]
    order = sorted(api["paths"].items(), key=lambda item: "post" not in item[1])
    links = [f'<li><a href="#{_anchor(path)}"><code>{escape(path)}</code></a></li>' for path, _ in order]
    parts.append(f'<nav aria-label="Addresses"><ul>{"".join(links)}</ul></nav>')
    for path, methods in order:
        for method, operation in methods.items():
            parts.append(_section(api, path, method, operation))
    parts.append("</main></body></html>")
    return "".join(parts)


def _section(api: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    heading = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code>'
    parts = [f'<section id="{_anchor(path)}"><h2>{heading}</h2>']
    parts += [f"<p>{_prose(part)}</p>" for part in operation.get("description", "").split("\n\n") if part]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parts.append(f"<h3>Request</h3>{_fields(api, schema)}{_try(api, path, schema)}")
    for code, response in operation["responses"].items():
        if not code.startswith("2"):
            continue
        for kind, content in response.get("content", {}).items():
            parts.append(f"<h3>Answer <small>{escape(kind)}</small></h3>")
            for variant in content.get("itemSchema", {}).get("oneOf", []):
                parts.append(f"<h4>Event <code>{escape(variant['properties']['event']['const'])}</code></h4>")
                parts.append(_fields(api, variant["properties"]["data"]["contentSchema"]))
            if "schema" in content:
                parts.append(_fields(api, content["schema"]))
    refused = [(code, answer) for code, answer in operation["responses"].items() if not code.startswith("2")]
    rows = "".join(
        f"<tr><td>{escape(code)}</td><td>{_prose(answer['description'])}</td></tr>" for code, answer in refused
    )
    errors = f"<h3>Errors</h3><p>{_prose('JSON with `error`, a fixed word, and `message`, a sentence.')}</p>"
    return "".join([*parts, errors, f"<table><tbody>{rows}</tbody></table></section>"])


def _fields(api: dict[str, Any], schema: dict[str, Any]) -> str:
    schema = _resolve(api, schema)
    rows = []
    required = schema.get("required", [])
    for name, field in sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in required):
        default = f"; {escape(json.dumps(field['default']))} if left out" if "default" in field else ""
        about = _prose(field.get("description", ""))
        if "enum" in field and len(field["enum"]) > 1:
            about += " One of " + ", ".join(f"<code>{escape(str(one))}</code>" for one in field["enum"]) + "."
        kind = escape(_type(api, field)) + default
        rows.append(f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{about}</td></tr>")
    head = "<thead><tr><th>Field</th><th>Type</th><th>Meaning</th></tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>" if rows else ""


def _type(api: dict[str, Any], field: dict[str, Any]) -> str:
    """A schema as one phrase: `number, 0 to 20`, `list of 384 numbers`."""
    if "anyOf" in field:
        return " or ".join(_type(api, one) for one in field["anyOf"])
    if "$ref" in field:
        inner = ", ".join(_resolve(api, field).get("properties", {}))
        return f"object ({inner})"
    kind = str(field.get("type", "any"))
    if kind == "array":
        low, high = field.get("minItems"), field.get("maxItems")
        count = "" if high is None else f"{high} " if low == high else f"up to {high} "
        inner = _type(api, field.get("items", {}))
        return f"list of {count}{inner}s" if inner.isalpha() else f"list of {count}({inner})"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low:g} to {high:g}" if high < 1e6 else f"{kind}, at least {low:g}"
    if low is not None:
        return f"{kind}, at least {low:g}"
    if "maxLength" in field:
        return f"{kind} of at most {field['maxLength']} characters"
    return kind


def _try(api: dict[str, Any], path: str, schema: dict[str, Any]) -> str:
    """A command to paste, for a body short enough to type."""
    if "text" not in _resolve(api, schema)["properties"]:
        return ""
    body = json.dumps({"text": "Good morning."})
    command = f"curl -s http://localhost:8765{path} -H 'Content-Type: application/json' -d '{body}'"
    return f"<pre><code>{escape(command)}</code></pre>"


def _resolve(api: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _prose(text: str) -> str:
    """Escaped, with `code` in backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _anchor(path: str) -> str:
    return escape(path.strip("/").replace("/", "-"), quote=True)
