"""Several transports as one; the scheme of an address selects the transport to dial with."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.protocols.errors import TransportError
from p2pfl.protocols.transport import Handler, Link, Transport


class MultiTransport:
    """Combination of several transports.

    Args:
        transports: transports by the scheme of their addresses, for example "tcp" and "mqtt". The first one handles
            addresses without a scheme.
    """

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        self._transports = dict(transports)
        self._first = next(iter(self._transports))

    @property
    def address(self) -> str:
        """The address of the first transport."""
        return self._transports[self._first].address

    async def listen(self, handler: Handler) -> None:
        for transport in self._transports.values():
            await transport.listen(handler)

    async def dial(self, address: str, key: bytes, joining: bool = False) -> Link:
        scheme, colon, _ = address.partition(":")
        transport = self._transports.get(scheme if colon and scheme in ("tcp", "mqtt", "memory") else self._first)
        if transport is None:
            raise TransportError(f"this node has no transport for {address}")
        return await transport.dial(address, key, joining)

    def expel(self, key: bytes) -> None:
        for transport in self._transports.values():
            transport.expel(key)

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()
