"""Text to token ids and back. Text of users and documents never becomes a control token."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from epic_rag.model.fingerprint import tokenizer_digest


class TextTokenizer:
    """A Hugging Face tokenizer with two ways in: the chat template's text, and everybody else's text.

    Attributes:
        digest: identity of the tokenizer, part of every store key.
        control_ids: ids of all added tokens (`<|im_start|>`, `</s>`, `<think>`, …).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.digest = tokenizer_digest(tokenizer)
        contents = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        contents.update(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        contents.pop("", None)
        self.control_ids = frozenset(contents.values())
        longest_first = sorted(contents, key=len, reverse=True)
        self._markers = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if contents else None

    @property
    def bos_ids(self) -> list[int]:
        """The token a text begins with, if the model has one."""
        bos = self._tokenizer.bos_token_id
        return [] if bos is None else [bos]

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokenizer's own end of text."""
        eos = self._tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset([eos])

    def encode_template(self, text: str) -> list[int]:
        """Token ids of our own or the template's text; control tokens are read as such."""
        return self._encode(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of anybody's text: a marker such as `<|im_start|>` in it is spelled out, letter for letter."""
        if self._markers is None or self._markers.search(text) is None:
            ids = self._encode(text)
        else:
            ids = [token for piece in self._spelled_out(text) for token in self._encode(piece)]
        return [token for token in ids if token not in self.control_ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, messages: list[dict[str, str]]) -> str | None:
        """The chat template's text for `messages`, ready for the answer; None when the model has no template."""
        if not self._tokenizer.chat_template:
            return None
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        if self._tokenizer.is_fast:  # the backend directly: no state is changed, so threads may share it
            return list(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _spelled_out(self, text: str) -> list[str]:
        """Pieces of `text` none of which holds a whole marker."""
        pieces: list[str] = []
        for piece in self._markers.split(text) if self._markers else [text]:
            if self._markers and self._markers.fullmatch(piece):
                pieces += [piece[:1], *self._spelled_out(piece[1:])]
            elif piece:
                pieces.append(piece)
        return pieces
