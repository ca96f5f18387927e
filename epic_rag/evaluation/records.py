"""What was measured, a line for each item and method, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from epic_rag.errors import ConfigError

FORMAT = 1
UNKNOWN_VERSION = "0+unknown"


@dataclass(frozen=True, slots=True)
class Record:
    """One item, measured with one method.

    Attributes:
        item: the item's id.
        method: the method's name.
        content: 12 hex digits of what the item asks.
        prefix: 12 hex digits of what the chunks were encoded behind.
        measures: numbers by name; what does not apply is absent.
        answer: the greedy answer; None: not asked for.
    """

    item: str
    method: str
    content: str
    prefix: str
    measures: Mapping[str, float] = field(default_factory=dict)
    answer: str | None = None

    def to_json(self) -> str:
        """One line, without its end."""
        about = {"item": self.item, "method": self.method, "content": self.content, "prefix": self.prefix}
        values: dict[str, object] = {**about, "measures": dict(self.measures)}
        if self.answer is not None:
            values["answer"] = self.answer
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it did not write this.
        """
        values = json.loads(line)
        try:
            measures = {str(name): float(value) for name, value in values["measures"].items()}
            item, method, content, prefix = (str(values[name]) for name in ("item", "method", "content", "prefix"))
            return cls(item, method, content, prefix, measures, values.get("answer"))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a record") from error


class Records:
    """Records by item and method, in a file.

    Every `add` is on the disk before it returns. A line that was cut off by a kill is dropped; of two records of the
    same item and method the later counts.
    """

    def __init__(self, path: Path, about: Mapping[str, str | int | None] | None = None) -> None:
        """Name the file; nothing is read or written yet.

        Args:
            path: the file.
            about: settings of the caller's beside those that `begin` is told.
        """
        self.path = path
        self._about = dict(about or {})
        self._records: dict[tuple[str, str], Record] = {}

    def begin(self, settings: Mapping[str, str | int | None]) -> None:
        """Read the file, or make it with a header.

        Args:
            settings: what all records of the file have in common.

        Raises:
            ConfigError: the file is of other settings, names them; or it is damaged.
            OSError: it can be neither read nor made.
        """
        wanted = {**settings, **self._about}
        lines = self._whole_lines()
        if not lines:
            self._write([json.dumps({"format": FORMAT, "digest": digest_of(wanted), "settings": wanted})])
            return
        self._check(lines[0], wanted)
        for number, line in enumerate(lines[1:], 2):
            try:
                record = Record.from_json(line)
            except ValueError:
                raise ConfigError(
                    f"{self.path}:{number} is damaged: remove this line, and it will be measured again"
                ) from None
            self._records[record.item, record.method] = record

    def add(self, records: Sequence[Record]) -> None:
        """Keep the records of an item, all at once."""
        self._write([record.to_json() for record in records])
        self._records.update({(record.item, record.method): record for record in records})

    def find(self, item: str, method: str) -> Record | None:
        """The record of an item and a method, if there is one."""
        return self._records.get((item, method))

    def __iter__(self) -> Iterator[Record]:
        """All records."""
        return iter(self._records.values())

    def _whole_lines(self) -> list[str]:
        """The file's lines; what stands behind the last line end was cut off, and is cut from the file."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return whole.decode("utf-8", errors="replace").split("\n")[:-1]

    def _check(self, header: str, wanted: Mapping[str, str | int | None]) -> None:
        try:
            found = json.loads(header)
            settings, is_ours = found["settings"], found["format"] == FORMAT and isinstance(found["settings"], dict)
        except (ValueError, KeyError, TypeError):
            settings, is_ours = {}, False
        if not is_ours:
            raise ConfigError(f"{self.path} is no file of records of this version: choose another folder with --out")
        names = [name for name in {**settings, **wanted} if _differ(settings.get(name), wanted.get(name))]
        if names:
            differ = "; ".join(f"{name}: {settings.get(name)} there, {wanted.get(name)} now" for name in names)
            raise ConfigError(
                f"{self.path} was measured with other settings ({differ}): choose another folder with --out, or remove "
                "the file"
            )

    def _write(self, lines: Sequence[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())


def _differ(there: object, now: object) -> bool:
    """Whether two values of a setting differ; the version of a checkout that is not installed could be any."""
    return there != now and UNKNOWN_VERSION not in (there, now)


def digest_of(values: object) -> str:
    """12 hex digits of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
