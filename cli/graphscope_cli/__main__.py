"""``python -m graphscope_cli``, and where the console script ``graphscope`` enters."""

from __future__ import annotations

from graphscope_cli.app import app


def main() -> None:
    """Run the command line; ends the process with the exit code of the command."""
    app(prog_name="graphscope")


if __name__ == "__main__":
    main()
