"""Jobs that Python starts: calls over ten items, a table to Parquet, and the function form of the scores. It prints
its figures.

Usage: from_python.py ten|rows|scores LIBRARY INPUT OUTPUT
"""

import json
import os
import sys
import time


def double(number):
    return {"twice": 2 * number}


def ratio(frame):
    return frame.assign(ratio=frame["a"] / (frame["b"] + 1), label=frame["name"].str.upper())


def gristmill_ten():
    import gristmill

    return lambda numbers: gristmill.map(double, numbers, progress=False).to_arrow()


def joblib_ten():
    import joblib

    return lambda numbers: joblib.Parallel(n_jobs=2)(joblib.delayed(double)(number) for number in numbers)


def datasets_ten():
    import datasets

    datasets.disable_progress_bars()
    return lambda numbers: datasets.Dataset.from_dict({"n": numbers}).map(lambda row: double(row["n"]), num_proc=2)


def daft_ten():
    import daft

    twice = daft.func(lambda number: 2 * number, return_dtype=daft.DataType.int64())
    return lambda numbers: daft.from_pydict({"n": numbers}).with_column("twice", twice(daft.col("n"))).to_arrow()


def ten(library, data, output):
    """The first call of a session, with its imports, and the next one."""
    began = time.perf_counter()
    call = globals()[f"{library}_ten"]()
    assert len(call(list(range(10)))) == 10
    first = time.perf_counter() - began
    began = time.perf_counter()
    call(list(range(1, 11)))
    return {"seconds": first, "next_seconds": time.perf_counter() - began}


def rows(library, data, output):
    began = time.perf_counter()
    if library == "gristmill":
        import gristmill

        gristmill.run(ratio, gristmill.read_csv(data), output=f"{output}.parquet", progress=False, fresh=True)
    elif library == "pandas":
        import pandas

        ratio(pandas.read_csv(data)).to_parquet(f"{output}.parquet")
    else:
        import datasets

        datasets.disable_progress_bars()
        table = datasets.load_dataset("csv", data_files=data, split="train", cache_dir=f"{output}.cache")
        table = table.with_format("pandas").map(ratio, batched=True, batch_size=50_000, num_proc=2)
        table.to_parquet(f"{output}.parquet")
    seconds = time.perf_counter() - began
    os.rename(f"{output}.parquet", output)
    return {"seconds": seconds}


def scores(library, data, output):
    import cloudpickle  # noqa: F401
    import score

    import gristmill

    def scored(frame):
        return score.run(frame)

    began = time.perf_counter()
    settings = {"mini_batch_size": "10MB", "process_count_per_node": os.cpu_count()}
    gristmill.run(scored, inputs=data, output=f"{output}.csv", progress=False, fresh=True, **settings)
    seconds = time.perf_counter() - began
    os.rename(f"{output}.csv", output)
    return {"seconds": seconds}


if __name__ == "__main__":
    work, *arguments = sys.argv[1:]
    print(json.dumps({"ten": ten, "rows": rows, "scores": scores}[work](*arguments)))
