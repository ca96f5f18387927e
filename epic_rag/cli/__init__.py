"""The command line: `app.py` names commands and options, `guard.py` words errors, `show.py` prints for people."""

from epic_rag.cli.app import main

__all__ = ["main"]
