"""Store addresses: text that says which store to open, for config files and the command line."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore, store_path
from epic_rag.kvstore.errors import StoreURIError
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.replacement import POLICIES
from epic_rag.kvstore.store import KVStore

KNOWN = """known are
    memory://                       this process only
    disk:///absolute/path           a folder
    disk://relative/path
    path                            the same as disk://path
each with the options ?budget=10GB&replacement=lru|lfu|gdsf"""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Address:
    text: str
    path: str
    budget_bytes: int | None
    replacement: str


def open_store(uri: str) -> KVStore:
    """Open the store that an address names.

    Args:
        uri: `memory://`, `disk:///path`, `disk://path` or a plain path, with the options `?budget=` (bytes, or 10GB,
            512MiB) and `&replacement=` (lru, lfu, gdsf).

    Raises:
        StoreURIError: not one of these; the message lists them.
        StoreWriteError: the folder does not exist and cannot be made.
    """
    scheme, path, query = _parts(uri)
    if scheme not in _OPENERS:
        raise StoreURIError(f"store address {uri!r}: {scheme!r} is unknown; {KNOWN}")
    options = _options(uri, query)
    address = _Address(
        text=uri,
        path=path,
        budget_bytes=_budget(uri, options["budget"]) if "budget" in options else None,
        replacement=options.get("replacement", "lru"),
    )
    if address.replacement not in POLICIES:
        raise StoreURIError(f"store address {uri!r}: replacement {address.replacement!r} is unknown; {KNOWN}")
    return KVStore(_OPENERS[scheme](address))


def store_folder(uri: str) -> Path | None:
    """Return the folder of a store on disk; None for an address of another kind."""
    scheme, path, _ = _parts(uri)
    return store_path(path) if scheme == "disk" and path else None


def _parts(uri: str) -> tuple[str, str, str]:
    """Split an address into scheme, path and options; only behind a scheme is the path percent-decoded."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "disk", uri
    path, _, query = rest.partition("?")
    return scheme, unquote(path) if separator else path, query


def _options(uri: str, query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError as error:
        raise StoreURIError(f"store address {uri!r}: the options are malformed ({error}); {KNOWN}") from error
    for name in options:
        if name not in ("budget", "replacement"):
            raise StoreURIError(f"store address {uri!r}: option {name!r} is unknown; {KNOWN}")
    return options


def _budget(uri: str, text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    power = " kmgt".index(match[2].lower() or " ") if match and match[2] is not None else 0
    size_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power) if match else 0
    if size_bytes < 1:
        raise StoreURIError(f"store address {uri!r}: budget {text!r} is not a size such as 500MB or 8GiB; {KNOWN}")
    return size_bytes


def _open_memory(address: _Address) -> BlobStore:
    if address.path:
        raise StoreURIError(f"store address {address.text!r}: memory:// takes no path; {KNOWN}")
    return MemoryStore(address.budget_bytes, address.replacement)


def _open_disk(address: _Address) -> BlobStore:
    if not address.path:
        raise StoreURIError(f"store address {address.text!r}: the path is missing; {KNOWN}")
    return DiskStore(address.path, address.budget_bytes, address.replacement)


_OPENERS: Mapping[str, Callable[[_Address], BlobStore]] = {"memory": _open_memory, "disk": _open_disk}
