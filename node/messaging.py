"""How a node has models of its peers by messages, over TCP or simulated links (see node.exchange.Exchange).

Whatever a peer sends is opened by one door and handled in `received`; what is wrong with it is counted by cause and dropped.
Requests carry a number by which their answer is known. A peer is silent until it was introduced: both sides say what must be
alike (`Terms`), and where something differs each of them keeps the other out and says what it was.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task, TaskGroup
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from itertools import count
from math import inf, isfinite
from typing import Any

import msgspec
import numpy as np

from node.outbox import Outbox, Published
from node.roster import Roster
from node.settings import Settings
from node.traffic import Traffic
from p2pfl.errors import ConfigurationError
from p2pfl.parameters import Parameters
from p2pfl.policy import Extras, Stage, Update
from p2pfl.randomness import Draws
from protocols import messages as m
from protocols.envelope import EMPTY, OVERHEAD, Door, Opened, Payload, Sealer
from protocols.errors import ProtocolError, TransportError
from protocols.payload import EXTRAS_LIMIT, decode, encode_extras
from protocols.transport import Link, Transport

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts to reach a silent peer
INTRODUCTION = 5.0  # seconds for the answer to a hello
GONE_AFTER = 3  # unanswered probes after which nobody waits for a peer to finish
LARGEST_RATIO = 1000.0  # between the norm of a peer's model and that of the own one
SCORES_AT_ONCE = 2  # losses computed for one peer at a time


class Member(msgspec.Struct, frozen=True):
    """A neighbour as the configuration has it."""

    key: bytes
    address: str


class _Peer:
    """What this node knows of a neighbour."""

    def __init__(self, name: str, member: Member) -> None:
        self.name = name
        self.key = member.key
        self.address = member.address
        self.link: Link | None = None  # over which it was introduced
        self.boot = 0  # how often it has started
        self.about: Mapping[str, Any] = {}
        self.round = 0
        self.stopped = False  # its model is final
        self.problem = ""  # why it is kept out for good
        self.requests: dict[int, Future[Any]] = {}  # what it was asked and has not answered
        self.asked: dict[int, tuple[int, Stage]] = {}  # the models among them
        self.unanswered = 0  # probes since it was heard
        self.waiting: dict[tuple[int, Stage], int] = {}  # what it has asked and is not published yet: its request number
        self.scoring = 0
        self.trouble = asyncio.Event()  # it is not connected, or suspected

    @property
    def introduced(self) -> bool:
        return self.link is not None


class MessageExchange:
    """
    Args:
        name: this node's.
        neighbours: the members with which it may exchange anything.
        sources: those of them that it may fetch from; by default all.
        askers: those that may fetch from it; by default all.
        agreed: what all nodes must have alike, in words, by key.
        size: P, the number of parameters.
        loss: computes the mean loss of a model on the own training data, for peers that ask.
    """

    def __init__(
        self,
        name: str,
        neighbours: Mapping[str, Member],
        *,
        transport: Transport,
        sealer: Sealer,
        door: Door,
        settings: Settings,
        agreed: Mapping[str, str],
        about: Mapping[str, Any],
        size: int,
        n_samples: int,
        loss: Callable[[Parameters], Awaitable[float]],
        sources: Collection[str] | None = None,
        askers: Collection[str] | None = None,
    ) -> None:
        self.name = name
        self.outbox = Outbox(settings.mode == "synchronous")
        self.roster = Roster(neighbours if sources is None else sources)
        self.traffic = Traffic()
        self.expired = 0
        self.rejected: Counter[str] = Counter()
        self.durable: Callable[[Published], Awaitable[None]] | None = None
        self.round = 0
        self.peers = {id: _Peer(id, neighbours[id]) for id in sorted(neighbours)}
        self._askers = frozenset(neighbours if askers is None else askers)
        self._leaving = False
        self._transport = transport
        self._sealer = sealer
        self._door = door
        self._settings = settings
        self._agreed = dict(agreed)
        self._about = dict(about) | {"n_samples": n_samples}
        self._size = size
        self._n_samples = n_samples
        self._loss = loss
        self._numbers = count(1)
        self._payloads: dict[tuple[int, Stage], Payload] = {}
        self._progress: Future[None] | None = None
        self._tasks: TaskGroup
        self._running: list[Task[None]] = []
        self._draws = Draws(settings.seed, name)
        self._norm = 0.0  # the greatest of the models that were published

    # Life

    async def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.round = max(self.outbox.round, 0)
        await self._transport.listen(self)
        for peer in self.peers.values():
            self._begin(self._keep_in_touch(peer), f"{self.name} keeps in touch with {peer.name}")
        await self._until(
            lambda: self._leaving or all(p.introduced or p.problem for p in self.peers.values()), self._settings.deadline
        )
        for peer in self.peers.values():
            if not peer.introduced:
                self._suspect(peer, peer.problem or "not there at the start")
        problems = {peer.name: peer.problem for peer in self.peers.values() if peer.problem}
        if problems and len(problems) == len(self.peers):
            raise ConfigurationError("no peer can be learned with: " + "; ".join(f"{n}: {p}" for n, p in problems.items()))

    def finish(self) -> None:
        self.outbox.final = True
        self._answer_waiting()
        for peer in self._introduced():
            self._tell(peer, m.Bye(self.round, leaving=False))

    def leave(self) -> None:
        self._leaving = True
        self._moved()

    async def others_done(self) -> None:
        """Wait until no neighbour that is there needs this node any more."""

        def done(peer: _Peer) -> bool:
            gone = peer.name in self.roster.suspected and (not peer.introduced or peer.unanswered >= GONE_AFTER)
            return peer.stopped or gone

        await self._until(lambda: all(done(peer) for peer in self.peers.values()), inf)

    async def close(self) -> None:
        for peer in self._introduced():
            self._tell(peer, m.Bye(self.round, leaving=True))
        for task in self._running:
            task.cancel()
        await self._transport.close()

    def about(self, id: str) -> Mapping[str, Any]:
        return self._about if id == self.name else self.peers[id].about

    def newest_round(self) -> int:
        return credible_round([peer.round for peer in self._introduced() if not peer.stopped])

    # Publishing

    async def publish(self, round: int, stage: Stage, params: Parameters, extras: Extras) -> None:
        if round > self.round:
            if self._settings.mode == "synchronous":
                await self._pace(round)
            self.round = round
            for peer in self._introduced():
                self._tell(peer, m.Have(round))
        if (round, stage) not in self.outbox.models:  # else it was published before a restart, and is served as it was
            size = OVERHEAD + 4 * self._size + len(encode_extras(extras))
            update = Update(self.name, round, stage, params, self._n_samples, extras, size=size)
            model = Published(update, asyncio.get_running_loop().time())
            if self.durable is not None:
                await self.durable(model)
            self.outbox.add(model)
        self._norm = max(self._norm, norm(params))
        self._answer_waiting()

    async def _pace(self, round: int) -> None:
        """Wait until every neighbour that keeps up has reached the round before, at most half a deadline.

        Half, so that those who wait for this node do not lose it while it waits for another.
        """

        def behind() -> list[_Peer]:
            askers = (p for p in self._introduced() if p.name in self._askers)
            live = (p for p in askers if not p.stopped and p.name not in self.roster.suspected)
            return [p for p in live if p.round == round - 2]  # further behind: it will go on where the others are

        if not await self._until(lambda: not behind(), self._settings.deadline / 2):
            self.expired += 1
            for peer in behind():
                self._suspect(peer, f"did not reach round {round - 1} in time")

    # Asking

    async def fetch(self, ids: Sequence[str], round: int, stages: Stage | Mapping[str, Stage]) -> list[Update]:
        def ask(peer: _Peer, number: int) -> None:
            stage = stages if isinstance(stages, str) else stages[peer.name]
            peer.asked[number] = round, stage
            self._say(peer, m.Get(number, round, stage))
            self.traffic.sent_get += OVERHEAD

        updates: list[Update] = await self._ask(ids, round, ask)
        if self._settings.mode == "asynchronous":
            updates = [u for u in updates if u.age <= self._settings.max_staleness]
        return updates

    async def score(self, ids: Sequence[str], round: int, params: Parameters) -> dict[str, float]:
        payload = Payload.of(params.data.cast("B"))

        def ask(peer: _Peer, number: int) -> None:
            self._say(peer, m.Score(number, round), payload)
            self.traffic.sent_score += OVERHEAD + payload.size

        return dict(await self._ask(ids, round, ask))

    async def _ask(self, ids: Sequence[str], round: int, ask: Callable[[_Peer, int], None]) -> list[Any]:
        """Ask each of `ids` something; return the answers in the order of ids, without those that did not come in time."""
        loop = asyncio.get_running_loop()
        asked: list[tuple[_Peer, int, Future[Any]]] = []
        for id in sorted(ids):
            peer, number, answer = self.peers[id], next(self._numbers), loop.create_future()
            asked.append((peer, number, answer))
            peer.requests[number] = answer
            try:
                ask(peer, number)
            except TransportError as error:
                answer.set_result(None)
                self._suspect(peer, str(error))
        _, late = await asyncio.wait([answer for *_, answer in asked], timeout=self._settings.deadline)
        self.expired += bool(late)
        for peer, number, answer in asked:
            peer.requests.pop(number, None)
            peer.asked.pop(number, None)
            if answer in late:
                self._suspect(peer, f"missed the deadline of round {round}")
        answers = [answer.result() for *_, answer in asked if answer not in late]
        return [answer for answer in answers if answer is not None]

    # What comes in

    def received(self, link: Link, frame: memoryview) -> None:
        try:
            opened = self._door.open(frame)
            peer = self.peers[opened.sender]
            if not isinstance(opened.message, m.Hello | m.Welcome):
                if peer.problem:
                    raise ProtocolError("differs", peer.problem)
                if not peer.introduced:
                    raise ProtocolError("not introduced", peer.name)
                if isinstance(opened.message, m.Get | m.Absent | m.Have | m.Pong | m.Bye):
                    self._reached(peer, opened.message.round)
                self._heard(peer)
            self._handle(peer, link, opened)
        except ProtocolError as error:
            self.rejected[error.cause] += 1
        except TransportError:
            self.rejected["link lost"] += 1
        except Exception as error:  # a fault of ours: it ends the node with its reason, not just the connection
            self._begin(_fail(error), f"{self.name} handles a frame")

    def lost(self, link: Link, reason: str) -> None:
        for peer in self.peers.values():
            if peer.link is link:
                peer.link = None
                self._suspect(peer, reason)
                self._give_up(peer)

    def _handle(self, peer: _Peer, link: Link, opened: Opened) -> None:
        message, payload = opened.message, opened.payload
        size = OVERHEAD + len(payload)
        match message:
            case m.Get():
                self.traffic.received_get += size
                self._serve(peer, message)
                return
            case m.Answer():
                self.traffic.received_update += size
                self.traffic.received_models += 1
                self._take(peer, message, payload)
                return
            case m.Score():
                self.traffic.received_score += size
                self._begin_score(peer, message, payload)
                return
            case m.Scored():
                self.traffic.received_scored += size
                if message.request in peer.asked:
                    self._resolve(peer, message.request, None)
                    raise ProtocolError("not asked for", "a loss, where a model was")
                loss = message.loss
                self._resolve(peer, message.request, (peer.name, loss) if isfinite(loss) else None)
                return
        self.traffic.received_control += size
        match message:
            case m.Hello() | m.Welcome():
                if peer.boot != opened.boot:  # what an earlier life of it was asked is lost
                    peer.boot = opened.boot
                    self._give_up(peer)
                self._introduce(peer, link, m.decode_terms(payload), answer=isinstance(message, m.Hello))
            case m.Absent():
                self._resolve(peer, message.request, None)
            case m.Ping():
                self._say(peer, m.Pong(message.request, self.round))
            case m.Bye() if message.leaving:
                peer.link = None
                self._suspect(peer, "has left")
                self._give_up(peer)
            case m.Bye():
                peer.stopped = True
                self._heard(peer)
                self._moved()

    def _serve(self, peer: _Peer, get: m.Get) -> None:
        if peer.name not in self._askers:
            self._say(peer, m.Absent(get.request, self.round, "not allowed"))
            return
        found = self.outbox.find(get.round, get.stage)
        if isinstance(found, Published):
            self._answer(peer, get.request, found)
        elif found == "wait":
            peer.waiting[get.round, get.stage] = get.request
            if len(peer.waiting) > 4:  # no honest peer waits for more; the newest request replaces the oldest
                del peer.waiting[min(peer.waiting, key=lambda key: peer.waiting[key])]
        else:
            self._say(peer, m.Absent(get.request, self.round, found))

    def _answer_waiting(self) -> None:
        for peer in self._introduced():
            for key in list(peer.waiting):
                found = self.outbox.find(*key)
                if found != "wait":
                    number = peer.waiting.pop(key)
                    try:
                        if isinstance(found, Published):
                            self._answer(peer, number, found)
                        else:
                            self._say(peer, m.Absent(number, self.round, found))
                    except TransportError:
                        self.rejected["link lost"] += 1

    def _answer(self, peer: _Peer, number: int, model: Published) -> None:
        update = model.update
        key = update.round, update.stage
        if key not in self._payloads:
            self._payloads = {k: v for k, v in self._payloads.items() if k in self.outbox.models}
            self._payloads[key] = Payload.of(update.params.data.cast("B"), encode_extras(update.extras))
        age = max(0.0, asyncio.get_running_loop().time() - model.time)
        answer = m.Answer(number, update.round, update.stage, update.n_samples, self.outbox.final, age)
        self._say(peer, answer, self._payloads[key])
        self.traffic.sent_models += 1
        self.traffic.sent_update += update.size

    def _take(self, peer: _Peer, answer: m.Answer, payload: memoryview) -> None:
        if answer.request not in peer.requests:
            return  # it came too late
        if answer.request not in peer.asked:
            self._resolve(peer, answer.request, None)
            raise ProtocolError("not asked for", "a model, where a loss was")
        try:
            self._check_asked(peer, answer)
            params, extras = decode(payload, self._size)
            self._check_norm(params)
        except ProtocolError:
            self._resolve(peer, answer.request, None)
            raise
        size = OVERHEAD + len(payload)
        update = Update(
            peer.name, answer.round, answer.stage, params, answer.n_samples, extras, answer.final, answer.age, size
        )
        if answer.final:
            peer.stopped = True
        self._resolve(peer, answer.request, update)

    def _check_asked(self, peer: _Peer, answer: m.Answer) -> None:
        """Refuse another model than the one that was asked for, and another number of samples than was introduced."""
        round, stage = peer.asked[answer.request]
        newest = answer.final or (self._settings.mode == "asynchronous" and stage != "prepared")
        if answer.stage != stage or (answer.round != round and not newest):
            raise ProtocolError("not asked for", f"{answer.stage} of round {answer.round}, not {stage} of {round}")
        if answer.n_samples != peer.about.get("n_samples"):
            raise ProtocolError("differs", f"{answer.n_samples} samples, {peer.about.get('n_samples')} at the introduction")

    def _check_norm(self, params: Parameters) -> None:
        """Refuse a model so large that its mean with ours would be useless."""
        if norm(params) > LARGEST_RATIO * (1.0 + self._norm):
            raise ProtocolError("too large", f"a norm of {norm(params):.3g}, our own is {self._norm:.3g}")

    def _begin_score(self, peer: _Peer, score: m.Score, payload: memoryview) -> None:
        params, _ = decode(payload, self._size)
        if peer.scoring >= SCORES_AT_ONCE:
            self._say(peer, m.Absent(score.request, self.round, "busy"))
            return

        peer.scoring += 1

        async def reply() -> None:
            try:
                loss = await self._loss(params)
            finally:
                peer.scoring -= 1
            try:
                self._say(peer, m.Scored(score.request, loss))
                self.traffic.sent_scored += OVERHEAD
            except TransportError:
                self.rejected["link lost"] += 1

        self._begin(reply(), f"{self.name} scores for {peer.name}")

    # Introduction, suspicion, probing

    def _terms(self) -> Payload:
        terms = m.Terms(self._agreed, self._about, self.round, self.outbox.final)
        return Payload.of(terms.encode())

    def _introduce(self, peer: _Peer, link: Link, terms: m.Terms, answer: bool) -> None:
        if answer:
            self._say_over(link, peer, m.Welcome(), self._terms())
        problem = difference(self._agreed, terms.agreed)
        if problem:
            peer.problem = problem
            self._suspect(peer, problem)
            raise ProtocolError("differs", problem)
        peer.problem = ""
        link.trust()
        peer.link, peer.about, peer.stopped = link, terms.about, terms.stopped
        peer.round = terms.round  # also back: a peer that has lost its disk starts anew
        self._heard(peer)
        self._moved()

    async def _keep_in_touch(self, peer: _Peer) -> None:
        """Dial a peer that is not there, and probe one that is silent; for ever, but less and less often."""
        pause = FIRST_PAUSE
        for attempt in count():
            if peer.problem or (peer.introduced and peer.name not in self.roster.suspected):
                pause = FIRST_PAUSE
                peer.trouble.clear()
                await peer.trouble.wait()
            if peer.introduced:
                peer.unanswered += 1
                self._tell(peer, m.Ping(next(self._numbers)))
                self._moved()
            else:
                await self._dial(peer)
            jitter = self._draws.generator(attempt, f"probe {peer.name}").uniform(0.75, 1.25)
            await self._until(lambda: peer.introduced and peer.name not in self.roster.suspected, pause * jitter)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _dial(self, peer: _Peer) -> None:
        try:
            link = await self._transport.dial(peer.address)
            self._say_over(link, peer, m.Hello(), self._terms())
        except TransportError as error:
            if peer.name in self.roster.suspected:
                self._suspect(peer, str(error))
            return
        if not await self._until(lambda: peer.introduced or bool(peer.problem), INTRODUCTION):
            link.close()

    def _heard(self, peer: _Peer) -> None:
        """Something authentic came from a peer. It is learned with again if it keeps up, so that no deadline is lost."""
        peer.unanswered = 0
        keeps_up = peer.stopped or self._settings.mode == "asynchronous" or peer.round >= self.round - 1
        if keeps_up and peer.name in self.roster.suspected:
            self.roster.heard(peer.name)
            self._moved()

    def _suspect(self, peer: _Peer, reason: str) -> None:
        self.roster.suspect(peer.name, reason)
        peer.trouble.set()
        self._moved()

    def _give_up(self, peer: _Peer) -> None:
        """Nothing that a peer was asked will be answered."""
        for future in peer.requests.values():
            if not future.done():
                future.set_result(None)
        peer.waiting.clear()
        self._moved()

    def _reached(self, peer: _Peer, round: int) -> None:
        if round > peer.round:
            peer.round = round
            self._moved()

    def _resolve(self, peer: _Peer, number: int, answer: Any) -> None:
        future = peer.requests.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    # Saying

    def _introduced(self) -> list[_Peer]:
        return [peer for peer in self.peers.values() if peer.introduced]

    def _say(self, peer: _Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        if peer.link is None:
            raise TransportError(self.roster.suspected.get(peer.name, "not connected"))
        self._say_over(peer.link, peer, message, payload)

    def _say_over(self, link: Link, peer: _Peer, message: m.Message, payload: Payload = EMPTY) -> None:
        link.send(self._sealer.seal(message, peer.key, payload))
        if not isinstance(message, m.Get | m.Answer | m.Score | m.Scored):
            self.traffic.sent_control += OVERHEAD + payload.size

    def _tell(self, peer: _Peer, message: m.Message) -> None:
        """Say something that may be lost."""
        try:
            self._say(peer, message)
        except TransportError:
            self.rejected["link lost"] += 1

    # Waiting

    def _moved(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something has changed so that `condition` holds. Return False if it took longer than that."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                while not condition():
                    if self._progress is None or self._progress.done():
                        self._progress = loop.create_future()
                    await asyncio.shield(self._progress)
        except TimeoutError:
            return False
        return True

    def _begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.create_task(coroutine, name=name)
        self._running.append(task)
        task.add_done_callback(self._running.remove)


def credible_round(rounds: Sequence[int]) -> int:
    """Return the greatest round that more than a quarter of some nodes have reached, and two where there are two.

    So that one who lies about its round cannot make others skip theirs. 0 of no nodes.
    """
    if len(rounds) < 2:
        return max(rounds, default=0)
    return sorted(rounds, reverse=True)[max(1, len(rounds) // 4)]


def norm(params: Parameters) -> float:
    """Return the Euclidean norm, which float32 may be too small to hold."""
    return float(np.linalg.norm(params.astype(np.float64)))


async def _fail(error: Exception) -> None:
    raise error


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Say in one sentence what two nodes do not agree on, with both values; "" if they agree."""
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key, "not set"), theirs.get(key, "not set")
        if mine != other:
            return f"{key} differs: ours is {mine}, theirs {_printable(other)}"
    return ""


def _printable(text: str) -> str:
    """Text of a peer, fit for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def payload_limit(size: int) -> int:
    """Return the most bytes that a payload of nodes with P parameters may have."""
    return max(4 * size + EXTRAS_LIMIT, m.Terms.LIMIT)
