"""The same work with Dask on its own cluster of processes: a future for each mini-batch, or its data frames.

Usage: dask_side.py noop|csv FOLDER OUTPUT
"""

import logging
import os
import sys

import return_input
from dask.distributed import Client, LocalCluster
from listing import files_of


def tables(folder, output):
    import dask.dataframe
    import score

    columns = {"id": "int64", "score": "float64", "flag": "int64"}
    frame = dask.dataframe.read_csv(f"{folder}/*.csv")
    frame.map_partitions(score.run, meta=columns).to_csv(output, single_file=True, index=False)


def no_operation(client, folder, output):
    futures = client.map(return_input.run, [[file] for file in files_of(folder)], pure=False)
    with open(output, "w") as rows:
        for result in client.gather(futures):
            rows.writelines(f"{element}\n" for element in result)


def main(workload, folder, output):
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        LocalCluster(
            n_workers=os.cpu_count(),
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        if workload == "csv":
            tables(folder, output)
        else:
            no_operation(client, folder, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
