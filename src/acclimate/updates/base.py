"""The moments at which a rule can change what the optimiser does."""

from __future__ import annotations


class UpdateRule:
    """Called around every optimiser step."""

    def after_backward(self) -> None:
        """Run when the gradients of the whole step are there, before they are clipped."""

    def before_step(self) -> None:
        """Run when the gradients are final: accumulated, unscaled and clipped."""

    def after_step(self) -> None:
        """Run when the optimiser has moved the weights (weight decay included)."""
