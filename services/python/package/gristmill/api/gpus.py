"""The keyword ``gpus``: GPUs for each process."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

KEYS = ("gpus_per_process", "process_count_per_gpu")


def with_gpu_keys(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings of a job with keys of the job file instead of ``gpus``.

    >>> with_gpu_keys({"gpus": 2, "run_max_try": 3})
    {'run_max_try': 3, 'gpus_per_process': 2}
    >>> with_gpu_keys({"gpus": 0.25})
    {'process_count_per_gpu': 4}
    """
    others = {key: value for key, value in settings.items() if key != "gpus"}
    gpus = settings.get("gpus")
    if gpus is None:
        return others
    if given := [key for key in KEYS if others.get(key) is not None]:
        raise ValueError(f"gpus and {given[0]} are both given: pass one of them")
    number = float(gpus) if isinstance(gpus, Real) and not isinstance(gpus, bool) else math.nan
    if math.isfinite(number) and number > 0:
        key, count = (KEYS[0], number) if number >= 1 else (KEYS[1], 1 / number)
        if math.isclose(count, round(count), rel_tol=1e-9):
            return {**others, key: round(count)}
    raise ValueError(
        f"gpus is {gpus!r}; allowed: GPUs for each process, a whole number, or a part of one, such as 0.5 or 0.25, "
        "which two or four processes share"
    )
