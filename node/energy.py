"""Energy of the machine, from counters that the kernel of Linux shows below /sys/class.

- powercap: the RAPL counters of a processor's packages, and of memory that is not part of a package. Each is a file
  `energy_uj` in microjoules, which starts again at 0 after `max_energy_range_uj`. Since Linux 5.10 only root may read it,
  unless an administrator allows it.
- power_supply: the charge left in batteries, which falls while they discharge. Its steps are coarse, often 10 mWh (36 J).

Both count the whole machine, with all other programs on it. A machine with RAPL does not look at its batteries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from p2pfl._util.atomic_files import reason
from p2pfl.budget import Effort

CLASSES = Path("/sys/class")
NONE = "the kernel shows no energy counter: no RAPL in {0}/powercap, and no discharging battery in {0}/power_supply"


class Mark(NamedTuple):
    """State of the counters at one time.

    Attributes:
        counters: joules of each counter, by its name; a battery's joules are those that it has given off, up to a constant.
        ranges: joules after which a counter starts again at 0; 0 if it does not.
        problem: why there are none; "" if there are.
    """

    counters: Mapping[str, float]
    ranges: Mapping[str, float]
    problem: str


class EnergyCounters:
    """Reader of the machine's energy counters.

    Args:
        classes: the folder /sys/class.
        read: returns the text of a file.

    Attributes:
        problem: why the last interval has no joules; "" if it has.
        source: the counters of the last interval, such as "package-0".
    """

    def __init__(self, classes: Path = CLASSES, read: Callable[[Path], str] = Path.read_text) -> None:
        self._classes = classes
        self._read = read
        self.problem = self.source = ""

    def mark(self) -> Mark:
        """Return the state of the counters now."""
        counters, ranges, problem = self._rapl()
        if counters or problem:
            return Mark(counters, ranges, problem)
        counters = self._batteries()
        return Mark(counters, {}, "" if counters else NONE.format(self._classes))

    def since(self, before: Mark) -> float | None:
        """Return the joules of the machine since a mark; None if nothing counts them, see `problem`."""
        now = self.mark()
        self.problem, self.source = before.problem or now.problem, ", ".join(now.counters)
        if not self.problem and before.counters.keys() != now.counters.keys():
            self.problem = "the energy counters of the machine have changed, such as a battery that is charged now"
        if self.problem:
            return None
        joules = 0.0
        for name, value in now.counters.items():
            spent = value - before.counters[name]
            joules += spent if spent >= 0 else max(0.0, spent + now.ranges.get(name, 0.0))
        return joules

    def _rapl(self) -> tuple[dict[str, float], dict[str, float], str]:
        """Return the joules of the packages and of separate memory, their ranges, and why they cannot be read."""
        counters, ranges = {}, {}
        for zone in self._folders("powercap", "intel-rapl:*"):  # also of AMD; intel-rapl-mmio has the same again
            try:
                name = self._read(zone / "name").strip()
                if not name.startswith(("package", "dram")):  # core and uncore are parts of a package, psys is all
                    continue
                name = f"{name} ({zone.name})" if name == "dram" else name
                counters[name] = int(self._read(zone / "energy_uj")) / 1e6
                ranges[name] = int(self._read(zone / "max_energy_range_uj")) / 1e6
            except (OSError, ValueError) as error:
                why = reason(error) if isinstance(error, OSError) else str(error)
                return {}, {}, f"cannot read {zone / 'energy_uj'}: {why}; root may allow it with chmod a+r"
        return counters, ranges, ""

    def _batteries(self) -> dict[str, float]:
        """Return the joules that each discharging battery has given off, up to a constant."""
        found = {}
        for supply in self._folders("power_supply", "*"):
            facts = {name: self._fact(supply / name) for name in ("type", "scope", "status")}
            if facts["type"] != "Battery" or facts["scope"] == "Device" or facts["status"] != "Discharging":
                continue  # a battery of a device is that of a mouse or a keyboard
            try:
                if energy := self._fact(supply / "energy_now"):  # in microwatt hours
                    found[supply.name] = -int(energy) * 3.6e-3
                elif charge := self._fact(supply / "charge_now"):  # in microampere hours
                    design = self._fact(supply / "voltage_min_design") or self._fact(supply / "voltage_now")  # in microvolts
                    found[supply.name] = -int(charge) * 3.6e-3 * int(design) / 1e6
            except ValueError:
                continue
        return found

    def _folders(self, kind: str, pattern: str) -> list[Path]:
        try:
            return sorted((self._classes / kind).glob(pattern))
        except OSError:
            return []

    def _fact(self, path: Path) -> str:
        """Return the text of a file; "" without one."""
        try:
            return self._read(path).strip()
        except OSError:
            return ""


class Meter:
    """Sum of the seconds and joules of a process's trainings.

    Args:
        clock: returns seconds of a monotonic clock.
        counters: of the machine.
    """

    def __init__(self, clock: Callable[[], float], counters: EnergyCounters) -> None:
        self._clock = clock
        self._counters = counters
        self._measured = 0  # samples of the trainings with joules
        self.used = Effort()

    def run(self, training: Callable[[], object], samples: int) -> object:
        """Run a training on a number of samples, and add its cost."""
        before, begun = self._counters.mark(), self._clock()
        try:
            return training()
        finally:
            seconds, joules = self._clock() - begun, self._counters.since(before)
            sum_before = self.used.joules
            if joules is not None:
                self._measured += samples
                joules += sum_before or 0.0
            self.used = Effort(self.used.seconds + seconds, sum_before if joules is None else joules)

    def joules(self, samples: int) -> float | None:
        """Return the joules of a training on a number of samples, at the mean of those so far; None if there are none."""
        if self.used.joules is None or not self._measured:
            return None
        return self.used.joules / self._measured * samples

    @property
    def source(self) -> str:
        """The counters that measure it; "" before the first training, and if nothing does."""
        return self._counters.source

    @property
    def problem(self) -> str:
        """Why the last training has no joules; "" if it has."""
        return self._counters.problem
