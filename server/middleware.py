"""Pure-ASGI middleware: request ids and log lines, API keys, the body's size limit."""

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import APIError, internal_error
from server.generation.record import RequestRecord
from server.metrics import Metrics

log = logging.getLogger("egglm.server")
request_log = logging.getLogger("egglm.request")

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Asked by orchestrators: no key, and no log line unless they fail to be answered."""

_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestContext:
    """Outermost: gives each request its id, answers what nobody caught, logs the outcome."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _USABLE_ID.fullmatch(given) else uuid.uuid4().hex
        record = RequestRecord(request_id, time.monotonic())
        scope.setdefault("state", {})["record"] = record
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s failed", record.request_id)
            if status:
                raise
            await internal_error().response()(scope, receive, send_with_id)
        finally:
            self._finish(scope, record, status or 500)

    def _finish(self, scope: Scope, record: RequestRecord, status: int) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        self._metrics.responded(route, record.status or status)
        if scope["path"] in OPEN_PATHS:
            return
        line = record.line(scope["method"], route, status, time.monotonic())
        request_log.info(msgspec.json.encode(line).decode())


class ApiKeys:
    """Requires `Authorization: Bearer KEY` on every path but the open ones, if any key is set."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and self._digests and scope["path"] not in OPEN_PATHS
        if guarded and not self._allows(Headers(scope=scope).get("authorization", "")):
            error = APIError(
                401,
                "A valid API key is needed: Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, authorization: str) -> bool:
        """Compares with every key, in constant time, so that timing tells nothing about any."""
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class BodyLimit:
    """Refuses a body above `limit_bytes` with 413, before or while it arrives."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit_bytes:
            await self._too_large().response()(scope, receive, send)
            return
        received_bytes = 0

        async def receive_within_limit() -> Message:
            nonlocal received_bytes
            message = await receive()
            if message["type"] == "http.request":
                received_bytes += len(message.get("body", b""))
                if received_bytes > self._limit_bytes:
                    raise self._too_large()
            return message

        await self._app(scope, receive_within_limit, send)

    def _too_large(self) -> APIError:
        return APIError(
            413,
            f"The body is larger than this server's limit of {self._limit_bytes} bytes.",
            code="body_too_large",
        )
