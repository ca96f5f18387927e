"""What can go wrong in the passage index and the searches over it.

    RetrieverError            anything below; also a locked database or a full disk
    ├── EmbedderError         the embeddings failed, or gave no usable vectors
    ├── IndexCorruptError     the index file is damaged, or is not an index at all
    └── IndexReadOnlyError    a write was asked of an index that may only be read

A source, passage or word that is not there is no error: it is None, False or a shorter list.
"""


class RetrieverError(Exception):
    """Base of every error that `epic_rag.retrievers` raises on purpose."""


class EmbedderError(RetrieverError):
    """The embeddings raised an error, or gave what are no vectors; the message names them."""


class IndexCorruptError(RetrieverError):
    """The index file cannot be read as an index; the message says how to make it anew."""


class IndexReadOnlyError(RetrieverError):
    """The index was opened for reading only, by choice or because its folder does not allow more."""
