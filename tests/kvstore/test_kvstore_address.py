"""Addresses as text: tiers, options, sizes and times, and no password in anything that is shown."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.kvstore.address import mask_uri, parse_addresses, parse_seconds, parse_size
from epic_rag.kvstore.errors import StoreURIError
from epic_rag.kvstore.redis_options import Node, RedisOptions, redis_options
from epic_rag.kvstore.uri import open_store


def options(uri: str) -> RedisOptions:
    (address,) = parse_addresses(uri)
    return redis_options(address)


def test_a_server_in_full() -> None:
    chosen = options("redis://me:pa%2Fss%40w@host:7000/3?namespace=a-b&ttl=7d&part=1MiB&timeout=0.5")
    assert chosen.hosts == (Node("host", 7000),)
    assert (chosen.kind, chosen.tls, chosen.username, chosen.password) == ("single", False, "me", "pa/ss@w")
    assert (chosen.db, chosen.namespace, chosen.ttl_seconds) == (3, "a-b", 7 * 86400)
    assert (chosen.part_bytes, chosen.timeout_seconds) == (1 << 20, 0.5)
    assert chosen.shown == "redis://host:7000/3"


def test_a_server_in_short() -> None:
    chosen = options("redis://host")
    assert chosen == RedisOptions((Node("host", 6379),))
    assert (chosen.username, chosen.password, chosen.db, chosen.namespace) == (None, None, 0, "default")
    assert (chosen.ttl_seconds, chosen.part_bytes, chosen.timeout_seconds) == (None, 2 << 20, 0.2)


@pytest.mark.parametrize(
    ("uri", "kind", "tls", "shown"),
    [
        ("redis://h", "single", False, "redis://h:6379"),
        ("rediss://:p@h/1", "single", True, "rediss://h:6379/1"),
        ("REDIS://h", "single", False, "redis://h:6379"),
        ("redis://[::1]:7000", "single", False, "redis://[::1]:7000"),
        ("redis+sentinel://a,b:1/kv", "sentinel", False, "redis+sentinel://a:26379,b:1/kv"),
        ("rediss+sentinel://u:p@a/kv/2", "sentinel", True, "rediss+sentinel://a:26379/kv"),
        ("redis+cluster://a:1,b:2,c", "cluster", False, "redis+cluster://a:1,b:2,c:6379"),
        ("rediss+cluster://:p@a", "cluster", True, "rediss+cluster://a:6379"),
    ],
)
def test_deployments(uri: str, kind: str, tls: bool, shown: str) -> None:
    chosen = options(uri)
    assert (chosen.kind, chosen.tls, chosen.shown) == (kind, tls, shown)
    assert (chosen.password == "p") == (":p@" in uri)


def test_certificates_are_for_tls_and_must_be_there(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    for file in files.values():
        file.touch()
    chosen = options("rediss://h?" + "&".join(f"{name}={file}" for name, file in files.items()))
    assert (chosen.ca_file, chosen.cert_file, chosen.key_file) == tuple(map(str, files.values()))
    files["cert"].unlink()
    with pytest.raises(StoreURIError, match=r"cert=.*cert\.pem: there is no such file"):
        options(f"rediss://h?cert={files['cert']}")
    with pytest.raises(StoreURIError, match="option 'ca' is unknown"):
        options("redis://h?ca=x")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("redis://", "malformed"),
        ("redis://h:0", "malformed"),
        ("redis://h:99999", "malformed"),
        ("redis://h:port", "malformed"),
        ("redis+cluster://:p@a,:q@b", "stand once"),
        ("redis://h?namespace=a&namespace=b", "each name once"),
        ("tiered:a,b", "needs its scheme"),
        ("tiered:memory://,plain/path", "needs its scheme"),
        ("redis//:hunter2@h", "'://' is missing"),
        ("disk://x%00y", "NUL"),
        ("redis://a b", "malformed"),
        ("redis://h/x", "no number"),
        ("redis://h/-1", "no number"),
        ("redis://a,b", "redis+cluster"),
        ("redis+cluster://a/1", "none for a cluster"),
        ("redis+sentinel://a", "the master's name"),
        ("redis+cluster://a,,b", "malformed"),
        ("redis://h?namespace=A", "namespace 'A'"),
        ("redis://h?namespace=", "namespace ''"),
        ("redis://h?ttl=soon", "ttl 'soon'"),
        ("redis://h?ttl=0", "ttl '0'"),
        ("redis://h?part=1kB", "64 KiB to 4 MiB"),
        ("redis://h?part=5MiB", "64 KiB to 4 MiB"),
        ("redis://h?part=x", "64 KiB to 4 MiB"),
        ("redis://h?timeout=0.001", "0.01 to 60"),
        ("redis://h?budget=1GB", "option 'budget' is unknown"),
        ("redis://h?password=hunter2", "option 'password' is unknown"),
        ("redis://u:hunter2@h/x", "no number"),
        ("redis://:hun?ter2@h", "malformed"),
        ("redis://:hunter2@h:port", "percent-encoded"),
        ("redsi://:hunter2@h", "'redsi' is unknown"),
        ("redis:hunter2@h", "'://' is missing"),
        ("redis://h?write=back", "one tier of several"),
        ("redis://h?codec=zip", "codec 'zip' is unknown"),
        ("tiered:", "tiers are missing"),
        ("tiered:memory://,tiered:disk://x", "cannot be tiered"),
        ("tiered:memory://?write=back", "at least one"),
        ("tiered:memory://,disk://x?write=later", "write=later"),
        ("tiered:memory://,ftp://x", "'ftp' is unknown"),
        ("tiered:memory://,redis://:hunter2@h?x=1", "option 'x' is unknown"),
        ("tiered:memory://?codec=int8,redis://h?codec=lz4", "one for all of its tiers"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(
    uri: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreURIError, match="disk:///absolute/path") as caught:
        open_store(uri)
    shown = str(caught.value)
    assert words in shown
    causes = [str(error) for error in (caught.value.__cause__, caught.value.__context__) if error is not None]
    assert not re.search("hun|ter2", shown + repr(causes))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("redis://u:p@h:1/2?ttl=1d", "redis://***@h:1/2?ttl=1d"),
        ("redis://h", "redis://h"),
        ("disk:///a@b/c", "disk:///a@b/c"),
        ("a@b", "a@b"),
        ("memory://", "memory://"),
        ("rediss+cluster://:p@a:1,b:2", "rediss+cluster://***@a:1,b:2"),
        ("tiered:memory://,redis://:p@h,disk:///x@y", "tiered:memory://,redis://***@h,disk:///x@y"),
        ("tiered:redis://:p,w@h,rediss://:q@i", "tiered:redis://***@h,rediss://***@i"),
        ("redis://h?password=p&x=1", "redis://h?password=***&x=***"),
        ("redis::p@h", "redis:***@h"),
        ("tiered:memory://,redis:p@h1", "tiered:memory://,redis:***@h1"),
        ("tiered:memory://,redis:/:p@h1", "tiered:memory://,redis:/***@h1"),
        ("tiered:memory://;redis://:p@h1", "tiered:memory://;redis://***@h1"),
        ("redis//:p@h", "redis//***@h"),
        ("redis://:pw", "redis://:***"),
        ("redis://user:pw", "redis://user:***"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis+cluster://[::1]:7000,h:7001?ttl=1d", "redis+cluster://[::1]:7000,h:7001?ttl=1d"),
        ("redis://h?p=pw&ttl=1d", "redis://h?p=***&ttl=1d"),
        ("memory://?size=1", "memory://?size=1"),
    ],
)
def test_masking(uri: str, shown: str) -> None:
    assert mask_uri(uri) == shown


@given(st.text(alphabet="pw/?#:@,&=% é", min_size=1, max_size=8), st.sampled_from(["redis", "rediss+cluster", "typo"]))
def test_no_password_survives_masking(middle: str, scheme: str) -> None:
    uri = f"{scheme}://user:Xy{middle}Zz@host:1?ttl=1d"
    assert mask_uri(uri) == f"{scheme}://***@host:1?ttl=1d"
    assert mask_uri(f"tiered:memory://,{uri}") == f"tiered:memory://,{scheme}://***@host:1?ttl=1d"


def test_tiers_are_split_at_commas_before_a_scheme() -> None:
    addresses = parse_addresses("tiered:memory://?budget=1GB,disk:///a,b,redis+cluster://h:1,i:2?ttl=1d")
    assert [(one.scheme, one.path, dict(one.options)) for one in addresses] == [
        ("memory", "", {"budget": "1GB"}),
        ("disk", "/a,b", {}),
        ("redis+cluster", "h:1,i:2", {"ttl": "1d"}),
    ]
    assert "h:1" in repr(addresses[2])
    assert "secret" not in repr(parse_addresses("tiered:memory://,redis://:secret@h"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5.0), ("0.25", 0.25), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("7d", 604800.0), (" 1 s ", 1.0)]
    + [(text, None) for text in ("", "0", "s", "-1", "1w", "1e3", "nan")],
)
def test_times(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1kB", 1000), ("1KiB", 1024), ("0.5", None), ("x", None), ("", None)]
)
def test_sizes(text: str, size_bytes: int | None) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"hosts": ()},
        {"db": -1},
        {"ttl_seconds": 0.0},
        {"ttl_seconds": float("inf")},
        {"part_bytes": 1},
        {"timeout_seconds": 61.0},
        {"namespace": "a_b"},
        {"service": "kv"},
        {"kind": "sentinel"},
    ],
)
def test_options_validate_themselves(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RedisOptions(**{"hosts": (Node("h", 1),), **wrong})  # type: ignore[arg-type]


def test_options_never_show_their_password() -> None:
    assert "secret" not in repr(RedisOptions((Node("h", 1),), password="secret"))
