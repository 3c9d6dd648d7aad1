"""The error for a file that has changed since the job was planned."""

import os
from datetime import datetime, timezone


class InputChanged(Exception):
    """The file of a mini-batch differs from the plan in size or modification time."""

    def __init__(self, path):
        now = os.stat(path)
        modified = datetime.fromtimestamp(now.st_mtime, timezone.utc).isoformat()
        super().__init__(
            f"input changed since the job was planned: {path} (now {now.st_size} bytes, modified {modified}); start a "
            "new job with the inputs as they are, and let nothing write to them while it runs"
        )
