"""Tables of random types round-trip, and the size of mini-batches changes nothing.

Each example of a property is one job, or one for each size. Its columns have each plain type, and types that are drawn
at random, nested up to three deep; values are missing at random. REFERENCE.md lists the differences between what a
function returned and what comes back; `test_values_come_back_in_another_form` has examples of each, and the properties
know no others.
"""

import datetime
import decimal
import enum
import json
import math
import os
import pathlib
import random
import uuid

import numpy
import pandas
import polars
import pyarrow
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gristmill

pytestmark = pytest.mark.usefixtures("home")

EXAMPLES = settings(
    max_examples=int(os.environ.get("GRISTMILL_EXAMPLES", "2")),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SEEDS = st.integers(0, 2**32)
FORMATS = ["csv", "jsonl", "parquet"]
NESTED_COLUMNS = 12

MIDNIGHT = datetime.datetime(1970, 1, 1)
YEARS_1_AND_9999 = [-62_135_596_800 * 10**6, 253_370_764_800 * 10**6]
TEXTS = ["", "NA", "007", "true", 'a "b", c', "line\nbreak", "é😀", "  x ", "1e5", "2024-01-01", "null", "-0.0"]


def ticks(chance):
    """Returns a number of ticks of any unit whose instant every library can show."""
    return chance.choice([0, 1, -1, 86_399, chance.randrange(-(10**9), 10**9)])


LEAVES = {
    pyarrow.bool_(): lambda chance: chance.random() < 0.5,
    pyarrow.int8(): lambda chance: chance.choice([-128, 0, 127]),
    pyarrow.int16(): lambda chance: chance.randrange(-(2**15), 2**15),
    pyarrow.int32(): lambda chance: chance.randrange(-(2**31), 2**31),
    pyarrow.int64(): lambda chance: chance.choice([-(2**63), 2**63 - 1, 2**53 + 1, 0, 1]),
    pyarrow.uint8(): lambda chance: chance.randrange(256),
    pyarrow.uint16(): lambda chance: chance.randrange(2**16),
    pyarrow.uint32(): lambda chance: chance.randrange(2**32),
    pyarrow.uint64(): lambda chance: chance.choice([0, 2**64 - 1, 2**63]),
    pyarrow.float16(): lambda chance: chance.choice([0.5, -0.0, 65504.0, 1.0]),
    pyarrow.float32(): lambda chance: chance.choice([0.5, -0.0, 16777216.0, 2.0**-149, 3.0]),
    pyarrow.float64(): lambda chance: chance.choice([0.1, -0.0, 1e300, 5e-324, 3.0, chance.random()]),
    pyarrow.string(): lambda chance: chance.choice(TEXTS),
    pyarrow.large_string(): lambda chance: chance.choice(TEXTS),
    pyarrow.binary(): lambda chance: chance.randbytes(chance.randrange(4)),
    pyarrow.large_binary(): lambda chance: chance.randbytes(chance.randrange(4)),
    pyarrow.binary(3): lambda chance: chance.randbytes(3),
    pyarrow.decimal128(12, 2): lambda chance: decimal.Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
    pyarrow.decimal128(38, 10): lambda chance: decimal.Decimal(chance.randrange(10**20)).scaleb(-10),
    pyarrow.decimal256(60, 3): lambda chance: decimal.Decimal(chance.randrange(10**25)).scaleb(-3),
    pyarrow.date32(): lambda chance: chance.choice([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    pyarrow.time32("ms"): lambda chance: chance.randrange(86_400_000),
    pyarrow.time64("us"): lambda chance: chance.randrange(86_400_000_000),
    pyarrow.timestamp("ms"): ticks,
    pyarrow.timestamp("us"): lambda chance: chance.choice([ticks(chance), *YEARS_1_AND_9999]),
    pyarrow.timestamp("ns"): lambda chance: chance.choice([ticks(chance), 2**60 + 1]),
    pyarrow.timestamp("us", "UTC"): ticks,
    pyarrow.timestamp("ms", "Europe/Berlin"): ticks,
    pyarrow.timestamp("us", "-03:30"): ticks,
    pyarrow.duration("ms"): ticks,
    pyarrow.duration("us"): ticks,
    pyarrow.duration("ns"): ticks,
}
"""A value at random for each plain type."""

POLARS_LACKS = {
    # It reads them as other types, and writes what it has read.
    pyarrow.decimal256(60, 3), pyarrow.float16(), pyarrow.large_binary(), pyarrow.string(), pyarrow.binary(),
    pyarrow.binary(3),
    pyarrow.time32("ms"), pyarrow.time64("us"), pyarrow.timestamp("us", "-03:30"),
}  # fmt: skip
PYTHON_LACKS = {
    # Objects of Python have no width, unit, zone or encoding: only types of 64 bits and of microseconds remain.
    *(pyarrow.int8(), pyarrow.int16(), pyarrow.int32(), pyarrow.uint8(), pyarrow.uint16(), pyarrow.uint32()),
    *(pyarrow.uint64(), pyarrow.float16(), pyarrow.float32(), pyarrow.large_string(), pyarrow.large_binary()),
    *(pyarrow.binary(3), pyarrow.decimal128(12, 2), pyarrow.decimal128(38, 10), pyarrow.time32("ms")),
    *(pyarrow.decimal256(60, 3), pyarrow.timestamp("ms"), pyarrow.timestamp("ns"), pyarrow.duration("ms")),
    *(pyarrow.timestamp("ms", "Europe/Berlin"), pyarrow.timestamp("us", "-03:30"), pyarrow.duration("ns")),
}


def drawn_type(chance, depth, leaves, shapes):
    """Returns a type at random, nested up to ``depth``."""
    shape = chance.choice(["leaf", *shapes]) if depth else "leaf"
    if shape == "leaf":
        return chance.choice(leaves)
    # Arrow leaves out the values of a dictionary that only missing arrays have.
    of_inner = [one for one in shapes if one != "dictionary"] if shape == "array" else shapes
    inner = drawn_type(chance, depth - 1, leaves, of_inner)
    match shape:
        case "list":
            return pyarrow.list_(inner)
        case "large_list":
            return pyarrow.large_list(inner)
        case "array":
            return pyarrow.list_(inner, chance.randrange(1, 4))
        case "struct":
            others = [drawn_type(chance, depth - 1, leaves, shapes) for _ in range(chance.randrange(3))]
            return pyarrow.struct([(f"part {n}", one) for n, one in enumerate([inner, *others])])
        case "map":
            return pyarrow.map_(pyarrow.string(), inner)
        case "dictionary":
            return pyarrow.dictionary(pyarrow.int32(), pyarrow.string())


def drawn_value(chance, kind, is_complete=False):
    """Returns a value of a type at random, or ``None``. A complete value has a value in each of its parts."""
    if not is_complete and chance.random() < 0.2:
        return None
    types, fewest = pyarrow.types, int(is_complete)
    if types.is_fixed_size_list(kind):
        return [drawn_value(chance, kind.value_type, is_complete) for _ in range(kind.list_size)]
    if types.is_list(kind) or types.is_large_list(kind):
        return [drawn_value(chance, kind.value_type, is_complete) for _ in range(chance.randrange(fewest, 3))]
    if types.is_struct(kind):
        return {part.name: drawn_value(chance, part.type, is_complete) for part in kind}
    if types.is_map(kind):
        keys = chance.sample(["", "k", "é", "1"], chance.randrange(fewest, 3))
        return [(key, drawn_value(chance, kind.item_type, is_complete)) for key in keys]
    if types.is_dictionary(kind):
        return chance.choice(["low", "high", "007"])
    return LEAVES[kind](chance)


def drawn_table(chance, rows, leaves, shapes):
    """Returns a table with a column of each plain type, and others of random types.

    The first row is complete: a column without a value is text, and `pyarrow.array` writes index 0 of a dictionary
    inside a missing struct, which is valid only if the dictionary has a value.
    """
    columns = {}
    for number, kind in enumerate([*leaves, *(drawn_type(chance, 3, leaves, shapes) for _ in range(NESTED_COLUMNS))]):
        columns[f"{number}"] = pyarrow.array([drawn_value(chance, kind, row == 0) for row in range(rows)], kind)
    table = pyarrow.table(columns)
    table.validate(full=True)
    return table


def run(function, inputs, form, rows_of_a_mini_batch, name="out"):
    return gristmill.run(
        function, inputs, output=f"{name}.{form}", mini_batch_size=rows_of_a_mini_batch, fresh=True, progress=False
    )


def comparable(value):
    """Returns a value in a form in which equal ones compare as equal and others do not: the signs of zeros, and NaN."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(one) for one in value]
    return value


def same_table(found, expected):
    """Fails with the first column whose type or values differ."""
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        left, right = found[name], expected[name]
        assert left.type == right.type, f"{name}: {left.type} instead of {right.type}"
        left, right = left.to_pylist(), right.to_pylist()
        assert comparable(left) == comparable(right), f"{name}: {expected[name].type}"


SHAPES = ["list", "large_list", "array", "struct", "map", "dictionary"]
JOBS = {"seed": SEEDS, "rows": st.integers(2, 20), "size": st.integers(1, 9)}


@pytest.mark.parametrize("form", FORMATS)
@EXAMPLES
@given(**JOBS)
def test_random_arrow_table_round_trips(form, seed, rows, size):
    table = drawn_table(random.Random(seed), rows, list(LEAVES), SHAPES)

    def arrow(table: pyarrow.Table):
        return table

    same_table(run(arrow, table, form, size).to_arrow(), table)


@pytest.mark.parametrize("form", FORMATS)
@EXAMPLES
@given(**JOBS)
def test_random_polars_frame_round_trips(form, seed, rows, size):
    leaves = [kind for kind in LEAVES if kind not in POLARS_LACKS]
    table = drawn_table(random.Random(seed), rows, leaves, ["large_list", "array", "struct"])
    frame = polars.from_arrow(table)

    def polars_frame(frame: polars.DataFrame):
        return frame

    found = run(polars_frame, frame, form, size).to_polars()
    assert found.schema == frame.schema
    same_table(found.to_arrow(), frame.to_arrow())


@pytest.mark.parametrize("form", FORMATS)
@EXAMPLES
@given(**JOBS)
def test_random_frame_of_arrow_types_round_trips(form, seed, rows, size):
    table = drawn_table(random.Random(seed), rows, list(LEAVES), SHAPES)
    frame = table.to_pandas(types_mapper=pandas.ArrowDtype)

    def pandas_frame(frame: pandas.DataFrame):
        return frame

    job = run(pandas_frame, frame, form, size)
    same_table(job.to_arrow(), table)
    decimals = [dtype for dtype in frame.dtypes if pyarrow.types.is_decimal(dtype.pyarrow_dtype)]
    expected = [object if dtype in decimals else dtype for dtype in frame.dtypes]
    assert job.to_pandas().dtypes.tolist() == expected


@pytest.mark.parametrize("form", FORMATS)
@EXAMPLES
@given(**JOBS)
def test_random_rows_of_python_round_trip(form, seed, rows, size):
    leaves = [kind for kind in LEAVES if kind not in PYTHON_LACKS]
    table = drawn_table(random.Random(seed), rows, leaves, ["list", "struct"])
    expected = table.to_pylist()

    def of_python(numbers):
        return [expected[number] for number in numbers]

    found = run(of_python, list(range(rows)), form, size).to_arrow()
    assert comparable(found.to_pylist()) == comparable(expected)


# ---- The size of mini-batches ------------------------------------------------------------------------------------

VALUES = [
    lambda chance: None,
    lambda chance: chance.randrange(-5, 5),
    lambda chance: chance.choice([2**53 + 1, -(2**63), 2**64 - 1, 2**70]),
    lambda chance: chance.choice([0.5, 3.0, -0.0, 1e300]),
    lambda chance: float("nan"),
    lambda chance: chance.random() < 0.5,
    lambda chance: chance.choice(TEXTS),
    lambda chance: decimal.Decimal(chance.randrange(10**6)).scaleb(-chance.randrange(4)),
    lambda chance: MIDNIGHT + datetime.timedelta(microseconds=chance.randrange(10**9)),
    lambda chance: MIDNIGHT.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=chance.randrange(3)))),
    lambda chance: datetime.date(2000, 1, 1 + chance.randrange(9)),
    lambda chance: datetime.timedelta(seconds=chance.randrange(9)),
    lambda chance: chance.randbytes(2),
    lambda chance: [chance.randrange(3) for _ in range(chance.randrange(3))],
    lambda chance: [chance.choice(TEXTS)],
    lambda chance: {"a": chance.randrange(3)},
    lambda chance: {chance.choice("ab"): chance.choice([0.5, "x", None, {"c": 1}])},
    lambda chance: numpy.float32(chance.choice([0.5, 2])),
    lambda chance: pandas.Timestamp(chance.randrange(10**9), tz=chance.choice([None, "Europe/Berlin"])),
]


def drawn_rows(chance, count):
    """Returns rows as a careless function returns them: keys that only some have, and several kinds in one column."""
    kinds = {f"c{number}": chance.sample(VALUES, chance.choice([1, 1, 2, 3])) for number in range(8)}
    rows = []
    for _ in range(count):
        names = [name for name in kinds if chance.random() < 0.8] or ["c0"]
        if chance.random() < 0.2:
            chance.shuffle(names)
        rows.append({name: chance.choice(kinds[name])(chance) for name in names})
    return rows


def content(path):
    """Returns the content of a file: its bytes, or the schema and the rows of a Parquet file."""
    if not path.endswith(".parquet"):
        return pathlib.Path(path).read_bytes()
    table = pyarrow.parquet.read_table(path)
    # A DataFrame whose columns are all plain has no metadata of pandas.
    return table.schema.remove_metadata(), comparable(table.to_pylist())


def lines_of(path):
    """Returns the values in the lines of a file, whose numbers and JSON may be written in several ways."""
    return list(map(json.loads, pathlib.Path(path).read_text().splitlines()))


def same_at_each_size(function, inputs, form, sizes, said=content):
    """Checks that one job for each size of a mini-batch writes the same file, and the same types of its table."""
    found = []
    for size in sizes:
        job = run(function, inputs, form, size, name=f"sized-{size}")
        found.append((said(job.output), job.to_arrow().schema.remove_metadata()))
        assert found[-1] == found[0], size


SIZED = {"seed": SEEDS, "rows": st.integers(2, 16), "size": st.integers(1, 9), "form": st.sampled_from(FORMATS)}


@EXAMPLES
@given(**SIZED)
def test_size_of_mini_batches_changes_no_row(seed, rows, size, form):
    returned = drawn_rows(random.Random(seed), rows)

    def careless(numbers):
        return [returned[number] for number in numbers]

    same_at_each_size(careless, list(range(rows)), form, [rows, size, 1])


@EXAMPLES
@given(**SIZED)
def test_size_of_mini_batches_changes_no_frame(seed, rows, size, form):
    """The columns of a DataFrame have the types that pandas finds in the rows of each mini-batch."""
    chance = random.Random(seed)
    # Next to a missing value, whole numbers of pandas become other numbers.
    makers = [VALUES[place] for place in range(len(VALUES)) if place not in (0, 4)]
    kinds = {f"c{number}": chance.sample(makers, chance.choice([1, 1, 2])) for number in range(8)}
    for of_column in kinds.values():
        if VALUES[2] in of_column:
            # Next to a fraction, pandas rounds them.
            of_column[:] = [one for one in of_column if one not in (VALUES[3], VALUES[17])]
    returned = [{name: chance.choice(of_column)(chance) for name, of_column in kinds.items()} for _ in range(rows)]

    def frames(numbers):
        return pandas.DataFrame([returned[number] for number in numbers])

    said = lines_of if form == "jsonl" else content
    same_at_each_size(frames, list(range(rows)), form, [rows, size, 1], said)


def drawn_json(chance, depth=2):
    """Returns a value of JSON at random."""
    value = chance.randrange(9 if depth else 7)
    if value == 7:
        return [drawn_json(chance, depth - 1) for _ in range(chance.randrange(3))]
    if value == 8:
        return {name: drawn_json(chance, depth - 1) for name in chance.sample("abc", chance.randrange(3))}
    return [None, True, 7, 2**53 + 1, 0.5, "text", "007"][value]


@EXAMPLES
@given(seed=SEEDS, rows=st.integers(2, 16), size=st.integers(1, 3), library=st.sampled_from(["pandas", "pyarrow"]))
def test_size_of_mini_batches_changes_no_line_of_json(seed, rows, size, library):
    """Each line of the output equals the line of the input, whatever its mini-batch."""
    chance = random.Random(seed)
    lines = []
    for _ in range(rows):
        kinds = {name: drawn_json(chance) for name in "xyz"}
        lines.append({name: value for name, value in kinds.items() if value is not None})
    path = pathlib.Path("lines.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def same(table):
        return table

    same.__annotations__["table"] = {"pandas": pandas.DataFrame, "pyarrow": pyarrow.Table}[library]
    same_at_each_size(same, gristmill.read_json(str(path), lines=True), "jsonl", [rows, size], lines_of)


# ---- Differences -------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


def frame_of(values, **options):
    return pandas.DataFrame({"v": pandas.Series(values, **options)})


def nested(depth):
    return [nested(depth - 1)] if depth else 1


NAN = float("nan")
MANY = {f"key {number}": number for number in range(1001)}
INTERVAL = pyarrow.array([pyarrow.MonthDayNano([1, 2, 3])])
ORDERED = pandas.Categorical(["low", None], categories=["low", "mid"], ordered=True)
CUT = pandas.cut(pandas.Series([1, 5]), [0, 3, 6])
CATEGORIES = ["(0, 3]", "(3, 6]"]
SECONDS = pyarrow.table({"v": pyarrow.array([1], pyarrow.timestamp("s")), "t": pyarrow.array([1], pyarrow.time32("s"))})
WIDE = pyarrow.array([decimal.Decimal("1e40")], pyarrow.decimal256(60, 0))


def values(job):
    """Returns the column ``v``. In JSON lines, values without a common type are those of the lines."""
    table = job.to_arrow()
    if isinstance(table["v"].type, pyarrow.JsonType):
        return job.to_pandas()["v"].tolist()
    return table["v"].to_pylist()


def of_json(value):
    """Returns a value whose innermost part may be JSON."""
    if isinstance(value, list):
        return list(map(of_json, value))
    return json.loads(value) if isinstance(value, str) else value


def is_decimal(job):
    return pyarrow.types.is_decimal(job.to_arrow()["v"].type)


def fails(call):
    try:
        call()
    except gristmill.GristmillError:
        return True
    return False


def has_short_decimals(job):
    return values(job) == ["1.5", "a", ["0.1"] if job.output.endswith(".jsonl") else '["0.1"]']


DIFFERENCES = {
    "integers beside missing values, in pandas": [
        ([{"v": 1}, {"v": None}], lambda job: job.to_pandas()["v"].dtype == "float64"),
        ([{"v": 2**53 + 1}, {"v": None}], lambda job: job.to_pandas()["v"].dtype == "Int64"),
        ([{"v": 1}, {"v": None}], lambda job: job.to_arrow()["v"].type == pyarrow.int64()),
    ],
    "a column without any value": [
        (pyarrow.table({"v": pyarrow.nulls(2), "n": [1, 2]}), lambda job: job.to_arrow()["v"].type == pyarrow.string()),
        ([{"v": None, "n": 1}, {"v": None, "n": 2}], lambda job: values(job) == [None, None]),
    ],
    "NaN of pandas, NumPy or Python": [
        (frame_of([0.5, NAN]), lambda job: values(job) == [0.5, None]),
        ([{"v": 0.5}, {"v": NAN}], lambda job: values(job) == [0.5, None]),
        ([{"v": numpy.float64(0.5)}, {"v": numpy.float64("nan")}], lambda job: values(job) == [0.5, None]),
        (
            pyarrow.table({"v": pyarrow.array([0.5, NAN])}),
            lambda job: comparable(values(job)) == comparable([0.5, None if job.output.endswith(".jsonl") else NAN]),
        ),
    ],
    "a missing text or bytes in CSV with this column alone": [
        ("csv", pyarrow.table({"v": ["a", None]}), lambda job: values(job) == ["a", ""]),
        ("csv", pyarrow.table({"v": [b"a", None]}), lambda job: values(job) == [b"a", b""]),
    ],
    "bytes beside texts": [
        ([{"v": b"caf\xc3\xa9"}, {"v": "a"}], lambda job: values(job) == ["café", "a"]),
        ([{"v": b"\xff"}, {"v": "a"}], lambda job: values(job) == ["/w==", "a"]),
    ],
    "decimals beside other values than numbers": [
        ([{"v": decimal.Decimal("1.50")}, {"v": "a"}, {"v": [decimal.Decimal("0.10")]}], has_short_decimals),
        ([{"v": decimal.Decimal("1.50")}, {"v": 2}], lambda job: values(job) == [decimal.Decimal("1.50"), 2]),
    ],
    "an empty dictionary in every row": [
        ([{"v": {}}, {"v": {}}], lambda job: list(map(of_json, values(job))) == [{}, {}]),
    ],
    "a tuple inside a row": [([{"v": (1, 2)}, {"v": (3,)}], lambda job: values(job) == [[1, 2], [3]])],
    "a list of pairs whose first part is text": [
        (
            [{"v": [("a", 1), ("b", 2)]}, {"v": []}],
            lambda job: values(job) == [[("a", 1), ("b", 2)], []] and pyarrow.types.is_map(job.to_arrow()["v"].type),
        ),
    ],
    "a dictionary with more than 1,000 keys, or values nested deeper than 24": [
        ([{"v": MANY}, {"v": None}], lambda job: of_json(values(job)[0]) == MANY),
        ([{"v": nested(30)}, {"v": None}], lambda job: of_json(values(job)[0]) == nested(30)),
    ],
    "an interval of months, days and nanoseconds": [
        (pyarrow.table({"v": INTERVAL}), lambda job: [type(one) for one in values(job)] == [str]),
    ],
    "whole numbers of 128 bits of Polars": [
        (
            polars.DataFrame({"v": [2**70]}, schema={"v": polars.Int128}),
            lambda job: job.to_arrow()["v"].type == pyarrow.decimal128(38, 0) and values(job) == [2**70],
        ),
    ],
    "integers above 2^64, or from 2^63 beside negative ones": [
        ([{"v": 2**64}, {"v": 1}], lambda job: values(job) == [2**64, 1] and is_decimal(job)),
        ([{"v": 2**63}, {"v": -1}], lambda job: values(job) == [2**63, -1] and is_decimal(job)),
    ],
    "ordered categories": [
        (
            pandas.DataFrame({"v": ORDERED, "n": 1}),
            lambda job: (
                job.to_pandas()["v"].cat.ordered
                and list(job.to_pandas()["v"].cat.categories) == ["low", "mid"]
                and job.to_arrow()["v"].type.ordered
                and values(job) == ["low", None]
            ),
        ),
        (
            "parquet",
            pandas.DataFrame({"v": ORDERED, "n": 1}),
            lambda job: job.part_of(pyarrow.parquet.read_table(job.output))["v"].to_pylist() == ["low", None],
        ),
    ],
    "decimals of `pandas.ArrowDtype`": [
        (
            frame_of([decimal.Decimal("1.5")], dtype=pandas.ArrowDtype(pyarrow.decimal128(5, 2))),
            lambda job: (
                job.to_pandas()["v"].tolist() == [decimal.Decimal("1.50")] and job.to_pandas()["v"].dtype == object
            ),
        ),
    ],
    "periods of pandas": [
        (
            frame_of(pandas.period_range("2020-01", periods=2, freq="M")),
            lambda job: values(job) == ["2020-01", "2020-02"] and job.to_pandas()["v"].dtype == "period[M]",
        ),
    ],
    "categories that are intervals or periods": [
        (frame_of(CUT), lambda job: job.to_pandas()["v"].cat.categories.tolist() == CATEGORIES),
    ],
    "a time of day with a zone": [
        ([{"v": datetime.time(1, tzinfo=datetime.timezone.utc)}], lambda job: values(job) == ["01:00:00+00:00"]),
    ],
    "infinite numbers, in JSON lines": [
        ("jsonl", [{"v": math.inf}, {"v": 0.5}], lambda job: values(job) == [None, 0.5]),
        ("csv", [{"v": math.inf}, {"v": 0.5}], lambda job: values(job) == [math.inf, 0.5]),
        ("parquet", [{"v": math.inf}, {"v": 0.5}], lambda job: values(job) == [math.inf, 0.5]),
    ],
    "complex numbers": [([{"v": 1 + 2j}], lambda job: values(job) == ["(1+2j)"])],
    "`Enum` of Polars": [
        (
            polars.DataFrame({"v": ["b", "a"]}, schema={"v": polars.Enum(["b", "a", "unused"])}),
            lambda job: (
                job.to_polars()["v"].dtype == polars.Categorical and job.to_polars()["v"].to_list() == ["b", "a"]
            ),
        ),
    ],
    "decimals of more than 38 digits": [
        (pyarrow.table({"v": WIDE}), lambda job: values(job) == WIDE.to_pylist() and fails(job.to_polars)),
    ],
    "`uuid.UUID`, a path, an enumeration, and other objects": [
        (
            [{"v": uuid.UUID(int=1)}, {"v": pathlib.PurePosixPath("a/b")}, {"v": Colour.RED}],
            lambda job: values(job) == [str(uuid.UUID(int=1)), "a/b", "Colour.RED"],
        ),
    ],
    "a dictionary inside a row without a key that others have": [
        (
            [{"v": {"a": 1}}, {"v": {"a": 2, "b": 3}}],
            lambda job: values(job) == [{"a": 1, "b": None}, {"a": 2, "b": 3}],
        ),
    ],
    "half of a surrogate pair": [([{"v": "\ud83d"}], lambda job: values(job) == ["\\ud83d"])],
    "times in seconds, in Parquet": [
        ("csv", "jsonl", SECONDS, lambda job: job.to_arrow().equals(SECONDS)),
        (
            "parquet",
            SECONDS,
            lambda job: job.to_arrow().schema.types == [pyarrow.timestamp("ms"), pyarrow.time32("ms")],
        ),
    ],
    "days in milliseconds (`date64`), in Parquet": [
        (
            "parquet",
            pyarrow.table({"v": pyarrow.array([86_400_000], pyarrow.date64())}),
            lambda job: job.to_arrow()["v"].type == pyarrow.date32() and values(job) == [datetime.date(1970, 1, 2)],
        ),
    ],
    "`string_view`, `binary_view`, `bool8`": [
        (
            pyarrow.table(
                {
                    "v": pyarrow.array(["é"], pyarrow.string_view()),
                    "b": pyarrow.array([b"\xff"], pyarrow.binary_view()),
                    "t": pyarrow.ExtensionArray.from_storage(pyarrow.bool8(), pyarrow.array([1], pyarrow.int8())),
                }
            ),
            lambda job: (
                job.to_arrow().to_pydict() == {"v": ["é"], "b": [b"\xff"], "t": [True]}
                and job.to_arrow().schema.types == [pyarrow.large_string(), pyarrow.large_binary(), pyarrow.bool_()]
            ),
        ),
    ],
}
"""For each difference: the format (without one: all), what a function returns, and a check."""


class Part:
    """The columns of one example in a job that has returned those of several examples side by side."""

    def __init__(self, job, place):
        self.job, self.output = job, job.output
        names = [name for name in job.to_arrow().column_names if name.startswith(f"{place} ")]
        self.names = {name: name.partition(" ")[2] for name in names}

    def part_of(self, table):
        return table.select(list(self.names)).rename_columns(list(self.names.values()))

    def to_arrow(self):
        return self.part_of(self.job.to_arrow())

    def to_pandas(self):
        return self.job.to_pandas()[list(self.names)].rename(columns=self.names)

    def to_polars(self):
        return self.job.to_polars().select(list(self.names)).rename(self.names)


def examples_side_by_side(form):
    """Yields lists of examples of a format that can be the columns of one result: those of one kind and length."""
    found = {}
    for difference, examples in DIFFERENCES.items():
        for number, (*forms, returned, is_true) in enumerate(examples):
            if form in (forms or FORMATS):
                place = f"{difference} {number}" if difference.endswith("alone") else ""
                found.setdefault((type(returned), len(returned), place), []).append((difference, returned, is_true))
    return found.values()


def side_by_side(results):
    """Returns the columns of several results as one, named after the place of their result."""
    if isinstance(results[0], list):
        rows = range(len(results[0]))
        return [{f"{n} {name}": v for n, one in enumerate(results) for name, v in one[row].items()} for row in rows]
    if isinstance(results[0], pandas.DataFrame):
        return pandas.concat([one.add_prefix(f"{n} ") for n, one in enumerate(results)], axis="columns")
    if isinstance(results[0], polars.DataFrame):
        renamed = [one.rename({name: f"{n} {name}" for name in one.columns}) for n, one in enumerate(results)]
        return polars.concat(renamed, how="horizontal")
    return pyarrow.table({f"{n} {name}": one[name] for n, one in enumerate(results) for name in one.column_names})


@pytest.mark.parametrize("form", FORMATS)
def test_values_come_back_in_another_form(form):
    for number, examples in enumerate(examples_side_by_side(form)):
        returned = side_by_side([one for _, one, _ in examples])

        def function(_, returned=returned):
            return returned

        job = gristmill.run(function, [1], output=f"difference-{number}.{form}", fresh=True, progress=False)
        for place, (difference, _, is_true) in enumerate(examples):
            part = Part(job, place)
            assert is_true(part), (difference, part.to_arrow())
    # An object without a text of its own.
    with pytest.raises(gristmill.JobFailed):
        gristmill.run(lambda _: [{"v": object()}], [1], output=f"object.{form}", progress=False)
