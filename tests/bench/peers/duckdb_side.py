"""The same three columns as SQL of DuckDB, written as one file: no Python function runs.

Usage: duckdb_side.py csv|parquet FOLDER OUTPUT
"""

import sys

import duckdb
import score


def main(workload, folder, output):
    total = " + ".join(f"{weight}::DOUBLE * {column}" for column, weight in score.WEIGHTS.items())
    duckdb.execute(
        f"""COPY (
            SELECT id, score, (score > 0.25)::BIGINT AS flag
            FROM (SELECT id, greatest(-3.5, least(3.5, {total})) AS score FROM read_{workload}('{folder}/*.{workload}'))
        ) TO '{output}' (FORMAT csv, HEADER)"""
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
