"""Types and values by `types: pandas`, beside `pandas.read_csv` of the whole file, on generated files."""

import contextlib
import csv
import gzip
import io
import random
import re
from pathlib import Path

import pandas as pd

FILES = 200
LATE = 13_000
"""Rows of a long file: more than the places from which types come."""

LARGE = ("64 bits", "64 bits and missing")

KEEP_FRAMES = """
import os
def run(frame):
    first = frame.iloc[0, 0]
    frame.to_pickle(os.path.join(os.environ["FRAMES"], f"{frame.columns[0]}-{first}.pickle"))
    return [1] * len(frame)
"""

NA = ["", "NA", "NaN", "nan", "null", "NULL", "None", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "-1.#IND",
      "1.#QNAN", "-nan"]  # fmt: skip
TEXTS = ["x", "é ü", "日本", "🙂", "a b", " padded ", "it's", 'say "hi"', "na", "Null", "NAN", "-", "1_000", "0x10",
         "5%", "1e", " "]  # fmt: skip


def whole(rng):
    return str(rng.randint(-(10**6), 10**6))


def real(rng):
    return rng.choice(
        [
            f"{rng.uniform(-1000, 1000):.3f}",
            f"{rng.random():e}",
            f"{rng.randint(1, 9)}E{rng.randint(-20, 20)}",
            ".5",
            "5.",
            "inf",
            "-Infinity",
            repr(rng.random()),
        ]
    )


def some(rng, *kinds, missing=0.0):
    """Returns a cell of one of the kinds, or a word for a missing value."""
    if rng.random() < missing:
        return rng.choice(NA)
    return rng.choice(kinds)(rng)


KINDS = {
    "whole": lambda rng: whole(rng),
    "whole and missing": lambda rng: some(rng, whole, missing=0.2),
    "zero and one": lambda rng: rng.choice("01"),
    "zero, one and missing": lambda rng: rng.choice(["0", "1", ""]),
    "ones": lambda rng: "1",
    "codes": lambda rng: f"{rng.randint(0, 999):03}",
    "signed and spaced": lambda rng: rng.choice([" 7", "8 ", "+9", "-0"]),
    "64 bits": lambda rng: str(rng.randint(-(2**63), 2**63 - 1)),
    "64 bits and missing": lambda rng: some(rng, lambda rng: str(rng.randint(-(2**63), 2**63 - 1)), missing=0.1),
    "unsigned": lambda rng: str(rng.randint(2**63, 2**64 - 1)),
    "unsigned and missing": lambda rng: some(rng, lambda rng: str(rng.randint(2**63, 2**64 - 1)), missing=0.3),
    "real": lambda rng: real(rng),
    "real and missing": lambda rng: some(rng, real, whole, missing=0.3),
    "truth": lambda rng: rng.choice(["True", "False", "TRUE", "false"]),
    "truth and missing": lambda rng: some(rng, lambda rng: rng.choice(["True", "False"]), missing=0.3),
    "truth and spaces": lambda rng: rng.choice(["True", " True", "False "]),
    "truth and numbers": lambda rng: rng.choice(["True", "0", "1"]),
    "letters": lambda rng: rng.choice("YN"),
    "texts": lambda rng: rng.choice(TEXTS),
    "texts and missing": lambda rng: some(rng, lambda rng: rng.choice(TEXTS), missing=0.3),
    "numbers and texts": lambda rng: some(rng, whole, real, lambda rng: rng.choice(TEXTS), missing=0.1),
    "missing": lambda rng: rng.choice(NA),
    "days": lambda rng: f"20{rng.randint(10, 30)}-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}",
    "American days": lambda rng: f"{rng.randint(1, 12)}/{rng.randint(1, 28)}/2024",
    "times with offsets": lambda rng: f"2024-05-01T1{rng.randint(0, 9)}:00:00+02:00",
}


def made(number):
    """Returns the options of a file and its text, without its mark."""
    rng = random.Random(number)
    delimiter = rng.choice([",", ",", ";", "\t", "|"])
    end = rng.choice(["\n", "\n", "\r\n"])
    kinds = rng.sample(sorted(KINDS), rng.randint(1, 6))
    out = io.StringIO()
    skipped = rng.choice([0, 0, 0, 1, 3])
    out.write("".join(f"# made by a test, line {line}{end}" for line in range(skipped)))
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow([f"f{number}", *kinds])
    late = rng.random() < 0.2
    rows = rng.choice([1, 3, 60, 400])
    for row in range(rows):
        cells = [KINDS[kind](rng) for kind in kinds]
        if late and row > 0.9 * rows:
            cells[0] = rng.choice(["1.5", "late", "", cells[0]])
        if rng.random() < 0.03 and len(cells) > 1:
            del cells[rng.randint(1, len(cells) - 1) :]
        if rng.random() < 0.02:
            out.write(end)
        writer.writerow([str(row), *cells])
    text = out.getvalue()
    if rng.random() < 0.2:
        text = text.removesuffix(end)
    options = {"delimiter": delimiter, "skip_rows": skipped}
    return options, text, rng.random() < 0.1


def inputs_of(options, number, path):
    return {"name": f"f{number}", "type": "tabular", "format": "csv", "path": path, "types": "pandas", **options}


def run(workplace, inputs, size):
    frames = workplace.folder / "frames"
    frames.mkdir()
    job = workplace.job(
        KEEP_FRAMES, inputs=inputs, mini_batch_size=size, output_action="summary_only", process_count_per_node=2
    )
    return job.run(FRAMES=str(frames)), frames


def as_read(text, options, rejected=()):
    """Returns what pandas reads of the text without the rejected lines, counted from 1. Large whole numbers beside
    missing ones are exact, which pandas would round."""
    lines = text.splitlines(keepends=True)
    kept = "".join(line for number, line in enumerate(lines, 1) if number not in rejected)

    def read(**types):
        return pd.read_csv(
            io.StringIO(kept, newline=""),
            sep=options["delimiter"],
            skiprows=options["skip_rows"],
            # As correctly as Python reads numbers. The default of pandas is wrong in the last place.
            float_precision="round_trip",
            low_memory=False,
            **types,
        )

    frame = read()
    for name in LARGE:
        if name in frame and frame[name].dtype == "float64" and frame[name].notna().any():
            # pandas refuses fractions as Int64.
            with contextlib.suppress(TypeError, ValueError):
                frame[name] = read(dtype={name: "Int64"})[name]
    return frame


def same_value(found, expected):
    if isinstance(expected, int) and abs(expected) >= 2**64:
        # A text here.
        return found == str(expected)
    kinds = [isinstance(found, kind) == isinstance(expected, kind) for kind in (bool, str)]
    return found == expected and all(kinds)


def same_values(found, expected):
    """Returns whether two columns hold the same values."""
    if (found.isna() != expected.isna()).any():
        return False
    there = ~found.isna()
    return all(map(same_value, found[there].tolist(), expected[there].tolist()))


def frames_of(folder: Path, number):
    frames = [pd.read_pickle(path) for path in folder.glob(f"f{number}-*.pickle")]
    return sorted(frames, key=lambda frame: int(frame.iloc[0, 0]))


def test_small_files_have_the_types_and_values_of_pandas(workplace):
    all_made = [made(number) for number in range(FILES)]
    inputs = []
    for number, (options, text, has_mark) in enumerate(all_made):
        workplace.write({f"data/{number}.csv": ("\ufeff" if has_mark else "").encode() + text.encode()})
        inputs.append(inputs_of(options, number, f"data/{number}.csv"))
    ended, folder = run(workplace, inputs, "3KB")
    assert ended.items[2] == 0, "every row decided the types, so each fits"
    for number, (options, text, _) in enumerate(all_made):
        expected = as_read(text, options)
        for column in {"unsigned", "unsigned and missing"} & set(expected):
            if expected[column].dtype != "uint64":
                # The whole numbers are texts, as here; but pandas keeps the words for missing values among them.
                expected[column] = expected[column].where(~expected[column].isin(NA), None)
        frames = frames_of(folder, number)
        found = pd.concat([frame.astype(object) for frame in frames], ignore_index=True)
        assert list(found.columns) == list(expected.columns) and len(found) == len(expected), number
        for column in expected:
            about = f"file {number}, {column}: {expected[column].tolist()[:20]} {found[column].tolist()[:20]}"
            assert same_values(found[column], expected[column]), about
            if expected[column].dtype == object and frames[0][column].dtype != bool:
                # Truth values with missing ones; a mini-batch without a missing one has plain truth values.
                continue
            types = {str(frame[column].dtype) for frame in frames}
            if str(expected[column].dtype) == "Int64":
                assert types <= {"Int64", "float64"}, about
            elif expected[column].dtype != object:
                assert types == {str(expected[column].dtype)}, about


CONTRADICTIONS = [
    # The value of all rows of the sample, those of late rows, and which of these do not fit.
    ("7", ["1.5", "late", "NA", "8"], ["1.5", "late"]),
    ("1.5", ["late", "NA", "2"], ["late"]),
    ("True", ["1", "NA", "False"], ["1"]),
    ("NA", ["x", "5"], ["x"]),
]


def test_rows_that_contradict_the_types_of_the_sample_are_rejected(workplace):
    inputs, files = [], []
    for number, (first, late, _) in enumerate(CONTRADICTIONS):
        rows = [
            f"{row},{late[row % len(late)] if row >= LATE and row % 7 == 0 else first}" for row in range(LATE + 200)
        ]
        files.append((rows, "\n".join([f"f{number},v", *rows]) + "\n"))
        workplace.write({f"data/{number}.csv.gz": gzip.compress(files[-1][1].encode())})
        inputs.append(inputs_of({}, number, f"data/{number}.csv.gz"))
    ended, folder = run(workplace, inputs, "1MB")
    rejects = ended.rejects()
    assert ended.items == (len(files) * (LATE + 200), len(files) * (LATE + 200) - len(rejects), len(rejects))
    for number, (rows, text) in enumerate(files):
        own = [reject for reject in rejects if reject["input"] == f"f{number}"]
        lines = {int(re.search(r"line (\d+)$", reject["detail"])[1]) for reject in own}
        misfits = CONTRADICTIONS[number][2]
        assert lines == {line for line, row in enumerate(rows, 2) if row.split(",")[1] in misfits}
        assert len(own) == len(lines)
        found = pd.concat(frames_of(folder, number), ignore_index=True)
        expected = as_read(text, {"delimiter": ",", "skip_rows": 0}, lines)
        assert list(found[f"f{number}"]) == list(expected[f"f{number}"])
        assert same_values(found["v"].astype(object), expected["v"])
        messages = {reject["message"].rsplit(" is not ", 1)[0] for reject in own}
        assert messages == {f'column "v": "{misfit}"' for misfit in misfits}


def test_types_come_from_all_files(workplace):
    """The first file alone would make the column a number, and the last one makes it a text."""
    files = {f"data/{number:02}.csv": f"f0,v\n{number},{'x' if number == 39 else number}\n" for number in range(40)}
    workplace.write(files)
    ended, folder = run(workplace, [inputs_of({}, 0, "data")], "10 rows")
    assert ended.items == (40, 40, 0)
    found = [value for frame in frames_of(folder, 0) for value in frame["v"]]
    assert found == [*map(str, range(39)), "x"]
