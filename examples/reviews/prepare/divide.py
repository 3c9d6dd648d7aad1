"""Writes each line of a file of reviews into a file of its own."""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--reviews", type=Path, required=True)
parser.add_argument("--to", type=Path, required=True)
arguments = parser.parse_args()

reviews = arguments.reviews.read_text().splitlines()
for number, review in enumerate(reviews):
    (arguments.to / f"review_{number:02}.txt").write_text(review)
print(f"{len(reviews)} reviews are in {arguments.to}")
