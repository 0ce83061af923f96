"""Reads and answers messages of the Model Context Protocol: the part of JSON-RPC 2.0 that a server of tools and
resources needs.

The protocol's SDK is not used, as its import takes three times as long as a whole start. Its client and types check
this module in tests/cli/test_mcp.py. Source: modelcontextprotocol.io/specification.
"""

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from tuner.base.errors import BadInput
from tuner.cli.tools import ADDRESS, TOOLS, Desk

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # of the protocol, the newest first
JSON = "application/json"
SAYS = (
    "What NVIDIA's NCCL picks, why, and whether it is best, emulated bit for bit without a GPU. Answers are short; "
    "the resource that each names has the whole. Begin with machines and releases for names; sizes are NCCL's nBytes."
)
NOT_JSON, NOT_A_REQUEST, NO_METHOD, BAD_PARAMETERS, NO_RESOURCE = -32700, -32600, -32601, -32602, -32002
READS = {"readOnlyHint": True, "openWorldHint": False}


class Refused(Exception):
    """A request that gets an error as its answer: JSON-RPC's error code, and one line of text."""

    def __init__(self, number: int, says: str) -> None:
        super().__init__(says)
        self.number = number


class AgentMessages:
    """Answers the messages of a client, one after the other."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._methods: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "initialize": self._begin,
            "ping": lambda _: {},
            "tools/list": lambda _: {"tools": [_tool(each) for each in TOOLS]},
            "tools/call": self._call,
            "resources/list": lambda _: {"resources": [_resource(key) for key in desk.kept]},
            "resources/templates/list": lambda _: {"resourceTemplates": []},
            "resources/read": self._read,
        }

    def answer(self, text: bytes) -> bytes | None:
        """The reply to a message, in JSON; None for a notification or a reply, which get no reply."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return _written(None, Refused(NOT_JSON, "not JSON"))
        if isinstance(message, list):  # of the protocol of 2025-03-26 alone
            replies = [reply for each in message if (reply := self._answer_one(each)) is not None]
            return b"[" + b",".join(replies) + b"]" if replies else None
        return self._answer_one(message)

    def _answer_one(self, message: Any) -> bytes | None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _written(
                None, Refused(NOT_A_REQUEST, 'not a message of JSON-RPC; valid: an object, "jsonrpc": "2.0"')
            )
        method, number, given = message.get("method"), message.get("id"), message.get("params", {})
        if number is None or method is None:
            return None
        if not isinstance(number, int | str) or isinstance(number, bool):
            return _written(None, Refused(NOT_A_REQUEST, "id: not a number or a text"))
        try:
            if (known := self._methods.get(method) if isinstance(method, str) else None) is None:
                raise Refused(NO_METHOD, f"no method {method!r}; valid: {', '.join(self._methods)}")
            if not isinstance(given, dict):
                raise Refused(BAD_PARAMETERS, "params: not an object")
            return _written(number, known(given))
        except Refused as refused:
            return _written(number, refused)

    def too_large(self, most: int) -> bytes:
        """The reply to a message with more bytes than the server reads."""
        return _written(None, Refused(NOT_A_REQUEST, f"too large; valid: messages up to {most} bytes"))

    def _begin(self, given: Mapping[str, Any]) -> dict[str, Any]:
        wanted = given.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": "nccl-tuner", "version": version("nccl-tuner")},
            "instructions": SAYS,
        }

    def _call(self, given: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = given.get("name"), given.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise Refused(BAD_PARAMETERS, 'tools/call; valid: {"name": TEXT, "arguments": {...}}')
        reply = self.desk.ask(name, arguments)
        content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}]
        if reply.address:
            content.append({"type": "resource_link", "uri": reply.address, "name": f"{name}, whole", "mimeType": JSON})
        return {"content": content, "isError": reply.wrong}

    def _read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        address = given.get("uri")
        if not isinstance(address, str):
            raise Refused(BAD_PARAMETERS, 'resources/read; valid: {"uri": TEXT}')
        try:
            return {"contents": [{"uri": address, "mimeType": JSON, "text": self.desk.whole(address)}]}
        except BadInput as error:
            raise Refused(NO_RESOURCE, str(error)) from None


def _written(number: int | str | None, result: dict[str, Any] | Refused) -> bytes:
    body: dict[str, Any] = {"result": result}
    if isinstance(result, Refused):
        body = {"error": {"code": result.number, "message": " ".join(str(result).split())}}
    return json.dumps({"jsonrpc": "2.0", "id": number, **body}).encode()


def _tool(tool: Any) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.says, "inputSchema": tool.schema, "annotations": READS}


def _resource(key: str) -> dict[str, Any]:
    return {"uri": f"{ADDRESS}{key}", "name": f"whole answer {key[:8]}", "mimeType": JSON}
