"""User code that returns a megabyte of text as one row."""

ROW = "gristmill " * 100_000


def run(files):
    return [ROW[:-1] for _ in files]
