"""User code that takes a while, and longer on the node whose process the file SLOW_NODE names."""

import os
import time
from pathlib import Path


def run(files):
    slower = float(os.environ["SLOWER"]) if Path(os.environ["SLOW_NODE"]).read_text() == str(os.getppid()) else 1
    time.sleep(float(os.environ["RUN_SECONDS"]) * slower)
    return files
