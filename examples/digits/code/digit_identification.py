"""Entry script: which digit is on each image?"""

import argparse
import os

import joblib
import numpy as np
from PIL import Image


def init():
    """Loads the model, once in every process."""
    global model

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    args, _ = parser.parse_known_args()
    model = joblib.load(args.model)


def run(mini_batch):
    """Returns one line for each image."""
    print(f"run method start: {__file__}, run({len(mini_batch)} images)")
    images = [np.asarray(Image.open(image)).ravel() / 15 for image in mini_batch]
    digits = model.predict(np.array(images))
    return [f"{os.path.basename(image)}: {digit}" for image, digit in zip(mini_batch, digits, strict=True)]
