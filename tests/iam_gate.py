"""AWS with its access rules, in front of an emulator that lets everybody do everything.

Each request is read as IAM reads it (an action on a resource), held against the policy of whose key signed it, and
passed on or refused with the answer that AWS gives. What was asked for is remembered.
"""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree

from access import ACTIONS_OF_REQUESTS

ACCOUNT = "000000000000"
REGION = "us-east-1"

Request = tuple[str, str]  # Action, ARN.


def queue_arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def is_allowed(policy: dict[str, Any], action: str, resource: str) -> bool:
    """By a policy that only allows."""
    return any(
        statement["Effect"] == "Allow"
        and action in statement["Action"]
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        for statement in policy["Statement"]
    )


def requests_of(method: str, target: str, headers: Any, body: bytes) -> list[Request]:
    """The actions that a request stands for, each with its resource."""
    url = urllib.parse.urlsplit(target)
    if operation := headers.get("X-Amz-Target"):
        name = operation.partition(".")[2]
        asked = json.loads(body)
        queue = asked.get("QueueName") or asked["QueueUrl"].rpartition("/")[2]
        return [(ACTIONS_OF_REQUESTS.get(name, f"sqs:{name}"), queue_arn(queue))]
    bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
    query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
    of_bucket = f"arn:aws:s3:::{bucket}"
    of_object = f"{of_bucket}/{key}"
    if not key and method == "POST" and "delete" in query:
        keys = [element.text for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Key")]
        return [("s3:DeleteObject", f"{of_bucket}/{name}") for name in keys]
    if not key:
        is_uploads = method == "GET" and "uploads" in query
        is_listing = method == "HEAD" or "list-type" in query
        known = {"s3:ListBucketMultipartUploads": is_uploads, "s3:ListBucket": is_listing}
        return [(next((name for name, fits in known.items() if fits), f"unknown:{method} {target}"), of_bucket)]
    if method in ("GET", "HEAD"):
        return [("s3:GetObject", of_object)]
    if method == "DELETE":
        return [("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", of_object)]
    if method in ("PUT", "POST"):
        source = urllib.parse.unquote(headers.get("x-amz-copy-source", "")).lstrip("/")
        copied = [("s3:GetObject", f"arn:aws:s3:::{source}")] if source else []
        return [("s3:PutObject", of_object), *copied]
    return [(f"unknown:{method} {target}", of_object)]


class Gate:
    """`policies` are those of each access key."""

    def __init__(self, upstream: str, policies: dict[str, dict[str, Any]]) -> None:
        self.upstream = urllib.parse.urlsplit(upstream)
        self.policies = policies
        self.asked: dict[str, set[Request]] = {key: set() for key in policies}
        self.refused: dict[str, set[Request]] = {key: set() for key in policies}
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, answered = gate.answer(self.command, self.path, self.headers, body)
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                # Whoever asked may have gone: a worker that stops lets go of a request that waits.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(answered)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        key = re.search(r"Credential=([^/]+)/", headers.get("Authorization", ""))
        role = key[1] if key else ""
        requests = requests_of(method, target, headers, body)
        self.asked.setdefault(role, set()).update(requests)
        for action, resource in requests:
            if role not in self.policies or not is_allowed(self.policies[role], action, resource):
                self.refused.setdefault(role, set()).add((action, resource))
                return self.refusal(
                    role, action, resource, is_json="X-Amz-Target" in headers, has_body=method != "HEAD"
                )
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=60)
        try:
            passed = {name: value for name, value in headers.items() if name.lower() not in ("host", "expect")}
            connection.request(method, target, body=body, headers=passed)
            answered = connection.getresponse()
            content = answered.read()
            dropped = {"transfer-encoding", "connection"} | (set() if method == "HEAD" else {"content-length"})
            kept = [(name, value) for name, value in answered.getheaders() if name.lower() not in dropped]
            if method != "HEAD" and answered.status not in (204, 304):
                kept.append(("Content-Length", str(len(content))))
            return answered.status, kept, content
        finally:
            connection.close()

    @staticmethod
    def refusal(
        role: str, action: str, resource: str, is_json: bool, has_body: bool
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        said = f"User {role} is not authorized to perform: {action} on resource: {resource}"
        if is_json:
            body = json.dumps({"__type": "com.amazonaws.sqs#AccessDeniedException", "message": said})
            kind = "application/x-amz-json-1.0"
        else:
            body = f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>"
            kind = "application/xml"
        content = body.encode() if has_body else b""
        return 403, [("Content-Type", kind), ("Content-Length", str(len(content)))], content
