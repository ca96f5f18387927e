"""TOML files that hold settings: where they are looked for, and what they say with file and line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from epic_rag import config
from epic_rag.errors import ConfigError

PROJECT_FILE = "epic-rag.toml"
PYPROJECT_FILE = "pyproject.toml"
_TABLE = "epic-rag"
_TRUSTED = frozenset({0})
"""Users beside the own one whose files are read anywhere: root, who needs no such detour."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A place where settings are looked for.

    Attributes:
        path: the file; in `pyproject.toml` only the table `tool.epic-rag` counts.
        scope: of one project, or of one user.
        passed_over: why it is not read though it is there; "" when it is read, or absent.
        exists: whether it is there and holds settings.
    """

    path: Path
    scope: Literal["project", "user"]
    exists: bool
    passed_over: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a file.

    Attributes:
        name: the key, as in Python: `max_tokens`, though it may be written `max-tokens`.
        value: as TOML has it.
        file: the file it stands in.
        line: counted from 1; 0 where it could not be told.
    """

    name: str
    value: object
    file: SettingsFile
    line: int

    @property
    def place(self) -> str:
        """File and line, as an editor takes them."""
        return f"{self.file.path}:{self.line}" if self.line else str(self.file.path)


def settings_files(folder: Path) -> tuple[SettingsFile, ...]:
    """Where settings are looked for from `folder`, first what counts most; without any, where they could be."""
    user = config.user_settings_file()
    return (*_project_files(folder), SettingsFile(user, "user", _is_file(user)))


def read_entries(file: SettingsFile) -> tuple[Entry, ...]:
    """What a file sets, in its order.

    Raises:
        ConfigError: it cannot be read, is no TOML, or sets something twice; names file and line.
    """
    if not file.exists or file.passed_over:
        return ()
    text = _read(file.path)
    entries: dict[str, Entry] = {}
    for key, value in _table(file.path, text).items():
        entry = Entry(key.replace("-", "_"), value, file, _line(file.path, text, key))
        if entry.name in entries:
            raise ConfigError(f"{entry.place}: '{key}' is set twice, with _ and with -: remove one of the two")
        entries[entry.name] = entry
    return tuple(entries.values())


def _project_files(folder: Path) -> Iterator[SettingsFile]:
    """The files of the nearest folder, from `folder` upwards, that has any; those of a strange hand are passed over."""
    for place in (folder, *folder.parents):
        here = [place / name for name in (PROJECT_FILE, PYPROJECT_FILE) if _holds_settings(place / name)]
        files = [SettingsFile(path, "project", exists=True, passed_over=_planted(path)) for path in here]
        yield from files
        if any(not file.passed_over for file in files):
            return
    yield SettingsFile(folder / PROJECT_FILE, "project", exists=False)


def _holds_settings(path: Path) -> bool:
    if path.name == PROJECT_FILE or not _is_file(path):
        return _is_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    if _TABLE not in text:  # spares the parsing
        return False
    try:
        tool = _parse(path, text).get("tool")
    except ConfigError:  # not ours to complain about, unless our table seems to be there
        return re.search(rf"tool\s*\.\s*[\"']?{_TABLE}", text) is not None
    return isinstance(tool, dict) and _TABLE in tool


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that is closed to this user holds no settings of theirs
        return False


def _planted(path: Path) -> str:
    """Why a file is not to be trusted: in a folder like `/tmp`, anybody could choose the store of all who work below.

    A file of somebody else in a folder that not everybody can write to is read: so it is in many a container.
    """
    if not hasattr(os, "geteuid"):
        return ""
    shared = bool(path.parent.stat().st_mode & stat.S_IWOTH)
    strange = path.stat().st_uid not in _TRUSTED | {os.geteuid()}
    return "another user's file, in a folder that everybody can write to" if shared and strange else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _table(path: Path, text: str) -> dict[str, object]:
    """The settings of a file; of a `pyproject.toml` our table only."""
    whole = _parse(path, text)
    if path.name != PYPROJECT_FILE:
        return whole
    tool = whole.get("tool")
    found = tool.get(_TABLE) if isinstance(tool, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: tool.{_TABLE}: expected a table, got {found!r}: write [tool.{_TABLE}]")
    return found


def _line(path: Path, text: str, key: str) -> int:
    """Line where a key is set; 0 when it is written in a way that is not looked for (tomllib tells no lines)."""
    lines = text.splitlines()
    header = re.compile(rf"\s*\[\s*tool\s*\.\s*[\"']?{_TABLE}[\"']?\s*\]")
    first = 0
    if path.name == PYPROJECT_FILE:
        first = next((number for number, line in enumerate(lines) if header.match(line)), len(lines))
    sought = re.compile(rf"\s*\[*\s*([\"']?){re.escape(key)}\1\s*[=.\]]")
    return next((number for number, line in enumerate(lines[first:], first + 1) if sought.match(line)), 0)
