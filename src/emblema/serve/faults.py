"""Errors as OpenAI's clients expect them: a status, and a body that says what was wrong."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from emblema.errors import BusyError, CapacityError, DeadlineError, EmblemaError, LoadError, ModelError, StoreError

_LOG = logging.getLogger("emblema.serve")
_STATUSES = {
    BusyError: 429, DeadlineError: 504, CapacityError: 503, LoadError: 503, StoreError: 500, ModelError: 500,
    EmblemaError: 400, RequestValidationError: 400,
}  # fmt: skip
"""The first that fits is an error's."""
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ServeError(EmblemaError):
    """A request that the service refuses: with an HTTP status, the error's short name and the field that was wrong."""

    def __init__(self, status: int, message: str, code: str | None = None, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.parameter = status, code, parameter


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
    elif isinstance(error, RequestValidationError):
        problem = error.errors()[0]
        parameter = ".".join(str(step) for step in problem["loc"] if step != "body")
        message = f"{parameter or 'the body'}: {problem['msg']}"
    elif not isinstance(error, EmblemaError) or status == 500:
        message = "the server failed; its log says why"
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


def response_to(error: Exception) -> JSONResponse:
    """Return the response to an error; one of the server's own goes to the log."""
    status = status_of(error)
    if status == 500:
        _LOG.error("a request failed", exc_info=error)
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(round(error.retry_after))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status, headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error, as applications call it."""
    return response_to(error)


def install(app: FastAPI) -> None:
    """Have all errors of an application answered in this form."""
    for kind in (EmblemaError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_error)
