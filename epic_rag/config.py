"""Defaults and the environment: the only file that reads it."""

from __future__ import annotations

import os
from pathlib import Path

from epic_rag.errors import ConfigError
from epic_rag.kvstore.mac import Authenticator

DEFAULT_STORE = "disk://.epic-rag"
DEFAULT_CHUNK_TOKENS = 256
DEFAULT_K = 8
DEFAULT_RETRIEVER = "bm25"
DEFAULT_SELECTOR = "lego:4"
DEFAULT_MAX_TOKENS = 128
DEFAULT_STRIDE_TOKENS = 64

DEFAULT_SHARE = 0.15
"""Of the context tokens, for selectors that take a share: CacheBlend's own (arXiv 2405.16444)."""
NEUTRAL_QUESTION = "What do the passages say?"
"""What `query:r` holds a question against: it asks for nothing in particular."""
AUTO_HEAD_TOKENS = 4
"""Of each passage in the first round of `auto` that recomputes any: as in `DEFAULT_SELECTOR`."""
AUTO_ENOUGH_NATS = 0.01
"""KL between the next-token distributions of two rounds below which `auto` adds no more rows. Not measured itself: an
eighth of what a warm prefix with `lego:4` leaves to a full prefill (benchmarks/results/quality_xquad.json)."""

NEUTRAL_MARK = "/neutral"
"""Behind an encoding's name when the neutral text stood in for the corpus."""
CORPUS_FACTOR = 3
"""A corpus lends warm chunks when it has at least so many times the tokens that are to be lent."""


def share_cores() -> None:
    """Let torch's threads sleep soon while they wait; to be called before torch is imported, by a program's entry.

    By default GNU OpenMP spins, and where another program uses a core as well, every parallel loop waits for a thread
    that is not running: on two cores shared with one busy program, encoding a chunk took 18 s instead of 1.2 s.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def cache_folder() -> Path:
    """Where converted models and weight digests are kept: `EPIC_RAG_CACHE`, else the user's cache folder."""
    named = os.environ.get("EPIC_RAG_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "epic-rag"


def user_settings_file() -> Path:
    """The user's own settings: `epic-rag/config.toml` in `XDG_CONFIG_HOME`, else in `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".config"
    except RuntimeError:  # a user without a home, as in some containers
        folder = Path("~/.config")
    return folder / "epic-rag" / "config.toml"


def variable(name: str) -> str | None:
    """The value of an environment variable; None where it is not set, or empty."""
    return os.environ.get(name, "").strip() or None


def tenant_salt() -> str:
    """The tenant's salt, `EPIC_RAG_SALT`: entries of one salt are never hits of another."""
    return os.environ.get("EPIC_RAG_SALT", "")


def store_key() -> bytes | None:
    """The store's secret, `EPIC_RAG_STORE_KEY`: with it, KV that was not written with it is never used; None: no key.

    Raises:
        ConfigError: too short to be a secret; the message does not show it.
    """
    secret = os.environ.get("EPIC_RAG_STORE_KEY", "").strip().encode()
    if not secret:
        return None
    try:
        Authenticator(secret)
    except ValueError as error:
        raise ConfigError(f"EPIC_RAG_STORE_KEY: {error}") from None
    return secret
