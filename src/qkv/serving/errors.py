"""Errors of the HTTP interface, as JSON in the form of OpenAI: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import asyncio
from typing import Any

from qkv.generation.queue.requests import QueueFull
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError, dotted

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """Error response to an HTTP request: message, HTTP status, parameter, and a code that programs can compare."""

    def __init__(self, sentence: str, status: int = 400, param: str | None = None, code: str | None = None):
        super().__init__(sentence)
        self.sentence, self.status, self.param, self.code = sentence, status, param, code

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response."""
        kind = "server_error" if self.status >= 500 else _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.sentence, "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception, param: str | None = None) -> ApiError:
    """Convert any exception to an ``ApiError``. ``param``: parameter to which a ``UserError`` belongs.

    400 for input that the model cannot use, 408 for a body that does not arrive in time, 429 for a full queue, 500 for
    a bug.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(str(error), 429, code="queue_full")
    if isinstance(error, SpecError):
        return ApiError(str(error), param=dotted(error.problems[0].path) or param, code="invalid_value")
    if isinstance(error, UserError):
        return ApiError(str(error), param=param, code="invalid_value")
    if isinstance(error, asyncio.TimeoutError):
        return ApiError("the body did not arrive in time", 408, code="timeout")
    return ApiError(f"this is a bug in qkv, not in the request: {type(error).__name__}: {error}", 500, code="bug")
