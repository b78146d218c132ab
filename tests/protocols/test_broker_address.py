"""Address of a broker: URL, account, and fingerprint of its certificate."""

import pytest

from p2pfl.protocols.addresses import BrokerAddress
from p2pfl.protocols.errors import AddressError

PIN = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mqtt://h", BrokerAddress("mqtt", "h", 1883)),
        ("mqtts://h", BrokerAddress("mqtts", "h", 8883)),
        ("mqtt://[fd00::2]:9", BrokerAddress("mqtt", "fd00::2", 9)),
        ("mqtts://a%40b:c%23d@h:1", BrokerAddress("mqtts", "h", 1, "a@b", "c#d")),
        (f"mqtts://a@h#sha256={PIN}", BrokerAddress("mqtts", "h", 8883, "a", None, bytes.fromhex(PIN))),
    ],
)
def test_broker_address_parses_and_prints(url, expected):
    address = BrokerAddress.parse(url)
    assert address == expected
    assert BrokerAddress.parse(address.url) == expected


def test_broker_address_accepts_fingerprint_of_openssl():
    printed = ":".join(PIN[k : k + 2] for k in range(0, 64, 2)).upper()
    assert BrokerAddress.parse(f"mqtts://h#sha256={printed}").fingerprint.hex() == PIN


def test_public_url_has_no_account():
    address = BrokerAddress.parse(f"mqtts://alice:geheim@h:8883#sha256={PIN}")
    assert address.public_url == f"mqtts://h:8883#sha256={PIN}"
    assert (address.short_url, address.name) == ("mqtts://h:8883", "h:8883")
    assert "geheim" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "h:1883",
            "http://geheim@h",
            "mqtt://",
            "mqtt://geheim@",
            "mqtt://h/path",
            "mqtt://h?x",
            "mqtt://geheim@h:port",
        ),
        *(f"mqtt://h#sha256={PIN}", "mqtts://geheim@h#sha256=ab", f"mqtts://h#md5={PIN}", f"mqtts://h#{PIN}"),
    ],
)
def test_broker_address_refuses_other_forms_without_quoting(url):
    with pytest.raises(AddressError) as caught:
        BrokerAddress.parse(url)
    assert str(caught.value).startswith("the address of a broker m")
    assert "geheim" not in str(caught.value)
