"""Tables written by pandas, Polars and pyarrow reach `run` with the values and the order that these libraries read.

Each example is one job over several tables, each an input of its own: written by one library in one of the `FORMS`,
with some encoding and types, to a folder or a bucket, cut into mini-batches of some size. What `run` got is put
together again and compared with what the library itself reads. Where the two differ on purpose, `DIFFERENCES` says how.
The examples use every form, and every type in each format.
"""

from __future__ import annotations

import csv
import decimal
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from library_tables import FORMS, NUMBERS, OUR_TYPES, WHOLE, Case, Form, kinds_of, lists, read_back, written

DIFFERENCES = {
    # difference: why the comparison allows it
    "0 and 1 are truth values": "a column of nothing else is bool, as it was in the original; True equals 1",
    "dates in text": "become timestamps, where pandas reads text; compared as timestamps",
    "missing integers": "make the column float64, as in pandas; compared as numbers",
    "integers beyond 64 bits": "make the column float64; compared as numbers",
    "decimals in text": "are float64",
    "time zones": "instants in text are converted to UTC; compared as instants",
    "empty text": "is missing in delimited text, unless `empty_as_string` is set",
    "time units": "timestamps are nanoseconds where they fit; compared as instants",
    "lists": "of Parquet are arrays, of JSON lists; compared by their elements",
    "categories": "are read as their values",
}

SCRIPT = """
import os, pickle
def run(frame, context):
    with open(os.path.join(os.environ["FRAMES"], f"{context.minibatch_index}.pickle"), "wb") as file:
        pickle.dump(frame, file)
    return [None] * len(frame)
"""

SIZES = ["1 rows", "7 rows", "60", "1MB"]
EXAMPLES = 3
"""Jobs with each size. Hypothesis makes the first one as small as possible, so the others use every form."""
TABLES = 12


def forms_of(size: str, example: int) -> list[Form]:
    """Returns the forms of the tables of a job."""
    number = SIZES.index(size) * (EXAMPLES - 1) + max(example - 1, 0)
    first = number * len(FORMS) // (len(SIZES) * (EXAMPLES - 1))
    return [FORMS[(first + table) % len(FORMS)] for table in range(TABLES)]


def types_of_forms() -> dict[Form, list[str]]:
    """Returns some types for each form: those that its format has the fewest of so far."""
    count: Counter[tuple[str, str]] = Counter()
    chosen = {}
    for form in FORMS:
        chosen[form] = sorted(kinds_of(form), key=lambda kind, form=form: (count[form.format, kind], kind))
        chosen[form] = chosen[form][: 4 if form.format == "parquet" else 2]
        count.update((form.format, kind) for kind in chosen[form])
    return chosen


TYPES = types_of_forms()


def test_every_form_and_type_is_used():
    used = {form for size in SIZES for example in range(1, EXAMPLES) for form in forms_of(size, example)}
    assert used == set(FORMS)
    can_be_written = {(form.format, kind) for form in FORMS for kind in kinds_of(form)}
    assert {(form.format, kind) for form in FORMS for kind in TYPES[form]} == can_be_written


@st.composite
def cases(draw: st.DrawFn, position: int, form: Form) -> Case:
    kinds = kinds_of(form)
    rows = draw(st.integers(1, 30))
    chosen = TYPES[form] + draw(st.lists(st.sampled_from(sorted(kinds)), max_size=2))
    types = {f"t{position}": "int64"} | {f"{kind}_{index}": kind for index, kind in enumerate(chosen)}
    nothing = st.none() if draw(st.booleans()) else st.nothing()
    columns: dict[str, list[Any]] = {f"t{position}": list(range(10, 10 + rows))}
    for name, kind in list(types.items())[1:]:
        columns[name] = draw(st.lists(kinds[kind] | nothing, min_size=rows, max_size=rows))
    return Case(
        name=f"t{position}",
        types=types,
        columns=columns,
        form=form,
        # Without types, texts that look like numbers are numbers.
        typed=form.format in ("csv", "tsv") and (draw(st.booleans()) or "lookalike" in chosen),
        choices={
            "crlf": draw(st.booleans()),
            "mark": draw(st.booleans()),
            "group": draw(st.integers(1, 40)),
            "dictionary": draw(st.booleans()),
            "page": draw(st.sampled_from(["1.0", "2.0"])),
            "wide": draw(st.booleans()),
            "stored": draw(st.booleans()),
        },
    )


def is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def same(ours: Any, theirs: Any, kind: str) -> bool:
    """Returns whether two values are equal, except for `DIFFERENCES`."""
    if is_missing(ours) or is_missing(theirs):
        return is_missing(ours) and (is_missing(theirs) or theirs == "")
    if kind in NUMBERS and isinstance(ours, bool | np.bool_):
        return ours == float(theirs)
    if kind in WHOLE and isinstance(ours, float | np.floating):
        return ours == float(theirs)
    if kind == "decimal" and not isinstance(ours, decimal.Decimal):
        return float(ours) == float(theirs)
    if isinstance(ours, pd.Timestamp):
        return instant(ours) == instant(theirs)
    if isinstance(ours, pd.Timedelta):
        return ours == pd.Timedelta(theirs)
    if kind == "bool":
        return bool(ours) == (theirs if isinstance(theirs, bool | np.bool_) else str(theirs).lower() == "true")
    if kind == "map":
        return dict(ours) == dict(theirs)
    if isinstance(ours, list | tuple | np.ndarray):
        return len(ours) == len(theirs) and all(same(*pair, "") for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], "") for key in ours)
    return (type(ours) is type(theirs) and ours == theirs) or (is_number(ours) and is_number(theirs) and ours == theirs)


def instant(value: Any) -> pd.Timestamp:
    """Returns an instant in UTC, without the zone."""
    found = pd.Timestamp(value)
    return found if found.tzinfo is None else found.tz_convert("UTC").tz_localize(None)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)


def frames_of(workplace, bucket, cases: list[Case], size: str) -> dict[str, pd.DataFrame]:
    """Runs one job over all tables, and joins the mini-batches of each."""
    for folder in ("tables", "frames"):
        (workplace.folder / folder).mkdir(exist_ok=True)
        for file in (workplace.folder / folder).iterdir():
            file.unlink()
    inputs = []
    for case in cases:
        path = written(case, workplace.folder / "tables")
        table = {"name": case.name, "type": "tabular", "path": str(path)}
        if case.choices["stored"]:
            bucket.put(path.name, path.read_bytes())
            table["path"] = bucket.url(path.name)
        if case.is_wide:
            table["encoding"] = "utf-16le"
        if case.form.format in ("csv", "tsv"):
            table["support_multi_line"] = case.has_line_breaks
        if case.typed:
            table["columns"] = {name: OUR_TYPES[kind] for name, kind in case.types.items()}
        inputs.append(table)
    job = workplace.job(SCRIPT, inputs=inputs, mini_batch_size=size, output_action="summary_only", output=None)
    job.run(FRAMES=str(workplace.folder / "frames"))
    parts: dict[str, list[pd.DataFrame]] = {case.name: [] for case in cases}
    for file in sorted((workplace.folder / "frames").iterdir(), key=lambda file: int(file.stem)):
        frame = pickle.loads(file.read_bytes())
        parts[frame.columns[0]].append(frame)
    return {name: pd.concat([part.astype(object) for part in frames]) for name, frames in parts.items()}


@pytest.mark.parametrize(
    "options", [{"quoting": csv.QUOTE_NONE, "escapechar": "\\"}, {"doublequote": False, "escapechar": "\\"}]
)
def test_escape_characters_of_other_libraries_are_noted(workplace, options):
    workplace.write({"t.csv": pd.DataFrame({"id": [1, 2], "text": ["plain", 'c"d']}).to_csv(index=False, **options)})
    job = workplace.job(SCRIPT, inputs=[{"name": "t", "type": "tabular", "path": "t.csv"}])
    said = workplace.command("validate", job.file)
    assert 't.csv holds `\\"` (first at byte 19), in which the backslash is text' in said.stderr, str(said)


@pytest.mark.parametrize("size", SIZES)
def test_tables_of_other_libraries_are_read_unchanged(workplace, bucket, size):
    examples = 0

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal examples
        forms = forms_of(size, examples)
        tables = data.draw(st.tuples(*(cases(position, form) for position, form in enumerate(forms))))
        examples += 1
        compare(workplace, bucket, list(tables), size)

    check()
    assert examples == EXAMPLES


def compare(workplace, bucket, tables: list[Case], size: str) -> None:
    frames = frames_of(workplace, bucket, tables, size)
    for case in tables:
        path = next((workplace.folder / "tables").glob(f"{case.name}.*"))
        expected, found = read_back(case, path), lists(frames[case.name])
        assert list(found) == list(expected), case
        for name, kind in case.types.items():
            pairs = zip(found[name], expected[name], strict=True)
            for row, (ours, theirs) in enumerate(pairs):
                assert same(ours, theirs, kind), f"{name}, row {row}: {ours!r} and not {theirs!r}; {case}"
