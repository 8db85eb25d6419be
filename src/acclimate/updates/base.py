"""The two moments at which a rule can change what the optimiser does."""

from __future__ import annotations


class UpdateRule:
    """Called around every optimiser step, after accumulation, unscaling and clipping of the gradients."""

    def before_step(self) -> None:
        """Run when the gradients are final."""

    def after_step(self) -> None:
        """Run when the optimiser has moved the weights (weight decay included)."""
