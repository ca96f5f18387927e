"""Shared by the tests of the KV store."""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_servers import Server, cluster, cluster_uri, server

from epic_rag.kvstore.address import parse_addresses
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.redis_options import redis_options
from epic_rag.kvstore.redis_store import RedisStore

pytest.register_assert_rewrite("epic_rag.kvstore.conformance", "epic_rag.kvstore.conformance_budget")

ROOT = Path(__file__).resolve().parents[2]


OpenRedis = Callable[..., RedisStore]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share; each takes a namespace of its own, and none breaks it."""
    with server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A cluster of three masters that all tests share."""
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture
def redis_uri(redis_server: Server) -> str:
    return redis_server.uri


@pytest.fixture
def redis_cluster_uri(redis_cluster: list[Server]) -> str:
    return cluster_uri(redis_cluster)


_NAMESPACES = itertools.count()


@pytest.fixture
def open_redis() -> Iterator[OpenRedis]:
    """Opens stores by address, patient ones with small parts unless it says otherwise, and closes them.

    Without a namespace in its options, each is empty.
    """
    opened = []

    def open_one(uri: str, **options: object) -> RedisStore:
        chosen = {"namespace": f"test-{next(_NAMESPACES)}", "part": 1 << 16, "timeout": 10, **options}
        query = "&".join(f"{name}={value}" for name, value in chosen.items())
        (address,) = parse_addresses(f"{uri}?{query}")
        opened.append(RedisStore(redis_options(address)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def books_balance() -> Callable[[DiskStore], bool]:
    """Whether names and bytes are exactly those of the files on disk, and nothing is left unsettled."""

    def balance(store: DiskStore) -> bool:
        files = {path.stem: path.stat().st_size for path in (store.path / "blobs").rglob("*.*") if path.is_file()}
        with store._manifest.read() as rows:
            settled = rows.unsettled() == []
        return settled and sorted(files) == list(store.names()) and store.stats().bytes == sum(files.values())

    return balance


@pytest.fixture
def in_namespace(tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    """Runs Python code behind a mount that nobody else sees; skips where mounting is not allowed."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")

    def run(mount: str, code: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, code]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the fault tests counted."""
    lines = [
        line
        for report in terminalreporter.stats.get("passed", [])
        if "/kvstore/" in report.nodeid
        for line in report.capstdout.splitlines()
    ]
    if lines:
        terminalreporter.write_sep("=", "what the tests of the KV store counted")
        for line in lines:
            terminalreporter.write_line(line)
