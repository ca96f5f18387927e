"""What the plans, the routes and the links of the Redis tier say to each other.

A plan is a generator: it yields batches of commands, is sent their replies, and neither knows nor waits for a network.
So each operation is written once, for threads and for asyncio; the routes find the node of each command, and the two
links are all that does any input or output.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from epic_rag.kvstore.redis_options import Node

T = TypeVar("T")
Arguments: TypeAlias = tuple[str | bytes | int, ...]
Reply: TypeAlias = object
"""What redis-py makes of a reply; an error that a server answers is the exception itself."""

WINDOW_BYTES = 8 << 20
"""The most that is asked for, or sent, at once: other clients of the server wait behind it."""

_COMMANDS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and where it goes: to the node of a key, to a certain node, or (neither given) to every node.

    The reply to a command for every node is a list of (node, reply).

    Attributes:
        arguments: the command.
        key: goes to the node of this key.
        node: goes to this node.
        into: memory for the bytes of the reply. The reply is then True once they are there; None where there is no such
            key; False where it holds another number of bytes.
    """

    arguments: Arguments
    key: str | None = None
    node: Node | None = None
    into: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Parcel:
    """Commands for one node, sent together.

    Attributes:
        node: where to.
        commands: what.
        seed: the node is only asked where the others are; it is given less time, and asked once.
    """

    node: Node
    commands: Sequence[Command]
    seed: bool = False


Plan: TypeAlias = Generator[Sequence[Command], list[Reply], T]
Route: TypeAlias = Generator[Sequence[Parcel], list[list[Reply]], T]
"""A failure to reach a node is thrown into the route."""


def on_key(name: str, key: str, *more: str | bytes | int) -> Command:
    """Return a command whose first argument is the key it is about."""
    return Command((name, key, *more), key)


def received(command: Command, reply: Reply) -> Reply:
    """Return the reply to a command, its bytes put where they belong when it has memory for them."""
    if command.into is None or not isinstance(reply, bytes):
        return reply
    fits = len(reply) == len(command.into)
    if fits:
        command.into[:] = reply
    return fits


def each(commands: Sequence[Command]) -> Plan[list[Reply]]:
    """Send commands with small replies, many at once."""
    replies: list[Reply] = []
    for start in range(0, len(commands), _COMMANDS_AT_ONCE):
        replies += yield commands[start : start + _COMMANDS_AT_ONCE]
    return replies


def windows(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in runs of at most WINDOW_BYTES, or of one item that is larger."""
    window: list[T] = []
    held_bytes = 0
    for item in items:
        if window and held_bytes + size_bytes(item) > WINDOW_BYTES:
            yield window
            window, held_bytes = [], 0
        window.append(item)
        held_bytes += size_bytes(item)
    if window:
        yield window


class Refused(Exception):
    """A server answered with an error, its cause, or will not keep a blob for the reason given."""


def accept(replies: Iterable[Reply]) -> None:
    """Raise Refused for the first reply that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise Refused(str(reply)) from reply
