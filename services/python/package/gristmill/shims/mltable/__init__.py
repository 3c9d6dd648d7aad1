"""A stand-in for ``mltable``, whose native part exists for few interpreters. An installed one takes precedence."""

from gristmill.mltable import *  # noqa: F403
from gristmill.mltable import __all__  # noqa: F401

# Names of the real package. Libraries ask each module for other names too, and expect an AttributeError.
_ABSENT = ("from_delta_lake", "exceptions", "mltable", "utils")


def __getattr__(name):
    if name in _ABSENT:
        raise NotImplementedError(f"mltable.{name} needs the real mltable: add it to the environment of the script")
    raise AttributeError(f"module 'mltable' has no attribute {name!r}")
