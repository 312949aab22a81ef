"""The command that opens the studio."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from gamlens import GamlensError
from gamlens.cli.common import command, note, out_console, say
from gamlens.cli.options import DEFAULT_MODEL, MODEL_HELP
from gamlens.studio import launch


@command("studio --model efficientnet_lite0 --model my_file.py:build")
def studio(
    model: Annotated[list[str] | None, Option("--model", "-m", help=f"Repeat it. {MODEL_HELP}")] = None,
    host: Annotated[str, Option(help="Where to listen; 0.0.0.0 opens the studio to others.")] = "127.0.0.1",
    port: Annotated[int | None, Option(help="The port; a free one from 7860 on by default.", min=1, max=65535)] = None,
    auth: Annotated[str | None, Option(help="USER:PASSWORD that visitors must give.", envvar="GAMLENS_AUTH")] = None,
    browser: Annotated[bool, Option(help="Open the page in the browser.")] = True,
    visits: Annotated[int, Option(min=1, help="How many visitors' photos are kept in memory at a time.")] = 12,
) -> None:
    """Open a page on this machine: drop in a photo, or two, and see why."""
    names = model or [DEFAULT_MODEL]
    user = _user_and_password(auth)
    if host == "0.0.0.0" and user is None:
        note("Anyone who can reach this machine can use the studio: give --auth USER:PASSWORD.")
    with out_console.status("Loading the model and the page"):
        running = launch(
            {name: name for name in names}, host=host, port=port, auth=user, browser=browser, visits=visits
        )
    say(f"The studio is at {running.url}  (Ctrl-C ends it)")
    running.wait()


def _user_and_password(auth: str | None) -> tuple[str, str] | None:
    if auth is None:
        return None
    user, mark, password = auth.partition(":")
    if not (user and mark and password):
        raise GamlensError("--auth is USER:PASSWORD.")
    return user, password
