"""The filter language: its grammar, its errors, and its SQL on real tables against a twin in Python."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gamlens.errors import GamlensError
from gamlens.index.filter_tokens import LONGEST_FILTER
from gamlens.index.where import DEEPEST_FILTER, MOST_VALUES, SqlFilter, parse_filter

COLUMNS = ("price", "stock", "color", "any", "größe", "image-size.w", 'say "hi"', "in", "2nd")
TYPES = ("REAL", "INTEGER", "TEXT", "", "TEXT", "INTEGER", "TEXT", "INTEGER", "INTEGER")
ROWS: list[tuple[Any, ...]] = [
    (5.0, 1, "red", 5, "groß", 10, "x", 1, 1),
    (7.5, 2, "Red", "5", "klein", 20, "y", 2, 2),
    (10.0, None, "blue", 7.5, None, 30, "x", 3, 3),
    (None, 10, "10%_off", None, "Groß", None, None, None, None),
    (-3.0, 0, "9", "red", "", -1, "it's", 0, 0),
    (100.0, 2**62, "10", "", "大きい", 5, "'; DROP TABLE images; --", 5, 5),
    (0.0, -4, None, 0, "n\u0303", 0, '"', 0, 0),
    (5.0, 5, "5", "9", "ROT", 7, "a\nb", 7, 7),
]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def new_table() -> sqlite3.Connection:
    table = sqlite3.connect(":memory:")
    table.execute(f"CREATE TABLE images ({', '.join(f'{quoted(n)} {t}' for n, t in zip(COLUMNS, TYPES, strict=True))})")
    table.executemany(f"INSERT INTO images VALUES ({', '.join('?' * len(COLUMNS))})", ROWS)
    table.commit()
    return table


@pytest.fixture(scope="module")
def table() -> Iterator[sqlite3.Connection]:
    connection = new_table()
    yield connection
    connection.close()


def found(table: sqlite3.Connection, expression: str) -> list[int]:
    """The numbers of the rows that a filter finds."""
    return found_by(table, parse_filter(expression, COLUMNS))


def found_by(table: sqlite3.Connection, where: SqlFilter) -> list[int]:
    query = f"SELECT rowid FROM images WHERE {where.text} ORDER BY rowid"
    return [number - 1 for (number,) in table.execute(query, where.values)]


@pytest.mark.parametrize(
    ("expression", "text", "values", "columns"),
    [
        ("price<5", '("price" < ?)', (5,), ("price",)),
        ("price == -.5e1", '("price" = ?)', (-5.0,), ("price",)),
        ("price<>+3", '("price" != ?)', (3,), ("price",)),
        ("color = 'it''s'", '("color" = ?)', ("it's",), ("color",)),
        ("color = ''", '("color" = ?)', ("",), ("color",)),
        ("color = ''''", '("color" = ?)', ("'",), ("color",)),
        ("stock = TRUE or stock=False", '("stock" = ? OR "stock" = ?)', (1, 0), ("stock",)),
        ("größe like 'g%'", '("größe" LIKE ?)', ("g%",), ("größe",)),
        ("image-size.w not in (1,2.0,'x')", '("image-size.w" NOT IN (?, ?, ?))', (1, 2.0, "x"), ("image-size.w",)),
        ('"say ""hi""" IS not NULL', '("say ""hi""" IS NOT NULL)', (), ('say "hi"',)),
        ('"in" in (1)', '("in" IN (?))', (1,), ("in",)),
        ("2nd=2", '("2nd" = ?)', (2,), ("2nd",)),
        (
            "price between 1 and 2 and stock not BETWEEN 3 and 4",
            '("price" BETWEEN ? AND ? AND "stock" NOT BETWEEN ? AND ?)',
            (1, 2, 3, 4),
            ("price", "stock"),
        ),
        (
            "\n not (stock=1 or color not like 'a')\tAnd price >= 2 OR stock <= 3",
            '(NOT ("stock" = ? OR "color" NOT LIKE ?) AND "price" >= ? OR "stock" <= ?)',
            (1, "a", 2, 3),
            ("stock", "color", "price"),
        ),
        ("stock = 9223372036854775807", '("stock" = ?)', (2**63 - 1,), ("stock",)),
        ("stock = -9223372036854775808", '("stock" = ?)', (-(2**63),), ("stock",)),
        ("stock = 9223372036854775808", '("stock" = ?)', (2.0**63,), ("stock",)),
        ("stock = 1e999", '("stock" = ?)', (float("inf"),), ("stock",)),
    ],
)
def test_the_sql_of_a_filter(expression: str, text: str, values: tuple[Any, ...], columns: tuple[str, ...]) -> None:
    where = parse_filter(expression, COLUMNS)
    assert where == SqlFilter(text=text, values=values, columns=columns)
    assert [type(value) for value in where.values] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("price < 7.5", [0, 4, 6, 7]),
        ("price = 5", [0, 7]),
        ("price != 5", [1, 2, 4, 5, 6]),  # row 3 has no price
        ("not price = 5", [1, 2, 4, 5, 6]),
        ("not price = 5 or price is null", [1, 2, 3, 4, 5, 6]),
        ("color is not null and price is null", [3]),
        ("color like 'RED'", [0, 1]),
        ("color = 'red'", [0]),
        ("größe like 'GROSS' or größe like 'gro_'", [0, 3]),
        ("größe like 'ÑN'", []),
        ("color like '10%'", [3, 5]),
        ("color like '1_'", [5]),
        ("color not like '%e%'", [3, 4, 5, 7]),
        ("price in (5, 10, 'red')", [0, 2, 7]),
        ("price not in (5, 10)", [1, 4, 5, 6]),
        ("price between 5 and 10", [0, 1, 2, 7]),
        ("price not between 0 and 10", [4, 5]),
        ("stock = true or stock = false", [0, 4]),
        ("price = 5 or price = 10 and stock = 5", [0, 7]),  # and binds more tightly
        ("(price = 5 or price = 10) and stock = 5", [7]),
        ("not price = 5 and stock = 5", []),  # not binds most tightly
        ("not (price = 5 and stock = 5)", [0, 1, 2, 3, 4, 5, 6]),  # the stock of row 3 decides
        ("größe = '大きい'", [5]),
        ('"say ""hi""" = \'\'\'; DROP TABLE images; --\'', [5]),
        ('"say ""hi""" = \'a\nb\'', [7]),
        ("stock = 4611686018427387904", [5]),
        ("stock < 1e999", [0, 1, 3, 4, 5, 6, 7]),
    ],
)
def test_rows_that_a_filter_finds(table: sqlite3.Connection, expression: str, rows: list[int]) -> None:
    assert found(table, expression) == rows


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("price = '5.0'", [0, 7]),  # a column of numbers: the text is read as a number
        ("price < 'red'", [0, 1, 2, 4, 5, 6, 7]),  # and other text is greater than all numbers
        ("color = 9", [4]),  # a column of text: the number is compared as its text
        ("color = 9.0", []),
        ("color < 9", [3, 5, 7]),  # '10%_off', '10', '5'
        ("any = 5", [0]),  # a column without a type: nothing is converted
        ("any = '5'", [1]),
        ("any < ''", [0, 2, 6]),
        ("any > 1e999", [1, 4, 5, 7]),
    ],
)
def test_numbers_and_text_compare_as_the_docstring_says(
    table: sqlite3.Connection, expression: str, rows: list[int]
) -> None:
    assert found(table, expression) == rows


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("prise < 3", "there is no column 'prise': did you mean 'price'?"),
        ("Price < 3", "there is no column 'Price': did you mean 'price'?"),
        ('"" = 3', "there is no column '': there are 'price', 'stock', 'color', 'any', 'größe' and 4 more."),
        ("rowid = 3", "there is no column 'rowid'"),
        ("price", "expected a comparison such as = or <, found the end"),
        ("price 3", "expected a comparison such as = or <, found number '3'"),
        ("price = ", "expected a number, or text in single quotes, found the end"),
        ("price => 3", "expected a number, or text in single quotes, found sign '>'"),
        ("price = null", "write 'is null'."),
        ("price == NULL", "write 'is null'."),
        ("price != null", "write 'is not null'."),
        ("price <> null", "write 'is not null'."),
        ("price < null", "a comparison with null is never true"),
        ("price in (1, null)", "null is only found by 'is null'"),
        ("price between null and 1", "null is only found by 'is null'"),
        ("price is 3", "expected 'null' or 'not null' after 'is', found number '3'"),
        ("price not 3", "expected 'in', 'like' or 'between', found number '3'"),
        ("price in 3", "expected '(', found number '3'"),
        ("price in ()", "expected a number, or text in single quotes, found sign ')'"),
        ("price in (1,)", "expected a number, or text in single quotes, found sign ')'"),
        ("price in (1 2)", "expected ')', found number '2'"),
        ("price between 1 or 2", "expected the 'and' of 'between ... and ...', found word 'or'"),
        ("color like 3", "expected a pattern such as 'red%' in single quotes, found number '3'"),
        ("color = red", "if it is text, write 'red'."),
        ('color = "it\'s"', "if it is text, write 'it''s'."),
        ("color = price", "columns are not compared with each other"),
        ("color = 2024-05-01", "if it is text, write '2024-05-01'."),
        ("'color' = 3", "expected a column, found text"),
        ("3 < price", "expected a column, found number '3'"),
        ("in = 3", "expected a column, found word 'in' (write a column of this name in double quotes)"),
        ("price = 3)", "expected 'and', 'or' or the end, found sign ')'"),
        ("(price = 3", "expected ')', found the end"),
        ("price = 3 and", "expected a column, found the end"),
        ("price = 3 stock = 2", "expected 'and', 'or' or the end, found word 'stock'"),
        ("color = 'it's'", "the quote ' that begins here has no end; inside, write ' twice"),
        ('"color = 3', 'the quote " that begins here has no end'),
        ("color = ‘red’", "the character '‘' has no meaning outside of quotes; use the straight quotes"),
        ("price = 3; DROP TABLE images", "the character ';' has no meaning"),
        ("price = ?", "the character '?' has no meaning"),
        ("color = 'a\0b'", r"the character '\x00' cannot be part of a filter"),
        ("color = '\ud800'", r"the character '\ud800' cannot be part of a filter"),
    ],
)
def test_errors(expression: str, message: str) -> None:
    with pytest.raises(GamlensError) as error:
        parse_filter(expression, COLUMNS)
    assert message in str(error.value)
    assert str(error.value).endswith("An example: price < 100 and colour in ('red', 'blue')")


@pytest.mark.parametrize("expression", ["", " \n "])
def test_an_empty_filter(expression: str) -> None:
    with pytest.raises(GamlensError, match=r"^The filter is empty: leave it out, or write a condition, such as price"):
        parse_filter(expression, COLUMNS)


def test_an_unknown_column_is_told_with_others_as_they_are_written() -> None:
    with pytest.raises(GamlensError, match=re.escape("""did you mean '"shop name"'?""")):
        parse_filter("shopname = 'x'", ["price", "shop name"])


@pytest.mark.parametrize(
    ("expression", "lines"),
    [
        ("price < 3 und stock = 2", ["  price < 3 und stock = 2", "            ^"]),
        ("price <", ["  price <", "         ^"]),
        ("color\n=\t3 4", ["  color = 3 4", "            ^"]),
        ("größe = '大き' 3", ["  größe = '大き' 3", "                 ^"]),  # 大 takes two places
        ("color = 'n\u0303' 3", ["  color = 'n\u0303' 3", "              ^"]),  # the tilde takes none
        ("price = 3 or " * 20 + "x", ["  ..." + ("price = 3 or " * 20)[-60:] + "x", " " * 65 + "^"]),
        ("x or " + "price = 3 or " * 20, ["  x or " + ("price = 3 or " * 20)[:55] + "...", "  ^"]),
    ],
)
def test_the_caret_stands_under_the_place(expression: str, lines: list[str]) -> None:
    with pytest.raises(GamlensError) as error:
        parse_filter(expression, COLUMNS)
    assert str(error.value).splitlines()[1:3] == lines


def test_without_columns() -> None:
    with pytest.raises(GamlensError, match="there is no column 'price': there are none to choose from"):
        parse_filter("price = 3", ())


def test_an_error_shows_no_control_characters() -> None:
    with pytest.raises(GamlensError) as error:
        parse_filter("\"\x1b[31m\" = '\x1b[31m'", COLUMNS)
    assert "\x1b" not in str(error.value)


def test_limits(table: sqlite3.Connection) -> None:
    """The longest, deepest and widest filters that are read can be run by SQLite, and longer ones are refused."""
    long = f"color = '{'x' * (LONGEST_FILTER - 10)}'"
    assert len(long) == LONGEST_FILTER
    assert found(table, long) == []
    assert found(table, f"color like '{'%x' * 4000}'") == []
    with pytest.raises(GamlensError, match="at most 10000 characters; found 10001"):
        parse_filter(long + " ", COLUMNS)
    for begin, end, most in (
        ("(", ")", DEEPEST_FILTER),
        ("not ", "", DEEPEST_FILTER),
        ("not (", ")", DEEPEST_FILTER // 2),
    ):
        for side in ("", "price = 5 or stock = 2 and ", "price = 5 and "):
            found(table, (side + begin) * most + "price = 5 or color in ('a', 'b')" + end * most)  # SQLite reads it
        with pytest.raises(GamlensError, match=f"more than {DEEPEST_FILTER} parentheses and nots"):
            parse_filter(begin * 1500 + "price = 5", COLUMNS)
    side_by_side = " and ".join(["(stock = 5)"] * (DEEPEST_FILTER + 5))
    assert found(table, side_by_side) == [7]
    for word in ("or", "and"):
        assert found(table, f" {word} ".join(["2nd=5"] * MOST_VALUES)) == [5]
        with pytest.raises(GamlensError, match=f"more than {MOST_VALUES} values"):
            parse_filter(f" {word} ".join(["2nd=5"] * (MOST_VALUES + 1)), COLUMNS)
    assert found(table, f"stock in ({', '.join(['5'] * MOST_VALUES)})") == [7]
    with pytest.raises(GamlensError, match=f"more than {MOST_VALUES} values"):
        parse_filter(f"2nd in ({', '.join(['5'] * (MOST_VALUES + 1))})", COLUMNS)


# a twin in Python: conditions as nested tuples, written as text, and decided row by row


def less(value: Any, other: Any) -> bool:
    """The order of SQLite: numbers, then text by code points."""
    if isinstance(value, str) != isinstance(other, str):
        return isinstance(other, str)
    return bool(value < other)


def as_number(text: Any) -> Any:
    return float(text) if isinstance(text, str) and re.fullmatch(r"\s*[+-]?\d+(\.\d+)?\s*", text) else text


def in_column(kind: str, value: Any) -> Any:
    """A value as SQLite compares it with a column of this type."""
    if kind == "TEXT":
        return value if isinstance(value, str) else str(value)
    return value if kind == "" else as_number(value)


def matches(pattern: str, value: Any) -> bool:
    parts = {"%": ".*", "_": "."}
    folded = "".join(parts.get(char) or re.escape(char) for char in lower_ascii(pattern))
    return re.fullmatch(folded, lower_ascii(str(value)), re.DOTALL) is not None


def lower_ascii(text: str) -> str:
    return "".join(char.lower() if char.isascii() else char for char in text)


def decide(condition: tuple[Any, ...], row: dict[str, Any]) -> bool | None:
    """True, False, or None for unknown."""
    operator, *parts = condition
    if operator == "not":
        inner = decide(parts[0], row)
        return None if inner is None else not inner
    if operator in ("and", "or"):
        values = [decide(part, row) for part in parts]
        deciding = operator == "or"
        return deciding if deciding in values else None if None in values else not deciding
    name, *others = parts
    value, kind = row[name], TYPES[COLUMNS.index(name)]
    if operator in ("is null", "is not null"):
        return (value is None) == (operator == "is null")
    if value is None:
        return None
    negated, word = operator.startswith("not "), operator.removeprefix("not ")
    if word == "like":
        return matches(others[0], value) != negated
    others = [in_column(kind, other) for other in others]
    return decide_values(word, value, others) != negated


def decide_values(word: str, value: Any, others: list[Any]) -> bool:
    if word == "in":
        return value in others
    if word == "between":
        return not less(value, others[0]) and not less(others[1], value)
    other = others[0]
    return {
        "=": value == other,
        "==": value == other,
        "!=": value != other,
        "<>": value != other,
        "<": less(value, other),
        "<=": not less(other, value),
        ">": less(other, value),
        ">=": not less(value, other),
    }[word]


def literal(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def written(condition: tuple[Any, ...], outer: str = "or") -> str:
    """The condition as a filter, with parentheses only where they are needed."""
    operator, *parts = condition
    if operator in ("and", "or"):
        text = f" {operator} ".join(written(part, operator) for part in parts)
        return f"({text})" if ["or", "and", "not"].index(outer) > ["or", "and"].index(operator) else text
    if operator == "not":
        return f"not {written(parts[0], 'not')}"
    name, *others = parts
    column = name if re.fullmatch(r"[\w.-]+", name) and name != "in" else quoted(name)
    values = [literal(other) for other in others]
    if operator.endswith("in"):
        return f"{column} {operator} ({', '.join(values)})"
    if operator.endswith("between"):
        return f"{column} {operator} {values[0]} and {values[1]}"
    return " ".join([column, operator, *values])


numbers = st.one_of(st.integers(-5, 11), st.sampled_from([7.5, 5.0, -0.5, 2**62]))
texts = st.one_of(
    st.sampled_from(["red", "RED", "5", "10", "5.0", "x", "", "it's", "大きい", "Groß"]), st.text("5r'%_", max_size=3)
)
names = st.sampled_from(COLUMNS)
any_value = st.one_of(numbers, texts)
patterns = st.one_of(texts, st.text("rRedD%_ß5.0", max_size=4))
simple = st.one_of(
    st.tuples(st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="]), names, any_value),
    st.tuples(st.sampled_from(["is null", "is not null"]), names),
    st.tuples(st.sampled_from(["like", "not like"]), names, patterns),
    st.tuples(st.sampled_from(["between", "not between"]), names, any_value, any_value),
    st.tuples(st.sampled_from(["in", "not in"]), names, any_value, any_value, any_value),
)
conditions = st.recursive(
    simple,
    lambda inner: st.one_of(st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(conditions)
def test_filters_decide_as_the_twin_does(table: sqlite3.Connection, condition: tuple[Any, ...]) -> None:
    text = written(condition)
    assume(text.count("(") + text.count("not ") <= DEEPEST_FILTER)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    expected = [number for number, row in enumerate(rows) if decide(condition, row)]
    where = parse_filter(text, COLUMNS)
    assert found_by(table, where) == expected
    negated = SqlFilter(text=f"NOT {where.text}", values=where.values, columns=where.columns)
    unknown = [number for number, row in enumerate(rows) if decide(condition, row) is None]
    assert sorted([*expected, *found_by(table, negated), *unknown]) == list(range(len(ROWS)))


HOSTILE = [
    "'; DROP TABLE images; --",
    "price = 1; DROP TABLE images",
    "price = 1 -- comment",
    "price = 1 /* comment */",
    "1=1",
    "price = price",
    "price = 1 or 1=1",
    'price" = 1 or 1=1 --',
    '"price"" or 1=1 --" = 1',
    "price = (select 1)",
    "price in (select price from images)",
    "price = 1 union select 1",
    "price = load_extension('x')",
    "price = x'00'",
    "price = 0x10",
    "price = 1 collate nocase",
    "price = 1 and exists (select 1)",
    "color glob '*'",
    "color regexp '.*'",
    "[price] = 1",
    "`price` = 1",
    "images.price = 1",
    "price = :name",
    "price = @name",
    "price = ?1",
    "price is price",
    "price isnull",
    "color like 'a' escape 'b'",
    "price = 1 limit 1",
    "-- price = 1",
    "price = 1\0 or 1=1",
    "price = --1",
    "case when 1 then 1 end",
    "price = '1' || '2'",
    "((((((((((((((((((((price = 1))))))))))))))))))))",
]


@pytest.mark.parametrize("expression", HOSTILE)
def test_hostile_filters_are_refused(expression: str) -> None:
    with pytest.raises(GamlensError):
        parse_filter(expression, COLUMNS)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(table: sqlite3.Connection, text: str) -> None:
    text = text.replace("\0", "")
    where = parse_filter(f"color = {literal(text)} or color = 'red'", COLUMNS)
    assert where == SqlFilter(text='("color" = ? OR "color" = ?)', values=(text, "red"), columns=("color",))
    assert found_by(table, where) == [0]


@pytest.mark.parametrize(
    "name", ['x"; DROP TABLE images; --', '"', '""', "a' or '1'='1", "x) or (1=1", "?", " ", "select"]
)
def test_hostile_columns_are_only_columns(name: str) -> None:
    table = sqlite3.connect(":memory:")
    table.execute(f"CREATE TABLE images ({quoted(name)} INTEGER)")
    table.executemany("INSERT INTO images VALUES (?)", [(1,), (2,)])
    where = parse_filter(f"{quoted(name)} = 2", [name])
    assert (where.columns, found_by(table, where)) == ((name,), [1])
    table.close()


pieces = st.sampled_from(
    [
        *"()=<>!,'\"%_-.;?",
        *HOSTILE,
        *COLUMNS[:6],
        *["and", "or", "not", "in", "like", "between", "is", "null", "true", "false", "5", "'x'", "-1e3", "1e"],
    ]
)
anything = st.one_of(
    st.text(max_size=60),
    st.lists(pieces, max_size=12).map(" ".join),
    st.lists(st.one_of(pieces, st.characters()), max_size=12).map("".join),
    conditions.map(written),
)


@settings(max_examples=600, deadline=None)
@given(anything)
def test_any_text_is_refused_or_a_harmless_filter(table: sqlite3.Connection, expression: str) -> None:
    try:
        where = parse_filter(expression, COLUMNS)
    except GamlensError as error:
        str(error).encode()  # can be shown
        return
    outside = re.sub(r'"(?:[^"]|"")*"', "COLUMN", where.text)
    assert re.fullmatch(r"(?:COLUMN|AND|OR|NOT|IN|LIKE|BETWEEN|IS|NULL|!=|<=|>=|[=<>?(), ])+", outside)
    assert outside.count("?") == len(where.values)
    assert set(where.columns) <= set(COLUMNS)
    found_by(table, where)
    assert table.total_changes == len(ROWS)
    assert table.execute("SELECT * FROM images").fetchall() == ROWS
