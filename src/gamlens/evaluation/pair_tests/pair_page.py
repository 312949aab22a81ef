"""The page and the files of the tests of pairs: tables with their explanations, and pictures of some cases."""

from __future__ import annotations

from pathlib import Path

from gamlens import render
from gamlens._version import __version__
from gamlens.evaluation.pair_tests import pair_texts as texts
from gamlens.evaluation.pair_tests.pair_numbers import PairResults
from gamlens.evaluation.pair_tests.pair_pictures import CasePictures
from gamlens.evaluation.table_files import TextTable, write_files
from gamlens.render import Block, Heading, Page, Section, Table, Text

PAIRS_PAGE = "index.html"
ERRORS_SHOWN = 50


def pairs_page(results: PairResults, pictures: CasePictures) -> Page:
    """Make the page: one section per test, times, and what was run."""
    about = results.about
    sections = [_section(results, test, pictures) for test in results.tests()]
    sections.append(Section("Time", (_table(texts.time_table(results)),), texts.time_words(results)))
    if results.errors:
        lines = tuple((row["case"], row["error"]) for row in results.errors[:ERRORS_SHOWN])
        sections.append(Section("Errors", (Table(("case", "error"), lines),)))
    sections.append(Section("How it was measured", tuple(_protocol(results))))
    lead = f"{about['model']}, {about['data']}, {results.plan.task}. " + " ".join(texts.notes(results))
    footer = f"Made by gamlens {__version__} (`gamlens evaluate pairs`)."
    return Page("Tests of explanations of pairs", lead, tuple(sections), footer)


def write_pairs(folder: Path, results: PairResults, pictures: CasePictures) -> list[Path]:
    """Write the page, and the tables as Markdown, CSV and JSON: all of them, or none if one cannot be written."""
    contents = {
        PAIRS_PAGE: render.html(pairs_page(results, pictures)),
        "pairs.md": texts.pairs_markdown(results),
        "pairs.csv": texts.pairs_csv(results),
        "pairs.json": texts.pairs_json(results),
    }
    return write_files(folder, contents, {})


def _section(results: PairResults, test: str, pictures: CasePictures) -> Section:
    (_, first), *others = texts.tables_of_test(results, test).items()
    blocks: list[Block] = [_table(first)]
    if shown := pictures.blocks.get(test):
        blocks += [Text("**Some cases.** The numbers below a picture are those of this case."), *shown]
    for title, table in others:
        blocks += [Heading(title), _table(table)]
    return Section(texts.title_of_test(results, test), tuple(blocks), texts.said_of(test, results.plan))


def _protocol(results: PairResults) -> list[Block]:
    """The settings of the run as a table."""
    about, plan = results.about, results.about["protocol"]
    known = {name: about.get(name) for name in ("model", "weights", "embedding", "device", "data", "fingerprint")}
    lines = [(name, _words(value)) for name, value in {**known, **plan, "cases": dict(results.cases)}.items()]
    words = "The cases, drawn by the seed, are listed in `cases.json`; the values of every case are in `parts/`."
    return [Table(("setting", "value"), tuple(lines)), Text(words)]


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number} {name}" for name, number in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _table(table: TextTable) -> Table:
    header, lines = table
    return Table(header, tuple(lines), pinned=True)
