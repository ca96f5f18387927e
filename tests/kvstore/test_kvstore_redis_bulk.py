"""Replies received straight into memory, from a server that says whatever the test wants."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
import redis
from redis.exceptions import ConnectionError as ClosedError
from redis.exceptions import TimeoutError as SilentError

from epic_rag.kvstore.redis_bulk import ASK_AGAIN, receive_into
from epic_rag.kvstore.redis_wire import Command


@contextmanager
def saying(*pieces: bytes, silent: bool = False) -> Iterator[redis.ConnectionPool]:
    """A server that sends these pieces, each on its own, once it was asked; then it closes, or says nothing more."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                asked = b""
                while b"GET" not in asked:
                    line = connection.recv(65536)
                    asked += line
                    if b"GET" not in line:
                        connection.sendall(b"+OK\r\n" * line.count(b"*"))  # what redis-py says when it connects
                for piece in pieces:
                    connection.sendall(piece)
                    ended.wait(0.02)
                if silent:
                    ended.wait(10)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # what is still asked: unread, it would reset the connection
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listening.getsockname()
        yield redis.ConnectionPool(host=host, port=port, protocol=2, socket_timeout=0.5)
        ended.set()
        thread.join(10)


def ask(pool: redis.ConnectionPool, lengths: Sequence[int]) -> tuple[list[object], list[bytes]]:
    memories = [bytearray(length) for length in lengths]
    commands = [Command(("GET", f"k{i}"), f"k{i}", into=memoryview(m)) for i, m in enumerate(memories)]
    return receive_into(pool, commands), [bytes(memory) for memory in memories]


def test_replies_fill_their_memories_however_they_are_cut() -> None:
    whole = b"$3\r\nabc\r\n$-1\r\n-LOADING wait\r\n$2\r\nxy\r\n$4\r\nd\r\ne\r\n"
    expected = [True, None, ASK_AGAIN, False, True], [b"abc", b"\0", b"\0", b"\0\0\0", b"d\r\ne"]
    for size in (1, 2, 7, len(whole)):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        with saying(*pieces) as pool:
            assert ask(pool, [3, 1, 1, 3, 4]) == expected
            assert len(pool._available_connections) == 1, "given back"


@pytest.mark.parametrize("said", [b"", b"$3", b"$3\r\nab", b"$3\r\nabc", b"$3\r\nabcd\r\n", b":5\r\n", b"$x\r\n"])
def test_what_breaks_off_or_is_no_such_reply_closes_the_connection(said: bytes) -> None:
    with saying(said) as pool:
        with pytest.raises(ClosedError, match="broke off"):
            ask(pool, [3])
        assert pool._available_connections[0]._sock is None


def test_a_silent_server_is_given_one_timeout() -> None:
    with saying(b"$3\r\na", silent=True) as pool:
        with pytest.raises(SilentError):
            ask(pool, [3])
        assert pool._available_connections[0]._sock is None


def test_a_server_that_trickles_is_given_one_timeout_for_a_part() -> None:
    with saying(b"$60\r\n", *[b"x"] * 60, b"\r\n") as pool, pytest.raises(SilentError, match="timeout"):
        ask(pool, [60])


def test_what_interrupts_closes_the_connection_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("epic_rag.kvstore.redis_bulk._Replies.receive", interrupted)
    with saying(b"$1\r\na\r\n") as pool:
        with pytest.raises(KeyboardInterrupt):
            ask(pool, [1])
        assert pool._available_connections[0]._sock is None, "or the reply would be taken for the next one"
