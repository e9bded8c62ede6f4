"""Requests that the server's own description allows, and such as it does not: none fails within the server."""

from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.serve.conftest import asked
from tests.serve.servers import Running

EXAMPLES = 40


@pytest.mark.nightly
def test_no_request_fails_within_the_server(server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    failed: list[str] = []
    count, asked = 0, 0
    modes = schemathesis.GenerationMode
    for found in schema.get_all_operations():
        operation = found.ok()
        count += 1

        def ask(case: object) -> None:
            nonlocal asked
            asked += 1
            response = case.call(timeout=60)  # type: ignore[attr-defined]
            if response.status_code >= 500:
                failed.append(f"{response.status_code}: {case.as_curl_command()[:2_000]}")  # type: ignore[attr-defined]

        for mode in (modes.POSITIVE, modes.NEGATIVE):
            try:
                cases = operation.as_strategy(generation_mode=mode)
                bounded = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
                bounded(given(case=cases)(ask))()
            except Exception as error:
                # Some operations take nothing that could be wrong.
                if "Unsatisfiable" not in type(error).__name__ and "Impossible" not in str(error):
                    raise
    assert not failed, failed[:3]
    assert count > 8 and asked > 200


def test_the_description_says_which_keys_and_errors_there_are(server: Running) -> None:
    with server.http() as http:
        schema = http.get("/openapi.json").json()
        wrong = http.post("/v1/chat/completions", json={"model": 1})
    keys = schema["components"]["securitySchemes"]
    assert {kind.get("scheme") or kind["name"] for kind in keys.values()} == {"bearer", "x-api-key", "api-key"}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"] and "400" in operation["responses"], path
            asked = [name for way in operation.get("security", ()) for name in way]
            assert asked == (list(keys) if path.startswith("/v1/") else []), path
    assert wrong.status_code == 400
    described = schema["paths"]["/v1/chat/completions"]["post"]["responses"]["400"]["content"]["application/json"]
    assert described["schema"] == {"$ref": "#/components/schemas/Error"}
    jsonschema.validate(wrong.json(), schema["components"]["schemas"]["Error"])
    assert not [name for name in schema["components"]["schemas"] if "ValidationError" in name]


def test_the_pages_of_the_description_load_nothing_from_elsewhere(server: Running) -> None:
    with server.http() as http:
        for path in ("/docs", "/redoc"):
            answer = http.get(path)
            assert answer.status_code == 200 and "/openapi.json" in answer.text and "://" not in answer.text


def test_replies_are_what_the_description_says_and_no_more(server: Running, pngs: list[bytes]) -> None:
    chat = {"model": "reference", "messages": asked(pngs[:1]), "max_tokens": 2}
    with server.http() as http:
        schema = http.get("/openapi.json").json()
        file = http.post("/v1/files", files={"file": ("a.png", pngs[0])}).json()
        content = [{"type": "file", "file": {"file_id": file["id"]}}]
        cache = http.post("/v1/caches?wait=true", json={"content": content, "ttl": 60}).json()
        replies = {
            ("/v1/chat/completions", "post", "200"): http.post(
                "/v1/chat/completions", json=chat | {"logprobs": True}
            ).json(),
            ("/v1/models", "get", "200"): http.get("/v1/models").json(),
            ("/v1/files", "post", "200"): file,
            ("/v1/files", "get", "200"): http.get("/v1/files").json(),
            ("/v1/caches", "post", "202"): cache,
            ("/v1/caches", "get", "200"): http.get("/v1/caches").json(),
            ("/v1/caches/{id}", "delete", "200"): http.delete(f"/v1/caches/{cache['id']}").json(),
        }
    for (path, method, status), reply in replies.items():
        described = schema["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
        jsonschema.validate(reply, closed({**described, "components": schema["components"]}))


def closed(schema: Any) -> Any:
    """A schema whose objects have no fields but those that it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: closed(part) for name, part in schema.items()} | (
        {"additionalProperties": False} if "properties" in schema and "type" in schema else {}
    )
