"""Published models: the models that a node keeps, and its answers to requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.node.exchange.model_encoding import Outbox, Published
from p2pfl.policy import Update

STAGES = ("trained", "merged")


def model(round, stage="trained"):
    return Published(Update("me", round, stage, np.full(2, round, np.float32), 10), time=float(round))


def outbox(*models, synchronous=True, final=False):
    box = Outbox(synchronous)
    for entry in models:
        box.add(entry)
    box.final = final
    return box


def outbox_after(rounds, prepared=True, synchronous=True, stages=STAGES):
    """Return the outbox of a node that has published the given number of rounds."""
    models = [model(round, stage) for round in range(1, rounds + 1) for stage in stages]
    return outbox(*([model(0, "prepared")] if prepared else []), *models, synchronous=synchronous)


# Synchronous


def test_find_returns_requested_round_and_stage():
    box = outbox_after(2)
    for round in (1, 2):
        for stage in STAGES:
            found = box.find(round, stage).update
            assert (found.round, found.stage) == (round, stage)


def test_find_returns_published_object():
    published = model(1)
    assert outbox(published).find(1, "trained") is published


def test_find_in_empty_outbox_waits():
    box = outbox()
    assert box.round == -1
    assert box.find(0, "prepared") == "wait"
    assert box.find(1, "trained") == "wait"
    assert box.find(7, "merged") == "wait"


def test_find_future_model_waits():
    box = outbox(model(1), model(1, "merged"), model(2))
    assert box.find(2, "merged") == "wait"
    assert box.find(3, "trained") == "wait"
    assert box.find(3, "merged") == "wait"


def test_find_missing_stage_of_earlier_round_is_gone():
    assert outbox(model(1), model(2)).find(1, "merged") == "gone"


def test_find_skipped_round_is_gone():
    box = outbox(model(8), model(10))
    assert box.find(8, "trained") == box.find(9, "trained") == "gone"
    assert outbox(model(9), model(10)).find(9, "trained").update.round == 9


def test_outbox_keeps_last_two_rounds():
    box = outbox_after(10)
    assert set(box.models) == {(0, "prepared")} | {(round, stage) for round in (9, 10) for stage in STAGES}
    assert box.find(8, "trained") == box.find(8, "merged") == box.find(1, "trained") == "gone"


def test_outbox_keeps_previous_round_during_next():
    box = outbox_after(9)
    box.add(model(10))
    assert box.find(9, "merged").update.round == 9
    assert box.find(10, "trained").update.round == 10
    assert box.find(10, "merged") == "wait"
    assert box.find(8, "merged") == "gone"


def test_outbox_after_skip_drops_earlier_rounds():
    box = outbox_after(3)
    box.add(model(20))
    assert set(box.models) == {(0, "prepared"), (20, "trained")}
    assert box.find(3, "merged") == "gone"


@pytest.mark.parametrize("synchronous", [True, False])
def test_outbox_keeps_prepared_model_for_whole_run(synchronous):
    box = outbox_after(1000, synchronous=synchronous)
    found = box.find(0, "prepared").update
    assert (found.round, found.stage) == (0, "prepared")


def test_outbox_replaces_model_published_again():
    first, again = model(3), model(3)
    box = outbox(first, again)
    assert box.find(3, "trained") is again
    assert len(box.models) == 1


def test_outbox_round_never_decreases():
    box = outbox(model(5), model(4))
    assert box.round == 5
    assert box.find(4, "trained").update.round == 4
    assert box.find(4, "merged") == "gone"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([STAGES, STAGES[:1], STAGES[1:]])), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_outbox_always_holds_exactly_last_two_rounds(steps, prepared, synchronous):
    box = outbox(*([model(0, "prepared")] if prepared else []), synchronous=synchronous)
    kept, published, round = set(box.models), set(), 0
    for step, stages in steps:
        round += step
        for stage in stages:
            box.add(model(round, stage))
            published.add((round, stage))
            assert box.round == round
            assert set(box.models) == kept | {key for key in published if key[0] >= round - 1}


@given(st.integers(1, 12), st.integers(1, 14), st.sampled_from(STAGES))
def test_synchronous_outbox_serves_only_requested_round(rounds, asked, stage):
    found = outbox_after(rounds).find(asked, stage)
    if isinstance(found, Published):
        assert (found.update.round, found.update.stage) == (asked, stage)
    else:
        assert found == ("wait" if asked > rounds else "gone")


# Asynchronous


def test_asynchronous_outbox_serves_newest_for_any_round():
    box = outbox_after(6, synchronous=False)
    for round in (1, 5, 6, 7, 1000):
        for stage in STAGES:
            found = box.find(round, stage).update
            assert (found.round, found.stage) == (6, stage)


def test_asynchronous_outbox_serves_newest_of_stage():
    box = outbox(model(1), model(1, "merged"), model(2), synchronous=False)
    assert box.find(2, "merged").update.round == 1
    assert box.find(1, "trained").update.round == 2


def test_empty_asynchronous_outbox_does_not_wait():
    box = outbox(model(0, "prepared"), synchronous=False)
    assert box.find(1, "trained") == "nothing yet"
    box.add(model(1))
    assert box.find(1, "merged") == "nothing yet"
    assert box.find(1, "trained").update.round == 1


def test_asynchronous_outbox_waits_for_prepared_model():
    box = outbox(synchronous=False)
    assert box.find(0, "prepared") == "wait"
    prepared = model(0, "prepared")
    box.add(prepared)
    assert box.find(0, "prepared") is prepared


@pytest.mark.parametrize("synchronous", [True, False])
def test_missing_prepared_model_is_gone_after_first_round(synchronous):
    assert outbox_after(1, prepared=False, synchronous=synchronous).find(0, "prepared") == "gone"


# Stopped


@pytest.mark.parametrize("synchronous", [True, False])
def test_final_outbox_serves_last_model_for_later_rounds(synchronous):
    box = outbox_after(3, synchronous=synchronous)
    box.final = True
    for round in (4, 50):
        for stage in STAGES:
            found = box.find(round, stage).update
            assert (found.round, found.stage) == (3, stage)
    assert box.find(0, "prepared").update.stage == "prepared"


def test_final_outbox_still_serves_previous_round():
    box = outbox_after(3)
    box.final = True
    assert box.find(2, "trained").update.round == 2


@pytest.mark.parametrize("synchronous", [True, False])
def test_final_outbox_never_waits(synchronous):
    empty = outbox(synchronous=synchronous, final=True)
    assert empty.find(0, "prepared") == empty.find(1, "trained") == empty.find(1, "merged") == "gone"
    trained_only = outbox(model(1), synchronous=synchronous, final=True)
    assert trained_only.find(1, "merged") == trained_only.find(0, "prepared") == "gone"
