"""The table of settings: name, type, default, meaning, and how each may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import TypeVar, get_args, get_type_hints

from epic_rag import config
from epic_rag.kvstore.address import mask_uri

Value = str | int | float | bool | None
_T = TypeVar("_T")
_ABOUT = "about"


@dataclass(frozen=True, slots=True)
class _About:
    """What the table says of a setting beside its name, its type and its default."""

    meaning: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    secret: bool = False
    in_files: bool = True


def _setting(
    default: _T,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    secret: bool = False,
    in_files: bool = True,
) -> _T:
    about = _About(meaning, choices, minimum, secret, in_files)
    return field(default=default, repr=not secret, metadata={_ABOUT: about})


@dataclass(frozen=True, slots=True)
class Settings:
    """The table: each setting has this name in Python and in TOML, `EPIC_RAG_` and the name in capitals outside."""

    store: str = _setting(config.DEFAULT_STORE, "address of the store, see docs/stores.md")
    model: str | None = _setting(None, "Hugging Face id, folder, .gguf file or demo; none: the demo model if there")
    dtype: str = _setting("auto", "of weights and KV", choices=("auto", "bfloat16", "float16", "float32"))
    device: str = _setting("auto", "auto, cpu, cuda or cuda:N")
    allow_fallback: bool = _setting(False, "answer with full prefills when the model cannot be linked")
    encoding: str | None = _setting(None, "none, sinks, prompt or warm:N; none set: the store's own, warm:600 at first")
    chunk_tokens: int = _setting(config.DEFAULT_CHUNK_TOKENS, "largest chunk, in tokens", minimum=1)
    retriever: str = _setting(config.DEFAULT_RETRIEVER, "how passages are found", choices=("bm25", "dense", "hybrid"))
    embeddings: str | None = _setting(None, "demo, a folder, a Hugging Face id or module:Class; for dense and hybrid")
    k: int = _setting(config.DEFAULT_K, "passages to retrieve", minimum=1)
    selector: str = _setting(config.DEFAULT_SELECTOR, "context tokens computed again, such as lego:4; see ask --help")
    policy: str | None = _setting(None, "which tokens stay under the budget; none set: roco")
    budget: str | int | None = _setting(None, "what may stay in the KV cache: tokens, a share (25%) or bytes (64MB)")
    stride: int = _setting(config.DEFAULT_STRIDE_TOKENS, "tokens prefilled between two evictions", minimum=1)
    max_tokens: int = _setting(config.DEFAULT_MAX_TOKENS, "longest answer, in tokens", minimum=1)
    temperature: float = _setting(0.0, "0 is greedy", minimum=0)
    top_p: float = _setting(1.0, "nucleus for sampling", minimum=0)
    seed: int | None = _setting(None, "makes sampling repeatable", minimum=0)
    cache: str | None = _setting(None, "folder of converted models; none set: the user's cache", in_files=False)
    salt: str | None = _setting(None, "of the tenant, whose KV is no hit for another", secret=True, in_files=False)
    store_key: str | None = _setting(None, "seals the store's KV", secret=True, in_files=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    kinds: tuple[type, ...]
    default: Value
    meaning: str
    choices: tuple[str, ...]
    minimum: float | None
    secret: bool
    in_files: bool

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"EPIC_RAG_{self.name.upper()}"

    def shown(self, value: Value) -> Value:
        """The value as it may be shown: without secrets."""
        if self.secret:
            return None if value is None else "***"
        if not isinstance(value, str):
            return value
        if self.name == "embeddings":
            return re.sub(r"(?<=\?).+", "***", value)  # a class may be given the key of a service
        return mask_uri(value) if self.name == "store" else value


def table() -> tuple[Setting, ...]:
    """Every setting there is."""
    hints, defaults = get_type_hints(Settings), Settings()
    rows = []
    for row in fields(Settings):
        about: _About = row.metadata[_ABOUT]
        kinds = tuple(kind for kind in get_args(hints[row.name]) or (hints[row.name],) if kind is not NoneType)
        said = (about.meaning, about.choices, about.minimum, about.secret, about.in_files)
        rows.append(Setting(row.name, kinds, getattr(defaults, row.name), *said))
    return tuple(rows)
