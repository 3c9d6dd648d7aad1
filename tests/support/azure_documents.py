"""Small documents of Azure ML as mappings, which tests change before they write them as JSON."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from harness import COMPLETED, Ended, Workplace

COMPONENT = {
    "type": "parallel",
    "inputs": {"data": {"type": "uri_folder", "path": "data"}},
    "outputs": {"rows": {"type": "uri_file"}},
    "input_data": "${{inputs.data}}",
    "task": {"type": "run_function", "code": "code", "entry_script": "rate.py", "append_row_to": "${{outputs.rows}}"},
}
DEPLOYMENT = {
    "type": "model",
    "name": "rate",
    "model": {"path": "net"},
    "code_configuration": {"code": "code", "scoring_script": "rate.py"},
    "settings": {},
}


def changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document with values at paths of keys; `None` removes a key."""
    document = copy.deepcopy(dict(document))
    for path, value in changes.items():
        *above, key = path.split(".")
        place = document
        for name in above:
            place = place.setdefault(name, {})
        if value is None:
            del place[key]
        else:
            place[key] = value
    return document


def run(workplace: Workplace, *arguments: str, expect: int = COMPLETED, **environment: str) -> Ended:
    """Runs a document."""
    ended = workplace.command("run", *arguments, **environment)
    assert ended.exit_status == expect, str(ended)
    return ended
