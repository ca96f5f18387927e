"""What `EpicRAG` takes: a question, alone or with the conversation before it, in LangChain's or our own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.runnables.utils import AddableDict
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from epic_rag.errors import ConfigError
from epic_rag.history import Role, Turn

_ROLES: dict[str, Role] = {
    "user": "user", "human": "user", "assistant": "assistant", "ai": "assistant", "system": "system",
}  # fmt: skip
_KNOWN = "user, assistant or system"


@with_config(ConfigDict(arbitrary_types_allowed=True))
class Question(TypedDict):
    """Input as a dict; a plain string will do as well.

    `chat_history` holds the turns before the question, oldest first: messages, or what LangChain makes messages of.
    """

    question: str
    chat_history: NotRequired[list[BaseMessage | dict[str, Any] | tuple[str, str]]]


def add_up(parts: Iterable[object]) -> object:
    """The input that parts of a stream add up to, as other runnables add them; None where there was none."""
    whole: object = None
    for part in parts:
        one = AddableDict(part) if isinstance(part, Mapping) else part
        try:
            whole = one if whole is None else whole + one  # type: ignore[operator]
        except TypeError:  # parts that do not add: the last is the input
            whole = one
    return whole


def read_input(given: object) -> tuple[str, tuple[Turn, ...]]:
    """The question, and the turns before it.

    Raises:
        ConfigError: another shape; says which was expected.
    """
    question = given.get("question") if isinstance(given, dict) else given
    if not isinstance(question, str):
        raise ConfigError(
            "expected a question as a string or as {'question': …, 'chat_history': […]}, "
            f"got {type(given).__name__}: {given!r}"
        )
    history = given.get("chat_history") if isinstance(given, dict) else None
    return question, () if history is None else _turns(history)


def _turns(history: object) -> tuple[Turn, ...]:
    """The turns of a chat history; messages of tools are no part of the conversation and are passed over."""
    if isinstance(history, str) or not isinstance(history, Sequence):
        raise ConfigError(f"chat_history: expected a list of messages, got {type(history).__name__}")
    turns = (_turn(one, number) for number, one in enumerate(history, 1))
    return tuple(turn for turn in turns if turn is not None)


def _turn(given: object, number: int) -> Turn | None:
    if isinstance(given, Turn):
        return given
    try:
        (message,) = convert_to_messages([given])  # type: ignore[list-item]
    except (ValueError, NotImplementedError, TypeError) as error:
        raise ConfigError(
            f"chat_history, message {number}: expected a message, ('human', text) or a dict with role and content, "
            f"got {given!r}"
        ) from error
    role = _role(message, number)
    if role in ("user", "system"):
        _refuse_all_but_text(message, number)
    return None if role is None else Turn(role, str(message.text))


def _role(message: BaseMessage, number: int) -> Role | None:
    """Who spoke; None for tools, which are no part of the conversation."""
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, SystemMessage):
        return "system"
    if not isinstance(message, ChatMessage):
        return None
    if message.role.lower() in _ROLES:
        return _ROLES[message.role.lower()]
    raise ConfigError(f"chat_history, message {number}: the role '{message.role}' is unknown; expected {_KNOWN}")


def _refuse_all_but_text(message: BaseMessage, number: int) -> None:
    """What the user showed and the model cannot see would be missing without a word."""
    kinds = {block["type"] for block in message.content_blocks} - {"text"}
    if kinds:
        raise ConfigError(
            f"chat_history, message {number} holds a block of type '{min(kinds)}': only text is read. Leave it "
            "out, and put documents into the store or behind a retriever"
        )
