"""Dates in the forms that people have, periods, and what becomes of documents without a usable date."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import acclimate
from acclimate.base.errors import UserError
from acclimate.labs.periods.dates import NOT_DATED, UNITS, DatedCorpus, Periods, parse_date
from tests.cases import each

DAYS = st.dates(date(1000, 1, 1), date(2999, 12, 31))
DAY, MARCH, YEAR = (date(2019, 3, 1), date(2019, 3, 1)), (date(2019, 3, 1), date(2019, 3, 31)), (date(2019, 1, 1),)
YEAR = (*YEAR, date(2019, 12, 31))


@each(
    ("value", "days"),
    [
        *((value, DAY) for value in ("2019-03-01", " 2019/3/1 ", "2019.03.01", "20190301", "2019-03-01T10:00:00Z")),
        *((value, DAY) for value in ("2019-03-01 23:59:00-08:00", "March 1, 2019", "1 Mar 2019", 1551398400)),
        *((value, DAY) for value in (1551398400.5, "1551398400000", "Fri Mar 01 20:19:24 +0000 2019")),
        *((value, DAY) for value in (datetime(2019, 3, 1, 9, tzinfo=UTC), pandas.Timestamp("2019-03-01 09:00"))),
        *((value, MARCH) for value in ("2019-03", "2019/3", "201903", "Mar 2019")),
        *((value, YEAR) for value in ("2019", 2019, 2019.0, "2019.0")),
        ("2019Q1", (date(2019, 1, 1), date(2019, 3, 31))),
        ("1880s", (date(1880, 1, 1), date(1889, 12, 31))),
        *((value, None) for value in ("03/04/2019", "2019-13", "2019-02-30", "20191301", "n.d.", "", "0000", True)),
        *((value, None) for value in (None, float("nan"), float("inf"), pandas.NaT, [], "1" * 40, "2019-03-01x")),
    ],
)
def test_a_date_is_the_days_that_it_can_mean(value, days):
    assert parse_date(value) == days


@settings(max_examples=40, deadline=None)
@given(day=DAYS, junk=st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.booleans()))
def test_every_form_of_a_day_is_read_and_nothing_fails(day, junk):
    seconds = int(
        (datetime(day.year, day.month, day.day, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    )
    forms = [day.isoformat(), f"{day:%Y}/{day.month}/{day.day}", f"{day.isoformat()}T12:30:00+01:00", f"{day:%Y%m%d}"]
    forms += [str(seconds)] if 10**8 <= seconds < 10**10 else []
    assert {parse_date(form) for form in forms} == {(day, day)}
    assert parse_date(f"{day:%d/%m/%Y}", "%d/%m/%Y") == (day, day)
    parse_date(junk)


@settings(max_examples=40, deadline=None)
@given(day=DAYS, later=st.integers(0, 4000))
def test_periods_are_in_order_and_hold_their_days(day, later):
    after = day + timedelta(days=later)
    for unit in UNITS:
        periods = Periods.parse(unit)
        first, second = (periods.find(parse_date(one)) for one in (day, after))
        assert first <= second and (first == second) == (first.name == second.name)
        between = periods.between([first, second])
        assert between[0] == first and between[-1] == second
        assert len({period.name for period in between}) == len(between) == second.index - first.index + 1
        inside = parse_date(first.name)  # the name of a period is a date that means all of it
        assert inside.first <= day <= inside.last and periods.find(inside) == first


def test_cuts_leave_nothing_out():
    periods = Periods.parse("2008, 2016-07")
    found = [periods.find(parse_date(value)).name for value in ("2007-12-31", "2008", "2016-06-30", "2016-07-01")]
    assert found == ["before-2008", "2008-to-2016-07", "2008-to-2016-07", "from-2016-07"]
    assert periods.find(parse_date("2016")) is None  # before or after July


@each(
    ("by", "message"),
    [
        ("yaer", "Did you mean 'year'"),
        ("", "kind of period"),
        ("2016,2008", "must ascend"),
        ("2008,2008", "must ascend"),
        ("2008,soon", "'soon' is not a date"),
    ],
)
def test_periods_that_cannot_be_read_are_refused(by, message):
    with pytest.raises(UserError, match=message):
        Periods.parse(by)


def rows():
    dated = [("a", "2010-05-01"), ("b", "2010"), ("c", "2012-01-01"), ("a", "2013-01-01"), ("d", "2012-02-02")]
    return [{"text": f"text {name}", "date": day} for name, day in dated] + [
        {"text": "text e", "date": "soon"},
        {"text": "text f", "date": ""},
        {"text": "", "date": "2010-01-01"},
    ]


@each("form", ["memory", "jsonl", "csv", "parquet"])
def test_documents_without_a_usable_date_are_counted_and_named(form, tmp_path):
    source = pandas.DataFrame(rows())
    if form != "memory":
        write = {"csv": "to_csv", "parquet": "to_parquet"}.get(form, "to_json")
        more = {"orient": "records", "lines": True} if form == "jsonl" else {"index": False}
        getattr(source, write)(tmp_path / f"dated.{form}", **more)
        source = tmp_path / f"dated.{form}"
    dated = DatedCorpus(source, Periods.parse("month"))
    assert [(document.text, document.period.name) for document in dated] == [
        *(("text a", "2010-05"), ("text c", "2012-01"), ("text d", "2012-02")),
    ]
    assert dated.report.undated == dict.fromkeys(NOT_DATED, 1)
    assert (dated.duplicates, dated.textless) == (1, 1)
    said = "\n".join(dated.describe())
    for what in ("1 whose date cannot be read (such as 'soon')", "1 without a date", "less precise", "same text"):
        assert what in said
    assert "Empty periods: 2010-06, 2010-07" in said


def test_rows_of_a_text_with_other_labels_are_kept_and_an_undated_copy_takes_no_place(tmp_path):
    pairs = [{"text": f"text {n // 4}", "text_pair": f"aspect {n % 4}", "label": "ab"[n % 2]} for n in range(16)]
    table = [{**row, "date": f"{2010 + n % 2}-01-01"} for n, row in enumerate(pairs)]
    undated = [{**row, "date": "soon"} for row in pairs]
    report = acclimate.periods_split([*undated, *table, *table[:3]], tmp_path / "years", least=1, progress=False)
    assert [(row["period"], row["documents"]) for row in report["periods"]] == [("2010", 8), ("2011", 8)]
    assert "16 whose date cannot be read" in repr(report) and "3 with the same text" in repr(report)
    dated = DatedCorpus(pandas.DataFrame([*undated, *table]), Periods.parse("year"))
    assert [document.text for document in dated] == ["text 0", "text 1", "text 2", "text 3"]


def test_a_split_keeps_columns_and_leaves_out_small_periods(tmp_path):
    table = [{"body": f"text {n}", "label": "x", "when": 2010 + (n > 4) + (n > 9) * 3} for n in range(11)]
    report = acclimate.periods_split(
        table, tmp_path / "years", text_column="body", date_column="when", least=5, progress=False
    )
    assert [(row["period"], row["documents"]) for row in report["periods"]] == [("2010", 5), ("2011", 5)]
    assert report["left_out"] == {"2014": 1}
    assert "left out for too few documents: 2014 (1)" in repr(report) and "Empty periods: 2012, 2013" in repr(report)
    written = [json.loads(line) for line in (tmp_path / "years" / "2011.jsonl").read_text().splitlines()]
    assert written == [{"text": f"text {n}", "label": "x", "when": 2011} for n in range(5, 10)]
    acclimate.periods_split(table, tmp_path / "years", text_column="body", date_column="when", progress=False, least=1)
    assert sorted(path.stem for path in (tmp_path / "years").glob("*.jsonl")) == ["2010", "2011", "2014"]


@each(
    ("table", "options", "message"),
    [
        ([{"text": "a b", "n": 1}], {}, "no column of dates"),
        ([{"text": "a b", "created": 2010, "updated": 1, "year": 3}], {}, "several columns"),
        ([{"text": "a b", "date": 2010}], {"date_column": "dat"}, "Did you mean 'date'"),
        ([{"text": "a b", "date": "soon"}], {}, "1 whose date cannot be read .such as 'soon'"),
        (
            [{"text": "a b", "date": 2010}],
            {"least": 2},
            "1 period of at least 2 documents is needed, but there are 0 .2010: 1",
        ),
        ([{"text": "a b", "date": "03/04/2019"}], {}, "Give their format with --date-format"),
        ([{"text": "a b", "date": "2019"}], {"by": "month"}, "Choose longer periods with --by"),
        ([{"text": "a b", "date": ""}], {}, "Name the column of the dates"),
        ([{"text": "a b", "date": "03/04/2019"}], {"date_format": "%d/%m"}, "has no year"),
        ([{"text": "a b", "date": "03/04/2019"}], {"date_format": "%Q"}, "is not a format of dates"),
        ([{"body": "a b", "date": 2010}], {"text_column": "bdy"}, "no column 'bdy'"),
        (["a text", "another text"], {}, "without columns, so without dates"),
    ],
)
def test_a_split_that_is_not_possible_is_one_line(table, options, message, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        acclimate.periods_split(table, tmp_path / "out", **{"least": 1, "progress": False, **options})
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_a_split_does_not_replace_what_another_command_wrote(tmp_path):
    (tmp_path / "periods.json").write_text('{"command": "gap"}')
    with pytest.raises(UserError, match="another command of periods"):
        acclimate.periods_split(rows(), tmp_path, least=1, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["periods.json"]
