"""The border between a node and its peers: these see the shared part of its parameters, its learner sees all of them."""

from __future__ import annotations

from p2pfl.parameters import Layout, Parameters


class PrivateParameters:
    """The private part of a node's model. Policies and peers know the vector [S] of the shared values only.

    Each training goes on from the private part as the last one has left it. Where nothing is private, all vectors pass as
    they are.

    Args:
        initial: the model that the node starts from, all of it; float32, shape [P].

    Attributes:
        layout: of all values.
    """

    __slots__ = ("_latest", "layout")

    def __init__(self, layout: Layout, initial: Parameters) -> None:
        self.layout = layout
        self._latest = initial

    def whole(self, shared: Parameters) -> Parameters:
        """Return the model [S] of any node, completed with the private part of this one, [P]."""
        return self.layout.with_private(shared, self._latest)

    def shared_of(self, params: Parameters) -> Parameters:
        """Return the shared values [S] of a model [P]."""
        return self.layout.shared_of(params)

    def keep(self, trained: Parameters) -> Parameters:
        """Store the private part of a trained model [P], and return its shared part [S]."""
        if self.layout.private:
            self._latest = trained
        return self.layout.shared_of(trained)
