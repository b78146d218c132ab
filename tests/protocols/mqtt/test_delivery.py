"""Search for the largest packet that a broker delivers: its result, its costs, and its repetition."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.protocols.mqtt.broker_client import describe_size
from p2pfl.protocols.mqtt.connection import AGAIN, LATER, LOSSES, SIZES, SizeSearch
from p2pfl.protocols.mqtt.transport import LARGEST


@dataclass
class Broker:
    """Broker that delivers packets up to a size, and otherwise drops them or closes the connection."""

    limit: int
    closes: bool = False
    now: float = 0.0
    sent: int = 0
    tries: int = 0

    def search(self, search, connected=True):
        while size := search.next_size(self.now, connected):
            self.sent, self.tries = self.sent + size, self.tries + 1
            if size <= self.limit:
                search.arrived(self.now)
            else:
                search.lost(self.now, closed=self.closes)


def searched(limit, closes=False):
    search, broker = SizeSearch(), Broker(limit, closes)
    broker.search(search)
    return search, broker


def test_largest_size_is_one_that_nodes_accept():
    assert max(SIZES) == SIZES[-1] <= LARGEST


def test_broker_without_limit_is_sent_one_packet():
    search, broker = searched(1 << 20)
    assert (search.complete, search.limited, search.limit, broker.tries) == (True, False, "", 1)


@pytest.mark.parametrize(
    ("limit", "closes", "expected"),
    [
        (100, False, "it passes a few bytes, and drops 256 bytes or more;"),
        (1000, False, "it passes 256 bytes, and drops 1 KiB or more;"),
        (2000, True, "it passes 1 KiB, and closes the connection at 4 KiB or more;"),
        (100_000, True, "it passes 64 KiB, and closes the connection at 255 KiB;"),
    ],
)
def test_limit_is_named_with_remedy(limit, closes, expected):
    search, _ = searched(limit, closes)
    assert search.limit.startswith("drops packets of 255 KiB, which nodes use: ")
    assert expected in search.limit
    assert search.limit.endswith("; raise message_size_limit and max_packet_size of the broker to 307200 bytes")


@given(st.integers(0, 2 * SIZES[-1]))
def test_search_is_bounded_and_finds_neighbouring_sizes(limit):
    search, broker = searched(limit)
    assert broker.sent <= LOSSES * 2 * SIZES[-1]
    assert search.complete
    assert search.limited == (limit < SIZES[-1])


def test_one_lost_packet_is_no_limit():
    search = SizeSearch()
    search.next_size(0.0, True)
    search.lost(0.0)
    Broker(1 << 20).search(search)
    assert not search.limited


def test_limited_search_is_repeated_with_the_smallest_lost_size():
    search, broker = searched(5000)
    broker.now, broker.sent = AGAIN, 0
    broker.search(search, connected=False)
    assert broker.sent == 16 << 10
    assert search.limited
    broker.now, broker.limit = 2 * AGAIN, 1 << 20
    broker.search(search, connected=False)
    assert not search.limited


def test_search_that_closes_is_repeated_on_new_connections_only():
    search, broker = searched(5000, closes=True)
    broker.now = AGAIN
    assert search.next_size(broker.now, connected=False) == 0
    assert search.next_size(broker.now, connected=True) == 16 << 10


def test_size_in_use_is_tried_again_on_later_connections_only():
    search, _ = searched(1 << 20)
    assert search.next_size(LATER, connected=False) == 0
    assert search.next_size(LATER - 1, connected=True) == 0
    assert search.next_size(LATER, connected=True) == SIZES[-1]
    search.lost(LATER)
    broker = Broker(5000, now=LATER)
    broker.search(search)
    assert "it passes 4 KiB, and drops 16 KiB or more" in search.limit


def test_sizes_are_described_in_bytes_or_kib():
    assert [describe_size(size) for size in (1, 256, 4096)] == ["1 byte", "256 bytes", "4 KiB"]
