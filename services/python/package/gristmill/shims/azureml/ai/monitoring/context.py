"""The context that relates collected rows to each other."""

import uuid


class CorrelationContext:
    """The base class of contexts, each of which has an id."""

    @property
    def id(self):
        """The id."""
        raise NotImplementedError


class BasicCorrelationContext(CorrelationContext):
    """A context with a given id, or a new one."""

    def __init__(self, id=None):
        self._id = id or str(uuid.uuid4())

    @property
    def id(self):
        """The id."""
        return self._id
