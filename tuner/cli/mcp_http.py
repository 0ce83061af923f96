"""The Model Context Protocol's streamable HTTP on the loopback address: each request has one message, answered as JSON.

There are no sessions and no streams: the server only sends replies. As a page in a browser on this computer could reach
the port, too, requests from other origins, and to other host names than this computer's, are refused.
"""

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from tuner.base.expressions import expression
from tuner.cli.mcp_messages import JSON, VERSIONS, AgentMessages

PATH = "/mcp"
IDLE_S = 10  # that a client may take to send its request: others wait for it
_HERE = expression(r"(?:https?://)?(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?", re.I)


class Handler(BaseHTTPRequestHandler):
    """Answers requests with ``messages``; request bodies have at most ``most_bytes`` bytes."""

    timeout = IDLE_S

    def __init__(self, messages: AgentMessages, most_bytes: int, *request: Any) -> None:
        self.messages, self.most = messages, most_bytes
        super().__init__(*request)  # which handles the request

    def do_POST(self) -> None:
        """Answers a message; the status is 202 if it needs no answer."""
        if (refused := self._refused()) is not None:
            self._end(*refused)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._end(HTTPStatus.LENGTH_REQUIRED, "valid: Content-Length")
        elif int(length) > self.most:
            self._end(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"valid: messages up to {self.most} bytes")
        elif (reply := self.messages.answer(self.rfile.read(int(length)))) is None:
            self._end(HTTPStatus.ACCEPTED)
        else:
            self._end(HTTPStatus.OK, reply, JSON)

    def do_GET(self) -> None:
        """Refuses streams: the server only sends replies."""
        self._end(*self._refused() or (HTTPStatus.METHOD_NOT_ALLOWED, "valid: POST"))

    do_DELETE = do_GET  # there are no sessions to end

    def _refused(self) -> tuple[HTTPStatus, str] | None:
        origin, host = self.headers.get("Origin"), self.headers.get("Host", "")
        if not _HERE.fullmatch(host) or (origin is not None and not _HERE.fullmatch(origin)):
            return HTTPStatus.FORBIDDEN, "valid: requests of this computer, to 127.0.0.1 or localhost"
        if self.path.partition("?")[0] != PATH:
            return HTTPStatus.NOT_FOUND, f"valid: {PATH}"
        asked = self.headers.get("MCP-Protocol-Version")
        if asked is not None and asked not in VERSIONS:
            return HTTPStatus.BAD_REQUEST, f"MCP-Protocol-Version; valid: {', '.join(VERSIONS)}"
        return None

    def _end(self, status: HTTPStatus, body: bytes | str = b"", kind: str = "text/plain; charset=utf-8") -> None:
        made = f"{body}\n".encode() if isinstance(body, str) else body
        self.send_response(status)
        if made:
            self.send_header("Content-Type", kind)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST")
        self.send_header("Content-Length", str(len(made)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(made)
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: requests are the client's own business."""
