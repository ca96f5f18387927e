"""Shared by the tests of the KV store."""

import pytest

pytest.register_assert_rewrite("epic_rag.kvstore.conformance")
