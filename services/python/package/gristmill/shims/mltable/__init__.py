"""A stand-in for ``mltable``, whose native part exists for few interpreters. An installed one takes precedence."""

from gristmill.mltable import *  # noqa: F403
from gristmill.mltable import __all__  # noqa: F401


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(f"mltable.{name} needs the real mltable: add it to the environment of the script")
