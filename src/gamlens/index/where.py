"""The filter language: a condition on columns, such as `price < 100 and color = 'red'`, turned into SQL.

    disjunction = conjunction { "or" conjunction }
    conjunction = single { "and" single }
    single      = "not" single | "(" disjunction ")" | comparison
    comparison  = column ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
                | column [ "not" ] "in" "(" value { "," value } ")"
                | column [ "not" ] "like" text
                | column [ "not" ] "between" value "and" value
                | column "is" [ "not" ] "null"
    column      = word | '"' any characters, a " written twice '"'
    value       = number | text | "true" | "false"
    text        = "'" any characters, a ' written twice "'"

A word consists of letters of any script, digits, and _ . - characters. Keywords are read in any case. No piece of the
user's text is copied into SQL: operators come from a table, columns from the list of known columns, and values are
parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gamlens.errors import GamlensError, near, printable
from gamlens.index.filter_tokens import KEYWORDS, FilterToken, as_written, filter_error, filter_tokens

DEEPEST_FILTER = 10  # parentheses and nots inside one another; SQLite's parser overflows at 13 of the worst kind
MOST_VALUES = 900  # SQLite allows 999 parameters (before 3.32), and 1000 terms in a row
SQL_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
INSTEAD_OF_NULL = {"=": "write 'is null'", "!=": "write 'is not null'"}

FilterValue = str | int | float


@dataclass(frozen=True)
class SqlFilter:
    """A condition in SQL.

    Attributes:
        text: The condition, in parentheses, with a ? for each value and column names in double quotes. It may follow
            WHERE or AND. Where a column that it compares is NULL, it may be neither true nor false, but NULL.
        values: The values, in the order of the question marks.
        columns: The columns that it reads, in the order in which they first appear.
        pairs: Each column with a value that it is compared with, for a check of their types; patterns left out.
    """

    text: str
    values: tuple[FilterValue, ...]
    columns: tuple[str, ...]
    pairs: tuple[tuple[str, FilterValue], ...] = field(default=(), compare=False, repr=False)


def parse_filter(expression: str, columns: Sequence[str]) -> SqlFilter:
    """Turn a filter into SQL for SQLite.

    A comparison with a column that has no value for an image (NULL) is not true, nor is its `not`: `color != 'red'`
    does not find images without a color. `is null` finds them.

    Values are compared by the rules of SQLite, which depend on the type with which the table declares the column. In a
    column of numbers, text that reads as a number is compared as this number, and any other text is greater than all
    numbers. In a column of text, a number is compared as its text: `code = 7` finds '7', not '07', and `code < 10` does
    not find '9'. In a column without a type, a number never equals a text, and is less than all of them. `true` and
    `false` are the numbers 1 and 0. Text is compared character by character, upper case before lower case.

    In the pattern of `like`, % stands for any characters and _ for a single one. `like` does not distinguish upper and
    lower case of the letters A to Z, but does so for all others.

    Args:
        expression: The filter; the docstring of this module has the grammar.
        columns: The columns that it may name. Their case matters.

    >>> parse_filter("price < 100 and not (color = 'red' or color is null)", ["color", "price"])
    ... # doctest: +NORMALIZE_WHITESPACE
    SqlFilter(text='("price" < ? AND NOT ("color" = ? OR "color" IS NULL))',
              values=(100, 'red'), columns=('price', 'color'))
    """
    return FilterReader(expression, columns).whole()


class FilterReader:
    """Reads one filter by recursive descent: each method reads one rule of the grammar and returns its SQL."""

    def __init__(self, expression: str, columns: Sequence[str]) -> None:
        self.expression, self.known = expression, tuple(columns)
        self.tokens, self.at, self.depth = filter_tokens(expression), 0, 0
        self.values: list[FilterValue] = []
        self.used: list[str] = []
        self.pairs: list[tuple[str, FilterValue]] = []
        self.terms = 0

    def whole(self) -> SqlFilter:
        text = self.disjunction()
        if self.token.kind != "end":
            raise self.wrong(f"expected 'and', 'or' or the end, found {self.token.described}")
        columns = tuple(dict.fromkeys(self.used))
        return SqlFilter(text=f"({text})", values=tuple(self.values), columns=columns, pairs=tuple(self.pairs))

    @property
    def token(self) -> FilterToken:
        return self.tokens[self.at]

    def take(self) -> FilterToken:
        token = self.token
        self.at += token.kind != "end"
        return token

    def wrong(self, what: str, place: FilterToken | None = None) -> GamlensError:
        return filter_error(self.expression, (place or self.token).start, what)

    def disjunction(self) -> str:
        parts = [self.conjunction()]
        while self.token.is_word("or"):
            self.take()
            parts.append(self.conjunction())
        return " OR ".join(parts)

    def conjunction(self) -> str:
        parts = [self.single()]
        while self.token.is_word("and"):
            self.take()
            parts.append(self.single())
        return " AND ".join(parts)

    def single(self) -> str:
        if not (self.token.is_word("not") or self.token.is_sign("(")):
            return self.comparison()
        if self.depth == DEEPEST_FILTER:
            raise self.wrong(f"more than {DEEPEST_FILTER} parentheses and nots are inside one another")
        self.depth += 1
        if self.take().content == "(":
            text = f"({self.disjunction()})"
            self.sign(")")
        else:
            text = f"NOT {self.single()}"
        self.depth -= 1
        return text

    def comparison(self) -> str:
        column = self.column()
        operator = self.take()
        if operator.is_sign(*SQL_OPERATORS):
            return f"{column} {SQL_OPERATORS[operator.content]} {self.compared(operator)}"
        if operator.is_word("is"):
            return f"{column} {self.null()}"
        negation = ""
        if operator.is_word("not"):
            negation, operator = "NOT ", self.take()
        if operator.is_word("in"):
            return f"{column} {negation}IN ({self.listed()})"
        if operator.is_word("like"):
            return f"{column} {negation}LIKE {self.pattern()}"
        if operator.is_word("between"):
            low = self.value()
            if not self.take_word("and"):
                raise self.wrong(f"expected the 'and' of 'between ... and ...', found {self.token.described}")
            return f"{column} {negation}BETWEEN {low} AND {self.value()}"
        expected = "'in', 'like' or 'between'" if negation else "a comparison such as = or <"
        raise self.wrong(f"expected {expected}, found {operator.described}", operator)

    def column(self) -> str:
        """The column as an SQL identifier. It is one of the known columns, letter by letter."""
        token = self.take()
        if token.kind == "text":
            raise self.wrong(
                "expected a column, found text (columns are written without quotes, or in double ones)", token
            )
        if token.kind not in ("word", "column") or token.is_word(*KEYWORDS):
            hint = " (write a column of this name in double quotes)" if token.content in self.known else ""
            raise self.wrong(f"expected a column, found {token.described}{hint}", token)
        if token.content not in self.known:
            others = near(token.content, (printable(as_written(column)) for column in self.known))
            raise self.wrong(f"there is no column {printable(token.content)[:80]!r}: {others}", token)
        self.used.append(token.content)
        return '"' + token.content.replace('"', '""') + '"'

    def compared(self, operator: FilterToken) -> str:
        """The value after an operator such as =."""
        if not self.token.is_word("null"):
            return self.value()
        instead = INSTEAD_OF_NULL.get(SQL_OPERATORS[operator.content], "leave this comparison out")
        raise self.wrong(f"a comparison with null is never true; {instead}", operator)

    def null(self) -> str:
        """What follows `is`."""
        negation = "NOT " if self.take_word("not") else ""
        if not self.take_word("null"):
            raise self.wrong(f"expected 'null' or 'not null' after 'is', found {self.token.described}")
        self.count_term(self.token)
        return f"IS {negation}NULL"

    def listed(self) -> str:
        """What follows `in`."""
        self.sign("(")
        marks = [self.value()]
        while self.token.is_sign(","):
            self.take()
            marks.append(self.value())
        self.sign(")")
        return ", ".join(marks)

    def pattern(self) -> str:
        if self.token.kind != "text":
            raise self.wrong(f"expected a pattern such as 'red%' in single quotes, found {self.token.described}")
        return self.value(pattern=True)

    def value(self, *, pattern: bool = False) -> str:
        """Keep one value as a parameter and return its question mark."""
        token = self.take()
        if token.kind == "text":
            value: FilterValue = token.content
        elif token.kind == "number":
            value = _number(token.content)
        elif token.is_word("true", "false"):
            value = int(token.is_word("true"))
        else:
            raise self.wrong(_not_a_value(token), token)
        self.count_term(token)
        self.values.append(value)
        self.pairs += [] if pattern else [(self.used[-1], value)]
        return "?"

    def sign(self, wanted: str) -> None:
        if not self.token.is_sign(wanted):
            raise self.wrong(f"expected '{wanted}', found {self.token.described}")
        self.take()

    def take_word(self, wanted: str) -> bool:
        found = self.token.is_word(wanted)
        self.at += found
        return found

    def count_term(self, token: FilterToken) -> None:
        self.terms += 1
        if self.terms > MOST_VALUES:
            raise self.wrong(f"there are more than {MOST_VALUES} values", token)


def _number(content: str) -> int | float:
    """An integer beyond 64 bits becomes a float, as in SQLite, whose integers have 64 bits."""
    if len(content) <= 20 and content.lstrip("+-").isdecimal():
        value = int(content)
        if -(2**63) <= value < 2**63:
            return value
    return float(content)


def _not_a_value(token: FilterToken) -> str:
    expected = "expected a number, or text in single quotes"
    if token.is_word("null"):
        return f"{expected}; null is only found by 'is null' and 'is not null'"
    if token.kind in ("word", "column") and not token.is_word(*KEYWORDS):
        text = "'" + printable(token.content)[:80].replace("'", "''") + "'"
        return f"{expected}, found a name (columns are not compared with each other); if it is text, write {text}"
    return f"{expected}, found {token.described}"
