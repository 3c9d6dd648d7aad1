"""The same work with Daft on its native runner: its own readers and writers, `run` as a batch function.

Daft knows which columns the function uses, and reads no others. Where a function raises for a bad row, it returns null.
Usage: daft_side.py one|csv|parquet|bad FOLDER OUTPUT
"""

import os
import sys

import daft
from daft import DataType, Series

daft.set_runner_native()
COLUMNS = ("id", "f0", "f1", "f2", "f3", "f4", "f5")


@daft.func.batch(return_dtype=DataType.python())
def return_input(files: Series) -> list:
    import return_input

    return return_input.run(files.to_pylist())


@daft.func.batch(
    return_dtype=DataType.struct({"id": DataType.int64(), "score": DataType.float64(), "flag": DataType.int64()}),
    unnest=True,
)
def score_rows(id: Series, f0: Series, f1: Series, f2: Series, f3: Series, f4: Series, f5: Series) -> Series:
    import pandas
    import pyarrow
    import score

    columns = {"id": id, "f0": f0, "f1": f1, "f2": f2, "f3": f3, "f4": f4, "f5": f5}
    frame = pandas.DataFrame({name: series.to_arrow().to_numpy() for name, series in columns.items()}, copy=False)
    result = score.run(frame)
    arrays = [pyarrow.array(result[name].to_numpy()) for name in result.columns]
    return Series.from_arrow(pyarrow.StructArray.from_arrays(arrays, names=list(result.columns)))


@daft.func(on_error="ignore", return_dtype=DataType.string())
def score_row(*values):
    import score_rows

    return score_rows.score(dict(zip(COLUMNS, values, strict=True)))


def main(workload, folder, output):
    if workload == "one":
        files = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
        frame = daft.from_pydict({"file": files})
        rows = frame.select(return_input(frame["file"]).alias("row")).to_pydict()["row"]
        with open(output, "w") as file:
            file.writelines(f"{row}\n" for row in rows)
        return
    frame = daft.read_parquet(f"{folder}/*.parquet") if workload == "parquet" else daft.read_csv(f"{folder}/*.csv")
    columns = [frame[name] for name in COLUMNS]
    if workload == "bad":
        rows = frame.select(score_row(*columns).alias("row"))
        rows.where(rows["row"].not_null()).write_csv(output)
        return
    frame.select(score_rows(*columns)).write_csv(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
