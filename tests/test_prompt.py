from __future__ import annotations

import pytest
from tiny_models import make_tokenizer

from epic_rag.errors import QuestionTooLongError
from epic_rag.model import LanguageModel
from epic_rag.model.tokens import TextTokenizer
from epic_rag.prompt import INSTRUCTION, build_prompt, prompt_frame


def frame_text(tokenizer: TextTokenizer) -> str:
    frame = prompt_frame(tokenizer)
    ids = [*frame.prefix_ids, *tokenizer.encode("PASSAGES\n\n"), *frame.suffix(tokenizer.encode("QUESTION"))]
    return tokenizer._tokenizer.decode(ids)  # with control tokens


def test_the_chat_template_stands_around_passages_and_question() -> None:
    text = frame_text(TextTokenizer(make_tokenizer()))
    assert text == (
        f"<|im_start|>system\n{INSTRUCTION}<|im_end|>\n<|im_start|>user\nPassages:\n\nPASSAGES\n\n"
        "Question: QUESTION<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_system_role_gets_the_instruction_from_the_user() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    assert frame_text(TextTokenizer(tokenizer)).startswith(f"<|im_start|>user\n{INSTRUCTION}\n\nPassages:")


def test_a_template_that_drops_the_system_message_in_silence() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}{% endif %}{% endfor %}"
    assert frame_text(TextTokenizer(tokenizer)).startswith(f"U:{INSTRUCTION}")


def test_without_a_template_the_prompt_is_plain_text_behind_bos() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    text = frame_text(TextTokenizer(tokenizer))
    assert text.startswith(f"<s>{INSTRUCTION}\n\nPassages:")
    assert text.endswith("Question: QUESTION\n\nAnswer:")


@pytest.mark.model
def test_the_real_template_round_trips(smollm: LanguageModel) -> None:
    text = frame_text(smollm.tokenizer)
    assert text.startswith("<|im_start|>system\nYou answer questions")
    assert text.endswith("Question: QUESTION<|im_end|>\n<|im_start|>assistant\n")


def chunks(*sizes: int) -> list[tuple[int, ...]]:
    return [tuple(range(size)) for size in sizes]


def test_token_ids_are_concatenated_and_offsets_say_where() -> None:
    frame = prompt_frame(TextTokenizer(make_tokenizer()))
    prompt, fitting = build_prompt(frame, [1, 2], chunks(5, 7), 10_000)
    assert fitting == (0, 1)
    assert [len(chunk) for chunk in prompt.chunk_ids] == [7, 5], "the best passage stands next to the question"
    ids = prompt.token_ids
    assert len(ids) == prompt.num_tokens
    for offset, chunk in zip(prompt.offsets, prompt.chunk_ids, strict=True):
        assert ids[offset : offset + len(chunk)] == chunk
    assert ids[prompt.suffix_start :] == prompt.suffix_ids == (*frame.middle_ids, 1, 2, *frame.tail_ids)


def test_a_passage_that_does_not_fit_is_left_out_whole_and_smaller_ones_behind_it_are_not() -> None:
    frame = prompt_frame(TextTokenizer(make_tokenizer()))
    bare = len(frame.prefix_ids) + len(frame.suffix([1, 2]))
    prompt, fitting = build_prompt(frame, [1, 2], chunks(90, 50, 30, 20, 5, 1), bare + 85)
    assert fitting == (1, 2, 4)
    assert [len(chunk) for chunk in prompt.chunk_ids] == [5, 30, 50]
    assert prompt.num_tokens == bare + 85
    assert build_prompt(frame, [1, 2], chunks(50), bare)[1] == ()


def test_a_question_longer_than_the_window_is_an_error_in_words() -> None:
    frame = prompt_frame(TextTokenizer(make_tokenizer()))
    with pytest.raises(QuestionTooLongError, match=r"the question has 5000 tokens.*room for 0.*shorter question"):
        build_prompt(frame, range(5000), [], 100)
