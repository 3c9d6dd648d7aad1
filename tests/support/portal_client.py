"""A running portal, and a client that holds its token."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest

from harness import Running, Workplace
from portal_schemas import check

HOLDS = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if name >= os.environ.get("HOLD", "999.txt"):
            record("held", pid=os.getpid())
            wait_for(lambda: recorded("go"))
        return [f"row of {name}"]
"""
FAILS_ON_ONE = """
    def run(files):
        print("reading <b>", files[0])
        if files[0].endswith("003.txt"):
            raise ValueError("three is <b>bad</b>")
        return files
"""


class Portal:
    """A running portal, and a client that holds its token."""

    def __init__(self, workplace: Workplace, *arguments: object, port: int = 0, **environment: str) -> None:
        self.running: Running = workplace.start(
            "portal", "--no-open", "--listen", f"127.0.0.1:{port}", *arguments, **environment
        )
        self.address = self.running.process.stdout.readline().decode().strip()
        parts = urllib.parse.urlsplit(self.address)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.token = urllib.parse.parse_qs(parts.query).get("token", [""])[0]

    @classmethod
    def of(cls, running: Running) -> Portal:
        """Returns the portal of a running `gristmill run --portal`, which prints its address."""
        text = ""
        while "/?token=" not in text:
            text = running.process.stderr.readline().decode()
            assert text or running.process.poll() is None, running.wait()
        portal = cls.__new__(cls)
        portal.running, portal.address = running, text.split()[-1]
        portal.url, _, portal.token = portal.address.partition("/?token=")
        return portal

    def open(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body is not None else None)
        if body is not None:
            request.add_header("content-type", "application/json")
        request.add_header("authorization", f"Bearer {self.token}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        return urllib.request.urlopen(request, timeout=60)

    def get(self, path: str) -> Any:
        with self.open("/api/v1" + path) as answer:
            document = json.load(answer)
        check("get", path, document)
        return document

    def post(self, path: str) -> tuple[int, Any]:
        try:
            with self.open("/api/v1" + path, {}) as answer:
                document = json.load(answer)
                check("post", path, document, answer.status)
                return answer.status, document
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def refusal(self, path: str, **headers: str) -> int:
        """Returns the status of a refused request."""
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.open(path, **headers)
        return refused.value.code
