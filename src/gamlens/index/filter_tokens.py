"""Filters as text: how one is cut into tokens, and the error that shows which part of it is wrong.

`where.py` has the grammar and turns the tokens into SQL.
"""

import re
import unicodedata
from dataclasses import dataclass

from gamlens.errors import GamlensError, printable

LONGEST_FILTER = 10_000  # characters
FILTER_EXAMPLE = "price < 100 and colour in ('red', 'blue')"
KEYWORDS = frozenset({"and", "or", "not", "in", "like", "between", "is", "null", "true", "false"})
FILTER_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
FILTER_SIGN = re.compile(r"==|!=|<>|<=|>=|[=<>(),]")
SHOWN_BESIDE = 60  # characters of a long filter that an error shows on either side of the wrong place


@dataclass(frozen=True)
class FilterToken:
    """A piece of a filter: its kind ("word", "column", "text", "number", "sign", "end"), its content, and its place.

    The content of a quoted column or text is without its quotes.
    """

    kind: str
    content: str
    start: int

    def is_word(self, *keywords: str) -> bool:
        return self.kind == "word" and self.content.lower() in keywords

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.content in signs

    @property
    def described(self) -> str:
        return "the end" if self.kind == "end" else f"{self.kind} {printable(self.content)[:40]!r}"


def filter_tokens(expression: str) -> list[FilterToken]:
    """Cut a filter into tokens; the last one is always "end"."""
    if not expression.strip():
        raise GamlensError(f"The filter is empty: leave it out, or write a condition, such as {FILTER_EXAMPLE}.")
    _check_characters(expression)
    tokens, at = [], 0
    while at < len(expression):
        if expression[at].isspace():
            at += 1
            continue
        token, at = _token_at(expression, at)
        tokens.append(token)
    return [*tokens, FilterToken("end", "", len(expression))]


def as_written(column: str) -> str:
    """A column as a filter names it: in double quotes if it is no plain word.

    >>> as_written("price"), as_written("shop name"), as_written("in"), as_written("2")
    ('price', '"shop name"', '"in"', '"2"')
    """
    plain = bool(column) and _word_end(column, 0) == len(column) and not FILTER_NUMBER.fullmatch(column)
    return column if plain and column.lower() not in KEYWORDS else '"' + column.replace('"', '""') + '"'


def _check_characters(expression: str) -> None:
    if len(expression) > LONGEST_FILTER:
        raise GamlensError(f"A filter has at most {LONGEST_FILTER} characters; found {len(expression)}.")
    for at, char in enumerate(expression):
        if char == "\0" or unicodedata.category(char) == "Cs":  # SQLite can neither hold nor compare these
            raise filter_error(expression, at, f"the character {char!r} cannot be part of a filter")


def _token_at(expression: str, at: int) -> tuple[FilterToken, int]:
    """The token that begins at a character that is not a space, and where it ends."""
    char = expression[at]
    if char in "'\"":
        content, end = _quoted(expression, at)
        return FilterToken("text" if char == "'" else "column", content, at), end
    number = FILTER_NUMBER.match(expression, at)
    end = _word_end(expression, at)
    if number and number.end() >= end:  # otherwise it is a word that begins with digits, such as 2nd or 2024-05-01
        return FilterToken("number", number.group(), at), number.end()
    if end > at:
        return FilterToken("word", expression[at:end], at), end
    if sign := FILTER_SIGN.match(expression, at):
        return FilterToken("sign", sign.group(), at), sign.end()
    hint = "; use the straight quotes ' and \"" if unicodedata.category(char) in ("Pi", "Pf") else ""
    raise filter_error(expression, at, f"the character {char!r} has no meaning outside of quotes{hint}")


def _quoted(expression: str, at: int) -> tuple[str, int]:
    """The content of the quoted piece that begins at `at`, and where the piece ends."""
    quote, parts, end = expression[at], [], at
    while True:
        start = end + 1
        end = expression.find(quote, start)
        if end < 0:
            raise filter_error(
                expression, at, f"the quote {quote} that begins here has no end; inside, write {quote} twice"
            )
        parts.append(expression[start:end])
        if expression[end + 1 : end + 2] != quote:
            return quote.join(parts), end + 1
        end += 1


def _word_end(expression: str, at: int) -> int:
    while at < len(expression) and _in_word(expression[at]):
        at += 1
    return at


def _in_word(char: str) -> bool:
    """Marks (category M) belong to words, since a letter with an accent may be stored as two characters."""
    return char.isalnum() or char in "_.-" or unicodedata.category(char).startswith("M")


def filter_error(expression: str, at: int, what: str) -> GamlensError:
    """The error that shows the filter with a caret under the character number `at`."""
    start = max(0, at - SHOWN_BESIDE)
    before, after = _one_line(expression[start:at]), _one_line(expression[at : at + SHOWN_BESIDE])
    if start:
        before = "..." + before
    if at + SHOWN_BESIDE < len(expression):
        after += "..."
    caret = " " * sum(_width(char) for char in before) + "^"
    stop = "" if what.endswith((".", "?")) else "."
    return GamlensError(
        f"Cannot read this filter: {what}{stop}\n  {before}{after}\n  {caret}\nAn example: {FILTER_EXAMPLE}"
    )


def _one_line(text: str) -> str:
    """The text with one space in place of each line break and each other character that cannot be shown."""
    return "".join(char if char.isprintable() else " " for char in text)


def _width(char: str) -> int:
    """How many places of a terminal a character takes."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
