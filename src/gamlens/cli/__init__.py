"""The command line: parse, one call, show."""

from __future__ import annotations

from typing import Annotated

import typer

from gamlens import __version__
from gamlens.cli import ablate, evaluate, explain, figure, report, sanity, search_command, studio
from gamlens.cli.common import say

app = typer.Typer(
    name="gamlens",
    help="Why does a vision model think so? Saliency for classes and for pairs of images.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        say(f"gamlens {__version__}")
        raise typer.Exit


for part in (explain.app, search_command.app, evaluate.app, figure.app, report.app, ablate.app, studio.app):
    app.registered_commands += part.registered_commands
app.add_typer(sanity.app, name="sanity")
