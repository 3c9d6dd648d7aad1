"""Makes cached functions and properties again in the process that unpickles them (``api/same.py``)."""

import functools


def cached(function, maxsize, typed):
    """Wraps a function as ``functools.lru_cache`` had wrapped it; its cache is empty."""
    return functools.lru_cache(maxsize, typed)(function)


def cached_property(function, name):
    made = functools.cached_property(function)
    made.__set_name__(None, name)
    return made
