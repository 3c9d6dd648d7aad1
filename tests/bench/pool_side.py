"""The other side of the benchmark: the same work with multiprocessing.Pool and, for tables, pandas.

It is what a person would write in an afternoon: nothing is durable, nothing is retried, no log is kept.
Usage: pool_side.py noop FOLDER OUTPUT | one FOLDER OUTPUT | csv FILE OUTPUT | plan FOLDER OUTPUT
"""

import io
import json
import multiprocessing
import os
import sys

BLOCK_BYTES = 1024 * 1024


def files_of(folder):
    """Every file below a folder, sorted, one folder after the other."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(path, name)


def return_input(files):
    return files


def no_operation(folder, output, processes):
    """One file a mini-batch; `run` returns its input."""
    with multiprocessing.Pool(processes) as pool, open(output, "w") as rows:
        for result in pool.imap(return_input, ([file] for file in files_of(folder))):
            rows.writelines(f"{element}\n" for element in result)


def line_ranges(path):
    """Byte ranges of about a megabyte that end at line ends, the header excluded."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header = file.readline()
        start = file.tell()
        while start < size:
            file.seek(min(start + BLOCK_BYTES, size))
            file.readline()
            end = file.tell()
            yield path, header, start, end
            start = end


def add_total(piece):
    """Parses a piece, adds a column, and writes the text that the output needs."""
    import pandas

    path, header, start, end = piece
    with open(path, "rb") as file:
        file.seek(start)
        text = file.read(end - start)
    frame = pandas.read_csv(io.BytesIO(header + text))
    frame["total"] = frame["price"] * frame["quantity"]
    return frame.to_csv(sep=" ", header=False, index=False)


def tables(path, output, processes):
    with multiprocessing.Pool(processes) as pool, open(output, "w") as rows:
        for text in pool.imap(add_total, line_ranges(path)):
            rows.write(text)


def plan(folder, output, files_per_mini_batch=10):
    """Lists all files and writes one line for each mini-batch, which never mixes folders."""
    mini_batches = 0
    with open(output, "w") as lines:
        for path, folders, names in os.walk(folder):
            folders.sort()
            files = [os.path.join(path, name) for name in sorted(names)]
            for start in range(0, len(files), files_per_mini_batch):
                lines.write(json.dumps({"id": mini_batches, "files": files[start : start + files_per_mini_batch]}))
                lines.write("\n")
                mini_batches += 1


if __name__ == "__main__":
    workload, data, target = sys.argv[1:]
    match workload:
        case "noop":
            no_operation(data, target, os.cpu_count())
        case "one":
            no_operation(data, target, 1)
        case "csv":
            tables(data, target, os.cpu_count())
        case "plan":
            plan(data, target)
