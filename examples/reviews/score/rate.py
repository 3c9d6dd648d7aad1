"""Entry script: is a review good?"""

import argparse
from pathlib import Path


def init():
    """Reads the good words, once in every process."""
    global good, minimum

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--minimum", type=int, default=1)
    arguments, _ = parser.parse_known_args()
    good = set(arguments.words.read_text().split())
    minimum = arguments.minimum


def run(mini_batch):
    """Returns one line for each review."""
    return [f"{Path(path).name}: {'good' if count(path) >= minimum else 'bad'}" for path in mini_batch]


def count(path):
    """Returns the number of good words in a file."""
    return sum(word.strip(".,!").lower() in good for word in Path(path).read_text().split())
