"""What training shows: share done, loss, speed; a bar, or lines where there is no terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from acclimate.progress import ProgressLines, can_draw


class TrainingBar:
    """Progress on stderr; a context manager that is called after every step."""

    def __init__(self, title: str, enabled: bool = True) -> None:
        """Prepare a bar; ``enabled`` false shows nothing."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        lines = enabled and not can_draw()
        self._lines = ProgressLines(title, 1.0) if lines else None
        self._note = ""
        self._bar = Progress(*columns, console=Console(stderr=True), disable=lines or not enabled)
        self._task = self._bar.add_task(title, total=1.0, note="")

    def __enter__(self) -> TrainingBar:
        self._bar.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._bar.stop()
        if self._lines is not None:
            self._lines.end(self._note, always=kind is None)

    def __call__(self, share: float, trainer: Any) -> None:
        """Show how far training has come."""
        loss = f"loss {trainer.last_terms['loss']:.3f}, " if trainer.last_terms else ""
        speed = trainer.tokens / max(1e-9, trainer.clock.seconds)
        self._note = f"{loss}{speed:,.0f} tokens/s"
        self._bar.update(self._task, completed=share, note=self._note)
        if self._lines is not None:
            self._lines.at(share, self._note)

    @staticmethod
    def say(text: str, enabled: bool = True) -> None:
        """Print a line to stderr."""
        if enabled:
            Console(stderr=True).print(text, highlight=False, markup=False)
