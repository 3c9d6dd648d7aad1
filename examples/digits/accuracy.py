"""Compares the output of the job with the labels, on the images that the model has not seen before."""

import csv
from pathlib import Path

folder = Path(__file__).resolve().parent
found = dict(line.split(": ") for line in (folder / "output" / "digits.txt").read_text().splitlines())
with (folder / "data" / "labels.csv").open(newline="") as file:
    expected = {row["name"]: row["digit"] for row in csv.DictReader(file) if row["used_for"] == "test"}

right = sum(found.get(name) == digit for name, digit in expected.items())
print(f"Accuracy on the {len(expected)} images that were not used for training: {right / len(expected):.1%}")
