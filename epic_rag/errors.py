"""Every error a user can meet, as one tree. Each message says what happened, what was expected, and the mend.

EpicError                       anything this package raises on purpose
├── ConfigError                 an option has a value that cannot be
├── ModelError                  the language model cannot be used
│   ├── ModelNotFoundError      no such hub id, folder or GGUF file
│   └── UnsupportedModelError   the gate or the self-test refused it; names the reason
├── PromptError                 the prompt cannot be built
│   └── QuestionTooLongError    the question alone fills the context window
└── IngestError                 nothing could be ingested

The ground folders raise their own small trees, since they stand on their own: `epic_rag.kvstore.errors.StoreError` and
`epic_rag.retrievers.errors.RetrieverError`.
"""


class EpicError(Exception):
    """Anything this package raises on purpose."""


class ConfigError(EpicError):
    """An option has a value that cannot be."""


class ModelError(EpicError):
    """The language model cannot be used."""


class ModelNotFoundError(ModelError):
    """No such hub id, folder or GGUF file."""


class UnsupportedModelError(ModelError):
    """The gate or the self-test refused the model; the message names the reason."""


class PromptError(EpicError):
    """The prompt cannot be built."""


class QuestionTooLongError(PromptError):
    """The question alone fills the context window."""


class IngestError(EpicError):
    """Nothing could be ingested."""
