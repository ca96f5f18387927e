"""A plain text as a prompt: continued as it stands, or put to the model as a user's message."""

from __future__ import annotations

from epic_rag.errors import ConfigError
from epic_rag.model.tokens import TextTokenizer

_TEXT = "\ue000text\ue001"


def text_ids(tokenizer: TextTokenizer, text: str, *, chat: bool = False) -> list[int]:
    """Token ids of `text`; a control token that is written in it is spelled out.

    Args:
        tokenizer: the model's.
        text: anybody's.
        chat: put it into the model's chat template, ready for the answer; otherwise it only gets the token that a text
            begins with.

    Raises:
        ConfigError: the model has no chat template, or one that does not show the message.
    """
    ids = tokenizer.encode(text)
    if not ids:
        return []
    if not chat:
        return [*tokenizer.bos_ids, *ids]
    rendered = tokenizer.render([{"role": "user", "content": _TEXT}])
    if rendered is None or _TEXT not in rendered:
        raise ConfigError("the model has no chat template for a user's message: use --plain")
    before, after = rendered.split(_TEXT, 1)
    return [*tokenizer.encode_template(before), *ids, *tokenizer.encode_template(after)]
