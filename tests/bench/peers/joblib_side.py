"""The same work with joblib.Parallel, with the code of Pool.

Usage: joblib_side.py noop|csv FOLDER OUTPUT
"""

import os
import sys

import joblib
import pool_side
import return_input
from listing import files_of


def main(workload, folder, output):
    in_order = joblib.Parallel(n_jobs=os.cpu_count(), return_as="generator")
    with open(output, "w") as rows:
        if workload == "csv":
            pieces = pool_side.line_ranges(folder)
            rows.writelines(in_order(joblib.delayed(pool_side.score_range)(piece) for piece in pieces))
            return
        for result in in_order(joblib.delayed(return_input.run)([file]) for file in files_of(folder)):
            rows.writelines(f"{element}\n" for element in result)


if __name__ == "__main__":
    main(*sys.argv[1:])
