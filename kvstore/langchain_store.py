"""The LangChain face of a blob store: `BaseStore[str, bytes]`, for byte-store users such as an embedding cache."""

from collections.abc import AsyncIterator, Iterator, Sequence

from langchain_core.stores import BaseStore

from epic_rag.kvstore.blobstore import BlobStore


class BlobByteStore(BaseStore[str, bytes]):
    """A blob store as LangChain sees it.

    Keys are blob names: 1 to 160 of `0-9 a-z -`; another key raises ValueError. Values are copied out as bytes.
    Values may give way under the blob store's budget, as in any cache.
    """

    def __init__(self, blobs: BlobStore) -> None:
        """Wrap `blobs`, which the caller closes."""
        self.blobs = blobs

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value of each key; None where there is none."""
        return [_copy(view) for view in self.blobs.get_many(keys)]

    async def amget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return what `mget` returns."""
        return [_copy(view) for view in await self.blobs.aget_many(keys)]

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Store values, in place of what was there."""
        for key, value in key_value_pairs:
            self.blobs.put(key, value)

    async def amset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Do what `mset` does."""
        for key, value in key_value_pairs:
            await self.blobs.aput(key, value)

    def mdelete(self, keys: Sequence[str]) -> None:
        """Remove keys; those that are not there are passed over."""
        for key in keys:
            self.blobs.delete(key)

    async def amdelete(self, keys: Sequence[str]) -> None:
        """Do what `mdelete` does."""
        for key in keys:
            await self.blobs.adelete(key)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that start with `prefix`, sorted."""
        yield from self.blobs.names(prefix or "")

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """Yield what `yield_keys` yields."""
        for name in await self.blobs.anames(prefix or ""):
            yield name


def _copy(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)
