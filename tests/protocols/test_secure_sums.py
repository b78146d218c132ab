"""Secure sums: masks cancel, dropped members are recovered, and nothing opens below the threshold."""

import random
from fractions import Fraction
from functools import cache
from math import comb

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from p2pfl.errors import ConfigurationError
from p2pfl.protocols import secure_sums as sums
from p2pfl.protocols.errors import ProtocolError
from p2pfl.protocols.identity import Identity
from p2pfl.protocols.secure_sums import STEPS, SumCollector, SumContext, SumMember, helpers_of, threshold_of

SIZE = 5
CONTEXT = SumContext(bytes(16), 2, 3, 7)


@cache
def identity(name):
    return Identity.from_seed(name.encode().ljust(32, b"."))


def key_of(name):
    return identity(name).public if name.startswith("n") else None


class Group:
    """Members of one round, and the coordinator's side of their sum."""

    def __init__(self, n, *, seed=0, threshold=None, size=SIZE, models=None, samples=None):
        self.names = [f"n{k:02}" for k in range(n)]
        self.threshold = threshold or threshold_of(0, n)
        draws, rng = random.Random(seed), np.random.default_rng(seed)
        self.source = draws.randbytes
        self.models = models or {name: rng.normal(size=size).astype(np.float32) for name in self.names}
        self.samples = {name: draws.randint(1, 100) for name in self.names} | (samples or {})
        self.secrets = {}
        self.members = {name: self.member(name) for name in self.names}
        announced = [member.announcement for member in self.members.values()]
        self.collector = SumCollector(CONTEXT, announced, self.threshold, size)
        self.answers = {}

    def member(self, name, context=CONTEXT):
        arguments = (name, identity(name), context, self.models[name], self.samples[name])
        self.secrets[name] = drawn = []  # the first ones are the sealing key, the masking key and the self seed

        def source(size):
            drawn.append(self.source(size))
            return drawn[-1]

        return SumMember(*arguments, keys=key_of, threshold=self.threshold, source=source)

    def run(self, until=None, lost=lambda step, name: False):
        """Run the steps before one of them; return whether enough members have taken part in each."""
        for step in STEPS[: None if until is None else STEPS.index(until)]:
            asked = self.collector.begin(step)
            if asked is None:
                return False
            for name in asked:
                if not lost(step, name):
                    answer = self.members[name].answer(step, self.collector.request(step, name))
                    self.answers[step, name] = bytes(answer)
                    self.collector.take(step, name, key_of(name), answer)
        return True

    def exact(self, names):
        total = sum(self.samples[name] for name in names)
        return sum(self.models[name].astype(np.float64) * (self.samples[name] / total) for name in names)

    def error_bound(self, names):
        """Return the greatest error of the mean of some members, as the module states it."""
        kept, mean = sum(self.samples[name] for name in names), np.abs(self.exact(names))
        fixed = len(names) * 2.0**-43 * sum(self.samples.values()) / kept
        products = (
            2.0**-51 * max(float(np.abs(self.models[name]).max()) for name in names) * sum(self.samples.values()) / kept
        )
        return fixed + products + mean * 2.0**-24 + 2.0**-149


# The sum


@given(st.integers(3, 7), st.integers(0, 2**32), st.data())
def test_sum_opens_with_threshold_whoever_drops_out(n, seed, data):
    group = Group(n, seed=seed)
    fates = {name: data.draw(st.sampled_from([*STEPS, None, None, None])) for name in group.names}
    rank = {step: k for k, step in enumerate(STEPS)} | {None: len(STEPS)}
    complete = group.run(lost=lambda step, name: fates[name] == step)
    result = group.collector.result() if complete else None
    alive = [sum(rank[fate] > k for fate in fates.values()) for k in range(len(STEPS))]
    assert (result is not None) == all(there >= group.threshold for there in alive)
    if result is not None:
        survivors = [name for name in group.names if rank[fates[name]] >= rank["survivors"]]
        mean, samples = result
        assert samples == {name: group.samples[name] for name in survivors}
        assert mean.dtype == np.float32
        assert np.all(np.abs(mean - group.exact(survivors)) <= group.error_bound(survivors))


class Added:
    """Noise of a member: one integer in each value, if there are enough others."""

    def __init__(self, amount, least):
        self.amount, self.least = amount, least

    def check(self, members):
        if len(members) < self.least:
            raise ConfigurationError("too few others")

    def add(self, total, unit):
        self.unit = unit
        total += np.uint64(self.amount)


def noisy(group, name, noise):
    arguments = (name, identity(name), CONTEXT, group.models[name], group.samples[name])
    return SumMember(*arguments, keys=key_of, threshold=group.threshold, source=group.source, noise=noise)


def joined(group, noises):
    """Replace members by some that add noise."""
    for name, noise in noises.items():
        group.members[name] = noisy(group, name, noise)
    announced = [member.announcement for member in group.members.values()]
    group.collector = SumCollector(CONTEXT, announced, group.threshold, SIZE)
    return group


def test_noise_of_members_adds_up_in_the_sum():
    noises = {f"n{k:02}": Added(2**40 * (k + 1), 4) for k in range(4)}
    group = joined(Group(4), noises)
    assert group.run()
    mean, _ = group.collector.result()
    assert np.allclose(mean, group.exact(group.names) + (1 + 2 + 3 + 4) * 2.0**40 / sums.FRACTION, atol=1e-6)
    total = sum(group.samples.values())
    assert noises["n00"].unit == group.samples["n00"] / total * sums.FRACTION
    assert {(member.announced, member.submitted) for member in group.members.values()} == {(4, 4)}


def test_member_whose_noise_does_not_suffice_gives_no_shares():
    group = joined(Group(4), {"n00": Added(0, 5)})
    request = group.collector.request("roster", "n00") if group.collector.begin("roster") else None
    with pytest.raises(ConfigurationError, match="too few others"):
        group.members["n00"].answer("roster", request)
    with pytest.raises(ProtocolError):
        group.members["n00"].answer("shares", b"")


@pytest.mark.parametrize(
    ("colluding", "threshold", "voters", "hidden"),
    [(1, 4, 6, True), (2, 4, 6, False), (2, 5, 6, True), (1, 101, 150, True), (50, 120, 150, False), (30, 120, 150, True)],
)
def test_colluding_members_from_which_sums_hide(colluding, threshold, voters, hidden):
    assert sums.hides_from(colluding, threshold, voters) == hidden


@pytest.fixture
def sparse(monkeypatch):
    """Make the graph of forty members sparse."""
    monkeypatch.setattr(sums, "COMPLETE", 10)
    helpers_of.cache_clear()
    yield
    helpers_of.cache_clear()


def test_sum_on_sparse_graph(sparse):
    group = Group(40)
    assert helpers_of(40) == 18
    gone = {"n00": "shares", "n19": "roster", "n11": "survivors", "n12": "open"}
    assert group.run(lost=lambda step, name: gone.get(name) == step)
    mean, samples = group.collector.result()
    assert samples.keys() == set(group.names) - {"n00", "n19"}
    assert np.all(np.abs(mean - group.exact(samples)) <= group.error_bound(samples))


@pytest.mark.parametrize("step", ["roster", "shares"])
def test_more_than_a_twentieth_may_not_drop_out_on_sparse_graph(sparse, step):
    """A coordinator that claims so could leave a member without honest helpers."""
    group = Group(40)
    assert not group.run(lost=lambda at, name: at == step and name < "n03")
    left = sum(1 << place for place in range(3, 40)).to_bytes(5, "little")
    following = {"roster": ("shares", msgpack.encode((left, []))), "shares": ("survivors", msgpack.encode(left))}[step]
    with pytest.raises(ProtocolError, match=r"a sum of 37 .*, and 38 are needed"):
        group.members["n10"].answer(*following)


def test_fewer_openers_than_threshold_open_nothing_on_sparse_graph(sparse):
    """Although a secret needs fewer shares there."""
    group = Group(40)
    assert group.run(lost=lambda step, name: step == "open" and name < "n14")
    assert group.collector.result() is None


def test_helpers_are_drawn_from_secrets(sparse):
    """The same roster gives other helpers to a member with other secrets."""
    group = Group(40)

    def helpers(seed):
        own, others = random.Random(7).randbytes, random.Random(seed).randbytes
        secrets = [own(32) for _ in range(3)]  # the keys of the announcement
        group.source = lambda size: secrets.pop(0) if secrets else others(size)
        group.members["n00"] = member = group.member("n00")
        announced = [group.members[name].announcement for name in group.names]
        payload = SumCollector(CONTEXT, announced, group.threshold, SIZE).request("roster", "n00")
        return [place for place, _, _ in msgpack.decode(member.answer("roster", payload))]

    drawn = [helpers(seed) for seed in range(4)]
    assert {len(each) for each in drawn} == {18}
    assert len({tuple(each) for each in drawn}) == 4


@given(st.lists(st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=SIZE, max_size=SIZE), min_size=3, max_size=5))
def test_fixed_point_error_is_within_bound_in_whole_range(values):
    models = {f"n{k:02}": np.array(row, np.float32) for k, row in enumerate(values)}
    group = Group(len(models), models=models)
    shares = sums.shares_of(group.samples)
    total = sum((sums.to_fixed_point(models[name], shares[name]) for name in models), np.zeros(SIZE, np.uint64))
    error = np.abs(sums.from_fixed_point(total, 1.0) - group.exact(group.names))
    assert np.all(error <= group.error_bound(group.names))


def test_members_without_samples_count_equally():
    assert sums.shares_of({"a": 0, "b": 0}) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("step", ["roster", "shares"])
def test_members_without_samples_do_not_count_for_the_threshold(step):
    """Three of five are enough here; n03 and n04 hide nobody's model."""
    group = Group(5, threshold=3, samples={"n03": 0, "n04": 0})
    assert group.run()
    assert group.collector.result() is not None
    group = Group(5, threshold=3, samples={"n03": 0, "n04": 0})
    assert not group.run(lost=lambda at, name: (at, name) == (step, "n02"))
    left = as_set(0, 1, 3, 4)
    following = {"roster": ("shares", msgpack.encode((left, []))), "shares": ("survivors", msgpack.encode(left))}[step]
    with pytest.raises(ProtocolError, match=r"a sum of 2 .* with samples, and 3 are needed"):
        group.members["n00"].answer(*following)


def test_roster_of_too_few_members_with_samples_is_refused():
    group = Group(5, samples={"n02": 0, "n03": 0})
    assert group.collector.begin("roster") is None
    assert group.collector.lack == "4 members with samples"
    with pytest.raises(ProtocolError, match="a sum of 3 announcements with samples, and 4 are needed"):
        group.members["n00"].answer("roster", group.collector.request("roster", "n00"))


@pytest.mark.parametrize("value", [2.0**20 + 1, np.inf, np.nan])
def test_model_beyond_range_is_not_submitted(value):
    group = Group(3)
    group.models["n01"] = np.array([0, value], np.float32)
    with pytest.raises(ConfigurationError, match="secure sums take values up to 1,048,576; it is not submitted"):
        group.member("n01")


def test_prime_is_the_least_above_all_secrets():
    def composite(n):  # Fermat's test finds all composite numbers of this range
        return any(pow(base, n - 1, n) != 1 for base in (2, 3, 5, 7, 11, 13))

    assert not composite(sums.PRIME)
    assert all(composite(n) for n in range(2**256 + 1, sums.PRIME, 2))


@given(st.binary(min_size=32, max_size=32), st.integers(2, 6), st.integers(0, 3), st.integers(0, 2**32))
def test_any_shares_recover_secret(secret, needed, more, seed):
    draws = random.Random(seed)
    points = draws.sample(range(1, 1000), needed + more)
    shares = dict(zip(points, sums.share_secret(secret, points, needed, draws.randbytes), strict=True))
    chosen = draws.sample(points, needed)
    assert sums.recover_secret({point: shares[point] for point in chosen}) == secret


@given(st.binary(min_size=32, max_size=32), st.integers(2, 6), st.integers(0, 2**32))
def test_fewer_shares_fit_every_secret(other, needed, seed):
    """For each secret there is a value of the missing share with which the known ones recover it."""
    draws = random.Random(seed)
    points = list(range(1, needed + 1))
    known = sums.share_secret(draws.randbytes(32), points, needed, draws.randbytes)[:-1]
    weights = []  # Lagrange's, at 0
    for point in points:
        weight = 1
        for each in points:
            if each != point:
                weight = weight * each * pow(each - point, -1, sums.PRIME) % sums.PRIME
        weights.append(weight)
    part = sum(int.from_bytes(share, "big") * weight for share, weight in zip(known, weights, strict=False))
    missing = (int.from_bytes(other, "big") - part) * pow(weights[-1], -1, sums.PRIME) % sums.PRIME
    whole = dict(zip(points, [*known, missing.to_bytes(33, "big")], strict=True))
    assert sums.recover_secret(whole) == other


# Thresholds


@given(st.integers(3, 500), st.integers(0, 500))
def test_coordinator_alone_cannot_have_two_lists_signed(voters, wanted):
    threshold = threshold_of(wanted, voters)
    assert threshold >= max(wanted, 3)
    assert 2 * threshold > voters + 1


@pytest.mark.parametrize(("voters", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (30, 21)])
def test_threshold_is_more_than_two_thirds(voters, threshold):
    assert threshold_of(0, voters) == threshold


def test_numbers_of_helpers():
    assert [helpers_of(n) for n in (3, 128)] == [2, 127]
    assert [helpers_of(n) for n in (129, 200, 500, 1000)] == [49, 67, 102, 178]


def test_helpers_outnumber_colluding_and_dropped_ones():
    """Exact tails, as fractions: of colluding helpers that have enough shares, or are all that is left."""
    for n in (200, 1000):
        helpers, colluding, dropped = helpers_of(n), n // 5, n // 20
        least = min((helpers + 1) // 2 + 1, helpers - 2 * dropped)
        hits = range(least, min(colluding, helpers) + 1)
        ways = sum(comb(colluding, k) * comb(n - 1 - colluding, helpers - k) for k in hits)
        assert Fraction(n * ways, comb(n - 1, helpers)) <= Fraction(1, 2**40)


# The view of a coordinator


def test_masked_models_look_alike_whatever_the_model_is():
    """The coordinator's view of one model: all bytes are uniform, for the zero model and for the greatest one."""
    for value in (0.0, 2.0**20):
        models = {f"n{k:02}": np.full(4096, value, np.float32) for k in range(3)}
        group = Group(3, models=models, size=4096, seed=int(value))
        group.run(until="survivors")
        for name in group.names:
            counts = np.bincount(np.frombuffer(group.answers["shares", name], np.uint8), minlength=256)
            chi = float(((counts - 128.0) ** 2 / 128.0).sum())
            assert 160 < chi < 370  # 255 degrees of freedom: mean 255, standard deviation 22.6


def test_late_model_of_dropped_member_stays_hidden():
    """Its helpers give shares of its masking key, and none of its self seed, which hides the late model."""
    group = Group(4)
    assert group.run(lost=lambda step, name: (step, name) == ("shares", "n03"))
    late = group.members["n03"].answer("shares", group.collector.request("shares", "n03"))
    assert len(late) == 8 * SIZE
    shares = {}
    for name in ("n00", "n01", "n02"):
        for owner, share in msgpack.decode(group.answers["open", name]):
            shares.setdefault(owner, {})[group.names.index(name) + 1] = share
    announced = group.members["n03"].announcement
    assert sums.public_key(sums.recover_secret(shares[3])) == announced.masking
    assert shares.keys() == {0, 1, 2, 3}
    assert all(len(each) == 3 for each in shares.values())  # one share of each member from each helper


def test_fewer_openers_than_threshold_open_nothing():
    group = Group(5)
    assert group.run(lost=lambda step, name: step == "open" and name in ("n01", "n02"))
    assert group.collector.result() is None


def test_wrong_share_of_one_helper_is_left_out():
    group = Group(5)
    group.run(until="open")
    group.collector.begin("open")
    for name in group.names:
        answer = group.members[name].answer("open", group.collector.request("open", name))
        if name == "n00":
            answer = msgpack.encode([(owner, bytes(33)) for owner, _ in msgpack.decode(answer)])
        group.collector.take("open", name, key_of(name), answer)
    mean, _ = group.collector.result()
    assert np.all(np.abs(mean - group.exact(group.names)) <= group.error_bound(group.names))
    assert group.collector.wrong == {(0, owner) for owner in range(1, 5)}
    assert group.collector.suspects() == ["n00"]


def test_wrong_shares_of_many_helpers_are_left_out_at_once(monkeypatch):
    """Three of ten lie, and seven right shares are needed: each secret is recovered at the first attempt."""
    tried, recover = [], sums.recover_secret
    monkeypatch.setattr(sums, "recover_secret", lambda shares: tried.append(shares) or recover(shares))
    group, liars = Group(10), ("n00", "n05", "n08")
    group.run(until="open")
    group.collector.begin("open")
    for name in group.names:
        answer = group.members[name].answer("open", group.collector.request("open", name))
        if name in liars:
            answer = msgpack.encode([(owner, bytes(33)) for owner, _ in msgpack.decode(answer)])
        group.collector.take("open", name, key_of(name), answer)
    assert group.threshold == 7
    mean, _ = group.collector.result()
    assert np.all(np.abs(mean - group.exact(group.names)) <= group.error_bound(group.names))
    assert len(tried) == 10
    assert group.collector.suspects() == list(liars)


def test_owner_of_no_secret_is_named():
    """Its shares have the checks that it has given, but not the secret to which it has committed."""
    group = Group(4)
    member = group.members["n01"]
    unsigned = replace(member.announcement, commitment=bytes(32))
    member.announcement = replace(unsigned, signature=identity("n01").sign(unsigned.content(CONTEXT)))
    announced = [each.announcement for each in group.members.values()]
    group.collector = SumCollector(CONTEXT, announced, group.threshold, SIZE)
    assert group.run()
    assert group.collector.result() is None
    assert group.collector.suspects() == ["n01"]


def test_wrong_shares_of_too_many_helpers_open_nothing():
    group = Group(4)
    group.run(until="open")
    group.collector.begin("open")
    for name in group.names:
        answer = group.members[name].answer("open", group.collector.request("open", name))
        if name in ("n00", "n02"):
            answer = msgpack.encode([(owner, bytes(33)) for owner, _ in msgpack.decode(answer)])
        group.collector.take("open", name, key_of(name), answer)
    assert group.collector.result() is None


# Members that announce keys of others

ORDER = 2**255 - 19
COPIES = {
    "the same": bytes,
    "plus the point of order 2": lambda key: pow(int.from_bytes(key, "little"), ORDER - 2, ORDER).to_bytes(32, "little"),
    "bit 255": lambda key: key[:31] + bytes([key[31] ^ 128]),
}


def announce_copies(group, pairs, copy, field):
    """Return the announcements, in which the first of each pair has the key of the second."""
    announced = {name: member.announcement for name, member in group.members.items()}
    for name, other in pairs.items():
        key = copy(getattr(announced[other], field))
        unsigned = replace(announced[name], **{field: key})
        announced[name] = replace(unsigned, signature=identity(name).sign(unsigned.content(CONTEXT)))
    return list(announced.values())


def compare_other_fields(monkeypatch):
    """Let equal keys pass, to show that they would not help either."""
    monkeypatch.setattr(sums.Announcement, "comparable_keys", lambda self: (self.signature, self.commitment))


@pytest.mark.parametrize("copy", COPIES.values(), ids=list(COPIES))
@pytest.mark.parametrize(("n", "c"), [(3, 1), (4, 1), (7, 2), (10, 3)])
def test_copied_masking_keys_cancel_no_masks(monkeypatch, n, c, copy):
    """Colluding members announce the keys of all other honest survivors; n - t honest ones have dropped out."""
    compare_other_fields(monkeypatch)
    group = Group(n)
    dropped, honest = group.names[: n - group.threshold], group.names[n - group.threshold : n - c]
    *targets, victim = honest
    announced = announce_copies(group, dict(zip(group.names[n - c :], targets, strict=True)), copy, "masking")
    group.collector = SumCollector(CONTEXT, announced, group.threshold, SIZE)
    payload = group.collector.request("roster", victim)
    member = group.members[victim]
    member.answer("roster", payload)
    everybody = sum(1 << place for place in range(n)).to_bytes(-(-n // 8), "little")
    left = np.frombuffer(member.answer("shares", msgpack.encode((everybody, []))), "<u8").copy()
    roster, place = sums.Roster(CONTEXT, announced, payload, group.threshold), group.names.index(victim)
    left -= sums.to_fixed_point(group.models[victim], roster.weights[victim])
    sums.add_mask(left, sums.self_key(group.secrets[victim][2], roster.sum_id), subtract=True)
    for name in dropped:  # what the coordinator may open
        other = group.names.index(name)
        sums.add_mask(left, roster.mask_key(group.secrets[name][1], other, place), subtract=place < other)
    assert np.all(left != 0)  # the masks with the targets, and with the members that have copied their keys


def test_copied_sealing_key_makes_other_seals(monkeypatch):
    compare_other_fields(monkeypatch)
    group = Group(3)
    announced = announce_copies(group, {"n02": "n00"}, bytes, "sealing")
    payload = SumCollector(CONTEXT, announced, 3, SIZE).request("roster", "n01")
    given = {place: sealed for place, sealed, _ in msgpack.decode(group.members["n01"].answer("roster", payload))}
    seal = sums.Roster(CONTEXT, announced, payload, 3).seal(group.secrets["n00"][0], 0, 1, 0)
    assert len(seal.decrypt(bytes(12), given[0], None)) == 66
    with pytest.raises(InvalidTag):
        seal.decrypt(bytes(12), given[2], None)


@pytest.mark.parametrize("copy", COPIES.values(), ids=list(COPIES))
@pytest.mark.parametrize("field", ["masking", "sealing"])
def test_roster_with_equal_keys_is_refused(copy, field):
    group = Group(4)
    announced = announce_copies(group, {"n03": "n01"}, copy, field)
    with pytest.raises(ProtocolError, match="a roster with equal keys"):
        group.members["n00"].answer("roster", msgpack.encode(announced))


def test_members_with_equal_keys_do_not_get_on_the_roster():
    group = Group(6, threshold=4)
    announced = announce_copies(group, {"n05": "n01"}, bytes, "masking")
    group.collector = SumCollector(CONTEXT, announced, group.threshold, SIZE)
    assert group.run()
    assert group.collector.result()[1].keys() == {"n00", "n02", "n03", "n04"}


def test_announcement_with_equal_keys_is_refused():
    announced = Group(3).members["n00"].announcement
    with pytest.raises(ProtocolError, match="equal keys"):
        replace(announced, masking=announced.sealing).check_keys()


@pytest.mark.parametrize("n_samples", [True, "x", 1.5, -1, 2**32, None])
def test_announcement_without_number_of_samples_is_refused(n_samples):
    payload = Group(3).members["n00"].announcement.encode()
    assert sums.read_announcement("n00", 2**32 - 1, payload).n_samples == 2**32 - 1
    with pytest.raises(ProtocolError, match="n_samples") as refused:
        sums.read_announcement("n00", n_samples, payload)
    assert refused.value.cause == "malformed"


# A coordinator that lies


def as_set(*places):
    return bytes([sum(1 << place for place in places)])


@given(st.lists(st.sampled_from(["roster", "shares", "survivors", "other survivors", "open"]), max_size=8))
def test_helper_gives_one_share_of_each_owner_whatever_it_is_asked(asked):
    group = Group(4)
    group.run(until="survivors", lost=lambda step, name: (step, name) == ("shares", "n03"))
    member, given_shares = group.members["n00"], []
    lists = {"survivors": as_set(0, 1, 2), "other survivors": as_set(0, 1, 2, 3)}
    others = ("n01", "n02")
    signatures = {name: group.members[name].answer("survivors", msgpack.encode(lists["survivors"])) for name in others}
    own = b""
    for what in asked:
        step = what.rpartition(" ")[2]
        if step == "survivors":
            payload = msgpack.encode(lists[what])
        elif step == "open":
            payload = msgpack.encode([(0, own.ljust(64, b".")), (1, signatures["n01"]), (2, signatures["n02"])])
        else:
            payload = group.collector.request(step, "n00")
        try:
            answer = member.answer(step, payload)
        except ProtocolError:
            continue
        own = answer if step == "survivors" else own
        given_shares += msgpack.decode(answer) if step == "open" else []
    owners = [owner for owner, _ in given_shares]
    assert len(owners) == len(set(owners))
    if asked[:2] == ["survivors", "open"]:
        assert owners == [0, 1, 2, 3]
    if asked[:1] == ["other survivors"]:
        assert owners == []  # the others have signed another list


def test_two_lists_of_survivors_are_not_both_opened():
    """A coordinator that shows half of the members another list of survivors has too few signatures for each."""
    group = Group(6)
    group.run(until="survivors")
    one, other = as_set(0, 1, 2, 3, 4), as_set(1, 2, 3, 4, 5)
    lists = {name: one if name in ("n00", "n01", "n02") else other for name in group.names}
    signed = {name: group.members[name].answer("survivors", msgpack.encode(lists[name])) for name in group.names}
    for name in group.names:
        places = [place for place in range(6) if lists[group.names[place]] == lists[name]]
        payload = msgpack.encode([(place, signed[group.names[place]]) for place in places])
        with pytest.raises(ProtocolError, match="a sum of 3 signatures, and 5 are needed"):
            group.members[name].answer("open", payload)


def test_signatures_of_another_list_open_nothing():
    group = Group(4)
    group.run(until="survivors")
    one, other = as_set(0, 1, 2), as_set(0, 1, 2, 3)
    signed = [group.members[name].answer("survivors", msgpack.encode(one)) for name in ("n00", "n01")]
    signed.append(group.members["n02"].answer("survivors", msgpack.encode(other)))
    payload = msgpack.encode(list(enumerate(signed)))
    with pytest.raises(ProtocolError, match="survivors that n02 has not signed"):
        group.members["n00"].answer("open", payload)


def test_different_rosters_hide_everything():
    """Members that know different rosters have other masks: what they submit adds up to noise."""
    group = Group(4)
    group.run(until="roster")
    announced = [group.members[name].announcement for name in group.names]
    collectors = [SumCollector(CONTEXT, chosen, 3, SIZE) for chosen in (announced, announced[:3])]
    for name in group.names[:3]:
        collector = collectors[name == "n00"]
        collector.begin("roster")
        collector.take("roster", name, key_of(name), group.members[name].answer("roster", collector.request("roster", name)))
    assert collectors[0].begin("shares") is None  # 2 of 4: no member gives its masked model


def answer_to_roster(group, announcements, context=CONTEXT):
    payload = SumCollector(context, announcements, 1, SIZE).request("roster", "n00")
    return group.members["n00"].answer("roster", payload)


def test_roster_below_threshold_is_refused():
    group = Group(5)
    announced = [group.members[name].announcement for name in group.names[:3]]
    with pytest.raises(ProtocolError, match="a sum of 3 announcements, and 4 are needed"):
        answer_to_roster(group, announced)


@pytest.mark.parametrize("change", [{"masking": b"m" * 32}, {"n_samples": 7}, {"commitment": b"c" * 32}])
def test_roster_with_changed_announcement_is_refused(change):
    group = Group(4)
    announced = [group.members[name].announcement for name in group.names]
    with pytest.raises(ProtocolError, match="an announcement that n02 has not signed"):
        answer_to_roster(group, [*announced[:2], replace(announced[2], **change), announced[3]])


def test_announcement_of_another_round_is_refused():
    group = Group(4)
    announced = [group.members[name].announcement for name in group.names[:3]]
    announced.append(group.member("n03", CONTEXT._replace(round=8)).announcement)
    with pytest.raises(ProtocolError, match="an announcement that n03 has not signed"):
        answer_to_roster(group, announced)


def test_roster_with_stranger_or_without_the_member_is_refused():
    group = Group(4)
    announced = [group.members[name].announcement for name in group.names]
    with pytest.raises(ProtocolError, match="a roster with x, which has no vote"):
        answer_to_roster(group, [*announced[:3], replace(announced[3], name="x")])
    group = Group(4)
    announced = [group.members[name].announcement for name in group.names]
    with pytest.raises(ProtocolError, match="a roster without this member"):
        answer_to_roster(group, announced[1:])


def test_key_of_small_order_is_refused():
    announced = Group(3).members["n00"].announcement
    for change in ({"masking": bytes(32)}, {"sealing": bytes(32)}):
        with pytest.raises(ProtocolError, match="of small order"):
            replace(announced, **change).check_keys()
    announced.check_keys()


@given(st.sampled_from(STEPS), st.binary(max_size=80))
def test_malformed_step_is_refused(step, payload):
    group = Group(3)
    group.run(until=step)
    with pytest.raises(ProtocolError):
        group.members["n00"].answer(step, payload)
    with pytest.raises(ProtocolError, match="out of order"):
        group.members["n00"].answer(step, payload)


@given(st.sampled_from(STEPS), st.binary(max_size=80))
def test_malformed_answer_is_refused_or_without_effect(step, payload):
    group = Group(3)
    group.run(until=step)
    group.collector.begin(step)
    try:
        group.collector.take(step, "n00", key_of("n00"), payload)
    except ProtocolError:
        return
    assert step == "open"
    assert msgpack.decode(payload) == []  # an empty list of shares is valid


# Sizes


@pytest.mark.parametrize("n", [3, 9, 40])
def test_sizes_are_those_of_the_payloads(n):
    group = Group(n, size=100)
    sizes = sums.SumSizes(group.samples, 100)
    for step in STEPS:
        asked = group.collector.begin(step)
        pairs = []
        for name in asked:
            request = group.collector.request(step, name)
            answer = group.members[name].answer(step, request)
            group.collector.take(step, name, key_of(name), answer)
            pairs.append((len(request), len(bytes(answer))))
        assert {sizes.of(step, n, n)} == set(pairs)
