"""Replies of a Redis server received straight into memory.

redis-py makes a bytes object of each reply, by way of a buffer of its own: three copies of every part where one will
do, and more than half of the time that reading takes. So it connects, authenticates and sends, and only the bytes of
parts are taken from its socket here. They are plain RESP2 bulk strings; whatever else comes back is asked for again in
the ordinary way, by redis-py, which knows what to make of it.
"""

import socket
from collections.abc import Sequence
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, cast

from epic_rag.kvstore.redis_wire import Arguments, Command, Reply

if TYPE_CHECKING:
    import redis

SENT_AHEAD = 2
"""Commands that the server has while a reply comes in: it makes the next one meanwhile, but none all at once."""
_LINE_BYTES = 64
"""Received at once where the head of a reply is expected; what is more than that is the start of its bytes."""


class AskAgain:
    """The reply to a command that the server answered with an error."""


ASK_AGAIN: Final = AskAgain()


def receive_into(pool: "redis.ConnectionPool", commands: Sequence[Command]) -> list[Reply]:
    """Send commands that each have memory for the reply, and receive the replies there.

    Returns:
        For each command True when its memory is full; None where there is no such key; False for a value of another
        length; or ASK_AGAIN.

    Raises:
        ConnectionError, TimeoutError: redis-py's; the connection is closed.
    """
    from redis.exceptions import ConnectionError as ClosedError
    from redis.exceptions import TimeoutError as SilentError

    connection, complete = pool.get_connection(), False
    try:
        replies = _receive_all(cast("_Connection", connection), commands)
    except TimeoutError as error:
        raise SilentError(f"no byte within the timeout: {error}") from error
    except (OSError, EOFError, ValueError) as error:
        raise ClosedError(f"the connection broke off: {error}") from error
    else:
        complete = True
        return replies
    finally:
        if not complete:
            connection.disconnect()  # type: ignore[no-untyped-call] # or what is under way would be the next reply
        pool.release(connection)


def _receive_all(connection: "_Connection", commands: Sequence[Command]) -> list[Reply]:
    replies: list[Reply] = []
    waiting = iter(connection.pack_commands([command.arguments]) for command in commands)
    for packed in islice(waiting, SENT_AHEAD):
        connection.send_packed_command(packed)
    source = _Replies(connection._sock)
    for command in commands:
        replies.append(source.receive(memoryview(b"") if command.into is None else command.into))
        for packed in islice(waiting, 1):
            connection.send_packed_command(packed)
    return replies


class _Connection(Protocol):
    """What is used of redis-py's connection."""

    _sock: socket.socket

    def pack_commands(self, commands: Sequence[Arguments]) -> list[bytes]: ...

    def send_packed_command(self, command: list[bytes]) -> None: ...


class _Replies:
    """Replies in the order of their commands."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._ahead = b""
        self._give_up_at = inf

    def receive(self, into: memoryview) -> Reply:
        """Receive one reply; raises ValueError for one that is no RESP2.

        The connection's timeout is for all of it, not only for the next byte: a server that trickles counts as dead.
        """
        self._give_up_at = monotonic() + (self._source.gettimeout() or inf)
        head = self._line()
        if head.startswith(b"-"):
            return ASK_AGAIN
        if not head.startswith(b"$"):
            raise ValueError(f"a reply begins with {head[:1]!r}")
        length = int(head[1:])
        if length < 0:
            return None
        fits = length == len(into)
        self._fill(into if fits else memoryview(bytearray(length)))
        if self._take(2) != b"\r\n":
            raise ValueError("a reply is longer than it says")
        return fits

    def _line(self) -> bytes:
        while b"\r\n" not in self._ahead:
            self._check_time()
            self._ahead += self._more(_LINE_BYTES)
        line, _, self._ahead = self._ahead.partition(b"\r\n")
        return line

    def _fill(self, into: memoryview) -> None:
        filled = min(len(self._ahead), len(into))
        into[:filled] = self._ahead[:filled]
        self._ahead = self._ahead[filled:]
        while filled < len(into):
            received = self._source.recv_into(into[filled:])
            if not received:
                raise EOFError("closed by the server")
            filled += received
            if filled < len(into):
                self._check_time()

    def _check_time(self) -> None:
        if monotonic() > self._give_up_at:
            raise TimeoutError("the part took longer than the timeout")

    def _take(self, count: int) -> bytes:
        while len(self._ahead) < count:
            self._ahead += self._more(count - len(self._ahead))
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def _more(self, count: int) -> bytes:
        received = self._source.recv(count)
        if not received:
            raise EOFError("closed by the server")
        return received
