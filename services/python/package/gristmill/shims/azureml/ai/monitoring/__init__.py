"""A stand-in for ``azureml.ai.monitoring``: the rows that a script collects become JSON lines next to the output.

``<output folder>/collected/<name>/<process>.jsonl`` has one line for each row, with the id of its call.
"""

import json
import os
import uuid

from azureml.ai.monitoring.context import BasicCorrelationContext

__all__ = ["BasicCorrelationContext", "Collector"]


class Collector:
    """Collects the rows of DataFrames under a name.

    If rows cannot be written, calls ``on_error`` with the exception; without it, raises the exception.
    """

    def __init__(self, name, *, on_error=None):
        if not name or os.path.basename(name) != name:
            raise ValueError(f"the name of a collector must be a file name, not {name!r}")
        self.name = name
        self._on_error = on_error
        folder = os.environ.get("AZUREML_BI_OUTPUT_PATH") or os.path.join(os.getcwd(), "outputs")
        self._path = os.path.join(folder, "collected", name, f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl")

    def collect(self, data, correlation_context=None):
        """Writes the rows of a DataFrame. Returns the context that relates other rows to them."""
        context = correlation_context or BasicCorrelationContext()
        try:
            if not hasattr(data, "to_json"):
                raise TypeError(f"collect takes a DataFrame, not {type(data).__name__}")
            rows = [json.loads(line) for line in data.to_json(orient="records", lines=True).splitlines() if line]
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps({"correlationid": context.id, "data": row}, ensure_ascii=False) + "\n")
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
        return context
