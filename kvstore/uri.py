"""Store addresses: text that says which store to open, for config files and the command line."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

from epic_rag.kvstore.address import KNOWN, TIERED, Address, mask_uri, parse_addresses, parse_size
from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.codecs import CODECS, find_codec
from epic_rag.kvstore.disk import DiskStore, is_store, store_path
from epic_rag.kvstore.errors import StoreURIError
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.redis_options import SCHEMES, redis_options
from epic_rag.kvstore.replacement import POLICIES
from epic_rag.kvstore.store import KVStore

__all__ = ["KNOWN", "mask_uri", "open_store", "parse_size", "store_exists", "store_folder", "store_place"]


def open_store(uri: str, mac_key: bytes | None = None) -> KVStore:
    """Open the store that an address names.

    Args:
        uri: `memory://`, `disk:///path`, `disk://path`, a plain path, `redis://host`, `rediss://host`,
            `redis+sentinel://host,host/service`, `redis+cluster://host,host`, or `tiered:` and several of these with
            commas between them, fastest first; each with its options (docs/stores.md).
        mac_key: seals what is written, and refuses what is read without its seal.

    Raises:
        StoreURIError: not one of these; the message lists them.
        StoreWriteError: the folder does not exist and cannot be made.
        StoreError: a package that the address needs is not installed.
    """
    addresses = parse_addresses(uri)
    codec = find_codec(_codec(addresses)).name  # before a folder is made: its package may be missing
    tiered = uri.startswith(TIERED)
    with ExitStack() as on_failure:
        opened = [on_failure.enter_context(_open(address, alone=not tiered)) for address in addresses]
        store = KVStore(_tiered(addresses, opened) if tiered else opened[0], codec, mac_key)
        on_failure.pop_all()
    return store


def store_folder(uri: str) -> Path | None:
    """Return the folder of a store on disk; of several tiers that of the first on disk; None where there is none."""
    try:
        addresses = parse_addresses(uri)
    except StoreURIError:
        return None
    for address in addresses:
        if address.scheme == "disk" and address.path:
            return store_path(unquote(address.path))
    return None


def store_exists(uri: str) -> bool:
    """Return whether there is a store in the folder that an address names; True where it names none."""
    folder = store_folder(uri)
    return folder is None or is_store(folder)


def store_place(uri: str) -> str | None:
    """Return what stays of an address when passwords, options and tiers in memory change; None where nothing is left.

    Raises:
        StoreURIError: not an address.
    """
    return ",".join(_place(address) for address in parse_addresses(uri) if address.scheme != "memory") or None


def _place(address: Address) -> str:
    if address.scheme not in SCHEMES:
        return f"{address.scheme}://{address.path}"
    options = redis_options(address)
    hosts = ",".join(sorted(map(str, options.hosts)))
    return f"{options.kind}://{hosts}/{options.service}/{options.db}?namespace={options.namespace}"


def _open(address: Address, *, alone: bool) -> BlobStore:
    if address.scheme not in _OPENERS:
        raise address.refuse(f"{address.scheme!r} is unknown")
    if alone and "write" in address.options:
        raise address.refuse("option 'write' is for one tier of several")
    return _OPENERS[address.scheme](address)


def _open_memory(address: Address) -> BlobStore:
    budget_bytes, replacement = _budget(address)
    if address.path:
        raise address.refuse("memory:// takes no path")
    return MemoryStore(budget_bytes, replacement)


def _open_disk(address: Address) -> BlobStore:
    budget_bytes, replacement = _budget(address)
    if not address.path:
        raise address.refuse("the path is missing")
    if "\0" in unquote(address.path):
        raise address.refuse("the path holds a NUL character")
    return DiskStore(unquote(address.path), budget_bytes, replacement)


def _open_redis(address: Address) -> BlobStore:
    from epic_rag.kvstore.redis_store import RedisStore

    return RedisStore(redis_options(address))


_OPENERS: Mapping[str, Callable[[Address], BlobStore]] = {"memory": _open_memory, "disk": _open_disk} | dict.fromkeys(
    SCHEMES, _open_redis
)


def _budget(address: Address) -> tuple[int | None, str]:
    """Return budget and replacement of a tier that keeps a budget of its own."""
    address.check_options("codec", "write", "budget", "replacement")
    text = address.options.get("budget")
    budget_bytes = parse_size(text) if text is not None else None
    if text is not None and budget_bytes is None:
        raise address.refuse(f"budget {text!r} is not a size such as 500MB or 8GiB")
    replacement = address.options.get("replacement", "lru")
    if replacement not in POLICIES:
        raise address.refuse(f"replacement {replacement!r} is unknown")
    return budget_bytes, replacement


def _codec(addresses: list[Address]) -> str:
    """Return the codec of the whole store, which any of its tiers may name."""
    # In the options of an address + stands for a space.
    named = {address.options["codec"].replace(" ", "+") for address in addresses if "codec" in address.options}
    if len(named) > 1:
        raise addresses[0].refuse(f"codecs {' and '.join(sorted(named))}: a store has one for all of its tiers")
    codec = named.pop() if named else "none"
    if codec not in CODECS:
        raise addresses[0].refuse(f"codec {codec!r} is unknown, there are {', '.join(CODECS)}")
    return codec


def _tiered(addresses: list[Address], tiers: list[BlobStore]) -> BlobStore:
    from epic_rag.kvstore.tiered import TieredStore

    modes = [address.options.get("write", "through") for address in addresses]
    for mode in modes:
        if mode not in ("through", "back"):
            raise addresses[0].refuse(f"write={mode} is unknown")
    if "through" not in modes:
        raise addresses[0].refuse("write=back for every tier: at least one has to be written at once")
    return TieredStore(tiers, write_back=[mode == "back" for mode in modes])
