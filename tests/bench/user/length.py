"""User code that returns the size of small files."""

import os


def run(files):
    lengths = []
    for path in files:
        with open(path, "rb") as file:
            lengths.append(f"{os.path.basename(path)} {len(file.read())}")
    return lengths
