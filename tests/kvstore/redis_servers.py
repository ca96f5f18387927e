"""Real Redis servers on free loopback ports: one alone, one over TLS, a master with a sentinel, a cluster of three."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PATIENCE_SECONDS = 30.0
MISSING = "redis-server is not installed; on Debian: apt-get install redis-server"


def require_server() -> None:
    """Skips where there is no redis-server."""
    if shutil.which("redis-server") is None:
        pytest.skip(MISSING)


def free_port() -> int:
    """A port whose neighbour 10,000 above, the bus port of a cluster's node, is free too."""
    while True:
        port = random.randrange(15000, 29000)
        try:
            for number in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port


def wait_until(true: Callable[[], object], what: str) -> None:
    """Waits, and fails in words."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < give_up_at, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.01)


class Server:
    """A redis-server of our own, which can be killed, frozen and started again."""

    def __init__(self, folder: Path, *settings: str, tls: bool = False, sentinel: bool = False) -> None:
        self.folder = folder
        self.settings = list(settings)
        self.tls = tls
        self.sentinel = sentinel
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def uri(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: object) -> redis.Redis:
        """A client with redis-py's own patience, for looking behind a store's back."""
        tls = {"ssl": True, "ssl_ca_certs": str(self.folder / "ca.crt")} if self.tls else {}
        return redis.Redis("127.0.0.1", self.port, protocol=2, **{**tls, **options})  # type: ignore[arg-type]

    def start(self) -> None:
        """Starts it, empty."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = ["--port", "0", "--tls-port", str(self.port)] if self.tls else ["--port", str(self.port)]
        where = ["--bind", "127.0.0.1", "--dir", str(self.folder)]
        if self.sentinel:
            command = ["redis-server", str(self.folder / "sentinel.conf"), "--sentinel", *ports, *where]
        else:
            command = ["redis-server", *ports, *where, "--save", "", "--appendonly", "no", *self.settings]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self.answers, f"redis-server, see {self.folder / 'log'}")

    def answers(self) -> bool:
        """Whether it is up; asking for a password counts as up."""
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            with self.client(retry=Retry(NoBackoff(), 0)) as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        """Ends it at once; what it held is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart_empty(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes connections, and answers nothing."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def server(folder: Path, *settings: str) -> Iterator[Server]:
    """One server."""
    require_server()
    with _stopped(Server(folder, *settings)) as running:
        yield running


@contextmanager
def tls_server(folder: Path, *settings: str) -> Iterator[Server]:
    """One server that speaks TLS only, and wants a certificate of its clients, with the files for both in `folder`."""
    require_server()
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed; it makes the certificates")
    _make_certificates(folder)
    files = ["--tls-ca-cert-file", "ca.crt", "--tls-cert-file", "server.crt", "--tls-key-file", "server.key"]
    files[1::2] = [str(folder / name) for name in files[1::2]]
    with _stopped(Server(folder, *files, "--tls-auth-clients", "optional", *settings, tls=True)) as running:
        yield running


@contextmanager
def watched(folder: Path) -> Iterator[tuple[Server, Server, Server]]:
    """A master called `kv`, its replica, and a sentinel that replaces it within about a second."""
    require_server()
    with ExitStack() as stack:
        master = stack.enter_context(_stopped(Server(folder / "master")))
        follow = ("--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-sync-delay", "0")
        replica = stack.enter_context(_stopped(Server(folder / "replica", *follow)))
        wait_until(lambda: replica.client().info()["master_link_status"] == "up", "the replica")
        home = folder / "sentinel"
        home.mkdir()
        (home / "sentinel.conf").write_text(
            f"sentinel monitor kv 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds kv 500\nsentinel failover-timeout kv 3000\n"
        )
        sentinel = stack.enter_context(_stopped(Server(home, sentinel=True)))
        wait_until(lambda: _knows_replica(sentinel), "the sentinel to know the replica")
        yield master, replica, sentinel


@contextmanager
def cluster(folder: Path) -> Iterator[list[Server]]:
    """Three masters that share the slots."""
    require_server()
    with ExitStack() as stack:
        settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        settings += ["--cluster-require-full-coverage", "no"]
        nodes = [stack.enter_context(_stopped(Server(folder / f"node-{i}", *settings))) for i in range(3)]
        hosts = [f"127.0.0.1:{node.port}" for node in nodes]
        command = ["redis-cli", "--cluster", "create", *hosts, "--cluster-yes"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        for node in nodes:
            wait_until(lambda node=node: _covers_all(node), "the cluster")  # type: ignore[misc]
        yield nodes


def cluster_uri(nodes: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@contextmanager
def _stopped(running: Server) -> Iterator[Server]:
    try:
        yield running
    finally:
        running.kill()


def _covers_all(node: Server) -> bool:
    with node.client() as client:
        info = client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3"


def _knows_replica(sentinel: Server) -> bool:
    with sentinel.client() as client:
        state = client.execute_command("SENTINEL MASTER", "kv")
    fields = dict(zip(state[::2], state[1::2], strict=True)) if isinstance(state, list) else state
    return {_text(key): _text(value) for key, value in fields.items()}["num-slaves"] == "1"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _make_certificates(folder: Path) -> None:
    """A certificate authority, and a certificate of it for the server 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for command in (
        f"req -x509 {new_key} -days 2 -subj /CN=tests -keyout ca.key -out ca.crt",
        f"req {new_key} -subj /CN=server -keyout server.key -out server.csr",
        "x509 -req -days 2 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names -out server.crt",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
