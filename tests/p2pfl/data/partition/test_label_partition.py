"""Partition of samples among nodes: each sample at one node, with the requested sizes and mixtures."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.data.image_sets import Images, ImageSet
from p2pfl.data.partition.assignment import concept, label_permutation, plan
from p2pfl.data.partition.label_partition import (
    class_pools,
    clusters,
    dirichlet,
    group_sizes,
    iid,
    pathological,
    quantity,
    quotas,
    writer,
)
from p2pfl.data.partition.splits import by_class, draw_test, histogram, hold_out
from p2pfl.errors import ConfigurationError
from p2pfl.random_streams import RandomStreams
from p2pfl.tasks.images import augment, rotate


def rng(seed=0):
    return RandomStreams(seed, "test").generator(0, "partition")


def labels_of(n, classes=10, seed=0):
    return np.random.default_rng(seed).integers(0, classes, n)


def fashion_like(n=300, classes=5, writers=False, seed=0):
    """A data set of distinct images: their first pixels number them."""

    def images(count, first):
        x = np.zeros((count, 1, 2, 2), np.uint8)
        x[:, 0, 0, 0], x[:, 0, 0, 1] = divmod(np.arange(first, first + count), 256)
        y = labels_of(count, classes, seed + first)
        return Images(x, y, labels_of(count, 20, seed + 1) if writers else None)

    return ImageSet("small", classes, 255, (0.0,), (1.0,), images(n, 0), images(n // 3, n))


# Quotas


@given(st.integers(0, 10_000), st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-3))
def test_quotas_sum_to_total_and_differ_by_less_than_one(total, weights):
    counts = quotas(total, weights)
    assert counts.sum() == total
    assert np.abs(counts - total * np.array(weights) / sum(weights)).max() < 1 + 1e-3


def test_quotas_by_hand():
    assert quotas(8, [24, 6, 5, 5]).tolist() == [5, 1, 1, 1]
    assert quotas(2, [1, 1, 1]).tolist() == [1, 1, 0]  # the first of equal remainders
    assert quotas(10, [0.5, 0.25, 0.25]).tolist() == [5, 3, 2]


def test_group_sizes_match_the_paper_and_fill_every_group():
    assert group_sizes(100, 4, [70, 20, 5, 5]).tolist() == [70, 20, 5, 5]
    assert group_sizes(40, 4, [24, 6, 5, 5]).tolist() == [24, 6, 5, 5]
    assert group_sizes(4, 4, [70, 20, 5, 5]).tolist() == [1, 1, 1, 1]
    assert group_sizes(5, 3, [98, 1, 1]).tolist() == [3, 1, 1]
    assert group_sizes(2, 4, [70, 20, 5, 5]).tolist() == [2, 0, 0, 0]
    assert group_sizes(7, 3).tolist() == [3, 2, 2]


# Partitions


def partitions(labels):
    """One call of each partition that divides all samples."""
    return {
        "iid": lambda n, rng: iid(labels, n, rng),
        "dirichlet": lambda n, rng: dirichlet(labels, n, rng, alpha=0.1),
        "even dirichlet": lambda n, rng: dirichlet(labels, n, rng, alpha=1e6),
        "uneven dirichlet": lambda n, rng: dirichlet(labels, n, rng, alpha=1e-6),
        "quantity": lambda n, rng: quantity(labels, n, rng, alpha=0.3),
        "pathological": lambda n, rng: pathological(labels, n, rng, classes=99),
        "pathological by dirichlet": lambda n, rng: pathological(labels, n, rng, classes=99, alpha=0.5),
        "clusters": lambda n, rng: clusters(labels, n, rng, groups=[sorted(set(labels.tolist()))] * 2),
    }


@pytest.mark.parametrize("name", partitions(np.zeros(1)))
@given(n=st.integers(1, 120), classes=st.integers(1, 12), nodes=st.integers(1, 150), seed=st.integers(0, 99))
def test_partition_assigns_each_sample_to_one_node(name, n, classes, nodes, seed):
    divide = partitions(labels_of(n, classes, seed))[name]
    shares = divide(nodes, rng(seed))
    assert len(shares) == nodes
    assert sorted(np.concatenate(shares).tolist()) == list(range(n))
    assert all((np.diff(share) > 0).all() for share in shares)
    if nodes <= n and name != "clusters":
        assert min(map(len, shares)) >= 1
    assert all(np.array_equal(a, b) for a, b in zip(shares, divide(nodes, rng(seed)), strict=True))


@given(
    n=st.integers(1, 200),
    classes=st.integers(1, 10),
    nodes=st.integers(1, 40),
    held=st.integers(1, 12),
    seed=st.integers(0, 9),
)
def test_pathological_nodes_hold_given_number_of_classes(n, classes, nodes, held, seed):
    labels = labels_of(n, classes, seed)
    shares = pathological(labels, nodes, rng(seed), classes=held)
    everything = np.concatenate(shares)
    assert len(set(everything.tolist())) == len(everything)
    present = len(set(labels.tolist()))
    if nodes * min(held, present) >= present:
        assert len(everything) == n
    rare = min(np.bincount(labels)[np.unique(labels)])
    if rare >= nodes:  # enough samples of each class for all its nodes
        assert {len(set(labels[share].tolist())) for share in shares} == {min(held, present)}


def test_iid_gives_remainder_to_first_nodes():
    assert [len(share) for share in iid(labels_of(11), 4, rng())] == [3, 3, 3, 2]


def test_pathological_three_of_ten_matches_dpfl():
    labels = np.repeat(np.arange(10), 100)
    shares = pathological(labels, 100, rng(), classes=3)
    held = [set(labels[share].tolist()) for share in shares]
    assert {len(classes) for classes in held} == {3}
    assert [sum(c in classes for classes in held) for c in range(10)] == [30] * 10
    assert {len(share) for share in shares} <= {9, 10, 11}  # thirty nodes share a hundred samples: three or four each
    assert sum(map(len, shares)) == 1000


def test_pathological_with_alpha_divides_a_class_by_dirichlet():
    labels = np.repeat(np.arange(10), 1000)

    def unevenness(**options):
        shares = pathological(labels, 20, rng(), classes=3, **options)
        assert sorted(np.concatenate(shares).tolist()) == list(range(10_000))
        counts = np.array([np.bincount(labels[share], minlength=10) for share in shares])
        assert ((counts > 0).sum(axis=1) <= 3).all()
        return np.mean([counts[:, c][counts[:, c] > 0].std() for c in range(10)])

    assert unevenness() < 1 < unevenness(alpha=1000.0) < 10 < 100 < unevenness(alpha=0.5)


def test_pathological_refuses_negative_alpha():
    with pytest.raises(ConfigurationError, match="alpha must be from"):
        pathological(np.arange(10), 2, rng(), classes=3, alpha=-1.0)


def test_dirichlet_with_smaller_alpha_gives_fewer_classes():
    labels = np.repeat(np.arange(10), 200)

    def classes_at_a_node(alpha):
        return np.mean([len(set(labels[share].tolist())) for share in dirichlet(labels, 20, rng(), alpha=alpha)])

    assert classes_at_a_node(0.01) < 3 < classes_at_a_node(0.3) < 9.5 < classes_at_a_node(100)


def test_dirichlet_shares_follow_drawn_proportions():
    labels = np.zeros(1000, int)
    generator = rng()
    generator.permutation(np.arange(1000))  # the order of the samples is drawn first
    expected = generator.dirichlet(np.full(4, 1.0)) * 1000
    sizes = [len(share) for share in dirichlet(labels, 4, rng(), alpha=1.0)]
    assert np.abs(np.array(sizes) - expected).max() < 1


def test_writer_partition_keeps_writers_together():
    writers = labels_of(200, 12)
    for nodes in (12, 5, 1):
        shares = writer(labels_of(200), nodes, rng(), writers=writers)
        assert sorted(np.concatenate(shares).tolist()) == list(range(200))
        held = [set(writers[share].tolist()) for share in shares]
        assert sum(map(len, held)) == 12
        assert max(map(len, held)) - min(map(len, held)) <= 1
    with pytest.raises(ConfigurationError, match="12 writers are too few for 13 nodes"):
        writer(labels_of(200), 13, rng(), writers=writers)


def test_cluster_partition_gives_each_group_its_classes():
    labels = np.repeat(np.arange(6), 50)
    shares = clusters(labels, 5, rng(), groups=[[0, 1], [2, 3]], sizes=[3, 2])
    assert [set(labels[share].tolist()) for share in shares] == [{0, 1}] * 3 + [{2, 3}] * 2
    assert [len(share) for share in shares] == [34, 33, 33, 50, 50]


def test_class_pools_divide_shared_class_by_group_size():
    labels = np.repeat(np.arange(3), 60)
    first, second, none = class_pools(labels, [[0, 1], [1, 2], [0]], np.array([3, 1, 0]), rng())
    assert histogram(labels[first], 3).tolist() == [60, 45, 0]
    assert histogram(labels[second], 3).tolist() == [0, 15, 60]
    assert len(none) == 0
    assert not set(first.tolist()) & set(second.tolist())


def fingerprint(shares):
    return hashlib.sha256("|".join(",".join(map(str, share.tolist())) for share in shares).encode()).hexdigest()[:12]


GOLDEN = {
    "iid": "78bf58b730b1",
    "dirichlet": "3d0d6f1a91b8",
    "even dirichlet": "0040892385f3",
    "uneven dirichlet": "2cce512e4273",
    "quantity": "0e3f34702f83",
    "pathological": "ec822955ad57",
    "pathological by dirichlet": "5660fe5cfb1c",
    "clusters": "580c4c47bd7c",
}


def test_partitions_match_golden_fingerprints():
    labels = np.arange(500) % 7
    assert {name: fingerprint(divide(20, rng(3))) for name, divide in partitions(labels).items()} == GOLDEN


# Splits


@given(
    n=st.integers(1, 300),
    samples=st.integers(0, 200),
    validation=st.one_of(st.integers(0, 200), st.floats(0, 0.9)),
    seed=st.integers(0, 9),
)
def test_hold_out_training_and_validation_are_disjoint(n, samples, validation, seed):
    share = np.sort(rng(seed).permutation(1000)[:n])
    train, held = hold_out(share, rng(seed + 1), samples, validation)
    assert len(train) >= 1
    assert not set(train.tolist()) & set(held.tolist())
    assert set(train.tolist()) | set(held.tolist()) <= set(share.tolist())
    assert len(train) <= (samples or n)
    assert len(held) <= n / 2
    assert bool(len(held)) == (validation > 0 and n > 1)


def test_hold_out_of_large_share_has_requested_sizes():
    sizes = [
        tuple(map(len, hold_out(np.arange(600), rng(), *asked))) for asked in ((200, 100), (0, 100), (200, 0.2), (0, 0.2))
    ]
    assert sizes == [(200, 100), (500, 100), (200, 50), (480, 120)]


@given(
    wanted=st.lists(st.integers(0, 60), min_size=4, max_size=4).filter(any),
    there=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    size=st.integers(0, 100),
)
def test_draw_test_follows_the_training_labels(wanted, there, size):
    labels = np.repeat(np.arange(4), there)
    drawn = draw_test(np.array(wanted), by_class(labels, 4), rng(), size)
    assert len(set(drawn.tolist())) == len(drawn)
    assert len(drawn) <= (size or len(labels))
    weights = np.array([w if t else 0 for w, t in zip(wanted, there, strict=True)])
    assert bool(len(drawn)) == bool(weights.any())
    if len(drawn):
        assert np.abs(histogram(labels[drawn], 4) - len(drawn) * weights / weights.sum()).max() < 1


# Plans


OPTIONS = {"partition": {"name": "iid"}, "shift": {"name": "none"}, "samples": 0, "validation": 0.2, "test": 0}
SHIFTS = [
    {"name": "none"},
    {"name": "rotation", "angles": [0, 90]},
    {"name": "label-groups", "groups": [[0, 1, 2], [2, 3, 4]]},
    {"name": "concept", "groups": 3},
    {"name": "label-permutation", "share": 0.5, "permutation": "own"},
]


@pytest.mark.slow
@given(
    shift=st.sampled_from(SHIFTS),
    partition=st.sampled_from(
        [
            {"name": "iid"},
            {"name": "dirichlet", "alpha": 0.1},
            {"name": "quantity", "alpha": 0.2},
            {"name": "pathological", "classes": 2},
        ]
    ),
    nodes=st.integers(2, 70),
    samples=st.sampled_from([0, 3, 50]),
    seed=st.integers(0, 9),
)
def test_plan_keeps_training_and_validation_disjoint(shift, partition, nodes, samples, seed):
    data = fashion_like(seed=seed)
    shares = plan([data], nodes, seed, **OPTIONS | {"partition": partition, "shift": shift, "samples": samples})
    trained = np.concatenate([share.train for share in shares])
    assert len(set(trained.tolist())) == len(trained)
    for share in shares:
        assert not set(share.validation.tolist()) & set(trained.tolist())
        classes = set(data.train.y[share.train].tolist())
        assert set(data.test.y[share.test].tolist()) <= classes
        if partition["name"] in ("iid", "quantity"):
            assert len(share.test) >= 1


def test_plan_validates_single_sample_node_on_its_class():
    data = fashion_like(n=100, classes=2)
    shares = plan([data], 60, 0, **OPTIONS)
    others = {int(share.validation[0]) for share in shares[:40]}  # a node with two samples holds one out
    assert len(others) == 40
    for share in shares[40:]:
        assert len(share.train) == len(share.validation) == 1
        assert set(share.validation.tolist()) <= others
        assert data.train.y[share.validation] == data.train.y[share.train]


def test_plan_divides_each_data_set_among_its_nodes():
    sets = [fashion_like(), fashion_like(n=90, seed=5)]
    shares = plan(sets, 9, 0, **OPTIONS | {"shift": {"name": "domain", "sizes": [2, 1]}})
    assert [share.source for share in shares] == [0] * 6 + [1] * 3
    for source, count in ((0, 300), (1, 90)):
        held = [np.concatenate([share.train, share.validation]) for share in shares if share.source == source]
        assert sorted(np.concatenate(held).tolist()) == list(range(count))


def test_plan_by_writer_gives_each_node_one_writer():
    data = fashion_like(writers=True)
    shares = plan([data], 20, 0, **OPTIONS | {"partition": {"name": "writer"}})
    assert {len(set(data.train.writers[share.train].tolist())) for share in shares} == {1}


def test_plan_test_size_leaves_other_splits_unchanged():
    few, many = (plan([fashion_like()], 4, 0, **OPTIONS | {"test": size}) for size in (10, 20))
    for a, b in zip(few, many, strict=True):
        assert np.array_equal(a.train, b.train)
        assert np.array_equal(a.validation, b.validation)


# Shifts


def test_concept_permutations_start_with_identity_and_differ():
    names = concept(12, 4, rng(), groups=12).names
    assert names[0].tolist() == [0, 1, 2, 3]
    assert len({tuple(permutation.tolist()) for permutation in names}) == 12
    assert all(sorted(permutation.tolist()) == [0, 1, 2, 3] for permutation in names)


def test_concept_with_more_groups_than_permutations_ends():
    assert len(concept(9, 2, rng(), groups=9).names) == 9


def test_label_permutation_permutes_given_share_of_nodes():
    assert label_permutation(100, 10, rng(), share=0.4).counts == (60, 40)
    assert label_permutation(30, 10, rng(), nodes=12).counts == (18, 12)
    assert label_permutation(4, 10, rng(), nodes=2, permutation="own").counts == (2, 1, 1)
    assert label_permutation(5, 10, rng(), share=0.0).groups.tolist() == [0] * 5


# Images


def pictures(n=3, size=6):
    return np.random.default_rng(0).random((n, 2, size, size), np.float32)


def test_rotate_quarter_turns_are_exact_and_counterclockwise():
    corner = np.zeros((1, 1, 3, 3), np.float32)
    corner[0, 0, 0, 2] = 1  # top right moves to top left
    assert rotate(corner, 90)[0, 0, 0, 0] == 1
    x = pictures()
    assert np.array_equal(rotate(rotate(x, 90), 270), x)
    assert np.array_equal(rotate(x, 180), x[:, :, ::-1, ::-1])
    assert np.array_equal(rotate(x, -90), rotate(x, 270))
    assert np.array_equal(rotate(x, 360), x)


def test_rotate_other_angles_interpolate_and_fill_zero():
    x = pictures(size=7)
    assert np.abs(rotate(x, 90 + 1e-6) - rotate(x, 90))[:, :, 1:-1, 1:-1].max() < 1e-4
    smooth = np.ones((1, 1, 28, 28), np.float32)
    turned = rotate(smooth, 45)
    assert turned[0, 0, 14, 14] == pytest.approx(1)
    assert turned[0, 0, 0, 0] == 0  # from outside of the image
    assert turned.min() >= 0
    assert turned.max() <= 1 + 1e-6


def test_rotate_interpolates_half_pixels():
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, 2, 3] = 1  # one to the right of the centre
    turned = rotate(x, 45)
    assert turned[0, 0, 1, 3] == pytest.approx(2 - np.sqrt(2))  # its source lies sqrt(2) to the right of the centre
    assert turned[0, 0, 3, 3] == pytest.approx(0, abs=1e-6)


def test_rotate_refuses_quarter_turn_of_oblong_image():
    wide = np.zeros((1, 1, 2, 3), np.float32)
    assert rotate(wide, 180).shape == wide.shape
    with pytest.raises(ConfigurationError, match="2 x 3 pixels cannot be rotated by 90 degrees"):
        rotate(wide, 90)


def test_augment_shift_moves_pixels_unchanged():
    x = pictures(40, 8)
    moved = augment(x, rng(), shift=2)
    found = set()
    for before, after in zip(x, moved, strict=True):
        framed = np.pad(before, ((0, 0), (2, 2), (2, 2)))
        places = [
            (i, j) for i in range(5) for j in range(5) if np.allclose(framed[:, i : i + 8, j : j + 8], after, atol=1e-6)
        ]
        assert len(places) == 1
        found |= set(places)
    assert len(found) > 12  # both directions, by different amounts


def test_augment_keeps_values_in_pixel_range():
    x = augment(pictures(), rng(), rotation=30, noise=2.0)
    assert x.dtype == np.float32
    assert x.min() == 0
    assert x.max() == 1
    assert np.array_equal(augment(pictures(), rng()), pictures())
    assert np.array_equal(augment(pictures(), rng(), shift=1, noise=0.1), augment(pictures(), rng(), shift=1, noise=0.1))
    assert augment(pictures(0), rng(), shift=1).shape == (0, 2, 6, 6)
