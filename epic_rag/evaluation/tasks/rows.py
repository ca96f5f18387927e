"""Rows of JSON Lines, checked field by field; every complaint names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from epic_rag.errors import ConfigError
from epic_rag.evaluation.tasks.request import Request
from epic_rag.loading.document import clean_text
from epic_rag.loading.json_ import Json


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file.

    Attributes:
        path: the file.
        line: its number, from 1.
        fields: the object that stands in it.
    """

    path: Path
    line: int
    fields: dict[str, Json]

    def wrong(self, what: str) -> ConfigError:
        """The error to raise for this line."""
        return ConfigError(f"{self.path} line {self.line}: {what}")

    def text(self, name: str, default: str | None = None) -> str:
        """A string.

        Raises:
            ConfigError: it is no string, or empty or missing where there is no default.
        """
        value = self.fields.get(name, default)
        if not isinstance(value, str) or not (value.strip() or default is not None):
            raise self.wrong(f"'{name}' must be a string with some text, got {shown(value)}")
        return clean_text(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, or one string.

        Raises:
            ConfigError: it is neither, or empty.
        """
        value = self.fields.get(name)
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found:
            raise self.wrong(f"'{name}' must be a string or a list of strings, got {shown(value)}")
        return tuple(Row(self.path, self.line, {name: one}).text(name) for one in found)


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSON Lines file; blank lines are passed over.

    Raises:
        ConfigError: the file cannot be read, or a line is no JSON object.
    """
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _row(path, number, line)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name a JSON Lines file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error.reason}); save it as UTF-8") from None


def _row(path: Path, number: int, line: str) -> Row:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} line {number}: no JSON ({error}); write one object a line") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} line {number}: expected an object, got {shown(fields)}")
    return Row(path, number, fields)


def data_file(request: Request, *parts: str) -> Path:
    """A file of the evaluation data.

    Raises:
        ConfigError: it is not there.
    """
    name = "/".join(parts)
    if request.data is None:
        raise ConfigError(
            f"{request.spec} reads {name} of the evaluation data; "
            "name its folder with --data FOLDER or EPIC_RAG_EVAL_DATA"
        )
    path = request.data.joinpath(*parts)
    if not path.is_file():
        raise ConfigError(
            f"{request.spec}: there is no file {path}; "
            f"name the folder that holds {name} with --data or EPIC_RAG_EVAL_DATA"
        )
    return path


def shown(value: Json) -> str:
    """A value as a message shows it, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"
