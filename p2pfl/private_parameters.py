"""Separation of shared and private parameters: peers see the shared part, the node's learner sees all of them."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.parameters import Layout, Parameters


@dataclass(slots=True, eq=False)
class PrivateParameters:
    """The private part of a node's model. Policies and peers only see the vector [S] of the shared values.

    Each training continues with the private part of the last one. If nothing is private, all vectors pass unchanged. The
    private part includes local state; see p2pfl.parameters.Layout.

    Attributes:
        layout: the layout of all values.
        latest: the model with the newest private part, at first the node's initial model; float32, shape [P].
    """

    layout: Layout
    latest: Parameters

    def whole(self, shared: Parameters) -> Parameters:
        """Return any node's model [S], completed to [P] with the private part of this node."""
        return self.layout.with_private(shared, self.latest) if self.layout.unshared else shared

    def shared_of(self, params: Parameters) -> Parameters:
        """Return the shared values [S] of a model [P]."""
        return self.layout.shared_of(params)

    def keep(self, trained: Parameters) -> Parameters:
        """Store the private part of a trained model [P], and return its shared part [S]."""
        if self.layout.unshared:
            self.latest = trained
        return self.layout.shared_of(trained)
