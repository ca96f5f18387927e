"""Where stores and indexes are, found out without the libraries of the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from epic_rag import config
from epic_rag.errors import ConfigError
from epic_rag.kvstore.uri import mask_uri, store_exists, store_folder, store_place


def require_store(store_uri: str) -> None:
    """Check that a store on disk is there, so that a mistyped folder is not made into one.

    Raises:
        ConfigError: it is not; says how to make one.
    """
    if not store_exists(store_uri):
        shown = mask_uri(store_uri)
        raise ConfigError(f"no store at '{shown}': make one with `epic-rag ingest FOLDER --store {shown}`")


def index_folder(store_uri: str, salt: str = "") -> Path | None:
    """Where the passages of a store are indexed: beside a store on disk; None, in memory, for `memory://`.

    Tenants share a store but never an index: each retrieves, and lends warm chunks from, its own documents only.
    """
    name = f"index-{_digest(salt)}" if salt else "index"
    folder = store_folder(store_uri)
    if folder is not None:
        return folder / name
    place = store_place(store_uri)
    return None if place is None else config.cache_folder() / "indexes" / _digest(place) / name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
