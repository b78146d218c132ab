"""Tests of the board on which simulated nodes exchange the models of one time."""

import numpy as np

from p2pfl.node.peering.peers import Traffic
from p2pfl.policy import Update
from p2pfl.protocols.wire.envelope import OVERHEAD
from p2pfl.sim.simulation.modelled_network import Board


def update(sender: str, size: int = 100, round: int = 1) -> Update:
    return Update(sender, round, "trained", np.zeros(2, np.float32), 10, size=size)


def board_of(*senders: str) -> tuple[Board, dict[str, Traffic]]:
    traffic = {name: Traffic() for name in senders}
    board = Board(traffic.__getitem__)
    for name in senders:
        board.add(update(name), 1.0)
    return board, traffic


def test_board_returns_models_in_the_order_of_the_request():
    board, _ = board_of("a", "b", "c")

    found = board.find(["c", "a"], 1, "trained", 1.0)

    assert found is not None
    assert [one.sender for one in found] == ["c", "a"]


def test_board_lacks_missing_models_and_those_of_other_times():
    board, traffic = board_of("a", "b")

    assert board.find(["a", "c"], 1, "trained", 1.0) is None
    assert board.find(["a"], 2, "trained", 1.0) is None
    assert board.find(["a"], 1, "merged", 1.0) is None
    assert board.find(["a"], 1, "trained", 1.5) is None
    board.add(update("b"), 2.0)
    assert board.find(["a"], 1, "trained", 2.0) is None
    board.open = False
    assert board.find(["b"], 1, "trained", 2.0) is None

    board.count()
    assert not any(traffic["a"].sent.values())
    assert not any(traffic["b"].sent.values())


def test_board_counts_every_fetched_model_once():
    board, traffic = board_of("a", "b")
    board.find(["a", "b"], 1, "trained", 1.0)
    board.find(["a"], 1, "trained", 1.0)

    board.count()
    board.count()

    assert (traffic["a"].sent["models"], traffic["a"].sent["update"], traffic["a"].received["get"]) == (2, 200, 2 * OVERHEAD)
    assert (traffic["b"].sent["models"], traffic["b"].sent["update"], traffic["b"].received["get"]) == (1, 100, OVERHEAD)


def test_board_counts_the_size_of_a_model_that_is_replaced_later():
    board, traffic = board_of("a")
    board.find(["a"], 1, "trained", 1.0)

    board.add(update("a", size=7), 1.0)
    board.find(["a"], 1, "trained", 1.0)
    board.add(update("a", round=2), 2.0)

    assert traffic["a"].sent["update"] == 107
