"""Binding of tables to structs and to factories: both refuse the same keys, values and types."""

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from p2pfl._util.binding import bind, build, choose, convert, split_name
from p2pfl.errors import ConfigurationError


class Clock(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["virtual", "real"] = "virtual"
    rate: float = 1.0


class Device(msgspec.Struct, forbid_unknown_fields=True):
    clock: Clock | None = None
    labels: dict[str, int] = {}
    clocks: tuple[Clock, ...] = ()


def clock(kind: Literal["virtual", "real"] = "virtual", rate: float = 1.0) -> tuple[str, float]:
    if rate <= 0:
        raise ValueError("rate must be above 0")
    return kind, rate


def by_struct(options):
    found = bind({"clock": options}, Device).clock
    return found.kind, found.rate


def by_factory(options):
    return build("clock", clock, options)


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        (float | tuple[float, float] | Literal["edges"], "edges, a number, a pair [low, high]"),
        (Literal["edges"] | None, "edges"),
    ],
)
def test_wrong_word_beside_other_types_is_refused_with_all_that_is_allowed(kind, allowed):
    with pytest.raises(ConfigurationError) as refused:
        convert("network.loss", "edge", kind)
    assert str(refused.value) == f"network.loss must be one of {allowed}, got 'edge'; did you mean 'edges'?"
    assert convert("network.loss", "edges", kind) == "edges"


@pytest.mark.parametrize("make", [by_struct, by_factory])
class TestEither:
    def test_binding_valid_options_returns_typed_values(self, make):
        assert make({"kind": "real", "rate": 2}) == ("real", 2.0)

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"rat": 1}, "unknown key 'clock.rat'; did you mean 'clock.rate'?"),
            ({"kind": "wall"}, "clock.kind"),
            ({"rate": "fast"}, "must be a number, got 'fast'"),
        ],
    )
    def test_binding_invalid_option_names_the_key(self, make, options, error):
        with pytest.raises(ConfigurationError) as caught:
            make(options)
        assert error in str(caught.value)


def test_unknown_option_is_compared_without_its_table():
    with pytest.raises(ConfigurationError, match=r"unknown key 'clock\.lock'; known: clock\.kind, clock\.rate$"):
        build("clock", clock, {"lock": 3})


def test_build_reports_error_of_the_factory():
    with pytest.raises(ConfigurationError, match="clock: rate must be above 0"):
        build("clock", clock, {"rate": 0.0})


def test_build_with_given_argument_refuses_its_key():
    with pytest.raises(ConfigurationError, match=r"unknown key 'clock\.kind'"):
        build("clock", clock, {"kind": "real"}, kind="virtual")


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"clock": 3}, "clock must be a table, got 3"),
        ({"labels": 3}, "labels must be a table, got 3"),
        ({"clocks": 3}, r"clocks must be a list of tables, each headed \[\[clocks\]\], got 3"),
        ({"labels": {"a": "b"}}, "labels.a must be a whole number, got 'b'"),
    ],
)
def test_bind_value_that_is_no_table_reports_expected_type(table, error):
    with pytest.raises(ConfigurationError, match=error):
        bind(table, Device)


def test_convert_to_type_unknown_to_msgspec_returns_value():
    assert convert("task.own", "3", Path | int) == "3"


def test_split_name_without_a_name_is_refused():
    assert split_name("policy", {"name": "dac", "tau": 3}) == ("dac", {"tau": 3})
    for table, error in (({}, "policy.name is missing"), ({"name": 3}, "policy.name must be a string, got 3")):
        with pytest.raises(ConfigurationError, match=error):
            split_name("policy", table)


def test_choose_unknown_name_suggests_the_nearest():
    assert choose("task.partition", {"name": "iid", "n": 1}, {"iid": clock}) == (clock, {"n": 1})
    with pytest.raises(ConfigurationError, match=r"did you mean 'iid'\?"):
        choose("task.partition", {"name": "iidd"}, {"iid": clock})
    with pytest.raises(ConfigurationError, match=r'such as { name = "iid" }'):
        choose("task.partition", {}, {"iid": clock})
