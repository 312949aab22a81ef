"""The command `gamlens`, also as `python -m gamlens`."""

import os
import sys

from gamlens.errors import needs_package


def main() -> None:
    """Run the command line, or say how to install it."""
    if sys.stdout is None:  # it was closed, as by `gamlens ... >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open until Python ends
    try:
        _run()
    except KeyboardInterrupt:  # before a command runs, which says itself what it has kept
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # nobody reads standard output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left of it when it ends
        sys.exit(1)


def _run() -> None:
    try:
        from gamlens.cli import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(needs_package("The command line", error.name, extra="cli"))
    app()


if __name__ == "__main__":
    main()
