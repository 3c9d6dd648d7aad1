"""What the user wants of small files: how many bytes they have."""

import os


def run(files):
    lengths = []
    for path in files:
        with open(path, "rb") as file:
            lengths.append(f"{os.path.basename(path)} {len(file.read())}")
    return lengths
