"""Small HTTP servers for tests: a function answers each request, or forwards it to a real service."""

from __future__ import annotations

import http.client
import http.server
import sys
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import Self

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers without the length, and body; an answer to HEAD may give the length of the omitted body."""


@dataclass
class Request:
    method: str
    path: str
    headers: Message
    body: bytes


class HttpServer:
    """Answers requests on a free port of this machine, each connection in its own thread, until `close`."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, content = answer(Request(self.command, self.path, self.headers, body))
                self.send_response_only(status)
                if status not in (204, 304):
                    headers = {"Content-Length": str(len(content)), **headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Suppresses the log of requests."""

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignores clients that disconnect, as killed and stopping roles do; prints all other errors."""
                if not isinstance(sys.exc_info()[1], ConnectionError):
                    super().handle_error(request, client_address)

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def forward(endpoint: str, request: Request) -> Answer:
    """Returns the answer of another server to this request."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint).netloc, timeout=60)
    try:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "expect")}
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        content = answer.read()
        dropped = {"transfer-encoding", "connection", *(() if request.method == "HEAD" else ("content-length",))}
        return answer.status, {k: v for k, v in answer.getheaders() if k.lower() not in dropped}, content
    finally:
        connection.close()
