"""The command line. Every command parses its options, calls the library once and shows the result."""

from typing import Annotated

import typer

from gamlens import __version__
from gamlens.cli import (
    compare_command,
    evaluate,
    explain,
    export,
    group_command,
    index_command,
    leaderboard_command,
    reproduce,
    sanity,
    search_command,
    show,
)
from gamlens.cli.common import app, say

ORDER = (
    "classify compare group blocks demo search evaluate leaderboard table subset export figure report reproduce ablate "
    "studio"
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        say(f"gamlens {__version__}")
        raise typer.Exit


app.registered_commands.sort(key=lambda command: ORDER.find(command.name or ""))
app.add_typer(sanity.app, name="sanity")
app.add_typer(index_command.app, name="index")
