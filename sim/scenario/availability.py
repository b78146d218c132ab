"""Who is there when: intervals in which a simulated node is present, from a file or drawn; the key `availability`.

availability = { file = "trace.csv" }
availability = { name = "diurnal", day = 86400, share = 0.4, zones = 8, jitter = 0.05 }
availability = { name = "sessions", present = 3600, away = 1800, shape = 0.6 }
availability = { name = "outages", groups = 4, present = 7200, away = 600 }

A file has a line for each interval: node,start,end in virtual seconds; the node by its number, its name, or its label. It
repeats after its last end, as a trace of a day does. A node that is away neither trains nor sends nor receives anything: a
training that it has begun goes on when it is back. Peers treat it like any that does not answer.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from math import gamma, inf, isfinite
from pathlib import Path
from typing import Literal

import msgspec

from p2pfl._util.atomic_files import reason
from p2pfl.errors import ConfigurationError, must_be
from p2pfl.random_streams import RandomStreams, federation_streams

Interval = tuple[float, float]
PURPOSE = "availability"
LEAST_SHAPE = 0.1  # with less, nearly all intervals have no length, and millions precede the next one that has


class Availability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When nodes are present; without `file` and `name` all are at all times.

    Attributes:
        file: a CSV file with the columns node, start and end, in virtual seconds.
        name: how intervals are drawn: `diurnal` has one interval a day for each node, in its time zone; `sessions`
            alternates between presence and absence of random lengths; with `outages` nodes are present, except while the
            group of nodes to which they belong is cut off.
        day: seconds of a day; `diurnal`.
        share: share of the day in which a node is present; `diurnal`.
        zones: number of time zones at equal distances, from which each node draws its own; `diurnal`.
        jitter: greatest shift of the begin and of the end of each interval, as a share of the day; `diurnal`.
        present, away: mean seconds of presence and of absence; `sessions` and `outages`.
        shape: of the Weibull distribution of both lengths; below 1 there are many short ones and a few long ones;
            `sessions`.
        groups: number of groups of nodes that are cut off together, drawn from the seed; `outages`.
    """

    file: str = ""
    name: Literal["", "diurnal", "sessions", "outages"] = ""
    day: float = 86_400.0
    share: float = 0.5
    zones: int = 1
    jitter: float = 0.0
    present: float = 3600.0
    away: float = 3600.0
    shape: float = 1.0
    groups: int = 1

    @property
    def varies(self) -> bool:
        """Whether nodes may be away."""
        return bool(self.file or self.name)

    def check(self, deadline: float) -> None:
        """Raise ConfigurationError for an invalid value; `deadline` is that of the run."""
        if self.varies and deadline == inf:
            raise ConfigurationError(
                "with deadline = inf a node waits for ever for a peer that is away; set a finite one, such as deadline = 30",
                "deadline",
                "availability",
            )
        if self.file and self.name:
            raise ConfigurationError("availability has a file and a name; give one of them", "availability")
        for key in ("day", "present", "away"):
            if not 0 < getattr(self, key) < inf:
                raise must_be(f"availability.{key}", "a positive number", getattr(self, key))
        if not LEAST_SHAPE <= self.shape < inf:
            raise must_be("availability.shape", f"{LEAST_SHAPE} or more, and finite", self.shape)
        for key in ("zones", "groups"):
            if getattr(self, key) < 1:
                raise must_be(f"availability.{key}", "1 or more", getattr(self, key))
        if not 0 < self.share < 1:
            raise must_be("availability.share", "above 0 and below 1", self.share)
        if not 0 <= 2 * self.jitter < min(self.share, 1 - self.share):
            raise must_be("availability.jitter", "0 or more, and below half of the shorter part of the day", self.jitter)

    def presence(self, names: Sequence[str], seed: int, number: Callable[[int | str], int]) -> Presence:
        """Return the presence of all nodes.

        Args:
            names: of the nodes.
            number: returns the number of a node that a file names by its number, name or label.

        Raises:
            ConfigurationError: the file cannot be read, or its intervals are not valid.
        """
        if self.file:
            intervals = read_intervals(Path(self.file), names, number)
            end = max(own[-1][1] for own in intervals.values())
            return Presence({name: _repeated(intervals[name], end) for name in names})
        draw = {"diurnal": self._diurnal, "sessions": self._sessions, "outages": self._outages}[self.name]
        return Presence({name: draw(name, seed) for name in names})

    def _diurnal(self, name: str, seed: int) -> Iterator[Interval]:
        streams = RandomStreams(seed, name)
        zone = int(streams.generator(0, PURPOSE).integers(self.zones)) / self.zones
        for day in count():
            early, late = streams.generator(1 + day, PURPOSE).uniform(-self.jitter, self.jitter, 2)
            begin = (day - 1 + zone + early) * self.day  # the day before the first one reaches into it
            end = (day - 1 + zone + self.share + late) * self.day
            if end > 0:
                yield max(begin, 0.0), end

    def _sessions(self, name: str, seed: int) -> Iterator[Interval]:
        rng = RandomStreams(seed, name).generator(0, PURPOSE)
        scale = 1 / gamma(1 + 1 / self.shape)
        there, now = bool(rng.random() < self.present / (self.present + self.away)), 0.0
        while True:
            length = float(rng.weibull(self.shape)) * scale * (self.present if there else self.away)
            if there and length > 0:
                yield now, now + length
            now += length
            there = not there

    def _outages(self, name: str, seed: int) -> Iterator[Interval]:
        group = int(RandomStreams(seed, name).generator(0, PURPOSE).integers(self.groups))
        rng, now = federation_streams(seed).generator(group, "outages"), 0.0
        while True:
            until = now + float(rng.exponential(self.present))
            yield now, until
            now = until + float(rng.exponential(self.away))


class Presence:
    """When each node is present.

    Args:
        intervals: of each node by its name, in order and without end; they do not overlap.
    """

    def __init__(self, intervals: Mapping[str, Iterator[Interval]]) -> None:
        self._more = intervals
        self._begins: dict[str, list[float]] = {name: [] for name in intervals}
        self._ends: dict[str, list[float]] = {name: [] for name in intervals}

    def _find(self, name: str, time: float) -> int:
        """Return the number of the first interval that ends after a time."""
        begins, ends = self._begins[name], self._ends[name]
        while not ends or ends[-1] <= time:
            begin, end = next(self._more[name])
            begins.append(begin)
            ends.append(end)
        return bisect_right(ends, time)

    def there(self, name: str, time: float) -> bool:
        """Return whether a node is present."""
        return self._begins[name][self._find(name, time)] <= time

    def after(self, name: str, time: float, seconds: float) -> float:
        """Return when a node has been present for some seconds since a time; with 0, when it is present next."""
        k = self._find(name, time)
        while True:
            begin = max(time, self._begins[name][k])
            if (end := self._ends[name][k]) - begin > seconds:
                return begin + seconds
            seconds -= end - begin
            time = end
            k = self._find(name, time)

    def seconds(self, name: str, begin: float, end: float) -> float:
        """Return for how many seconds between two times a node is present."""
        found = 0.0
        while begin < end:
            k = self._find(name, begin)
            found += max(0.0, min(self._ends[name][k], end) - max(self._begins[name][k], begin))
            begin = self._ends[name][k]
        return found


def _repeated(intervals: Sequence[Interval], period: float) -> Iterator[Interval]:
    for turn in count():
        for begin, end in intervals:
            yield turn * period + begin, turn * period + end


def read_intervals(path: Path, names: Sequence[str], number: Callable[[int | str], int]) -> dict[str, list[Interval]]:
    """Return the intervals of each node in a CSV file, in order; a first line of titles and lines with # are left out.

    Raises:
        ConfigurationError: the file cannot be read; a line has no valid interval; two of a node overlap; or a node has none.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(k, row) for k, row in enumerate(csv.reader(file), 1) if any(row) and not row[0].startswith("#")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise _file_error(f"cannot read {path}: {why}") from error
    if rows and [cell.strip().lower() for cell in rows[0][1]] == ["node", "start", "end"]:
        del rows[0]
    found: dict[str, list[tuple[float, float, int]]] = {}
    for line, row in rows:
        where = f"{path.name}, line {line}"
        if len(row) != 3:
            raise _file_error(f"{where}: needs node,start,end, got {len(row)} values")
        node = row[0].strip()
        try:
            name = names[number(int(node) if node.isdecimal() else node)]
        except ConfigurationError as error:
            raise _file_error(f"{where}: {str(error).partition(': ')[2]}") from error
        start, end = (_seconds(cell, where) for cell in row[1:])
        if not 0 <= start < end:
            raise _file_error(f"{where}: needs 0 <= start < end, got {row[1].strip()} and {row[2].strip()}")
        found.setdefault(name, []).append((start, end, line))
    for name, own in found.items():
        own.sort()
        for before, after in pairwise(own):
            if after[0] < before[1]:
                raise _file_error(f"{path.name}: the lines {before[2]} and {after[2]} of {name} overlap")
    if lacking := [name for name in names if name not in found]:
        few = lacking[0] + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
        raise _file_error(f"{path.name} has no interval of {few}; a node that is always there has one of all the time")
    return {name: [(start, end) for start, end, _ in own] for name, own in found.items()}


def _file_error(text: str) -> ConfigurationError:
    return ConfigurationError(f"availability.file: {text}", "availability.file")


def _seconds(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = inf
    if not isfinite(value):
        raise _file_error(f"{where}: must be a number of seconds, got {cell.strip()!r}")
    return value
