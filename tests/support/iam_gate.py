"""AWS access rules before an emulator that permits everything.

The gate reads each request as IAM does (an action on a resource, and a prefix of listings), evaluates the policy of the
key that signed it, and forwards the request or answers as AWS does. It records all requests.
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

AskedFor = tuple[str, str, str | None]  # Action, ARN, `s3:prefix`.


def queue_arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def is_allowed(
    policy: dict[str, Any], action: str, resource: str, prefix: str | None = None, context: dict[str, str] | None = None
) -> bool:
    """Returns whether a policy permits the action, from its `Allow` statements. `prefix` is that of a listing.

    A condition on a key that the request does not have fails, unless it says `IfExists`.
    """
    keys = {**(context or {}), **({} if prefix is None else {"s3:prefix": prefix})}

    def holds(test: str, variable: str, values: str | list[str]) -> bool:
        if variable not in keys:
            return test.endswith("IfExists")
        like = fnmatch.fnmatchcase if "Like" in test else str.__eq__
        return any(like(keys[variable], value) for value in many(values))

    return any(
        statement["Effect"] == "Allow"
        and any(fnmatch.fnmatchcase(action, pattern) for pattern in many(statement["Action"]))
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in many(statement["Resource"]))
        and all(
            holds(test, variable, values)
            for test, variables in statement.get("Condition", {}).items()
            for variable, values in variables.items()
        )
        for statement in policy["Statement"]
    )


def many(value: str | list[str]) -> list[str]:
    """Returns the elements of a part of a policy, which may be one text."""
    return [value] if isinstance(value, str) else value


def actions_of(request: Request) -> list[AskedFor]:
    """Returns the actions of a request, each with its resource."""
    method, url = request.method, urllib.parse.urlsplit(request.path)
    if operation := request.headers.get("X-Amz-Target"):
        name = operation.partition(".")[2]
        asked = json.loads(request.body)
        queue = asked.get("QueueName") or asked["QueueUrl"].rpartition("/")[2]
        actions = [ACTIONS_OF_REQUESTS.get(name, f"sqs:{name}"), *(["sqs:TagQueue"] if asked.get("tags") else [])]
        return [(action, queue_arn(queue), None) for action in actions]
    bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
    query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
    of_bucket = f"arn:aws:s3:::{bucket}"
    of_object = f"{of_bucket}/{key}"
    if not key and method == "POST" and "delete" in query:
        keys = [element.text for element in ElementTree.fromstring(request.body).iter() if element.tag.endswith("Key")]
        return [("s3:DeleteObject", f"{of_bucket}/{name}", None) for name in keys]
    if not key:
        is_uploads = method == "GET" and "uploads" in query
        is_listing = method == "HEAD" or "list-type" in query
        known = {"s3:ListBucketMultipartUploads": is_uploads, "s3:ListBucket": is_listing}
        action = next((name for name, fits in known.items() if fits), f"unknown:{method} {request.path}")
        return [(action, of_bucket, query.get("prefix", [None])[0])]
    if method in ("GET", "HEAD"):
        return [("s3:GetObject", of_object, None)]
    if method == "DELETE":
        return [("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", of_object, None)]
    if method in ("PUT", "POST"):
        source = urllib.parse.unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
        copied = [("s3:GetObject", f"arn:aws:s3:::{source}", None)] if source else []
        return [("s3:PutObject", of_object, None), *copied]
    return [(f"unknown:{method} {request.path}", of_object, None)]


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
        if refusal := self.refused_by(role, asked, is_json="X-Amz-Target" in request.headers):
            return refusal
        answer = forward(self.upstream, request)
        action, arn, _ = asked[0]
        if action == "s3:GetObject" and answer[0] == 404:
            # S3 reports a missing object only to a principal that may list its name.
            bucket, _, name = arn.partition("/")
            return self.refused_by(role, [("s3:ListBucket", bucket, name)], is_json=False) or answer
        return answer

    def refused_by(self, role: str, asked: list[AskedFor], is_json: bool) -> Answer | None:
        """Records what a role asks for, and returns the answer to a request that its policy does not allow."""
        self.asked.setdefault(role, set()).update(asked)
        for one in asked:
            if role not in self.policies or not is_allowed(self.policies[role], *one):
                self.refused.setdefault(role, set()).add(one)
                return self.refusal(role, one[0], one[1], is_json)
        return None

    @staticmethod
    def refusal(role: str, action: str, resource: str, is_json: bool) -> Answer:
        said = f"User {role} is not authorized to perform: {action} on resource: {resource}"
        if is_json:
            body = json.dumps({"__type": "com.amazonaws.sqs#AccessDeniedException", "message": said})
            return 403, {"Content-Type": "application/x-amz-json-1.0"}, body.encode()
        body = f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>"
        return 403, {"Content-Type": "application/xml"}, body.encode()
