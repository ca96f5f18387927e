"""LangChain messages as a question, the turns before it, and the documents that came along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage

from epic_rag.chat.documents import from_block
from epic_rag.errors import ConfigError
from epic_rag.history import Turn

Role = Literal["user", "assistant", "system"]

_ROLES: dict[str, Role] = {
    "user": "user", "human": "user", "assistant": "assistant", "ai": "assistant", "system": "system",
    "developer": "system",
}  # fmt: skip
_REFUSED = {
    "image": "images", "audio": "audio", "video": "video", "file": "files", "tool_call": "tool calls",
    "invalid_tool_call": "tool calls", "server_tool_call": "tool calls", "server_tool_result": "tool calls",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat was asked.

    Attributes:
        question: what the user said last; messages of the user in a row are one question.
        history: the turns before it, no role twice in a row.
        system: all system messages together; None: there was none.
        documents: of the `text-plain` blocks: those of the question first, then of the turns before it, latest first.
    """

    question: str
    history: tuple[Turn, ...]
    system: str | None
    documents: tuple[Document, ...]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns before the question, the system's first."""
        return self.history if self.system is None else (Turn("system", self.system), *self.history)


def read_messages(messages: Sequence[BaseMessage]) -> Conversation:
    """Take a conversation apart.

    Raises:
        ConfigError: it does not end with a user's message, or holds what a text model cannot take; says what.
    """
    turns: list[Turn] = []
    documents: list[list[Document]] = []
    for number, message in enumerate(messages, 1):
        text, found = _content(message, number)
        turns.append(Turn(_role(message, number), text))
        documents.append(found)
    spoken = _merged([turn for turn in turns if turn.role != "system"])
    if not spoken or spoken[-1].role != "user":
        last = f"the last of {len(messages)} is the {spoken[-1].role}'s" if spoken else "there is none of a user"
        raise ConfigError(f"the messages must end with one of the user's to be answered, but {last}")
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system" and turn.text.strip())
    latest_first = tuple(document for found in reversed(documents) for document in found)
    return Conversation(spoken[-1].text, tuple(spoken[:-1]), system or None, latest_first)


def _merged(turns: Sequence[Turn]) -> list[Turn]:
    """Turns of one role in a row as one turn: many templates take the roles in turn only."""
    return [
        Turn(role, "\n\n".join(turn.text for turn in row if turn.text.strip()))
        for role, row in groupby(turns, key=lambda turn: turn.role)
    ]


def _role(message: BaseMessage, number: int) -> Role:
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        if message.tool_calls or message.invalid_tool_calls:
            raise _refusal("tool calls", number)
        return "assistant"
    if isinstance(message, SystemMessage):
        return "system"
    role = _ROLES.get(message.role.lower()) if isinstance(message, ChatMessage) else None
    if role is None:
        named = message.role if isinstance(message, ChatMessage) else message.type
        raise ConfigError(
            f"message {number} has the role '{named}': expected a message of the user, the assistant or the system"
        )
    return role


def _content(message: BaseMessage, number: int) -> tuple[str, list[Document]]:
    """Text of a message, and the documents attached to it."""
    if isinstance(message.content, str):
        return message.content, []
    texts: list[str] = []
    documents: list[Document] = []
    for block in message.content_blocks:
        kind = block["type"]
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "text-plain":
            documents.append(from_block(block, f"message {number}, document {len(documents) + 1}"))
        elif kind != "reasoning":  # what a model thought is not given to it again
            raise _refusal(_REFUSED.get(kind, f"blocks of type '{_inner_type(block)}'"), number)
    return "".join(texts), documents


def _inner_type(block: object) -> str:
    """The type that a block had before LangChain called it `non_standard`."""
    inner = block.get("value", block) if isinstance(block, dict) else block
    return str(inner.get("type", "unknown")) if isinstance(inner, dict) else "unknown"


def _refusal(what: str, number: int) -> ConfigError:
    return ConfigError(
        f"message {number} holds {what}: this model takes text only. Give text, and documents as 'text-plain' blocks "
        "or under documents="
    )
