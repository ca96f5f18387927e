"""How a chat answers: fields of the model, and each of them for one call as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, StrictInt, ValidationError, model_validator

from epic_rag.ask import AskOptions
from epic_rag.config import DEFAULT_MAX_TOKENS, DEFAULT_SELECTOR
from epic_rag.decode import DecodeOptions
from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget

HOSTED_ONLY = frozenset({"api_key", "base_url", "max_retries", "timeout"})
"""Standard parameters of chat models behind a network; a model that runs here takes them and has no use for them."""
UNSUPPORTED = {
    "tools": "tools", "tool_choice": "tools", "functions": "tools", "function_call": "tools",
    "parallel_tool_calls": "tools", "response_format": "structured output", "json_mode": "structured output",
    "logprobs": "log probabilities",
}  # fmt: skip


class ChatSettings(BaseModel):
    """How answers are made."""

    model_config = ConfigDict(extra="forbid")

    selector: str = DEFAULT_SELECTOR
    """Which tokens of the documents are computed again: `none`, `lego:K` or `full`."""
    policy: str | None = None
    """Which tokens stay under the budget; None: `roco`."""
    budget: StrictInt | str | KVBudget | None = None
    """What may stay in the KV cache: tokens (1024), a share of the prompt ("25%") or bytes ("64MB"); None: all."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    """Longest answer."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus: smallest set of tokens with at least this probability."""
    seed: int | None = None
    """Makes sampling repeatable; None draws a fresh one."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these strings."""

    @model_validator(mode="before")
    @classmethod
    def _tolerate(cls, values: object) -> object:
        """Take what is usual in LangChain: None for a default, one stop string, parameters of hosted models."""
        if not isinstance(values, Mapping):
            return values
        given = {name: value for name, value in values.items() if value is not None and name not in HOSTED_ONLY}
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.ask_options()
        return self

    def ask_options(self) -> AskOptions:
        """The same as options of `ask`.

        Raises:
            ConfigError: says which value cannot be.
        """
        how = DecodeOptions(self.max_tokens, self.temperature, self.top_p, self.seed, tuple(self.stop))
        return AskOptions(selector=self.selector, policy=self.policy, budget=self.budget, decode=how)


def for_call(settings: ChatSettings, call: Mapping[str, object]) -> AskOptions:
    """The options of one call.

    Args:
        settings: of the model.
        call: keywords of the call, which go first; one that is None leaves the model's own.

    Raises:
        ConfigError: a keyword that is not known or not supported, or a value that cannot be.
    """
    for name, value in call.items():
        if name in UNSUPPORTED and value:
            raise ConfigError(f"'{name}' was given, but this model has no {UNSUPPORTED[name]}: leave it out")
    own = {name: getattr(settings, name) for name in ChatSettings.model_fields}
    changed = {name: value for name, value in call.items() if value is not None and name not in UNSUPPORTED}
    try:
        return ChatSettings.model_validate({**own, **changed}).ask_options()
    except ValidationError as error:
        raise ConfigError(_in_words(error)) from None


def _in_words(error: ValidationError) -> str:
    known = ", ".join(sorted([*ChatSettings.model_fields, "documents"]))
    said = []
    for fault in error.errors():
        name = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            said.append(f"no keyword '{name}' for a call: expected one of {known}")
        else:
            said.append(f"{name}: {fault['msg']}, got {fault['input']!r}")
    return "; ".join(said)
