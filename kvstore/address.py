"""Store addresses as text: their parts, their options, and how they are shown without their passwords."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from epic_rag.kvstore.errors import StoreURIError

KNOWN = """known are
    memory://                                 this process only
    disk:///absolute/path                     a folder
    disk://relative/path
    path                                      the same as disk://path
    redis://user:password@host:6379/0         a server
    redis+sentinel://host:26379,host/service  the master that sentinels name
    redis+cluster://host:6379,host:6379       a cluster
    rediss://, rediss+sentinel://, rediss+cluster://   the same over TLS
    tiered:ADDRESS,ADDRESS,...                several of these, fastest first
with the options ?codec=NAME; for memory and disk &budget=10GB&replacement=lru|lfu|gdsf; for Redis &namespace=NAME
&ttl=7d&part=2MiB&timeout=0.2 and, over TLS, &ca=FILE&cert=FILE&key=FILE; for a tier of several &write=through|back"""

TIERED = "tiered:"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b)?", re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NEXT_TIER = re.compile(r",(?=(?:tiered:)?[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_MISTYPED = re.compile(r"(?:rediss?(?:\+[a-z]+)?|memory|disk|tiered)(?::(?!//)|//)", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(rediss?(?:\+[a-z]+)?:?/*).*@", re.IGNORECASE | re.DOTALL)
_NO_HOST = re.compile(r"(rediss?(?:\+[a-z]+)?:/*[^:/?@,\[\]]*:)(?!\d{1,5}(?:[/?,]|$))[^@?]*", re.IGNORECASE)
_SECRET_OPTION = re.compile(r"\b([a-z_]*(?:pass|pwd|secret|token|auth)[a-z_]*=)[^&,]*", re.IGNORECASE)
_UNKNOWN_OPTION = re.compile(
    r"([?&](?!(?:budget|replacement|codec|namespace|ttl|part|timeout|ca|cert|key|write)=)[^=&,]*=)[^&,]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Address:
    """One tier's address.

    Attributes:
        shown: the whole address it came from, its passwords masked; for messages.
        scheme: what stands in front of `://`, in small letters.
        path: what stands behind it, up to the options, as typed.
        options: the options, decoded.
    """

    shown: str
    scheme: str
    path: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    def refuse(self, why: str) -> StoreURIError:
        """Return the error that says what is wrong with this address, and what is known."""
        return refuse(self.shown, why)

    def check_options(self, *known: str) -> None:
        """Raise StoreURIError for an option that is not among `known`."""
        for name in self.options:
            if name not in known:
                raise self.refuse(f"option {name!r} is unknown")


def refuse(shown: str, why: str) -> StoreURIError:
    """Return the error that says what is wrong with an address, and what is known."""
    return StoreURIError(f"store address {shown!r}: {why}; {KNOWN}")


def parse_addresses(uri: str) -> list[Address]:
    """Split an address into its tiers; one, unless it starts with `tiered:`.

    Raises:
        StoreURIError: no tiers, tiers within tiers, or malformed options.
    """
    shown = mask_uri(uri)
    if not uri.startswith(TIERED):
        return [_parse(uri, shown)]
    texts = _NEXT_TIER.split(uri.removeprefix(TIERED))
    if texts == [""]:
        raise refuse(shown, "the tiers are missing")
    if any(text.startswith(TIERED) for text in texts):
        raise refuse(shown, "a tier cannot be tiered itself")
    if any("," in text for text in texts if "://" not in text or text.startswith("memory://,")):
        raise refuse(shown, "each of several tiers needs its scheme, as in disk://path")
    return [_parse(text, shown) for text in texts]


def mask_uri(uri: str) -> str:
    """Return an address as it may be shown: without its user names and passwords."""
    start = TIERED if uri.startswith(TIERED) else ""
    return start + ",".join(_mask(text) for text in _NEXT_TIER.split(uri.removeprefix(start)))


def parse_size(text: str) -> int | None:
    """Return the bytes that a size such as 5, 10GB or 512MiB means; None for text that is no size of at least 1."""
    match = _SIZE.fullmatch(text.strip())
    power = " kmgt".index(match[2].lower() or " ") if match and match[2] is not None else 0
    size_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power) if match else 0
    return size_bytes or None


def parse_seconds(text: str) -> float | None:
    """Return the seconds that a time such as 0.5, 90s, 15m, 12h or 7d means; None for text that is none above 0."""
    match = _SECONDS.fullmatch(text.strip())
    return float(match[1]) * _UNIT_SECONDS[match[2]] or None if match else None


def _mask(text: str) -> str:
    """Mask one tier's address, a mistyped one too: what may be a password goes, and rather too much than too little."""
    scheme, separator, rest = text.partition("://")
    # Up to the last @: a password that was not percent-encoded may hold any of / ? # : @ itself.
    if separator and scheme.lower() not in ("disk", "memory") and "@" in rest:
        text = f"{scheme}://***@{rest.rpartition('@')[2]}"
    elif "redis" in text.lower():
        text = _CREDENTIALS.sub(r"\1***@", text)
        text = _NO_HOST.sub(r"\1***", text)  # the host was forgotten, unless this is a port
    if "redis" in text.lower():
        text = _UNKNOWN_OPTION.sub(r"\1***", text)
    return _SECRET_OPTION.sub(r"\1***", text)


def _parse(text: str, shown: str) -> Address:
    scheme, separator, rest = text.partition("://")
    if not separator:
        if _MISTYPED.match(text):
            raise refuse(shown, "'://' is missing behind the scheme")
        scheme, rest = "disk", text
    path, _, query = rest.partition("?")
    # A plain path is taken as it is; behind a scheme % starts an encoded character.
    path = path if separator else path.replace("%", "%25")
    options = _options(query)
    if options is None:
        raise refuse(shown, "the options are malformed: expected name=value&name=value, each name once")
    return Address(shown, scheme.lower(), path, options)


def _options(query: str) -> dict[str, str] | None:
    """Return the options; None for malformed ones, whose error would show what may be a part of a password."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        return None
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None
