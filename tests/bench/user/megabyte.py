"""What the user wants of a file: a megabyte of text, in one row."""

ROW = "gristmill " * 100_000


def run(files):
    return [ROW[:-1] for _ in files]
