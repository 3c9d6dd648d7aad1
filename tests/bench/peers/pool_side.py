"""The same work with multiprocessing.Pool and, for tables, pandas.

It takes an afternoon to write, and has no durability, no retries and no log.
Usage: pool_side.py noop|one|csv|parquet|files|plan FOLDER OUTPUT
"""

import io
import json
import multiprocessing
import os
import sys

import length
import return_input
from listing import files_of

BLOCK_BYTES = 4 * 1024 * 1024
FILES_PER_MINI_BATCH = 10


def chunks(files, size):
    files = list(files)
    return (files[start : start + size] for start in range(0, len(files), size))


def no_operation(pool, folder, rows):
    for result in pool.imap(return_input.run, ([file] for file in files_of(folder))):
        rows.writelines(f"{element}\n" for element in result)


def lengths(pool, folder, rows):
    """Writes results in the order of completion, without waiting for the slowest."""
    for result in pool.imap_unordered(length.run, chunks(files_of(folder), FILES_PER_MINI_BATCH)):
        rows.writelines(f"{element}\n" for element in result)


def line_ranges(folder):
    """Returns byte ranges of about four megabytes that end at line ends, without headers."""
    for path in files_of(folder):
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


def score_range(piece):
    """Parses a piece, scores it, and writes the text that the output needs."""
    import pandas
    import score

    path, header, start, end = piece
    with open(path, "rb") as file:
        file.seek(start)
        text = file.read(end - start)
    return score.run(pandas.read_csv(io.BytesIO(header + text))).to_csv(sep=" ", header=False, index=False)


def score_row_group(piece):
    import pyarrow.parquet
    import score

    path, row_group = piece
    frame = pyarrow.parquet.ParquetFile(path).read_row_group(row_group).to_pandas()
    return score.run(frame).to_csv(sep=" ", header=False, index=False)


def row_groups(folder):
    import pyarrow.parquet

    for path in files_of(folder):
        for number in range(pyarrow.parquet.ParquetFile(path).num_row_groups):
            yield path, number


def tables(pool, score_piece, pieces, rows):
    for text in pool.imap(score_piece, pieces):
        rows.write(text)


def plan(folder, lines):
    """Lists all files and writes one line for each mini-batch, which never mixes folders."""
    mini_batches = 0
    for path, folders, names in os.walk(folder):
        folders.sort()
        for files in chunks((os.path.join(path, name) for name in sorted(names)), FILES_PER_MINI_BATCH):
            lines.write(json.dumps({"id": mini_batches, "files": files}))
            lines.write("\n")
            mini_batches += 1


def main(workload, folder, output):
    with open(output, "w") as rows:
        if workload == "plan":
            return plan(folder, rows)
        with multiprocessing.Pool(1 if workload == "one" else os.cpu_count()) as pool:
            match workload:
                case "noop" | "one":
                    no_operation(pool, folder, rows)
                case "files":
                    lengths(pool, folder, rows)
                case "csv":
                    tables(pool, score_range, line_ranges(folder), rows)
                case "parquet":
                    tables(pool, score_row_group, row_groups(folder), rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
