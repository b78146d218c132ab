"""Published models: the models that a node keeps, and its answers to requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.node.exchange.published_models import Outbox, Published
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


def after(rounds, prepared=True, synchronous=True, stages=STAGES):
    """The outbox of a node that has published so many rounds."""
    models = [model(round, stage) for round in range(1, rounds + 1) for stage in stages]
    return outbox(*([model(0, "prepared")] if prepared else []), *models, synchronous=synchronous)


# Synchronous


def test_the_round_and_the_stage_that_are_asked_for_are_served():
    box = after(2)
    for round in (1, 2):
        for stage in STAGES:
            found = box.find(round, stage).update
            assert (found.round, found.stage) == (round, stage)


def test_what_is_served_is_what_was_published():
    published = model(1)
    assert outbox(published).find(1, "trained") is published


def test_nothing_was_published_yet():
    box = outbox()
    assert box.round == -1
    assert box.find(0, "prepared") == "wait"
    assert box.find(1, "trained") == "wait"
    assert box.find(7, "merged") == "wait"


def test_who_asks_for_what_is_still_to_come_waits():
    box = outbox(model(1), model(1, "merged"), model(2))
    assert box.find(2, "merged") == "wait"
    assert box.find(3, "trained") == "wait"
    assert box.find(3, "merged") == "wait"


def test_a_stage_that_an_earlier_round_did_not_have_is_gone():
    assert outbox(model(1), model(2)).find(1, "merged") == "gone"


def test_rounds_that_were_skipped_are_gone():
    box = outbox(model(8), model(10))
    assert box.find(8, "trained") == box.find(9, "trained") == "gone"
    assert outbox(model(9), model(10)).find(9, "trained").update.round == 9


def test_the_last_two_rounds_are_kept_and_older_ones_are_gone():
    box = after(10)
    assert set(box.models) == {(0, "prepared")} | {(round, stage) for round in (9, 10) for stage in STAGES}
    assert box.find(8, "trained") == box.find(8, "merged") == box.find(1, "trained") == "gone"


def test_the_round_before_is_kept_while_the_next_has_begun():
    box = after(9)
    box.add(model(10))
    assert box.find(9, "merged").update.round == 9
    assert box.find(10, "trained").update.round == 10
    assert box.find(10, "merged") == "wait"
    assert box.find(8, "merged") == "gone"


def test_who_jumps_ahead_forgets_the_rounds_before():
    box = after(3)
    box.add(model(20))
    assert set(box.models) == {(0, "prepared"), (20, "trained")}
    assert box.find(3, "merged") == "gone"


@pytest.mark.parametrize("synchronous", [True, False])
def test_the_model_of_the_preparation_is_kept_for_the_whole_run(synchronous):
    box = after(1000, synchronous=synchronous)
    found = box.find(0, "prepared").update
    assert (found.round, found.stage) == (0, "prepared")


def test_a_model_published_again_takes_the_place_of_the_first():
    first, again = model(3), model(3)
    box = outbox(first, again)
    assert box.find(3, "trained") is again
    assert len(box.models) == 1


def test_an_older_model_does_not_turn_the_round_back():
    box = outbox(model(5), model(4))
    assert box.round == 5
    assert box.find(4, "trained").update.round == 4
    assert box.find(4, "merged") == "gone"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([STAGES, STAGES[:1], STAGES[1:]])), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_at_any_time_the_models_of_the_last_two_rounds_are_held_and_no_others(steps, prepared, synchronous):
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
def test_a_synchronous_node_never_serves_another_round(rounds, asked, stage):
    found = after(rounds).find(asked, stage)
    if isinstance(found, Published):
        assert (found.update.round, found.update.stage) == (asked, stage)
    else:
        assert found == ("wait" if asked > rounds else "gone")


# Asynchronous


def test_an_asynchronous_node_serves_its_newest_whatever_round_is_asked_for():
    box = after(6, synchronous=False)
    for round in (1, 5, 6, 7, 1000):
        for stage in STAGES:
            found = box.find(round, stage).update
            assert (found.round, found.stage) == (6, stage)


def test_an_asynchronous_node_serves_the_newest_of_the_stage():
    box = outbox(model(1), model(1, "merged"), model(2), synchronous=False)
    assert box.find(2, "merged").update.round == 1
    assert box.find(1, "trained").update.round == 2


def test_an_asynchronous_node_that_has_published_nothing_keeps_nobody_waiting():
    box = outbox(model(0, "prepared"), synchronous=False)
    assert box.find(1, "trained") == "nothing yet"
    box.add(model(1))
    assert box.find(1, "merged") == "nothing yet"
    assert box.find(1, "trained").update.round == 1


def test_preparation_waits_in_asynchronous_runs_too():
    box = outbox(synchronous=False)
    assert box.find(0, "prepared") == "wait"
    prepared = model(0, "prepared")
    box.add(prepared)
    assert box.find(0, "prepared") is prepared


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_preparation_that_was_left_out_is_gone_once_rounds_have_begun(synchronous):
    assert after(1, prepared=False, synchronous=synchronous).find(0, "prepared") == "gone"


# Stopped


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_stopped_node_serves_its_last_model_for_every_later_round(synchronous):
    box = after(3, synchronous=synchronous)
    box.final = True
    for round in (4, 50):
        for stage in STAGES:
            found = box.find(round, stage).update
            assert (found.round, found.stage) == (3, stage)
    assert box.find(0, "prepared").update.stage == "prepared"


def test_a_stopped_node_still_serves_the_round_before_its_last_to_who_asks_for_it():
    box = after(3)
    box.final = True
    assert box.find(2, "trained").update.round == 2


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_stopped_node_keeps_nobody_waiting_for_what_it_never_had(synchronous):
    empty = outbox(synchronous=synchronous, final=True)
    assert empty.find(0, "prepared") == empty.find(1, "trained") == empty.find(1, "merged") == "gone"
    trained_only = outbox(model(1), synchronous=synchronous, final=True)
    assert trained_only.find(1, "merged") == trained_only.find(0, "prepared") == "gone"
