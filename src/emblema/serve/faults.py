"""Errors as OpenAI's clients expect them: a status, and a body that says what was wrong."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from emblema.errors import (
    BusyError,
    CapacityError,
    ContextLengthError,
    DeadlineError,
    EmblemaError,
    LoadError,
    ModelError,
    StoreError,
)
from emblema.store.catalogue import CatalogueError

_LOG = logging.getLogger("emblema.serve")
_STATUSES = {
    BusyError: 429, DeadlineError: 504, CapacityError: 503, LoadError: 503, CatalogueError: 503, StoreError: 500,
    ModelError: 500, EmblemaError: 400, RequestValidationError: 400,
}  # fmt: skip
"""The first that fits is an error's."""
OWN_CODES = ("unknown_parameter", "unsupported_parameter")
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ServeError(EmblemaError):
    """A request that the service refuses.

    Attributes:
        status: of HTTP.
        code: the error's short name.
        parameter: the field that was wrong.
        retry_after: seconds after which it is worth asking again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        parameter: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.parameter, self.retry_after = status, code, parameter, retry_after


def missing(what: str, id: str) -> ServeError:
    """Return the error for something that is not there, or is another tenant's."""
    return ServeError(404, f"there is no {what} {id[:80]!r}", f"{what}_not_found")


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, ServeError):
        return error.status
    if isinstance(error, HTTPException):
        return error.status_code
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)


def error_body(error: Exception) -> dict[str, Any]:
    """Return the body of an error; of one that nobody foresaw only that it happened."""
    status = status_of(error)
    message, code, parameter = str(error), None, None
    if isinstance(error, ServeError):
        code, parameter = error.code, error.parameter
    elif isinstance(error, HTTPException):
        message = str(error.detail)
        if message == HTTPStatus.NOT_FOUND.phrase:
            message = "there is no such route: /openapi.json lists them"
    elif isinstance(error, RequestValidationError):
        problem = error.errors()[0]
        parameter = _parameter(error.body, problem) or None
        message = f"{parameter}: {problem['msg']}"
        if problem["type"] == "json_invalid":
            message, parameter = f"the body is no JSON: {problem['ctx']['error']}", None
        elif parameter is None:
            message = "the body is no JSON object: send one, with the header `content-type: application/json`"
        code = problem["type"] if problem["type"] in OWN_CODES else None
    elif isinstance(error, BusyError):
        code = "rate_limit_exceeded"
    elif isinstance(error, ContextLengthError):
        code, parameter = "context_length_exceeded", "messages"
    elif isinstance(error, CatalogueError):
        message, code = "the server's folder cannot be changed now: try again", "store_busy"
    elif not isinstance(error, EmblemaError) or status == 500:
        message = "the server failed; its log says why"
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


def _parameter(body: Any, problem: dict[str, Any]) -> str:
    """Return the field that a problem is about, such as `messages[0].content[1].text`.

    Steps of a problem's place that stand in no body, such as the name of a union's branch, are left out.
    """
    path, value, tagged = "", body, False
    steps = [step for step in problem["loc"] if step not in ("body", "query", "path")]
    steps += [problem["ctx"]["field"]] if "field" in problem.get("ctx", {}) else []
    for index, step in enumerate(steps):
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            path, value, tagged = f"{path}[{step}]", value[step], False
        elif isinstance(value, dict) and not tagged and _is_branch(value, steps[index:], problem["type"] == "missing"):
            tagged = True
        elif isinstance(value, dict) and step in value:
            path, value, tagged = f"{path}.{step}", value[step], False
        elif index == len(steps) - 1:
            path = f"{path}.{step}"
    return path.removeprefix(".")


def _is_branch(value: dict[str, Any], steps: list[Any], missing: bool) -> bool:
    """Return whether the first step names the branch of a union of parts, and not the field of the same name."""
    step, *rest = steps
    if value.get("type") != step:
        return False
    inside = value.get(step)
    if not rest:
        return not missing
    return not isinstance(inside, dict) or not (rest[0] in inside or (missing and rest[0] != step and len(rest) == 1))


def anthropic_error(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an error as Anthropic's clients expect it."""
    kind, message = body["error"]["type"], body["error"]["message"]
    return {"type": "error", "error": {"type": "api_error" if kind == "server_error" else kind, "message": message}}


def response_to(error: Exception, scope: Mapping[str, Any]) -> JSONResponse:
    """Return the response to an error, in the form of its request; one of the server's own goes to the log."""
    status = status_of(error)
    if status == 500 or isinstance(error, CatalogueError):
        _LOG.error("a request failed", exc_info=error)
    headers = dict(getattr(error, "headers", None) or {})
    retry_after: float | None = getattr(error, "retry_after", None)
    if retry_after is not None:
        headers["Retry-After"] = str(round(retry_after))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(error)
    named = any(name == b"anthropic-version" for name, _ in scope.get("headers", ()))
    if named or scope.get("path", "").startswith("/v1/messages"):
        body = anthropic_error(body)
    return JSONResponse(body, status, headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error, as applications call it."""
    return response_to(error, request.scope)


def install(app: FastAPI) -> None:
    """Have all errors of an application answered in this form."""
    for kind in (EmblemaError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_error)
