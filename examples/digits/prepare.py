"""Writes the data of the example: the 1 797 handwritten digits of scikit-learn as PNG files, and a trained model.

The model sees every other digit, so that accuracy.py can measure it on the rest.
"""

import csv
from pathlib import Path

import joblib
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.svm import SVC

data = Path(__file__).resolve().parent / "data"
images = data / "images"
images.mkdir(parents=True, exist_ok=True)

digits = load_digits()
names = [f"digit_{position:04}.png" for position in range(len(digits.images))]
for name, image in zip(names, digits.images, strict=True):
    # scikit-learn has 17 shades of grey, 0 to 16; times 15 they fill a byte, which is exactly reversible.
    Image.fromarray((image * 15).astype(np.uint8)).save(images / name)

with (data / "labels.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["name", "digit", "used_for"])
    for position, (name, digit) in enumerate(zip(names, digits.target, strict=True)):
        table.writerow([name, digit, "training" if position % 2 == 0 else "test"])

model = SVC(gamma=0.001).fit(digits.data[::2], digits.target[::2])
joblib.dump(model, data / "model.joblib")

print(f"{len(names)} images, labels.csv and model.joblib are in {data}.")
