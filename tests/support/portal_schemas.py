"""The schemas of the portal's answers, as services/portal/openapi.json describes them."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

DOCUMENT = Path(__file__).resolve().parents[2] / "services" / "portal" / "openapi.json"


@functools.cache
def _document() -> dict[str, Any]:
    return json.loads(DOCUMENT.read_text())


@functools.cache
def _validator(method: str, path: str, status: int) -> Draft202012Validator:
    for template, operations in _document()["paths"].items():
        if method in operations and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            responses = operations[method]["responses"]
            content = responses.get(str(status), responses["default"])["content"]
            # The document around it resolves references.
            return Draft202012Validator({**_document(), **content["application/json"].get("schema", {})})
    raise AssertionError(f"{DOCUMENT.name} does not describe {method} {path}")


def check(method: str, path: str, answer: Any, status: int = 200) -> None:
    """Fails unless an answer is as described; `path` below `/api/v1`, with or without a query."""
    error = best_match(_validator(method, path.partition("?")[0], status).iter_errors(answer))
    if error is not None:
        place = "/".join(map(str, error.absolute_path))
        raise AssertionError(f"{method} {path} is not as {DOCUMENT.name} describes it: {place}: {error.message[:500]}")
