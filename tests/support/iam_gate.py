"""AWS access rules before an emulator that permits everything.

The gate reads each request as IAM does (an action on a resource), evaluates the policy of the key that signed it, and
forwards the request or answers as AWS does. It records all requests.
"""

from __future__ import annotations

import fnmatch
import json
import re
import urllib.parse
from typing import Any
from xml.etree import ElementTree

from access import ACTIONS_OF_REQUESTS
from http_server import Answer, HttpServer, Request, forward

ACCOUNT = "000000000000"
REGION = "us-east-1"

AskedFor = tuple[str, str]  # Action, ARN.


def queue_arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def is_allowed(policy: dict[str, Any], action: str, resource: str) -> bool:
    """Returns whether a policy with only `Allow` statements permits the action."""
    return any(
        statement["Effect"] == "Allow"
        and action in statement["Action"]
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        for statement in policy["Statement"]
    )


def actions_of(request: Request) -> list[AskedFor]:
    """Returns the actions of a request, each with its resource."""
    method, url = request.method, urllib.parse.urlsplit(request.path)
    if operation := request.headers.get("X-Amz-Target"):
        name = operation.partition(".")[2]
        asked = json.loads(request.body)
        queue = asked.get("QueueName") or asked["QueueUrl"].rpartition("/")[2]
        return [(ACTIONS_OF_REQUESTS.get(name, f"sqs:{name}"), queue_arn(queue))]
    bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
    query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
    of_bucket = f"arn:aws:s3:::{bucket}"
    of_object = f"{of_bucket}/{key}"
    if not key and method == "POST" and "delete" in query:
        keys = [element.text for element in ElementTree.fromstring(request.body).iter() if element.tag.endswith("Key")]
        return [("s3:DeleteObject", f"{of_bucket}/{name}") for name in keys]
    if not key:
        is_uploads = method == "GET" and "uploads" in query
        is_listing = method == "HEAD" or "list-type" in query
        known = {"s3:ListBucketMultipartUploads": is_uploads, "s3:ListBucket": is_listing}
        return [(next((name for name, fits in known.items() if fits), f"unknown:{method} {request.path}"), of_bucket)]
    if method in ("GET", "HEAD"):
        return [("s3:GetObject", of_object)]
    if method == "DELETE":
        return [("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", of_object)]
    if method in ("PUT", "POST"):
        source = urllib.parse.unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
        copied = [("s3:GetObject", f"arn:aws:s3:::{source}")] if source else []
        return [("s3:PutObject", of_object), *copied]
    return [(f"unknown:{method} {request.path}", of_object)]


class Gate(HttpServer):
    """A proxy that checks requests; `policies` has the policy of each access key."""

    def __init__(self, upstream: str, policies: dict[str, dict[str, Any]]) -> None:
        self.upstream, self.policies = upstream, policies
        self.asked: dict[str, set[AskedFor]] = {key: set() for key in policies}
        self.refused: dict[str, set[AskedFor]] = {key: set() for key in policies}
        super().__init__(self.check)

    def check(self, request: Request) -> Answer:
        key = re.search(r"Credential=([^/]+)/", request.headers.get("Authorization", ""))
        role = key[1] if key else ""
        asked = actions_of(request)
        self.asked.setdefault(role, set()).update(asked)
        for action, resource in asked:
            if role not in self.policies or not is_allowed(self.policies[role], action, resource):
                self.refused.setdefault(role, set()).add((action, resource))
                return self.refusal(role, action, resource, is_json="X-Amz-Target" in request.headers)
        return forward(self.upstream, request)

    @staticmethod
    def refusal(role: str, action: str, resource: str, is_json: bool) -> Answer:
        said = f"User {role} is not authorized to perform: {action} on resource: {resource}"
        if is_json:
            body = json.dumps({"__type": "com.amazonaws.sqs#AccessDeniedException", "message": said})
            return 403, {"Content-Type": "application/x-amz-json-1.0"}, body.encode()
        body = f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>"
        return 403, {"Content-Type": "application/xml"}, body.encode()
