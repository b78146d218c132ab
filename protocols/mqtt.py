"""Links through an MQTT broker, which is not trusted with anything but carrying packets.

Every pair of members agrees on keys of its own (protocols.session); frames are cut, sealed, acknowledged and sent again
(protocols.chunks). The broker sees who talks with whom, when, and how much. It may lose, repeat, reorder and alter packets,
or make some up: frames arrive whole, in order and once, or the link ends.

    p2pfl/<federation>/<recipient>/<sender>    packets; a node subscribes to p2pfl/<federation>/<its own key>/+
    p2pfl/<federation>/presence/<key>          who is there, signed and retained (protocols.presence)
    p2pfl/<federation>/will/<key>              published by the broker when a node is gone: a hint, never more

Federations and keys are in hexadecimal digits. A broker that knows its users can have each of them speak for itself only,
which keeps others from wasting its time. For Mosquitto, with every node's key as its user name:

    pattern write p2pfl/<federation>/presence/%u
    pattern write p2pfl/<federation>/will/%u
    pattern write p2pfl/<federation>/<key>/%u    (for the key of each member)
    pattern read p2pfl/<federation>/%u/+
    pattern read p2pfl/<federation>/presence/+
    pattern read p2pfl/<federation>/will/+

A broker acknowledges what it then does not deliver, and so a node publishes something to itself now and then and says when
it does not come back.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from protocols import presence, session
from protocols.addresses import split_address
from protocols.allowance import Allowance, Shares
from protocols.bus import Bus, Message
from protocols.chunks import CHUNK, CONTROL_PACKET, DATA_PACKET
from protocols.envelope import OVERHEAD
from protocols.errors import AddressError, ProtocolError, TransportError
from protocols.identity import KEY_SIZE, Identity
from protocols.messages import Terms
from protocols.mqtt_link import QUEUE, MqttLink, key_name
from protocols.printable import printable
from protocols.transport import Gate, Handler

ADDRESS = "mqtt:"  # of every member; its key says which
OPENING_PACKET, ANSWER_PACKET, RESET_PACKET, ECHO_PACKET = 3, 4, 5, 6  # the first byte, as are those of protocols.chunks
GREETING = OVERHEAD + Terms.LIMIT  # the most bytes of a frame before a link is trusted
LARGEST = 300 << 10  # bytes; larger packets are not looked at
DIALLING = 10.0  # seconds for a member to answer
AGAIN = 1.0  # seconds between attempts meanwhile
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between attempts to connect
STOOD = 5.0  # seconds after which a connection is a success, and the next one is tried soon
CLOSING = 6.0  # seconds for a connection to end, or for an attempt to connect
VERIFICATIONS = 100  # signatures of openings and presences that are looked at, a second
REMEMBERED = 1024  # openings
ECHO_EVERY, ECHO_WAIT = 20.0, 10.0  # seconds between packets to oneself, and for one to come back


async def _once(work: Callable[[], Awaitable[None]]) -> None:
    await work()


class MqttTransport:
    """
    Args:
        max_frame: the most bytes of a frame; of a link that is not trusted yet they are `greeting`.
        boot: how often this node has started.
        addresses: returns where this node can be reached without the broker; see `announce`.
        found: is told of a member's key and an address where it may be.
        hinted: is told that a member may be gone.
        on_problem: is told when `problem` changes.
        keep: runs the work that stays connected with the broker, and may run it again after an error.
        on_fault: is told of an error of this program at one packet, which ends the packet's link; None: it is raised.
        uniform: draws a number between two others, for the pauses between attempts to connect.

    Attributes:
        problem: what is wrong with the broker, in one sentence; "" if nothing is known to be.
    """

    address = ADDRESS

    def __init__(
        self,
        bus: Bus,
        identity: Identity,
        gate: Gate,
        max_frame: int,
        *,
        greeting: int = GREETING,
        boot: int = 0,
        addresses: Callable[[], Sequence[str]] = tuple,
        found: Callable[[bytes, str], None] = lambda key, address: None,
        hinted: Callable[[bytes], None] = lambda key: None,
        on_problem: Callable[[str], None] = lambda problem: None,
        keep: Callable[[Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]] = _once,
        on_fault: Callable[[Exception], None] | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.bus = bus
        self.gate = gate
        self.max_frame = max_frame
        self.greeting = min(greeting, max_frame)
        self.problem = ""
        self.links: dict[bytes, MqttLink] = {}  # also those that are not proven
        self.strangers: dict[MqttLink, None] = {}  # dialled by others and not trusted yet, the oldest first
        self._identity = identity
        self._boot = boot
        self._addresses = addresses
        self._found = found
        self._hinted = hinted
        self._on_problem = on_problem
        self._keep = keep
        self._on_fault = on_fault
        self._uniform = uniform
        self._handler: Handler | None = None
        self._root = f"p2pfl/{gate.federation.hex()}"
        self._directory = presence.Directory(gate)
        self._sequence = 0
        self._announced = False
        self._epoch_seen = gate.epoch
        self._dials: dict[bytes, _Dial] = {}
        self._verifications = Shares(VERIFICATIONS)
        self._openings, self._strangers_openings, self._refusals = Allowance(2, 10), Allowance(5, 20), Allowance(5, 20)
        self._paid: dict[bytes, None] = {}  # openings that their dialler was charged for, the oldest first
        self._resets, self._hints, self._presences = Allowance(5, 10), Allowance(0.5, 3), Allowance(1, 10)
        self._connecting: asyncio.Task[None] | None = None
        self._using = False  # the bus connects, or is connected
        self._up = asyncio.Event()
        self._since = inf  # when the connection was made
        self._failure = ""  # why there is none
        self._brief = 0  # connections in a row that did not stand for long
        self._echo_timer: asyncio.TimerHandle | None = None
        self._echo_deadline: asyncio.TimerHandle | None = None
        self._echo_expected = self._presence_expected = b""
        self._awaited: set[str] = set()  # topics to which something was published that has to come back
        self._denied = ""  # why it seems that the broker delivers nothing to others

    @property
    def handler(self) -> Handler:
        if self._handler is None:
            raise TransportError("the transport does not listen yet")
        return self._handler

    async def listen(self, handler: Handler) -> None:
        """Begin to connect with the broker, and to accept links; whether it answers, `problem` says."""
        self._handler = handler
        self._connecting = asyncio.ensure_future(self._keep(self._stay_connected))
        self._connecting.add_done_callback(_raise)

    async def dial(self, address: str, key: bytes, joining: bool = False) -> MqttLink:
        self.handler  # noqa: B018 (raises)
        try:
            async with asyncio.timeout(DIALLING):
                return await self._dial(key, joining)
        except TimeoutError:
            reason = self._why_silent(key)
            if self.bus.connected and self._directory.online(key) and not any(link.proven for link in self.links.values()):
                self._denied = reason
                self._say(reason)
            raise TransportError(reason) from None

    def expel(self, key: bytes) -> None:
        for link in list(self.links.values()):
            if link.key == key:
                link.close()

    async def close(self) -> None:
        for link in list(self.links.values()):
            link.close()
        if self._announced:
            self._publish_presence(online=False)
        self._forget_echo()
        for dial in self._dials.values():
            if not dial.answer.done():
                dial.answer.set_exception(TransportError("closed"))
        await self.bus.close()
        if self._connecting is not None:
            if self._using:
                await asyncio.wait([self._connecting], timeout=CLOSING)
            self._connecting.cancel()
            await asyncio.wait([self._connecting])

    # The broker

    async def _stay_connected(self) -> None:
        own = self._identity.public.hex()
        will = Message(f"{self._root}/will/{own}", b"gone")
        topics = [f"{self._root}/{own}/+", f"{self._root}/presence/+", f"{self._root}/will/+"]
        pause = FIRST_PAUSE
        while True:
            try:
                self._using = True
                await self.bus.run(will, topics, self)
                return
            except TransportError as error:
                self._using = False
                if self._disconnected(str(error)):
                    pause = FIRST_PAUSE
            except Exception as error:
                self._using = False
                self._disconnected(f"the link with the broker at {self.bus.name} has failed: {type(error).__name__}")
                raise
            await asyncio.sleep(pause * self._uniform(0.75, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def connected(self) -> None:
        now = asyncio.get_running_loop().time()
        self._since, self._failure = now, ""
        self._up.set()
        self._announced = False
        self._echo()
        for link in list(self.links.values()):
            link.stream.resume(now)
            link.pump()

    def _disconnected(self, reason: str) -> bool:
        """Note why there is no connection; return whether the last one had stood for some time."""
        stood = asyncio.get_running_loop().time() - self._since >= STOOD
        made = self._since < inf
        self._since, self._failure = inf, reason
        self._up.clear()
        self._forget_echo()
        for link in self.links.values():
            link.forget_timer()
        self._brief = self._brief + 1 if made and not stood else 0
        if self._brief > 1:
            self._say(f"{reason}, again and again: it may not take packets of {CHUNK >> 10} KiB")
        elif not made:
            self._say(reason)
        return stood

    def writable(self) -> None:
        """Let the links take turns, one packet each."""
        going = list(self.links.values())
        while going and self.bus.queued < QUEUE:
            going = [link for link in going if link.pump(1)]

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_problem(problem)

    def inbox(self, key: bytes) -> str:
        """Return the topic to which this node publishes for the one with `key`."""
        return f"{self._root}/{key.hex()}/{self._identity.public.hex()}"

    # Whether the broker delivers

    def _echo(self) -> None:
        self._look_again()
        loop = asyncio.get_running_loop()
        self._echo_expected = os.urandom(16)
        self._awaited.add(self.inbox(self._identity.public))
        self.bus.publish(self.inbox(self._identity.public), bytes([ECHO_PACKET]) + self._echo_expected)
        self._echo_deadline = loop.call_later(ECHO_WAIT, self._no_echo)
        self._echo_timer = loop.call_later(ECHO_EVERY, self._echo)

    def _no_echo(self) -> None:
        self._say(
            f"the broker at {self.bus.name} does not deliver to topic {min(self._awaited)}: "
            "it denies publishing or subscribing, check its access rules"
        )

    def _came_back(self, topic: str) -> None:
        self._awaited.discard(topic)
        if self._awaited or self._echo_deadline is None:
            return
        self._echo_deadline.cancel()
        self._echo_deadline = None
        if asyncio.get_running_loop().time() - self._since >= STOOD:
            self._brief = 0
        if self._brief < 2:
            self._say(self._denied)

    def reached(self) -> None:
        """Somebody was reached: whatever the broker may deny, it is not this."""
        if self._denied and self.problem == self._denied:
            self._say("")
        self._denied = ""

    def _forget_echo(self) -> None:
        self._awaited.clear()
        self._denied = ""
        for timer in (self._echo_timer, self._echo_deadline):
            if timer is not None:
                timer.cancel()
        self._echo_timer = self._echo_deadline = None

    # Presence

    def announce(self) -> None:
        """Publish where this node is; to be called when its addresses have changed."""
        if self.bus.connected and not self.gate.refusal(self._identity.public):
            self._announced = True
            self._publish_presence(online=True)

    def _publish_presence(self, online: bool) -> None:
        self._sequence += 1
        here = tuple(self._addresses())[: presence.ADDRESSES] if online else ()
        said = presence.Presence(*(self.gate.federation, self._identity.public, self._boot, self._sequence, here, online))
        topic = f"{self._root}/presence/{self._identity.public.hex()}"
        self._presence_expected = presence.sign(self._identity, said)
        self._awaited.add(topic)
        self.bus.publish(topic, self._presence_expected, retain=True)

    def _look_again(self) -> None:
        """Announce what could not be announced before, and look for those who have become members."""
        if not self._announced or self._awaited:
            self.announce()
        if self._epoch_seen != self.gate.epoch:
            self._epoch_seen = self.gate.epoch
            self.bus.subscribe(f"{self._root}/presence/+")

    def _presence(self, key: bytes, content: bytes) -> None:
        if not self._may_verify(key):
            return
        try:
            said = self._directory.read(key, content)
        except ProtocolError as error:
            self.handler.refused(error.cause, f"presence: {error}")
            return
        if not self._presences.take(key, asyncio.get_running_loop().time()):
            return
        if not said.online:
            self._hinted(key)
            return
        for address in said.addresses:
            with suppress(AddressError):
                split_address(address)
                self._found(key, address)
        self._found(key, ADDRESS)

    def _will(self, key: bytes) -> None:
        known = key != self._identity.public and not self.gate.refusal(key)
        if known and self._hints.take(key, asyncio.get_running_loop().time()):
            self._directory.gone(key)
            self._hinted(key)

    # What comes

    def came(self, topic: str, content: bytes) -> None:
        parts = topic.split("/")
        if len(parts) != 4 or f"{parts[0]}/{parts[1]}" != self._root or not 0 < len(content) <= LARGEST:
            return
        _, _, place, who = parts
        try:
            key = bytes.fromhex(who)
        except ValueError:
            return
        if len(key) != KEY_SIZE:
            return
        try:
            self._look_at(topic, place, key, content)
        except Exception as error:
            if self._on_fault is None:
                raise
            self._on_fault(error)
            link = self.links.get(content[1:17])
            if link is not None and link.key == key:
                link.fail("a packet of it could not be handled")

    def _look_at(self, topic: str, place: str, key: bytes, content: bytes) -> None:
        if place == "presence" and key == self._identity.public:
            if content == self._presence_expected:
                self._came_back(topic)
        elif place == "presence":
            self._presence(key, content)
        elif place == "will":
            self._will(key)
        elif place == self._identity.public.hex():
            self._packet(key, content)

    def _packet(self, sender: bytes, content: bytes) -> None:
        kind = content[0]
        if sender == self._identity.public:
            if kind == ECHO_PACKET and content[1:] == self._echo_expected:
                self._came_back(self.inbox(sender))
        elif kind in (DATA_PACKET, CONTROL_PACKET):
            self._sealed(sender, content)
        elif kind == OPENING_PACKET:
            self._opening(sender, content[1:])
        elif kind == ANSWER_PACKET:
            self._answer(sender, content[1:])
        elif kind == RESET_PACKET:
            link = self.links.get(content[1:])
            if link is not None and link.key == sender and link.proven:
                link.probe()
        else:
            self.handler.refused("malformed", f"{key_name(sender)}: a packet of kind {kind}")

    def _sealed(self, sender: bytes, content: bytes) -> None:
        id = content[1:17]
        link = self.links.get(id)
        if link is not None and link.key == sender:
            link.packet(content)
            return
        cause = "unknown session" if link is None else "other sender"
        self.handler.refused(cause, f"{key_name(sender)}: a packet of link {id.hex()}")
        if link is None and self._resets.take(b"", asyncio.get_running_loop().time()):
            self.bus.publish(self.inbox(sender), bytes([RESET_PACKET]) + id)

    def _opening(self, sender: bytes, packet: bytes) -> None:
        try:
            opening = session.decode_opening(packet)
        except ProtocolError as error:
            self.handler.refused(error.cause, f"{key_name(sender)}: {error}")
            return
        link = self.links.get(opening.id)
        if link is not None:
            link.opened_again(packet)
            return
        if not self._may_verify(sender):
            self.handler.refused("too often", f"too many dials in the name of {key_name(sender)}")
            return
        now = asyncio.get_running_loop().time()
        try:
            if opening.dialler != sender:
                raise ProtocolError("other sender", f"says that it is {key_name(opening.dialler)}")
            accepted = session.accept(packet, opening, self._identity, self.gate)
        except ProtocolError as error:
            self.handler.refused(error.cause, f"{key_name(sender)}: {error}")
            if self._refusals.take(b"", now):
                answer = session.refuse(packet, opening, self._identity, self.gate, error)
                self.bus.publish(self.inbox(sender), bytes([ANSWER_PACKET]) + answer)
            return
        if not self._is_paid(sender, opening.id, now):
            self.handler.refused("too often", f"{key_name(sender)} dials too often")
            return
        link = MqttLink(self, sender, opening.id, accepted.sealing, False, opening.joining)
        link.half_open(packet, bytes([ANSWER_PACKET]) + accepted.packet)

    def _may_verify(self, sender: bytes) -> bool:
        """Return whether there is time to look whether something is of the one in whose name it is."""
        now = asyncio.get_running_loop().time()
        if self.gate.refusal(sender):  # all of them together: they cost no more if they are many
            return self._strangers_openings.take(b"", now) and self._verifications.take(b"", now)
        return self._verifications.take(sender, now)

    def _is_paid(self, sender: bytes, id: bytes, now: float) -> bool:
        """Charge a dialler for an opening that it has signed, once: whoever has recorded it may repeat it."""
        if id not in self._paid and not self.gate.refusal(sender):
            if not self._openings.take(sender, now):
                return False
            self._paid[id] = None
            if len(self._paid) > REMEMBERED:
                del self._paid[next(iter(self._paid))]
        return True

    # Dialling

    async def _dial(self, key: bytes, joining: bool) -> MqttLink:
        if self._failure:
            raise TransportError(self._failure)
        await self._up.wait()
        dialler = session.Dialler(self._identity, self.gate, key, joining)
        answer = await self._ask(dialler, key)
        if isinstance(answer, session.Refusing) and answer.cause == "stranger" and answer.epoch < self.gate.epoch:
            dialler = session.Dialler(self._identity, self.gate, key, joining, after=answer.epoch)
            answer = await self._ask(dialler, key)
        if isinstance(answer, session.Refusing):
            said = printable(f"{answer.cause}: {answer.detail}")
            raise TransportError(f"{key_name(key)} keeps this node out: {said}")
        link = MqttLink(self, key, dialler.id, answer, True, joining)
        link.begin()
        return link

    async def _ask(self, dialler: session.Dialler, key: bytes) -> session.Sealing | session.Refusing:
        dial = self._dials[dialler.id] = _Dial(dialler, key)
        try:
            while True:
                self.bus.publish(self.inbox(key), bytes([OPENING_PACKET]) + dialler.packet)
                await asyncio.wait([dial.answer], timeout=AGAIN)
                if dial.answer.done():
                    return dial.answer.result()
        finally:
            del self._dials[dialler.id]

    def _answer(self, sender: bytes, packet: bytes) -> None:
        try:
            dial = self._dials.get(session.decode_answer(packet).id)
            if dial is None or dial.answer.done() or dial.key != sender:
                return  # late, or repeated
            dial.answer.set_result(dial.dialler.finish(packet))
        except ProtocolError as error:  # it may be made up: the true one may still come
            self.handler.refused(error.cause, f"{key_name(sender)}: {error}")

    def _why_silent(self, key: bytes) -> str:
        if not self.bus.connected:
            return self._failure or f"the broker at {self.bus.name} does not answer"
        if self.problem:
            return self.problem
        if self._directory.online(key):
            return (
                f"{key_name(key)} is present, but does not answer through the broker at {self.bus.name}: "
                f"it may deny publishing to {self.inbox(key)}, check its access rules"
            )
        return f"{key_name(key)} is not present at the broker at {self.bus.name}"


class _Dial:
    def __init__(self, dialler: session.Dialler, key: bytes) -> None:
        self.dialler = dialler
        self.key = key
        self.answer: asyncio.Future[session.Sealing | session.Refusing] = asyncio.get_running_loop().create_future()


def _raise(task: asyncio.Task[None]) -> None:
    """Have an error in a task that nobody waits for end the program, or be said, as its event loop is used to."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "links through the broker have ended", "exception": error})
