"""The command line. Every command parses its options, calls the library once and shows the result."""

from typing import Annotated

import typer

from gamlens import __version__
from gamlens.cli import (
    compare_command,
    doctor_command,
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
from gamlens.cli.common import CommandGroup, app
from gamlens.cli.terminal import say, say_rows, screen

ORDER = (  # of the commands in the help
    " demo classify compare group search studio blocks evaluate leaderboard table report subset export figure reproduce"
    " ablate doctor "
)
FIRST = (
    ("gamlens demo", "a page about example photos, in a minute"),
    ("gamlens classify photo.jpg", "why your photo gets its class"),
    ("gamlens compare a.jpg b.jpg", "why two photos are found similar"),
    ("gamlens search a.jpg --in photos/", "the most similar ones in a folder, and why"),
    ("gamlens studio", "all of this in your browser"),
    ("gamlens doctor", "what is installed, and does it work?"),
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(f"gamlens {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        with screen(whole=True):
            say(f"gamlens {__version__} shows why a vision network gave an image its class,")
            say("and why it finds two images similar.")
            say("")
            say_rows(("Try first", ""), FIRST)
            say("")
            say("All commands: gamlens --help. One of them with an example: gamlens classify --help.")


app.registered_commands.sort(key=lambda command: ORDER.index(f" {command.name} "))
app.add_typer(
    index_command.app, name="index", cls=CommandGroup, epilog="Example:  gamlens index add photos/ --to shop.gamlens"
)
app.add_typer(sanity.app, name="sanity", cls=CommandGroup, epilog="Example:  gamlens sanity parameters photos/")
