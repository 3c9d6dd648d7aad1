"""User code that records each start, and takes as long as it is told."""

import os
import time


def run(files):
    for file in files:
        with open(os.environ["RECORD"], "a") as record:
            record.write(f"{file} {os.getpid()} {os.getppid()} {time.time()}\n")
    time.sleep(float(os.environ["RUN_SECONDS"]))
    return files
