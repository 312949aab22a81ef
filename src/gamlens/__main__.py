"""The command `gamlens`, also as `python -m gamlens`."""

import sys


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        from gamlens.cli import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("The command line needs typer and rich: pip install 'gamlens[cli]'.")
    app()


if __name__ == "__main__":
    main()
