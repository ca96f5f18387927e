"""What the conformance suite builds and compares its blobs with."""

import threading
from collections.abc import Callable

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.format import pack
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.tensors import ChunkKV

NAME = "0a" * 32
"""A name, and the key in every `chunk_blob`."""


def chunk_blob(profile: str = "p", tokens: int = 1, cost_seconds: float = 0.0) -> bytes:
    """Return a small, valid KV blob; its size depends on the number of tokens alone."""
    import torch

    planes = torch.zeros(1, 1, tokens, 2)
    kv = ChunkKV(planes, planes, torch.arange(tokens, dtype=torch.int32))
    return b"".join(pack(ChunkKey(NAME), kv, profile, cost_seconds))


def content(view: memoryview | None) -> bytes | None:
    """Return the bytes that a store gave."""
    return None if view is None else bytes(view)


def share(store: BlobStore, threads: int, turns: int) -> int:
    """Put, get and delete the same few blobs in many threads, and check that each is whole; returns the puts."""
    names = [f"k{i}" for i in range(6)]

    def work(index: int) -> None:
        for turn in range(turns):
            name = names[(index + turn) % len(names)]
            store.put(name, bytes([index]) * (100 + 10 * index))
            view = store.get(name)
            if view is not None and (len(view) != 100 + 10 * view[0] or len(set(view)) != 1):
                raise AssertionError(f"{name} is torn: {bytes(view)!r}")
            if turn % 5 == 0:
                store.delete(name)

    in_threads(threads, work)
    return threads * turns


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(i)` in `count` threads at once; raises what one of them raised."""
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
