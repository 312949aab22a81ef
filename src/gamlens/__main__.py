"""The command `gamlens`, also as `python -m gamlens`."""

import sys

from gamlens.errors import needs_package


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        from gamlens.cli import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(needs_package("The command line", error.name, extra="cli"))
    app()


if __name__ == "__main__":
    main()
