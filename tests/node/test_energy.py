"""Energy counters of a machine: RAPL and batteries, from files in the form of the kernel's."""

import asyncio

import pytest

from p2pfl.node.energy import EnergyCounters, Meter
from p2pfl.node.trainer import ThreadTrainer
from p2pfl.queries import Train
from p2pfl.random_streams import RandomStreams
from p2pfl.task import Part, make_task, samples_of


@pytest.fixture
def classes(tmp_path):
    return tmp_path / "class"


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def rapl(classes, package=0, dram=None, span=262_143_328_850):
    zone = classes / "powercap" / "intel-rapl:0"
    write(zone, name="package-0", energy_uj=package, max_energy_range_uj=span)
    write(classes / "powercap" / "intel-rapl:0:0", name="core", energy_uj=package // 2, max_energy_range_uj=span)
    write(classes / "powercap" / "intel-rapl-mmio:0", name="package-0", energy_uj=package, max_energy_range_uj=span)
    if dram is not None:
        write(classes / "powercap" / "intel-rapl:0:1", name="dram", energy_uj=dram, max_energy_range_uj=span)


def battery(classes, status="Discharging", name="BAT0", **files):
    write(classes / "power_supply" / name, type="Battery", status=status, **files)


def spent(classes, change):
    counters = EnergyCounters(classes)
    before = counters.mark()
    change()
    return counters.since(before), counters


def test_packages_and_memory_are_added_without_their_parts(classes):
    rapl(classes, package=1_000_000, dram=500_000)
    joules, counters = spent(classes, lambda: rapl(classes, package=4_500_000, dram=1_500_000))
    assert joules == pytest.approx(4.5)
    assert (counters.source, counters.problem) == ("package-0, dram (intel-rapl:0:1)", "")


def test_counter_that_starts_again_is_continued(classes):
    rapl(classes, package=9_000_000, span=10_000_000)
    joules, _ = spent(classes, lambda: rapl(classes, package=2_000_000, span=10_000_000))
    assert joules == pytest.approx(3.0)


def test_counter_that_only_root_may_read_is_named(classes):
    rapl(classes)
    path = classes / "powercap" / "intel-rapl:0" / "energy_uj"

    def read(file):
        if file.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(file))
        return file.read_text()

    counters = EnergyCounters(classes, read)
    assert counters.since(counters.mark()) is None
    assert counters.problem == f"cannot read {path}: Permission denied; root may allow it with chmod a+r"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"energy_now": 40_000_000}, {"energy_now": 39_990_000}),
        (
            {"charge_now": 4_000_000, "voltage_min_design": 10_000_000},
            {"charge_now": 3_999_000, "voltage_min_design": 10_000_000},
        ),
    ],
)
def test_battery_gives_off_what_its_charge_loses(classes, before, after):
    battery(classes, **before)
    joules, counters = spent(classes, lambda: battery(classes, **after))
    assert joules == pytest.approx(36)
    assert counters.source == "BAT0"


def test_battery_that_is_charged_counts_nothing(classes):
    battery(classes, energy_now=40_000_000)
    battery(classes, name="mouse", scope="Device", energy_now=1_000_000)
    joules, counters = spent(classes, lambda: battery(classes, "Charging", energy_now=41_000_000))
    assert joules is None
    assert counters.problem.startswith("the kernel shows no energy counter: no RAPL in ")


def test_machine_without_counters_says_so(classes):
    joules, counters = spent(classes, lambda: None)
    assert joules is None
    assert counters.problem == (
        f"the kernel shows no energy counter: no RAPL in {classes}/powercap,"
        f" and no discharging battery in {classes}/power_supply"
    )


def test_trainer_measures_trainings_only(classes):
    rapl(classes)
    time, task = [0.0], make_task("concept-shift", {}, Part(0, 2), 0)

    def training():
        time[0] += 1.5
        rapl(classes, package=int(time[0] * 10e6))
        return time[0]

    class Clock:
        def compute(self, query):
            return training() if isinstance(query, Train) else None

    trainer = ThreadTrainer(Clock(), Meter(lambda: time[0], EnergyCounters(classes)), lambda query: samples_of(task, query))

    async def main():
        initial = task.initial(0)
        assert trainer.joules(10) is None
        for round in (1, 2):
            await trainer.submit(Train(initial, round))
        await trainer.submit("another query")

    asyncio.run(main())
    trainer.close()
    assert (trainer.used().seconds, trainer.used().joules) == (pytest.approx(3.0), pytest.approx(30.0))
    assert trainer.joules(task.n_samples) == pytest.approx(15.0)


def test_trainer_of_this_machine_has_joules_or_a_reason():
    task = make_task("concept-shift", {}, Part(0, 2), 0)
    trainer = ThreadTrainer(task.learner(RandomStreams(0, "a"), "cpu"))

    async def main():
        await trainer.submit(Train(task.initial(0), 1))

    asyncio.run(main())
    trainer.close()
    assert trainer.used().seconds > 0
    assert (trainer.used().joules is None) == bool(trainer.meter.problem)
