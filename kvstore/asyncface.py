"""The asyncio face of a blob store: the same calls, off the event loop."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, Protocol, TypeAlias, TypeVar

Buffer: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = Buffer | Sequence[Buffer]
"""What is stored: a buffer, or several to be written one after the other."""

P = ParamSpec("P")
R = TypeVar("R")


class _Calls(Protocol):
    def get(self, name: str) -> memoryview | None: ...

    def get_many(self, names: Sequence[str]) -> list[memoryview | None]: ...

    def get_range(self, name: str, start: int, length: int) -> memoryview | None: ...

    def put(self, name: str, data: Data) -> None: ...

    def delete(self, name: str) -> bool: ...

    def contains(self, names: Sequence[str]) -> list[bool]: ...

    def names(self, prefix: str = "") -> Iterator[str]: ...

    async def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncFace:
    """`aget`, `aput` and the rest over the calls without the a.

    Each call runs in a thread. A tier whose calls never wait overrides `_run` to call directly; one with an asyncio
    client of its own overrides the methods.
    """

    async def aget(self: _Calls, name: str) -> memoryview | None:
        """Return what `get` returns."""
        return await self._run(self.get, name)

    async def aget_many(self: _Calls, names: Sequence[str]) -> list[memoryview | None]:
        """Return what `get_many` returns."""
        return await self._run(self.get_many, names)

    async def aget_range(self: _Calls, name: str, start: int, length: int) -> memoryview | None:
        """Return what `get_range` returns."""
        return await self._run(self.get_range, name, start, length)

    async def aput(self: _Calls, name: str, data: Data) -> None:
        """Do what `put` does."""
        await self._run(self.put, name, data)

    async def adelete(self: _Calls, name: str) -> bool:
        """Do what `delete` does."""
        return await self._run(self.delete, name)

    async def acontains(self: _Calls, names: Sequence[str]) -> list[bool]:
        """Return what `contains` returns."""
        return await self._run(self.contains, names)

    async def anames(self: _Calls, prefix: str = "") -> list[str]:
        """Return what `names` yields, as a list."""
        return list(await self._run(self.names, prefix))

    async def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(call, *args, **kwargs)
