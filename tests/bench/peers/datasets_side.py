"""The same work with `Dataset.map` of Hugging Face datasets, whose cache is a new folder.

Usage: datasets_side.py noop|csv FOLDER OUTPUT
"""

import os
import sys
import tempfile

import datasets
import return_input
import score
from listing import files_of

COLUMNS = ["id", "f0", "f1", "f2", "f3", "f4", "f5"]


def names(batch):
    return {"row": return_input.run(batch["file"])}


def main(workload, folder, output):
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=os.path.dirname(output)) as cache:
        how = {"batched": True, "num_proc": os.cpu_count()}
        if workload == "csv":
            reading = {"data_files": list(files_of(folder)), "cache_dir": cache, "num_proc": os.cpu_count()}
            tables = datasets.load_dataset("csv", split="train", **reading)
            tables = tables.select_columns(COLUMNS).with_format("pandas")
            tables.map(score.run, batch_size=100_000, remove_columns=COLUMNS[1:], **how).to_csv(output)
            return
        files = datasets.Dataset.from_dict({"file": list(files_of(folder))})
        mapped = files.map(names, batch_size=1, cache_file_name=os.path.join(cache, "rows.arrow"), **how)
        with open(output, "w") as rows:
            rows.writelines(f"{row}\n" for row in mapped["row"])


if __name__ == "__main__":
    main(*sys.argv[1:])
