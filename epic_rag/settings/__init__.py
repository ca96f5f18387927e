"""Every setting in one table, and one rule for the command line and for Python: see `resolve.py`."""

from epic_rag.settings.resolve import DEFAULT, GIVEN, Resolved, answering, configured, resolve
from epic_rag.settings.table import Setting, Settings, Value, table

__all__ = [
    "DEFAULT",
    "GIVEN",
    "Resolved",
    "Setting",
    "Settings",
    "Value",
    "answering",
    "configured",
    "resolve",
    "table",
]
