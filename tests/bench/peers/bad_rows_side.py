"""Rows of which some are bad, with Daft or Ray Data, which keep what they can.

Daft returns null where the function raises; Ray Data drops the whole block of a bad row. Neither says which rows were
lost.
Usage: bad_rows_side.py daft|ray FOLDER OUTPUT
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "user"))
COLUMNS = ("id", "f0", "f1", "f2", "f3", "f4", "f5")


def with_daft(folder, output):
    import daft
    import score_rows

    daft.set_runner_native()

    @daft.func(on_error="ignore", return_dtype=daft.DataType.string())
    def scored(*values):
        return score_rows.score(dict(zip(COLUMNS, values, strict=True)))

    frame = daft.read_csv(f"{folder}/*.csv")
    rows = frame.select(scored(*(frame[name] for name in COLUMNS)).alias("row"))
    rows.where(rows["row"].not_null()).write_csv(output)


def with_ray(folder, output):
    import ray.data
    import score_rows
    from ray_side import local_ray

    with local_ray(runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(score_rows.__file__)}}):
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.max_errored_blocks = -1
        ray.data.read_csv(folder).map(lambda row: {"row": score_rows.score(row)}).write_csv(output)


if __name__ == "__main__":
    {"daft": with_daft, "ray": with_ray}[sys.argv[1]](*sys.argv[2:])
