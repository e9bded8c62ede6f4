"""The service's description in OpenAPI: as FastAPI makes it, with the errors and the keys that there are."""

from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "azure": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_SECURITY: list[dict[str, list[str]]] = [{}] + [{name: []} for name in _KEYS]
"""A server without keys asks for none."""
_POINTER = "This server is described in OpenAPI at /openapi.json, which any viewer of OpenAPI reads.\n"


class DescribedApp(FastAPI):
    """An application whose description needs nothing from elsewhere: FastAPI's pages load scripts from a CDN."""

    def __init__(self, **options: Any) -> None:
        super().__init__(docs_url=None, redoc_url=None, **options)
        for path in ("/docs", "/redoc"):
            self.get(path, include_in_schema=False)(pointer)

    def openapi(self) -> dict[str, Any]:
        """Return the description; what FastAPI would answer 422, and say in another form, is 400."""
        if self.openapi_schema is None:
            schema = super().openapi()
            parts = schema.setdefault("components", {})
            schemas = parts.setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas["Error"], parts["securitySchemes"] = _ERROR, _KEYS
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    _describe(operation, path)
        return super().openapi()


async def pointer() -> Response:
    """Say where the description is."""
    return PlainTextResponse(_POINTER)


def _describe(operation: dict[str, Any], path: str) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    responses["400"] = _refusal("The request is not right.")
    if path.startswith("/v1/"):
        operation["security"] = _SECURITY
        responses["401"] = _refusal("A key of this server is needed.")
    responses["default"] = _refusal("Any other error.")


def _refusal(said: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": said, "content": content}
