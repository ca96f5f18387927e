from epic_rag.retrievers import errors


def test_one_handler_catches_every_error():
    for name in ("IndexCorruptError", "IndexReadOnlyError"):
        assert issubclass(getattr(errors, name), errors.RetrieverError)


def test_the_drawn_tree_names_every_error():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert all(name in errors.__doc__ for name in defined)
