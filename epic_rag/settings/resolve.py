"""Which of several places counts: given > environment > project's file > user's file > default."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from epic_rag import config
from epic_rag.errors import ConfigError
from epic_rag.settings.files import Entry, read_entries, settings_files
from epic_rag.settings.table import Setting, Settings, Value, table
from epic_rag.settings.values import from_file, from_text

DEFAULT = "default"
GIVEN = "given"
_ANSWERING = ("k", "selector", "policy", "budget", "max_tokens", "temperature", "top_p", "seed")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings that count here, and where each of them comes from: `default`, `given`, a variable, or file:line."""

    settings: Settings
    origins: Mapping[str, str]

    def value(self, name: str) -> Value:
        """The value of the setting of that name."""
        found: Value = getattr(self.settings, name)
        return found


def resolve(given: Mapping[str, Value] | None = None, folder: Path | None = None) -> Resolved:
    """Find the value of every setting.

    Args:
        given: what the caller asks for; None, or an empty string, asks for nothing.
        folder: where the search for the project's file begins; None: the current folder.

    Raises:
        ConfigError: a variable or a file holds what cannot be; names it, with the line.
    """
    entries = _entries(Path.cwd() if folder is None else folder)
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for row in table():
        value, origin = _found(row, (given or {}).get(row.name), entries.get(row.name))
        values[row.name], origins[row.name] = value, origin
    return Resolved(Settings(**values), origins)  # type: ignore[arg-type] # checked against the table, row by row


def configured(given: Mapping[str, Value] | None = None) -> Settings:
    """The settings that count in the current folder; see `resolve`."""
    return resolve(given).settings


def answering(names: Collection[str]) -> dict[str, Value]:
    """What is configured of how a question is answered, for a class that has fields of these names.

    What is not configured is left out, so that the class's own defaults count.
    """
    resolved = resolve()
    return {name: resolved.value(name) for name in _ANSWERING if name in names and resolved.origins[name] != DEFAULT}


def _found(row: Setting, given: Value, entry: Entry | None) -> tuple[Value, str]:
    if given is not None and given != "":
        return given, GIVEN
    text = config.variable(row.variable)
    if text is not None:
        return from_text(row, text), row.variable
    if entry is None:
        return row.default, DEFAULT
    return from_file(row, entry), entry.place


def _entries(folder: Path) -> dict[str, Entry]:
    """What the files set, by name; of several the first file's."""
    rows = {row.name: row for row in table()}
    found: dict[str, Entry] = {}
    for file in settings_files(folder):
        for entry in read_entries(file):
            if entry.name not in rows:
                raise _unknown(entry, [row.name for row in rows.values() if row.in_files])
            if entry.name not in found:
                from_file(rows[entry.name], entry)  # a mistake is told though the environment overrides it
                found[entry.name] = entry
    return found


def _unknown(entry: Entry, known: list[str]) -> ConfigError:
    from difflib import get_close_matches

    near = get_close_matches(entry.name, known, 1)
    mend = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(known)}"
    return ConfigError(f"{entry.place}: unknown setting '{entry.name}': {mend}")
