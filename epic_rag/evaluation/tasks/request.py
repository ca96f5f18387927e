"""What a task is made from: the options of `open_task`, checked, and the readings that makers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from epic_rag.chunking import MIN_CHUNK_TOKENS, Encode
from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import Half
from epic_rag.evaluation.item import half as half_of

if TYPE_CHECKING:
    from epic_rag.model.tokens import TextTokenizer

GoldPlace = Literal["first", "middle", "last"]
T = TypeVar("T")
MIN_TASK_TOKENS = 256
"""The shortest haystack a generated task makes: room for its needles and a few passages."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `open_task`; see there.

    Attributes:
        spec: the task as it was asked for.
        usage: how it should be asked for.
        arguments: what stands behind the name, split at the colons.
    """

    spec: str
    usage: str
    arguments: tuple[str, ...]
    data: Path | None = None
    corpus: Path | None = None
    tokenizer: TextTokenizer | None = None
    count: int | None = None
    seed: int = 0
    half: Half | None = None
    gold_place: GoldPlace | None = None
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ConfigError(f"{self.spec}: the number of items must be at least 1, got {self.count}")
        if self.chunk_tokens is not None and self.chunk_tokens < MIN_CHUNK_TOKENS:
            raise ConfigError(f"chunk_tokens must be at least {MIN_CHUNK_TOKENS}, got {self.chunk_tokens}")
        for option, value, kind in (("half", self.half, Half), ("gold_place", self.gold_place, GoldPlace)):
            if value is not None and value not in get_args(kind):
                raise ConfigError(f"{option} must be one of {', '.join(get_args(kind))}, got '{value}'")

    @property
    def encode(self) -> Encode:
        """The tokenizer, for a task that counts tokens.

        Raises:
            ConfigError: none was given.
        """
        if self.tokenizer is None:
            raise ConfigError(f"{self.spec} counts tokens and needs a tokenizer; name a model, or pass tokenizer=")
        return self.tokenizer.encode

    def wants(self, item_id: str) -> bool:
        """Whether an item is of the half that is asked for."""
        return self.half is None or half_of(item_id) == self.half

    def draw(self, *names: object) -> Random:
        """A generator of its own for every purpose, so that what is drawn for one item never moves another."""
        return Random("/".join(map(str, (self.seed, *names))))

    def argument(self, place: int, what: str, read: Callable[[str], T], default: T | None = None) -> T:
        """An argument of the spec.

        Args:
            place: which one, from 0.
            what: what it must be, for the message.
            read: makes its value; raises ValueError where it is none.
            default: its value where it is not there; None: it has to be.

        Raises:
            ConfigError: it is missing or no such value.
        """
        if place >= len(self.arguments) and default is not None:
            return default
        try:
            return read(self.arguments[place])
        except (IndexError, ValueError):
            got = f"'{self.arguments[place]}'" if place < len(self.arguments) else "nothing"
            raise ConfigError(f"{self.spec}: expected {what}, got {got}; write {self.usage}") from None

    def no_more_arguments(self, most: int) -> None:
        """Refuse more arguments than a task has.

        Raises:
            ConfigError: there are more.
        """
        if len(self.arguments) > most:
            raise ConfigError(f"{self.spec}: '{self.arguments[most]}' is not understood; write {self.usage}")

    def num_tokens(self) -> int:
        """The first argument as a length in tokens.

        Raises:
            ConfigError: it is no number, or too small.
        """
        return self.argument(0, f"a length of at least {MIN_TASK_TOKENS} tokens", at_least(MIN_TASK_TOKENS))


def at_least(least: int) -> Callable[[str], int]:
    """A reader of whole numbers that are not below `least`."""

    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError(text)
        return value

    return read
