"""Odd tables as hospitals export them, each with the right inputs, or with the line or error that says why."""

# ruff: noqa: E501 - a case is a line

from dataclasses import dataclass, field
from typing import Any

import fedprivacy as fp

N = None  # a null row


@dataclass(frozen=True, kw_only=True)
class OddTable:
    """A table whose target is `ill`, no or yes, and what is right.

    Attributes:
        cells: of the column `it`, each in a row of its own, which is ill; or the whole file.
        reader: of that column.
        options: other arguments of `load_table`.
        right: inputs of each row, None for a null row.
        line: words of the local sheet.
        error: words of the error.
    """

    cells: list[str] | bytes
    reader: Any = fp.Number
    options: dict[str, Any] = field(default_factory=dict)
    right: list[list[float] | None] | None = None
    line: str = ""
    error: str = ""

    @property
    def file(self) -> bytes:
        if isinstance(self.cells, bytes):
            return self.cells
        return "\n".join(["it,ill", *self.cells, ""]).encode()


def numbers(*cells, **more):
    return OddTable(cells=[f"{cell},yes" for cell in cells], **more)


def levels(*cells, of, right=None, line="", error="", **options):
    reader = options.pop("reader", None) or (lambda: fp.Category(of))
    return OddTable(
        cells=[f"{cell},yes" for cell in cells], reader=reader, options=options, right=right, line=line, error=error
    )


COMMA = {"decimal": ","}
QUESTION = {"missing": ("?", "NA")}
ICD = ["E10", "E11"]

ODD_TABLES = {
    # --- numbers ---
    "a decimal comma": numbers('"70,5"', '"9,0"', right=[N, N], line="it: 2 cells, a number with a decimal comma, like '99,9', '9,9' → decimal=\",\""),
    "a declared decimal comma": numbers('"70,5"', "70", '"-,5"', options=COMMA, right=[[70.5], [70], [-0.5]]),
    "a point beside a declared comma": numbers("70.5", options=COMMA, right=[N], line='decimal point, like \'99.9\' → decimal="."'),
    "signs between thousands": numbers('"1,234.5"', "1 234", right=[N, N], line="a number with signs between thousands, like '9,999.9', '9 999'"),
    "thousands beside a declared comma": numbers('"1.234,5"', options=COMMA, right=[N], line="between thousands"),
    "a unit": numbers("70 kg", "71", right=[N, [71]], line="a number with a sign or a unit, like '99 xx' → write the number alone"),
    "a detection limit": numbers("<0.5", right=[N], line="a number with a sign or a unit, like '<9.9'"),
    "a question mark": numbers("?", "70", right=[N, [70]], line="a mark for nothing, like '?' → missing=('?',)"),
    "a declared question mark": numbers("?", "70", "NA", reader=fp.Number(missing=60), options=QUESTION, right=[[60], [70], [60]]),
    "nothing": numbers("", "70", right=[N, [70]], line="it: 1 cell, empty → fp.Number(..., missing=60) or indicate_missing=True"),
    "an underscore": numbers("1_0", right=[N], line="no number, like '9_9'"),
    "a number that is too large": numbers("1e39", "1e400", right=[N, N], line="a number that is too large"),
    "NaN": numbers("NaN", right=[N], line="a mark for nothing"),
    "free text": numbers("the patient was admitted at night with a headache", right=[N], line="free text, like 'xxx xxxxxxx xxx xxxx' → no reader"),
    # --- categories ---
    "levels that differ in zeros": levels("1", "01", "001", of=["1", "01", "001"], right=[[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "codes like numbers": levels("1e2", "100", "1_0", of=["100", "1e2", "1_0"], right=[[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
    "numbers as levels": levels("1", "1.0", "02", of=[1, 2], right=[[1, 0], [1, 0], [0, 1]]),
    "texts as levels of numbers": levels("01", "1.0", of=["1", "2"], right=[N, [1, 0]], line="the number of a level, written otherwise, like '99' → give the levels as numbers"),
    "a level that is declared missing": levels("?", of=["f", "?"], missing=("?",), error="level '\\?' stands for nothing, or is missing"),
    "other letters": levels("F", "f", of=["f", "m"], right=[N, [1, 0]], line="a level in other letters, like 'X' → fold_case=True"),
    "other letters, folded": levels("F", "f", of=["f", "m"], fold_case=True, right=[[1, 0], [1, 0]]),
    "an unknown level": levels("x", "m", of=["f", "m"], right=[N, [0, 1]], line="it: 1 cell, none of the levels, like 'x' → fp.Category(..., other=True)"),
    "codes of the ICD": levels("E10.9", "E11", "e11.2", of=0, reader=lambda: fp.Category(ICD, prefix=3), right=[[1, 0], [0, 1], N], line="a level in other letters, like 'x99.9'"),
    "a prefix shorter than a level": levels("E10", of=0, reader=lambda: fp.Category(["E10.9"], prefix=3), error="level 'E10.9' is no text of at most 3 characters"),
    "a class in other letters": OddTable(cells=["70,Yes", "70,yes"], right=[N, [70]], line="ill: 1 cell, a level in other letters, like 'Xxx' → fold_case=True"),
    "a class that is not named": OddTable(cells=["70,maybe", "70,yes"], right=[N, [70]], line="ill: 1 cell, none of the levels, like 'xxxxx' → name it in classes=[...]"),
    "no class": OddTable(cells=["70,", "71,NA", "72,yes"], right=[N, N, [72]], line="ill: 1 cell, empty → write the target, or leave the row out of the file\nill: 1 cell, a mark for nothing, like 'XX' → write the target"),
    # --- lists ---
    "a text as levels": levels("f", of="fm", error="levels is 'fm'; give a list of texts or numbers"),
    "several levels that choose rows": OddTable(cells=b"it,ill\nf,yes\nx,yes\nm,yes\n", reader=lambda: fp.Category(["f", "m"]), options={"only": {"it": ["f", "m"]}}, right=[[1, 0], [0, 1]]),
    "no level that chooses rows": numbers("50", options={"only": {"it": []}}, error=r"only is \[\] for 'it'"),
    "a text as texts for nothing": numbers("NA", options={"missing": "NA"}, error="missing is 'NA'; give a list of texts"),
    # --- dates ---
    "dates with points": numbers("31.12.2020", right=[N], reader=fp.Date(since="2000-01-01"), line="no date like 2020-12-31, like '99.99.9999' → fp.Date(..., form=\"%d.%m.%Y\")"),
    "a day that is none": numbers("2020-02-30", reader=fp.Date(since="2000-01-01"), right=[N], line="no date like"),
    "years of two digits": numbers("02.03.51", "29.02.24", "29.02.25", "31.12.26", reader=fp.Date(since="1951-03-01", form="%d.%m.%y", pivot=2025), right=[[1], [26663], N, [-8826]]),
    "a leap day in a century without": numbers("29.02.00", "28.02.00", reader=fp.Date(since="1900-02-28", form="%d.%m.%y", pivot=1999), right=[N, [0]]),
    "months by name": numbers("02JAN2000", "02jan2000", "02MAI2000", "2Jan2000", reader=fp.Date(since="2000-01-01", form="%d%b%Y"), right=[[1], [1], N, [1]]),
    "months by their whole name": numbers("2 January 2000", "2 Jan 2000", reader=fp.Date(since="2000-01-01", form="%d %B %Y"), right=[[1], N]),
    "digits side by side": numbers("02012000", "1112000", reader=fp.Date(since="2000-01-01", form="%d%m%Y"), right=[[1], N]),
    "days of a year": numbers("2000-366", "2001-366", "2001-000", reader=fp.Date(since="2000-12-31", form="%Y-%j"), right=[[0], N, N]),
    "days of a week": numbers("2000-W01-1", "2000-W53-1", reader=fp.Date(since="2000-01-01", form="%G-W%V-%u"), right=[[2], N]),
    "a week that is no day": numbers("2000-W01", "2000-W01-1", "20000102", reader=fp.Date(since="2000-01-01"), right=[N, [2], [1]]),
    "days with midnight, as another row's time of day made a program write them": numbers("2000-01-02", "2000-01-02 00:00:00", reader=fp.Date(since="2000-01-01", form="%Y-%m-%d"), right=[[1], [1]]),
    "dates with a time": numbers("1/2/2000 11:59:59 PM", "1/2/2000 13:59:59 PM", reader=fp.Date(since="2000-01-01", form="%m/%d/%Y %I:%M:%S %p"), right=[[1], N]),
    # --- files ---
    "Excel's note of the delimiter": OddTable(cells=b"\xef\xbb\xbfsep=;\r\nit;ill\r\n70;yes\r\n", options={"delimiter": ";"}, right=[[70]]),
    "Excel's note of another delimiter": OddTable(cells=b"sep=;\nit;ill\n70;yes\n", error="has the one column 'sep=;'; give delimiter=';'"),
    "a title that holds the delimiter": OddTable(cells=b'"Patients, ward 7"\nit,ill\n70,yes\n', error="has no column 'ill'; it has Patients, ward 7"),
    "delimiters at the ends of rows": OddTable(cells=b"it,ill\n70,yes,\n", right=[N], line="more or fewer cells than columns → see the delimiter, also at line ends"),
    "semicolons": OddTable(cells=b"it;ill\n70;yes\n", error="has the one column 'it;ill'; give delimiter=';'"),
    "tabs": OddTable(cells=b"it\till\n70\tyes\n\tno\n", options={"delimiter": "\t"}, right=[[70], N]),
    "latin-1": OddTable(cells="it,ill\nmännlich,yes\nm,no\n".encode("latin-1"), reader=lambda: fp.Category(["männlich", "m"]), right=[N, [0, 1]], line='bytes that are not in the file\'s encoding, like \'x�xxxxxx\' → encoding="latin-1"'),
    "latin-1, declared": OddTable(cells="it,ill\nmännlich,yes\n".encode("latin-1"), reader=lambda: fp.Category(["männlich"]), options={"encoding": "latin-1"}, right=[[1]]),
    "UTF-16": OddTable(cells="it,ill\n70,yes\n".encode("utf-16"), error="is UTF-16; save it as UTF-8"),
    "an unknown encoding": OddTable(cells=b"it,ill\n", options={"encoding": "utf-16"}, error="encoding is 'utf-16'; give 'utf-8', 'latin-1'"),
    "a line break in quotes": OddTable(cells=b'it,ill\n70,yes\n"E\n10",yes\n71,no\n', right=[[70], N, N, [71]], line="1 row, a line whose quotes are not closed → a record is a line"),
    "a row with a cell too many": OddTable(cells=b"it,ill\n70,yes,1\n71,no\n", right=[N, [71]], line="1 row, a row with more or fewer cells than columns"),
    "blank lines": OddTable(cells=b"\n\nit,ill\n\n70,yes\n \n", right=[[70]]),
    "line ends of an old Mac": OddTable(cells=b"it,ill\r70,yes\r", error="has no header; its first line must name the columns, and end as the others do"),
    "a column twice": OddTable(cells=b"it,it,ill\n70,71,yes\n", error="has 2 columns 'it'; give each its own name"),
    "no header": OddTable(cells=b"70,yes\n71,no\n", error="has no column 'ill': its first line holds numbers; let it name the columns"),
    "a spreadsheet": OddTable(cells=b"PK\x03\x04...", error="is a spreadsheet or an archive; save the sheet as CSV"),
    "Parquet by another name": OddTable(cells=b"PAR1...", error="holds Parquet; name it .parquet"),
    "no reader": OddTable(cells=b"it,ill\n", reader="text", error="the reader of 'it' is a str; give fp.Number, fp.Category or fp.Date. Free text has none"),
}  # fmt: skip
