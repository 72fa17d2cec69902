"""Tables as hospitals have them: the right shard, or a message that names column, kind of cell and remedy."""

import _strptime
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.sheet import collecting_sheets
from fedprivacy.values.unit import missing
from tests.tasks.odd_tables import ODD_TABLES

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "tables.md"


def load(file, odd):
    reader = odd.reader() if callable(odd.reader) else odd.reader
    return fp.load_table(file, target="ill", classes=["no", "yes"], features={"it": reader}, **odd.options)


@pytest.mark.parametrize("name", ODD_TABLES)
def test_an_odd_table_is_read_right_or_said_to_be_odd(name, tmp_path):
    odd, file = ODD_TABLES[name], tmp_path / "people.csv"
    file.write_bytes(odd.file)
    if odd.error:
        with pytest.raises(TableError, match=odd.error):
            load(file, odd)
        return
    with collecting_sheets() as sheets:
        shard = load(file, odd)
    assert shard.null.tolist() == [row is None for row in odd.right]
    readable = torch.tensor([row for row in odd.right if row is not None], dtype=torch.float32)
    assert torch.allclose(shard.present().inputs, readable.reshape(-1, shard.inputs.shape[1]), atol=0.01)
    (sheet,) = sheets
    assert odd.line in "\n".join(sheet.lines) and (sheet.unreadable == ()) == (sheet.in_short == []) == (
        None not in odd.right
    )
    assert sheet.hopeless == all(row is None for row in odd.right)
    for place, line in enumerate(odd.cells if isinstance(odd.cells, list) else []):  # a row is read as it is alone
        file.write_text(f"it,ill\n{line}\n")
        assert torch.equal(load(file, odd).inputs[0].nan_to_num(-99), shard.inputs[place].nan_to_num(-99))


WRONG_DATES = {
    "%d.%m": "does not name a date's day, month and year, each once",
    "%d.%m.%Y %d": "does not name a date's day, month and year, each once",
    "": "does not name a date's day, month and year, each once",
    "%d.%m.%y": "give the latest year that they can mean, for example pivot=2025",
    "%q": "%q is not read alike on every host; use %Y %y",
    "%d.%m.%Y %": "% is not read alike on every host",
    5: "form is 5; give a text, for example '%d.%m.%Y' for 31.12.2020",
}


@pytest.mark.parametrize(("form", "said"), WRONG_DATES.items())
def test_a_form_that_names_no_whole_date_or_two_is_refused_with_what_to_write(form, said):
    with pytest.raises(TableError, match=re.escape(said)):
        fp.Date(since="1970-01-01", form=form)


@pytest.mark.parametrize(
    ("form", "pivot"), [("%d.%m.%y", 25), ("%d.%m.%y", True), ("%d.%m.%y", 2025.0), ("%d.%m.%Y", 2025), (None, 2025)]
)
def test_a_pivot_is_a_whole_year_of_a_form_with_two_digits(form, pivot):
    with pytest.raises(TableError, match=f"pivot is {pivot}|form is {form!r}"):
        fp.Date(since="1970-01-01", form=form, pivot=pivot)
    with pytest.raises(TableError, match="since is '1970-W01'; give a day"):
        fp.Date(since="1970-W01")


def test_a_month_has_its_english_name_whatever_the_language_of_the_process(monkeypatch):
    monkeypatch.setattr(
        "calendar.month_abbr",
        ["", *["jan", "fév", "mar", "avr", "mai", "juin", "juil", "aoû", "sep", "oct", "nov", "déc"]],
    )
    monkeypatch.setattr("_strptime._TimeRE_cache", _strptime.TimeRE())  # a process that speaks French
    assert datetime.strptime("02 mai 2000", "%d %b %Y").month == 5  # noqa: DTZ007
    assert fp.Date(since="2000-01-01", form="%d %b %Y").inputs("02 May 2000") == [122]


FORMS = ["%d.%m.%Y", "%m/%d/%y", "%d%b%Y", "%B %d, %Y", "%Y-%j", "%G-W%V-%u", "%y%m%d %I%p", "%Y-%m-%dT%H:%M:%S%z"]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_reads_what_python_writes(form):
    pivot = 2025 if "%y" in form else None
    reader = fp.Date(since="1970-01-01", form=form, pivot=pivot)
    for day in range(-16070, 20454, 37):  # in 1926 to 2025, to which a pivot's years belong
        written = datetime.fromtimestamp(day * 86400, UTC).strftime(form)
        assert reader.inputs(written) == [day], written


LISTS = {
    "a set, which has no order": (lambda: fp.ByColumn("site", {"a", "b"}), "give a list of texts or numbers"),
    "a level that is none": (lambda: fp.Category(["a", None]), "level None stands for nothing"),
    "a text as classes": (lambda: fp.load_table("a.csv", target="ill", classes="01"), "classes is '01'; give a list"),
    "a text as features": (
        lambda: fp.load_table("a.csv", target="ill", features="it"),
        "features is 'it'; give a list",
    ),
    "a list as a level of codes": (lambda: fp.Table({"it": ["a"]}).codes("it", [["a"]]), "level ['a'] is of type list"),
    "a text for nothing": (lambda: fp.Table({"it": ["a"]}, missing="NA"), "missing is 'NA'; give a list of texts"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_level_is_one_text_or_number_and_levels_are_a_list(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("it,ill\n70,1\n")
    made, said = LISTS[name]
    with pytest.raises(TableError, match=re.escape(said)):
        made()


def test_the_sheet_counts_rows_classes_and_cells_and_masks_its_examples(tmp_path):
    file = tmp_path / "people.csv"
    rows = [f"{n},Meier {n},{'yes' if n % 3 else 'no'}" for n in range(9)]
    file.write_text("\n".join(["it,who,ill", *rows, '"1,5",Huber,yes', "?,Huber,no", "5,Huber,Yes", "5,6"]))
    with collecting_sheets() as sheets:
        fp.load_table(file, target="ill", classes=["no", "yes"], features=["it"])
    (sheet,) = sheets
    assert (sheet.rows, sheet.readable, sheet.classes) == (13, 9, {"no": 3, "yes": 6})
    assert [(each.column, each.cells, each.examples) for each in sheet.unreadable if each.column] == [
        ("it", 1, ("9,9",)),
        ("it", 1, ("?",)),
        ("ill", 1, ("Xxx",)),
    ]
    assert len(sheet.in_short) == 2 and "4 of 13 rows of people.csv cannot be read" in sheet.in_short[0]
    assert "Meier" not in str(sheet) and "Huber" not in str(sheet)


# --- persons ---


def first_inputs(shard):
    """The first input of each person's rows."""
    return [rows[there].tolist() for rows, there in zip(shard.inputs[:, :, 0], ~missing(shard.targets), strict=True)]


def test_a_record_is_a_person_with_at_most_so_many_rows(tmp_path):
    file = tmp_path / "visits.csv"
    file.write_text("who,it,ill\n01,1,no\n1,2,yes\n01,3,yes\n,4,no\n01,5,no\n,6,yes\n1,x,no\n7,x,yes\n")
    how = {"target": "ill", "classes": ["no", "yes"], "features": ["it"]}
    with collecting_sheets() as sheets:
        shard = fp.load_table(file, person="who", rows_per_person=2, **how)
    assert first_inputs(shard)[:4] == [[1, 3], [2], [4], [6]] and shard.rows == 2
    assert shard.null.tolist() == [False] * 4 + [True]  # 01, 1, nobody, nobody, 7
    assert sheets[0].persons == 5 and not sheets[0].identifiers
    with pytest.raises(TableError, match="person is 'who' and rows_per_person None; give both, or neither"):
        fp.load_table(file, person="who", **how)
    with pytest.raises(TableError, match="has no column 'patient'; it has who, it, ill"):
        fp.load_table(file, person="patient", rows_per_person=2, **how)


@pytest.mark.parametrize("split", [fp.Evenly(3), fp.ByDirichlet(0.8, 3)], ids=str)
def test_a_split_keeps_a_person_s_rows_together(split, tmp_path):
    rng, file = np.random.default_rng(0), tmp_path / "visits.csv"
    owners = rng.integers(0, 60, 200)
    file.write_text("\n".join(["who,it,ill", *(f"p{who},{who},{'yes' if who % 2 else 'no'}" for who in owners)]))
    named = {"target": "ill", "classes": ["no", "yes"]}
    found, seen = [], 0
    for part in range(4):
        how = {**named, "split": split, "source": fp.ShardSource(partition_id=part, num_partitions=4), "person": "who"}
        shard = fp.load_table(file, features=["it"], rows_per_person=200, **how)
        found.append({int(who) for who in shard.inputs[:, 0, 0]})
        assert len(found[-1]) == len(shard)
        rows = fp.read_table(file, **how)
        assert {int(who) for who in rows.numbers("it")} == found[-1]
        seen += len(rows)
    assert sum(map(len, found)) == len(set.union(*found)) == len(set(owners.tolist())) and seen == 200


def test_at_two_hospitals_a_person_is_at_two_clients(tmp_path):
    file = tmp_path / "visits.csv"
    file.write_text("who,site,it,ill\np,1,1,no\nq,01,2,yes\np,01,3,yes\np,1,4,no\n")
    how = {"target": "ill", "classes": ["no", "yes"], "features": ["it"], "person": "who", "rows_per_person": 2}
    sources = [fp.ShardSource(partition_id=n, num_partitions=2) for n in (0, 1)]
    how["split"] = fp.ByColumn("site", ["1", "01"])
    shards = [first_inputs(fp.load_table(file, source=source, **how)) for source in sources]
    assert shards == [[[1, 4]], [[2], [3]]]


def test_a_column_that_looks_like_a_person_is_pointed_out(tmp_path):
    rng, file = np.random.default_rng(0), tmp_path / "visits.csv"
    columns = {
        "patient": [f"A{who:05}" for who in rng.integers(0, 150, 280)],
        "visit": [f"V{n:05}" for n in range(280)],  # unique: no person's
        "age": rng.integers(18, 95, 280),
        "weight": rng.normal(70, 10, 280).round(1),
        "day": [f"2020-01-{day:02}" for day in rng.integers(1, 32, 280)],
        "ill": rng.integers(0, 2, 280),
    }
    file.write_text(
        "\n".join([",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))])
    )
    with collecting_sheets() as sheets:
        fp.load_table(file, target="ill", classes=[0, 1], features=["age"])
    assert sheets[0].identifiers == ("patient",) and "patient looks like a person's identifier" in sheets[0].lines[-1]


# --- files ---


def test_a_table_for_questions_is_read_by_the_same_declarations(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text('it;sex\n70,5;F\n?;f\n"1_0";M\n1.5;x\n')
    table = fp.read_table(file, delimiter=";", decimal=",", fold_case=True, missing=("?", "x"))
    assert np.array_equal(table.numbers("it"), [70.5, np.nan, np.nan, np.nan], equal_nan=True)
    assert table.codes("sex", ["f", "m"]).tolist() == [0, 0, 1, -1] and table.empty("sex").tolist()[-1]
    assert table.empty("it").tolist() == [False, True, False, False] and table.texts("it")[1] == ""
    for column in (np.array([70, -9]), np.array([70.0, -9.0]), [70, -9.0]):
        marked = fp.Table({"it": column}, missing=("-9", "-9.0"))
        assert marked.empty("it").tolist() == np.isnan(marked.numbers("it")).tolist() == [False, True]
    with pytest.raises(TableError, match=re.escape("levels 'f' and 'F' are the same")):
        table.codes("sex", ["f", "F"])


@pytest.mark.exhaustive
def test_a_dirichlet_split_is_drawn_once_and_says_who_gets_nothing(tmp_path, caplog):
    file = tmp_path / "people.csv"
    file.write_text("it,ill\n" + "".join(f"{n},{n % 3}\n" for n in range(120)))
    how = {"target": "ill", "classes": [0, 1, 2], "split": fp.ByDirichlet(0.01, seed=5)}
    sizes = [
        len(fp.load_table(file, source=fp.ShardSource(partition_id=part, num_partitions=100), **how))
        for part in range(100)
    ]
    assert sum(sizes) == 120 and sizes.count(0) > 50
    (said,) = [record.getMessage() for record in caplog.records if "have no record" in record.getMessage()]
    assert said.startswith(
        f"{sizes.count(0)} of 100 clients have no record: 120 records are split with Dirichlet alpha 0.01"
    )


def test_a_table_that_changed_is_read_anew_by_the_next_client(tmp_path):
    file, source = tmp_path / "people.csv", fp.ShardSource(partition_id=0, num_partitions=1)
    how = {"target": "ill", "classes": [0, 1], "split": fp.Evenly(1), "source": source}
    for age in (4, 5):
        file.write_text(f"it,ill\n{age},1\n")
        assert fp.load_table(file, **how).inputs.tolist() == [[age]]
    os.utime(file, (1e9, 1e9))
    first, again = (fp.load_table(file, **how) for _ in range(2))
    first.inputs.zero_()
    assert again.inputs.tolist() == [[5]] and fp.load_table(file, **how).inputs.tolist() == [[5]]
    assert fp.load_table(file, decimal=",", features={"it": fp.Number(1)}, **how).inputs.tolist() == [[4]]
    file.write_text("it,ill\n67,1\n")
    os.utime(file, (1e9, 1e9))
    assert fp.load_table(file, **how).inputs.tolist() == [[67]]


def test_the_how_to_reads_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    found = {}
    exec(code, found)
    shard = found["shard"]
    assert shard.inputs.shape == (2, 8, 9) and shard.targets[:, :2].tolist()[0] == [0, 1] and not shard.null.any()
    assert shard.inputs[0, 0].tolist()[3:] == [1, 0, 1, 0, 0, 0] and shard.inputs[1, 0, 1:3].tolist() == [0, 1]
