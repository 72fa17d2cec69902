"""Tables as programs write them: they store a whole column in one type, and another record's reading stays the same.

Each program writes rows of which one is changed; the others are then read again, bit for bit.
"""

import csv
import datetime
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import fedprivacy as fp
from fedprivacy.tasks.cells import TableError

ROW, ROWS = 5, 12
"""The row that is changed, and the number of rows."""

DAYS = [datetime.datetime(2020, 1, 1 + day) for day in range(ROWS)]  # noqa: DTZ001 - a table has no zone
TABLE = {
    "who": [101, 102, 101, 103, 104, 104, 105, 106, 107, 108, 109, 110],
    "ward": [7, 8, 7, 8, 7, 100_000, 8, 7, 8, 7, 100_000, 8],
    "sex": ["f", "m"] * 6,
    "code": ["E10.9", "07", "7a", "I50"] * 3,
    "dose": [0.5, 1.25, 7.0, 2.0, 0.1, 3.0] * 2,
    "price": [Decimal("7.50"), Decimal("8.00"), Decimal("7.25")] * 4,
    "flag": [True, False, True] * 4,
    "day": [day.date() for day in DAYS],
    "seen": DAYS,
    "at": [day.replace(hour=10, minute=30, second=5) for day in DAYS],
    "ill": ["yes", "no"] * 6,
}
LATE = datetime.datetime(2020, 1, 1, 3, 4, 5, 123_456)  # noqa: DTZ001
CHANGES = {
    "nothing": dict.fromkeys([*TABLE][1:-1]),
    "another type": {"ward": 7.5, "sex": b"f", "dose": 2**60, "price": Decimal("1.12345"), "day": LATE, "seen": LATE},
    "more digits": {"ward": 1e300, "dose": 1e-300, "price": Decimal("1000000"), "at": LATE},
    "a text": {"ward": "X", "flag": "x", "day": "x", "seen": "x", "at": "x"},
    "midnight": {"at": DAYS[0], "code": "7.0"},
}
FEATURES = {
    "ward": fp.Category(["7", "8", "100000"], other=True, indicate_missing=True),
    "sex": fp.Category(["f", "m"], other=True, indicate_missing=True),
    "code": fp.Category(["E10", "07", "7a"], prefix=3, other=True, indicate_missing=True),
    "dose": fp.Number(missing=9),
    "price": fp.Number(missing=9),
    "flag": fp.Number(missing=9),
    "day": fp.Date(since="2020-01-01", missing=0),
    "seen": fp.Date(since="2020-01-01", missing=0),
    "at": fp.Date(since="2020-01-01", missing=0),
}


def by_r(frame, file):
    """Write as R does: row numbers, NA, 15 digits, 1e+05 for 100000 where a column holds one fraction."""
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["", *frame])
        rows.writerows(zip(range(1, len(frame) + 1), *(_r_cells(frame[name].tolist()) for name in frame), strict=True))


def _r_cells(cells):
    present = [cell for cell in cells if not pd.isna(cell)]
    floats = not all(isinstance(cell, int) or (isinstance(cell, float) and cell == int(cell)) for cell in present)
    midnight = all(isinstance(cell, datetime.datetime) and cell.time() == datetime.time() for cell in present)
    for cell in cells:
        if pd.isna(cell):
            yield "NA"
        elif isinstance(cell, datetime.datetime):
            yield f"{cell:%Y-%m-%d}" if midnight else f"{cell:%Y-%m-%d %H:%M:%S}"
        elif isinstance(cell, int | float | Decimal) and not isinstance(cell, bool):
            number = float(f"{float(cell):.15g}")
            plain, power = np.format_float_positional(number, trim="-"), f"{number:.14g}".replace("e-0", "e-")
            short = np.format_float_scientific(number, trim="-", exp_digits=2)
            yield short if floats and len(short) < len(plain) else plain if floats else str(int(cell)) or power
        else:
            yield str(cell)


GERMAN = {"delimiter": ";", "decimal": ","}
PROGRAMS = {
    "Parquet": ("t.parquet", lambda frame, file: frame.to_parquet(file), {}),
    "Parquet, nullable": ("t.parquet", lambda frame, file: frame.convert_dtypes().to_parquet(file), {}),
    "CSV": ("t.csv", lambda frame, file: frame.to_csv(file), {}),
    "CSV, German": ("t.csv", lambda frame, file: frame.to_csv(file, sep=";", decimal=","), GERMAN),
    "R": ("t.csv", by_r, {}),
}


def written(program, rows, folder):
    """The table and the inputs of the rows, as a program writes them; None if it refuses to."""
    try:
        frame = pd.DataFrame(rows)
        name, write, how = PROGRAMS[program]
        write(frame, folder / name)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError):
        return None
    how = {"missing": ("NA",), **how}
    shard = fp.load_table(folder / name, target="ill", classes=["no", "yes"], features=FEATURES, **how)
    return fp.read_table(folder / name, **how), np.concatenate([shard.inputs, shard.targets[:, None]], 1)


def readings(table, inputs):
    """All that is read of each row, but for the fractions' texts: programs write them with decimals of their own."""
    codes = [table.codes("ward", levels) for levels in (["7", "8", "100000"], [7, 8, 100_000])]
    codes.append(table.codes("seen", ["2020-01-03"]))
    numbers = [table.numbers(name) for name in ("who", "ward", "dose", "price", "flag")]
    texts = [table.texts(name) for name in ("who", "ward", "sex", "code", "flag", "day", "seen", "at")]
    empty = [table.empty(name) for name in TABLE]
    return [repr(row) for row in zip(inputs.tolist(), *codes, *numbers, *texts, *empty, strict=True)]


def others(rows):
    return rows[:ROW] + rows[ROW + 1 :]


QUICK = ("Parquet", "R")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in PROGRAMS]
)
def test_one_record_s_cells_change_no_other_record_whatever_program_writes_them(program, change, tmp_path):
    rows = {name: list(cells) for name, cells in TABLE.items()}
    usual, changed = readings(*written(program, rows, tmp_path)), 0
    for name, cell in CHANGES[change].items():
        before, rows[name][ROW] = rows[name][ROW], cell
        if (found := written(program, rows, tmp_path)) is None:
            rows[name][ROW] = before
            continue
        changed += 1
        assert others(readings(*found)) == others(usual), name
    assert changed or ("Parquet" in program and change == "a text"), "the program writes none of them"


def test_a_record_that_goes_changes_no_other_record(tmp_path):
    """R and pandas write row numbers, which change with each record: they are no feature."""
    how = {"target": "ill", "classes": ["no", "yes"]}
    rows = pd.DataFrame({"dose": TABLE["dose"], "ill": TABLE["ill"]})
    for name, write in (("t.csv", by_r), ("t.csv", pd.DataFrame.to_csv), ("t.parquet", pd.DataFrame.to_parquet)):
        write(rows, tmp_path / name)
        usual = fp.load_table(tmp_path / name, **how).inputs.tolist()
        write(rows.drop(index=ROW), tmp_path / name)
        assert fp.load_table(tmp_path / name, **how).inputs.tolist() == others(usual)
        assert usual == torch.tensor(TABLE["dose"])[:, None].tolist()


# --- types, one by one ---

MOMENT = datetime.datetime(2020, 1, 1, 10, 30)  # noqa: DTZ001
TYPES = {
    "7": [
        *(pa.array([7, None], kind()) for kind in (pa.int8, pa.uint8, pa.int16, pa.int64, pa.uint64, pa.float16)),
        *(pa.array([7, None], kind()) for kind in (pa.float32, pa.float64)),
        *(pa.array([Decimal(7), None], pa.decimal128(20, scale)) for scale in (0, 3)),
        *(pa.array(["7", None], kind()) for kind in (pa.string, pa.large_string, pa.binary, pa.large_binary)),
        *(pa.array([7, None], pa.dictionary(pa.int8(), kind())) for kind in (pa.int64, pa.float64)),
    ],
    "-7.5": [
        *(pa.array([-7.5, None], kind()) for kind in (pa.float32, pa.float64)),
        pa.array([Decimal("-7.500"), None], pa.decimal128(20, 3)),
        pa.array(["-7.5", None]),
    ],
    "0": [pa.array([0, None]), pa.array([-0.0, None]), pa.array([Decimal("-0.00"), None], pa.decimal128(3, 2))],
    "10000000000000000": [pa.array([10**16, None]), pa.array([1e16, None])],
    "inf": [pa.array([np.inf, np.nan], kind()) for kind in (pa.float32, pa.float64)],
    "True": [pa.array([True, None]), pa.array(["True", None])],
    "2020-01-01": [
        *(pa.array([DAYS[0].date(), None], kind()) for kind in (pa.date32, pa.date64)),
        *(pa.array([DAYS[0], None], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
        pa.array(["2020-01-01", None]),
    ],
    "2020-01-01 10:30:00": [pa.array([MOMENT, None], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")],
    "2020-01-01 10:30:00+00:00": [pa.array([MOMENT, None], pa.timestamp(unit, "UTC")) for unit in ("ms", "us", "ns")],
    "10:30:00": [pa.array([MOMENT.time(), None], kind) for kind in (pa.time32("s"), pa.time64("us"), pa.time64("ns"))],
    "1 day, 0:00:00": [pa.array([datetime.timedelta(1), None], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")],
    "": [pa.array([[7], None]), pa.array([[7.0], None]), pa.array([{"a": 7}, None]), pa.nulls(2)],
}


@pytest.mark.parametrize("words", TYPES)
def test_a_cell_has_one_text_in_every_type(words, tmp_path):
    file = tmp_path / "t.parquet"
    for column in TYPES[words]:
        parquet.write_table(pa.table({"it": column, "n": [1, 2]}), file)
        table = fp.read_table(file)
        assert (table.texts("it"), table.empty("it").tolist()) == ([words, ""], [not words, True]), column.type
        arrays = [column.to_pylist(), column.to_pandas(), column.to_pandas().to_numpy()]
        for cells in arrays if words not in ("-7.5", "") else ():
            assert fp.Table({"it": cells}).texts("it") == [words, ""], (column.type, type(cells))
        if words not in ("", "10000000000000000"):  # a level of this length is refused, see below
            shard = fp.load_table(file, target="n", features={"it": fp.Category([words], indicate_missing=True)})
            assert shard.inputs.tolist() == [[1, 0], [0, 1]], column.type
            assert len(fp.read_table(file, only={"it": words})) == 1
            for question in (fp.ask.count(where={"it": words}), fp.ask.categories("it", [words])):
                assert int(question.totals(table).sum()) >> 20 == 1


def test_nothing_has_no_text_whatever_it_is():
    nothing = [None, np.nan, np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("nan"), "", " ", b" "]
    table = fp.Table({"it": [*nothing, "x"]})
    assert table.texts("it") == [""] * len(nothing) + ["x"] and table.empty("it").sum() == len(nothing)
    for reader in (fp.Number(missing=9), fp.Number(indicate_missing=True, centre=9)):
        assert {tuple(reader.inputs(cell)) for cell in nothing} == {tuple(reader.inputs(None))}


@pytest.mark.parametrize("decimal", [".", ","])
def test_the_text_of_a_number_has_the_declared_sign_before_decimals(decimal):
    cells = [7.0, f"7{decimal}0", 7.5, f"7{decimal}5", f"7{decimal}50", "1.000" if decimal == "," else "x"]
    table = fp.Table({"it": cells}, decimal=decimal)
    assert table.codes("it", ["7", f"7{decimal}5"]).tolist() == [0, 0, 1, 1, -1, -1]
    assert table.codes("it", [7, 7.5]).tolist() == [0, 0, 1, 1, 1, -1]
    assert fp.Table({"it": np.array([7, 7.5])}, decimal=decimal).codes("it", [f"7{decimal}5"]).tolist() == [-1, 0]


# --- columns of floating point ---


@pytest.mark.parametrize("cells", [[1, 2], [1, None], [None, None]], ids=str)
def test_floating_point_persons_are_refused_by_their_type_alone(cells, tmp_path):
    file = tmp_path / "visits.parquet"
    for kind in (pa.float16(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())):
        parquet.write_table(pa.table({"patient": pa.array(cells, kind), "ill": [0, 1]}), file)
        for read in (partial(fp.load_table, target="ill"), fp.read_table):
            with pytest.raises(TableError, match=r"column 'patient' of .* is floating point, .*\(pandas: Int64\)"):
                read(file, person="patient", rows_per_person=2)


def test_levels_that_floats_cannot_tell_apart_are_refused_by_the_column_s_type(tmp_path):
    file, level = tmp_path / "visits.parquet", "900000000000207008"
    words = f"column 'it' is floating point, which does not tell level '{level}' from its neighbours; write the column"
    for cells in ([1.0, 2.0], [None, None]):
        parquet.write_table(pa.table({"it": pa.array(cells, pa.float64()), "n": [0, 1]}), file)
        for how in ({"features": {"it": fp.Category(["7", level])}}, {"features": ["n"], "only": {"it": level}}):
            with pytest.raises(TableError, match=words):
                fp.load_table(file, target="n", **how)
        with pytest.raises(TableError, match=words):
            fp.load_table(file, target="it", classes=["7", level], features=["n"])
        for table in (fp.read_table(file), fp.Table({"it": np.array([1.0, np.nan])})):
            with pytest.raises(TableError, match=words):
                fp.ask.count(where={"it": level}).totals(table)
    parquet.write_table(pa.table({"it": [int(level), int(level) + 1], "n": [0, 1]}), file)
    assert fp.read_table(file).codes("it", [level]).tolist() == [0, -1]


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_a_fraction_is_the_same_number_in_every_width(kind, tmp_path):
    """pandas shortens a column where no cell needs more digits: one cell would move all others over an edge."""
    fractions = [0.1, 0.7, 2.3]
    pd.DataFrame({"x": np.array([*fractions, np.nan], kind)}).to_parquet(tmp_path / "t.parquet")
    column = np.array(fractions, kind)
    for table in (fp.read_table(tmp_path / "t.parquet"), fp.Table({"x": column}), fp.Table({"x": list(column)})):
        assert table.numbers("x")[:3].tolist() == fractions
        assert table.codes("x", ["0.7", 2.3])[:3].tolist() == [-1, 0, 1]
        assert [int(total) >> 20 for total in fp.ask.count(where={"x": (0.7, 2.3)}).totals(table)[0]] == [1]


@pytest.mark.parametrize("last", [pd.Timedelta(days=2), pd.Timedelta(hours=5)])
def test_days_are_read_alike_beside_hours(tmp_path, last):
    pd.DataFrame({"stay": [pd.Timedelta(days=1), last], "site": 1}).to_csv(tmp_path / "stays.csv", index=False)
    assert fp.read_table(tmp_path / "stays.csv").codes("stay", ["1 days"])[0] == 0


def test_a_mark_for_nothing_is_found_in_an_array_as_in_a_list():
    for cells, given in (
        ([7.5, -9.9], {"decimal": ",", "missing": ["-9,9"]}),
        ([True, False], {"fold_case": True, "missing": ["False"]}),
    ):
        for column in (cells, np.array(cells)):
            assert fp.Table({"value": column}, **given).empty("value").tolist() == [False, True]
