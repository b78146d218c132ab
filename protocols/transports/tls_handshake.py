"""TLS 1.3 and the proof of both keys over any stream of bytes, for one side. No I/O.

The messages and checks are those of direct links: a TLS handshake with the listener's certificate, then the steps of
p2pfl.protocols.transports.handshake as frames within TLS. Both sides of a proven handshake share a secret, which only
TLS has carried.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.transport import Part
from p2pfl.protocols.transports import handshake
from p2pfl.protocols.transports.certificates import Credentials, key_of, wire_version
from p2pfl.protocols.transports.frames import PREFIX, FrameReader
from p2pfl.protocols.transports.handshake import ClientProof, Progress, ServerProof, refusal_of

MOST = 32 << 10  # bytes that the other side may send in a whole handshake


class TlsHandshake:
    """TLS and the proofs of one side: it takes the bytes of the other side, and returns its own.

    Args:
        key: the dialled key; None on the dialled side.
        joining: whether this node is a newcomer that wants to become a member.
        admit: further check of the other side, after its proof was checked. It may raise a ProtocolError.
    """

    def __init__(
        self,
        credentials: Credentials,
        key: bytes | None = None,
        joining: bool = False,
        admit: Callable[[handshake.Proven], None] = lambda proven: None,
    ) -> None:
        self._credentials = credentials
        self._key = key
        self._joining = joining
        self._admit = admit
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = credentials.accepting if key is None else credentials.dialling
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=key is None)
        self._reader = FrameReader()
        self._proof: ServerProof | ClientProof | None = None
        self._left = MOST

    @property
    def version(self) -> int:
        """Wire version on which both sides have agreed, once TLS itself is established."""
        return wire_version(self._tls)

    def begin(self) -> bytes:
        """Return the first bytes to send; the dialled side has none."""
        return b"" if self._key is None else self.step(b"").reply

    def step(self, data: Part) -> Progress:
        """Process bytes of the other side; return the bytes to send, and the result if there is one.

        Raises:
            ProtocolError: "no TLS", "wrong key" (of the certificate), "malformed", or an error of the proof; see
                p2pfl.protocols.transports.handshake.check.
        """
        self._left -= len(data)
        if self._left < 0:
            raise ProtocolError("malformed", "too many bytes before the peer is known")
        self._incoming.write(data)
        try:
            if self._proof is None:
                self._tls.do_handshake()
                self._proof = self._begin_proof()
            result = self._steps(self._proof)
        except ssl.SSLWantReadError:
            result = Progress()
        except ssl.SSLError as error:
            raise ProtocolError("no TLS", (error.reason or "handshake failed").lower().replace("_", " ")) from None
        return result._replace(reply=self._outgoing.read())

    def refuse(self, error: ProtocolError) -> bytes:
        """Return the bytes that tell the other side why it is refused; b"" if it cannot be told."""
        if not isinstance(self._proof, ServerProof):
            return b""
        try:
            self._send(refusal_of(error))
        except ssl.SSLError:  # TLS itself has failed
            return b""
        return self._outgoing.read()

    def _begin_proof(self) -> ServerProof | ClientProof:
        if self._key is None:
            proof = self._credentials.server_proof()
            self._send(proof.begin())
            return proof
        certificate = self._tls.getpeercert(binary_form=True) or b""
        if key_of(certificate) != self._key:
            raise ProtocolError("wrong key", "the peer has another key than expected")
        return self._credentials.client_proof(self._key, certificate, self._joining)

    def _steps(self, proof: ServerProof | ClientProof) -> Progress:
        while True:
            progress = proof.step(self._read())
            if progress.proven is not None:
                self._admit(progress.proven)
            if progress.reply:
                self._send(progress.reply)
            if progress.proven is not None or progress.refusal:
                return progress

    def _read(self) -> memoryview:
        """Return the next frame.

        Raises:
            ssl.SSLWantReadError: it is not complete yet.
        """
        reader = self._reader
        while True:
            buffer = reader.buffer()
            data = self._tls.read(len(buffer))
            if not data:
                raise ProtocolError("no TLS", "closed by the other side")
            buffer[: len(data)] = data
            if not reader.advance(len(data)):
                continue
            if reader.in_frame:
                return reader.take()
            if not 0 < reader.size() <= handshake.LIMIT:
                raise ProtocolError("malformed", f"announced a frame of {reader.size()} bytes")
            reader.begin(memoryview(bytearray(reader.size())))

    def _send(self, step: bytes) -> None:
        self._tls.write(len(step).to_bytes(PREFIX, "big") + step)
