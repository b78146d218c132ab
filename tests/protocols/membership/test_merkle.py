"""Merkle trees against the definition of RFC 6962, its published test vectors, and changed proofs."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.protocols.membership.merkle import MerkleTree, verify

# The leaves and roots of the tests of Certificate Transparency (github.com/google/certificate-transparency,
# cpp/merkletree/merkle_tree_test.cc; the same in github.com/transparency-dev/merkle, testonly/constants.go).
LEAVES = [bytes.fromhex(each) for each in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = [bytes.fromhex(each) for each in (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)]  # fmt: skip


def mth(leaves):
    """Return the Merkle Tree Hash as RFC 6962, section 2.1, defines it."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    k = split(len(leaves))
    return sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def path(m, leaves):
    """Return the Merkle Audit Path as RFC 6962, section 2.1.1, defines it."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    return [*path(m, leaves[:k]), mth(leaves[k:])] if m < k else [*path(m - k, leaves[k:]), mth(leaves[:k])]


def split(n):
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def test_roots_are_those_of_certificate_transparency():
    assert [MerkleTree(LEAVES[:n]).root for n in range(9)] == ROOTS


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40))
def test_tree_and_proofs_are_those_of_rfc_6962(leaves):
    tree = MerkleTree(leaves)
    assert (tree.size, tree.root) == (len(leaves), mth(leaves))
    for index, leaf in enumerate(leaves):
        assert tree.proof(index) == path(index, leaves)
        assert verify(leaf, index, tree.size, tree.proof(index), tree.root)


@given(st.integers(1, 70), st.data())
def test_changed_proofs_are_refused(size, data):
    leaves = [bytes([k]) for k in range(size)]
    tree, index = MerkleTree(leaves), data.draw(st.integers(0, size - 1))
    proof = tree.proof(index)
    assert verify(leaves[index], index, size, proof, tree.root)
    assert not verify(b"other", index, size, proof, tree.root)
    assert not verify(leaves[index], index, size, [*proof, bytes(32)], tree.root)
    assert not verify(leaves[index], index, size, proof, bytes(32))
    assert not verify(leaves[index], -1, size, proof, tree.root)
    for other in range(size + 2):
        assert verify(leaves[index], other, size, proof, tree.root) is (other == index)
    for position in range(len(proof)):
        changed = [*proof]
        changed[position] = sha256(changed[position]).digest()
        assert not verify(leaves[index], index, size, changed, tree.root)
        assert not verify(leaves[index], index, size, proof[:position] + proof[position + 1 :], tree.root)


def test_inner_node_is_no_leaf():
    tree = MerkleTree([b"a", b"b", b"c", b"d"])
    node = sha256(b"\0a").digest() + sha256(b"\0b").digest()  # what is hashed for the node above both
    assert not verify(node, 0, 2, tree.proof(0)[1:], tree.root)
    assert MerkleTree([node, b"c"]).root != MerkleTree([b"a", b"b", b"c"]).root


@pytest.mark.parametrize("index", [-1, 3])
def test_leaf_that_does_not_exist_has_no_proof(index):
    with pytest.raises(IndexError, match=f"leaf {index} of 3"):
        MerkleTree([b"a", b"b", b"c"]).proof(index)
