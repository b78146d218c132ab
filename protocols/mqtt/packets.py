"""Topics and kinds of packets of links through a broker; see p2pfl.protocols.mqtt.transport."""

from __future__ import annotations

from p2pfl.protocols.identity import KEY_SIZE

ADDRESS = "mqtt:"  # the same for every member; its key identifies it
# First byte of a packet; p2pfl.protocols.mqtt.reliable_stream has further types. 3 and 4 are those of version 1.
FORMER_OPENING, FORMER_ANSWER, RESET_PACKET, ECHO_PACKET = 3, 4, 5, 6
PRESENCE, WILL = "presence", "will"


class Topics:
    """Topics of one node in its federation.

    Args:
        federation: 16 bytes.
        own: this node's public key.
    """

    def __init__(self, federation: bytes, own: bytes) -> None:
        self.own = own
        self._root = f"p2pfl/{federation.hex()}"

    def inbox(self, key: bytes) -> str:
        """Return the topic to which this node publishes for the owner of `key`."""
        return f"{self._root}/{key.hex()}/{self.own.hex()}"

    @property
    def echo(self) -> str:
        """The topic to which this node publishes for itself."""
        return self.inbox(self.own)

    @property
    def presence(self) -> str:
        """The topic of this node's presence."""
        return f"{self._root}/{PRESENCE}/{self.own.hex()}"

    @property
    def will(self) -> str:
        """The topic to which the broker publishes when this node is gone."""
        return f"{self._root}/{WILL}/{self.own.hex()}"

    @property
    def presences(self) -> str:
        """The filter for the presence of all members."""
        return f"{self._root}/{PRESENCE}/+"

    @property
    def subscriptions(self) -> list[str]:
        """The filters for all messages that concern this node."""
        return [f"{self._root}/{self.own.hex()}/+", self.presences, f"{self._root}/{WILL}/+"]

    def parse(self, topic: str) -> tuple[str, bytes] | None:
        """Return the place and the key in a topic; None if the topic has another form or federation.

        The place is `PRESENCE`, `WILL`, or a recipient's key in hexadecimal digits.
        """
        parts = topic.split("/")
        if len(parts) != 4 or f"{parts[0]}/{parts[1]}" != self._root:
            return None
        try:
            key = bytes.fromhex(parts[3])
        except ValueError:
            return None
        return (parts[2], key) if len(key) == KEY_SIZE else None
