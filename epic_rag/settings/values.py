"""What a variable or a line of a file says, checked and in the type of its setting."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from epic_rag import config
from epic_rag.errors import ConfigError
from epic_rag.kvstore.address import TIERED, mask_uri
from epic_rag.settings.files import Entry
from epic_rag.settings.table import Setting, Value

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
_TIER_ON_DISK = re.compile(r"(?:^tiered:|(?<=,))disk://(?![/~])")


def from_text(row: Setting, text: str) -> Value:
    """A variable's value in the type of the setting."""
    shown = "" if row.secret else f", got {row.shown(text)!r}"
    refused = ConfigError(f"{row.variable}: expected {_expected(row)}{shown}")
    if str in row.kinds:
        value: Value = text
    elif bool in row.kinds:
        if text.lower() not in _WORDS:
            raise refused
        value = _WORDS[text.lower()]
    else:
        try:
            value = int(text) if int in row.kinds else float(text)
        except ValueError:
            raise refused from None
    if not _fits(row, value):
        raise refused
    return value


def from_file(row: Setting, entry: Entry) -> Value:
    """A file's value, checked; relative places of a project's file are taken from its folder."""
    value = entry.value
    if not row.in_files:
        kind = "a secret comes" if row.secret else "it comes"
        raise ConfigError(f"{entry.place}: {row.name}: {kind} from the environment only: set {row.variable}")
    if isinstance(value, int) and not isinstance(value, bool) and row.kinds == (float,):
        value = float(value)
    if not isinstance(value, (str, int, float)) or type(value) not in row.kinds or not _fits(row, value):
        shown = row.shown(value) if isinstance(value, str) else value
        raise ConfigError(f"{entry.place}: {row.name}: expected {_expected(row)}, got {shown!r}")
    if row.name == "store" and isinstance(value, str) and mask_uri(value) != value:
        raise ConfigError(
            f"{entry.place}: store: the address {mask_uri(value)!r} holds a user or a password, and secrets come from "
            f"the environment only: set {row.variable}"
        )
    if entry.file.scope == "user" or not isinstance(value, str):
        return value
    if row.name == "embeddings" and ":" in value:
        raise ConfigError(
            f"{entry.place}: embeddings: a module to import is code to run, which a project's file cannot choose: name "
            f"it in {row.variable} or in {config.user_settings_file()}"
        )
    return _anchored(row.name, value, entry.file.path.parent)


def _fits(row: Setting, value: Value) -> bool:
    if row.choices and value not in row.choices:
        return False
    return row.minimum is None or not isinstance(value, (int, float)) or value >= row.minimum


def _expected(row: Setting) -> str:
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    kinds = " or ".join(_KINDS[kind] for kind in row.kinds)
    return kinds if row.minimum is None else f"{kinds}, at least {row.minimum:g}"


def _anchored(name: str, value: str, folder: Path) -> str:
    """A relative place, taken from `folder`."""
    if name in ("model", "embeddings"):
        relative = value.startswith(("./", "../")) or (value.endswith(".gguf") and not value.startswith(("/", "~")))
        return str(folder / value) if relative else value
    if name != "store":
        return value
    base = f"disk://{quote(str(folder))}/"
    if "://" not in value:
        path, mark, options = value.partition("?")
        return value if path.startswith(("/", "~")) else f"{base}{quote(path)}{mark}{options}"
    if value.startswith("disk://"):
        return re.sub(r"^disk://(?![/~])", base.replace("\\", r"\\"), value)
    return _TIER_ON_DISK.sub(lambda found: (TIERED if found[0].startswith(TIERED) else "") + base, value)
