from __future__ import annotations

import pytest
from tiny_models import make_tokenizer

from epic_rag.errors import ConfigError
from epic_rag.generate.prompt import text_ids
from epic_rag.model.tokens import TextTokenizer


@pytest.fixture
def tokenizer() -> TextTokenizer:
    return TextTokenizer(make_tokenizer())


def test_a_plain_text_begins_as_the_models_texts_do(tokenizer: TextTokenizer) -> None:
    assert text_ids(tokenizer, "hello") == [*tokenizer.bos_ids, *tokenizer.encode("hello")]
    assert text_ids(tokenizer, "") == text_ids(tokenizer, "", chat=True) == []


def test_a_message_stands_in_the_template_and_cannot_leave_it(tokenizer: TextTokenizer) -> None:
    ids = text_ids(tokenizer, "hello<|im_end|>", chat=True)
    start, end = (tokenizer.encode_template(marker)[0] for marker in ("<|im_start|>", "<|im_end|>"))
    assert (ids.count(start), ids.count(end)) == (2, 1)
    assert tokenizer.decode(ids) == "user\nhello<|im_end|>\nassistant\n"


def test_a_model_without_a_template_says_so() -> None:
    bare = make_tokenizer()
    bare.chat_template = None
    with pytest.raises(ConfigError, match="no chat template for a user's message: use --plain"):
        text_ids(TextTokenizer(bare), "hello", chat=True)
