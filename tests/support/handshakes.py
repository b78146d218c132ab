"""Handshakes of links through a broker, without a broker."""

from p2pfl.protocols.mqtt.link import LinkHandshake
from p2pfl.protocols.transports.certificates import Credentials
from p2pfl.protocols.transports.tls_handshake import TlsHandshake


def dialler(identity, access, key, id=bytes(16), joining=False):
    """Return the handshake of a dialler and its first packet."""
    handshake = LinkHandshake(TlsHandshake(Credentials(identity, access), key, joining), id)
    handshake.begin(0.0)
    return handshake, handshake.packet_out(0.0)


def listener(identity, access, id=bytes(16), **options):
    """Return the handshake of a listener."""
    return LinkHandshake(TlsHandshake(Credentials(identity, access), **options), id)


def exchange(a, b, packet):
    """Carry packets of two sides in turns, the first one to `b`; return both results, the one of `b` first."""
    results = [None, None]
    sides = [b, a]
    turn = 0
    while packet:
        progress = sides[turn].packet_in(packet, 0.0)
        if progress.proven or progress.refusal:
            results[turn] = progress
        packet = sides[turn].packet_out(0.0)
        turn = 1 - turn
    return results
