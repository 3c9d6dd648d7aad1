"""The same work with Ray: one task for each mini-batch, or Ray Data for tables and many files.

For a bad row, Ray Data drops the whole block.
Usage: ray_side.py noop|one|csv|parquet|files|bad|idle FOLDER OUTPUT
"""

import logging
import os
import sys
import time

import ray
from listing import files_of

IDLE_SECONDS = 3
FILES_PER_MINI_BATCH = 10


@ray.remote
def return_input(files):
    import return_input

    return return_input.run(files)


def score_batch(frame):
    import score

    return score.run(frame)


def length_row(row):
    return {"row": f"{os.path.basename(row['path'])} {len(row['bytes'])}"}


def score_row(row):
    import score_rows

    return {"row": score_rows.score(row)}


def main(workload, folder, output):
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )
    try:
        match workload:
            case "noop" | "one":
                references = [return_input.remote([file]) for file in files_of(folder)]
                with open(output, "w") as rows:
                    for result in ray.get(references):
                        rows.writelines(f"{element}\n" for element in result)
            case "idle":
                time.sleep(IDLE_SECONDS)
            case _:
                dataset(workload, folder, output)
    finally:
        ray.shutdown()


def dataset(workload, folder, output):
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    match workload:
        case "csv":
            ray.data.read_csv(folder).map_batches(score_batch, batch_format="pandas").write_csv(output)
        case "parquet":
            ray.data.read_parquet(folder).map_batches(score_batch, batch_format="pandas").write_csv(output)
        case "bad":
            context.max_errored_blocks = -1
            ray.data.read_csv(folder).map(score_row).write_csv(output)
        case "files":
            ray.data.read_binary_files(folder, include_paths=True).map(length_row).write_csv(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
