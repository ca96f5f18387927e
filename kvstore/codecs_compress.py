"""Compressors for the parts of a layer, each from an optional package."""

from importlib import import_module
from types import ModuleType
from typing import Protocol

from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError


class Compressor(Protocol):
    """Bytes to fewer bytes and back."""

    @property
    def name(self) -> str:
        """The name in codecs."""
        ...

    def require(self) -> ModuleType:
        """Return the package's module.

        Raises:
            StoreVersionError: it is not installed.
        """
        ...

    def compress(self, data: memoryview) -> bytes:
        """Return the compressed bytes."""
        ...

    def decompress(self, data: memoryview, size_bytes: int) -> bytes:
        """Return the `size_bytes` bytes that were compressed; never allocates more.

        Raises:
            StoreFormatError: these are not they.
        """
        ...


class Lz4:
    """LZ4 block format; fast, finds repetitions only."""

    name = "lz4"

    def require(self) -> ModuleType:
        """Return `lz4.block`."""
        return _package("lz4.block", self.name, "lz4")

    def compress(self, data: memoryview) -> bytes:
        """Return one LZ4 block, without a length in front."""
        block: bytes = self.require().compress(data, store_size=False)
        return block

    def decompress(self, data: memoryview, size_bytes: int) -> bytes:
        """Return what one LZ4 block holds."""
        lz4 = self.require()
        try:
            plain: bytes = lz4.decompress(data, uncompressed_size=size_bytes)
        except (lz4.LZ4BlockError, ValueError) as error:
            raise StoreFormatError(f"lz4: {error}") from error
        if len(plain) != size_bytes:
            raise StoreFormatError(f"lz4: {len(plain)} bytes, expected {size_bytes}")
        return plain


class Zstd:
    """Zstandard frames; codes entropy too, for links slower than about 0.3 GB/s.

    Level 1: higher levels look for repetitions, of which KV has few, and compress it less.
    """

    name = "zstd"
    _LEVEL = 1

    def require(self) -> ModuleType:
        """Return `zstandard`."""
        return _package("zstandard", self.name, "zstandard")

    def compress(self, data: memoryview) -> bytes:
        """Return one frame that says how long its content is."""
        frame: bytes = self.require().ZstdCompressor(level=self._LEVEL).compress(data)
        return frame

    def decompress(self, data: memoryview, size_bytes: int) -> bytes:
        """Return what one frame holds."""
        zstd = self.require()
        try:
            # The library allocates what the frame claims, whatever limit it is given.
            claimed = zstd.frame_content_size(data)
            if claimed != size_bytes:
                raise StoreFormatError(f"zstd: {claimed} bytes, expected {size_bytes}")
            plain: bytes = zstd.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstd.ZstdError as error:
            raise StoreFormatError(f"zstd: {error}") from error
        return plain


def shrink(compressor: Compressor, data: memoryview) -> memoryview:
    """Compress bytes, or return them as they are where that does not pay."""
    packed = compressor.compress(data)
    return memoryview(packed) if len(packed) < len(data) else data


def restore(compressor: Compressor, data: memoryview, size_bytes: int) -> memoryview:
    """Undo `shrink`.

    Raises:
        StoreFormatError: these are not the bytes of `size_bytes` others.
    """
    return data if len(data) == size_bytes else memoryview(compressor.decompress(data, size_bytes))


def _package(module: str, codec: str, package: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise StoreVersionError(
            f"codec {codec!r} needs the package {package}, which is not installed: pip install 'epic-rag[codecs]'"
        ) from error
