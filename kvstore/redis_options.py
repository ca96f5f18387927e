"""How to reach a Redis or Valkey, and how blobs are laid out in it."""

import re
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote

from epic_rag.kvstore.address import Address, parse_seconds, parse_size
from epic_rag.kvstore.redis_parts import MAX_PART_BYTES, MIN_PART_BYTES

Kind = Literal["single", "sentinel", "cluster"]

PART_BYTES = 2 << 20
TIMEOUT_SECONDS = 0.2
SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
"""Scheme of an address: the kind of deployment, and whether it is reached over TLS."""

_PORTS: dict[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_NAMESPACE = re.compile(r"[0-9a-z-]{1,64}")
_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?")


class Node(NamedTuple):
    """A server's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Where a Redis is, and how it is used.

    Attributes:
        hosts: the server; for "sentinel" the sentinels; for "cluster" any of its nodes.
        kind: "single", "sentinel" or "cluster".
        tls: whether to speak TLS; the server's certificate and name are checked.
        username: None for the default user; never shown.
        password: never shown.
        db: number of the database; 0 for a cluster.
        service: the master's name among the sentinels.
        namespace: stores of different namespaces share a server without seeing each other; 1 to 64 of `0-9 a-z -`.
        ttl_seconds: how long a blob lives after it was put; None for ever.
        part_bytes: bytes of a part; 64 KiB to 4 MiB.
        timeout_seconds: how long a server may be silent before it counts as dead.
        ca_file: certificates to trust instead of the system's.
        cert_file: the client's certificate, where the server asks for one.
        key_file: the key of that certificate.
    """

    hosts: tuple[Node, ...]
    kind: Kind = "single"
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    db: int = 0
    service: str = ""
    namespace: str = "default"
    ttl_seconds: float | None = None
    part_bytes: int = PART_BYTES
    timeout_seconds: float = TIMEOUT_SECONDS
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("hosts: expected at least one")
        if self.kind == "single" and len(self.hosts) > 1:
            raise ValueError(f"{len(self.hosts)} hosts: expected one, or the scheme redis+cluster or redis+sentinel")
        if (self.kind == "sentinel") != bool(self.service):
            raise ValueError("the master's name: expected with sentinels, as in redis+sentinel://host/name, only")
        if self.db < 0 or (self.db and self.kind == "cluster"):
            raise ValueError(f"database {self.db}: expected a number of at least 0, and none for a cluster")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"namespace {self.namespace!r}: expected 1 to 64 of 0-9, a-z and '-'")
        if self.ttl_seconds is not None and not 0.001 <= self.ttl_seconds < inf:
            raise ValueError(f"ttl of {self.ttl_seconds} seconds: expected at least 0.001, or None for no limit")
        if not MIN_PART_BYTES <= self.part_bytes <= MAX_PART_BYTES:
            raise ValueError(f"parts of {self.part_bytes} bytes: expected 64 KiB to 4 MiB")
        if not 0.01 <= self.timeout_seconds <= 60:
            raise ValueError(f"timeout of {self.timeout_seconds} seconds: expected 0.01 to 60")

    @property
    def shown(self) -> str:
        """The address without user and password, for messages."""
        scheme = next(name for name, value in SCHEMES.items() if value == (self.kind, self.tls))
        tail = f"/{self.service}" if self.service else f"/{self.db}" if self.db else ""
        return f"{scheme}://{','.join(map(str, self.hosts))}{tail}"


def redis_options(address: Address) -> RedisOptions:
    """Read a Redis address.

    Raises:
        StoreURIError: malformed.
    """
    kind, tls = SCHEMES[address.scheme]
    files = ("ca", "cert", "key") if tls else ()
    address.check_options("codec", "write", "namespace", "ttl", "part", "timeout", *files)
    user, _, where = address.path.rpartition("@")
    if "," in user and "@" in user:
        raise address.refuse("user and password stand once, before the first host; in them @ is %40 and , is %2C")
    username, _, password = user.partition(":")
    hosts, _, tail = where.partition("/")
    options = address.options
    for name in files:
        if name in options and not Path(options[name]).is_file():
            raise address.refuse(f"{name}={options[name]}: there is no such file")
    try:
        return RedisOptions(
            hosts=tuple(_node(host, _PORTS[kind]) for host in hosts.split(",")),
            kind=kind,
            tls=tls,
            username=unquote(username) or None,
            password=unquote(password) or None,
            db=_database(tail) if kind != "sentinel" else _database(tail.partition("/")[2]),
            service=unquote(tail.partition("/")[0]) if kind == "sentinel" else "",
            namespace=options.get("namespace", "default"),
            ttl_seconds=_seconds("ttl", options["ttl"]) if "ttl" in options else None,
            part_bytes=parse_size(options["part"]) or 0 if "part" in options else PART_BYTES,
            timeout_seconds=_seconds("timeout", options["timeout"]) if "timeout" in options else TIMEOUT_SECONDS,
            ca_file=options.get("ca"),
            cert_file=options.get("cert"),
            key_file=options.get("key"),
        )
    except ValueError as error:
        raise address.refuse(str(error)) from None  # what was typed may hold the password


def _node(text: str, default_port: int) -> Node:
    match = _HOST.fullmatch(text)
    port = int(match[2] or default_port) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(
            "a host is malformed: expected host:port, with the password's special characters percent-encoded"
        )
    return Node(unquote(match[1].strip("[]")), port)


def _database(text: str) -> int:
    if not text.isdecimal() and text != "":
        raise ValueError("the database is no number: expected as in redis://host:6379/0")
    return int(text or 0)


def _seconds(name: str, text: str) -> float:
    seconds = parse_seconds(text)
    if seconds is None:
        raise ValueError(f"{name} {text!r}: expected a time such as 0.5, 90s or 7d")
    return seconds
