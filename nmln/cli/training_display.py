"""What a training shows on the terminal while it runs."""

import time
from typing import TYPE_CHECKING, Any

from nmln.cli import ladder
from nmln.dropped import dropped_lines

if TYPE_CHECKING:
    from nmln.runs.train import TrainingJob
    from nmln.training import Metrics


class TrainingDisplay:
    """A table of the levels on a terminal, otherwise a line every 20 seconds."""

    def __init__(self, job: "TrainingJob") -> None:
        from rich.console import Console

        self.job, self.quality = job, {}
        self.console = Console(stderr=True, highlight=False, emoji=False)
        self.live: Any = None
        self.started = self.shown_at = time.monotonic()
        self.first_step = job.trainer.step_number

    def __enter__(self) -> "TrainingDisplay":
        if self.console.is_terminal and self.job.trainer.ranks.first:
            from rich.live import Live

            self.live = Live(console=self.console, refresh_per_second=2, transient=False)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    def on_start(self, job: "TrainingJob") -> None:
        source, training = job.source, job.config.training
        size = source.spaces[-1].measure
        domains = (
            str(size) if len(source.buckets) == 1 else f"{source.domains_in_words}; at most {size}"
        )
        self.console.print(
            f"{len(source.train):,} worlds to learn from, {len(source.test):,} held out; "
            f"{domains}\n{training.steps:,} steps, {job.trainer.ranks.count} "
            f"process{'es' if job.trainer.ranks.count > 1 else ''}, kept in {job.folder}",
            markup=False,
        )
        text, notes = ladder.before(job)
        self._show([text], notes)
        self._show_cost(job)
        if job.start is not None:
            self.console.print(job.start.described_on(source.space), markup=False)
        if source.dropped:
            self.on_note(dropped_lines(source.dropped))

    def on_end(self) -> None:
        self._show(*ladder.after(self.job))

    def _show(self, texts: list[str], notes: list[str]) -> None:
        for text in texts:
            self.console.print(text, markup=False)
        for note in notes:
            self.on_note(note)

    def _show_cost(self, job: "TrainingJob") -> None:
        """The memory and the worlds of a step; of several sizes also the part of each."""
        from nmln.buckets import labels_of
        from nmln.training.sizes import Dealt, step_memory, step_worlds

        domains = job.trainer.domains
        dealt = [Dealt(one.potential.space, one.replicas, one.batch) for one in domains]
        memory = max(1, round(step_memory(dealt, job.config) / 2**20))
        worlds = step_worlds(dealt, job.config)
        shown = f"at least {memory:,} MiB of memory; about {worlds:,} worlds scored per step"
        if len(dealt) > 1:
            names = labels_of([one.space for one in dealt])
            chains = zip(names, dealt, strict=True)
            each = ", ".join(f"{name} ({one.replicas})" for name, one in chains)
            shown = f"size (chains per level): {each}; {shown}"
        self.console.print(shown, markup=False)

    def on_note(self, text: str) -> None:
        self.console.print(f"note: {text}", style="yellow", markup=False)

    def on_step(self, metrics: "Metrics", quality: dict[str, float]) -> None:
        self.quality = quality or self.quality
        now = time.monotonic()
        last = metrics.step == self.job.config.training.steps
        if now - self.shown_at < (0.5 if self.live else 20) and not last:
            return
        self.shown_at = now
        if self.live is not None:
            self.live.update(self._table(metrics))
        else:
            self.console.print(self._line(metrics), markup=False)

    def _left(self, metrics: "Metrics") -> str:
        done = metrics.step - self.first_step
        steps = self.job.config.training.steps
        each = (time.monotonic() - self.started) / max(1, done)
        seconds = round((steps - metrics.step) * each)
        return f"step {metrics.step:,} of {steps:,}, {seconds // 60}:{seconds % 60:02d} left"

    def _quality(self) -> str:
        shown = dict(self.quality)
        held_out = shown.pop("held_out", None)
        text = "".join(f", {name} {share:.0%}" for name, share in shown.items())
        return text if held_out is None else f"{text}, held out {held_out:.1f} nats per world"

    def _line(self, metrics: "Metrics") -> str:
        return (
            f"{self._left(metrics)}{self._quality()}; at the target: gap {metrics.gap[-1]:+.2f}, "
            f"acceptance {metrics.acceptance[-1]:.0%}"
        )

    def _table(self, metrics: "Metrics") -> Any:
        from rich.table import Table

        table = Table(title=self._left(metrics) + self._quality(), title_justify="left")
        for name in ("level", "rate", "gap", "gradient", "acceptance", "moved", "swaps"):
            table.add_column(name, justify="right")
        rates = self.job.trainer.method.ladder.rates
        extra = len(rates) - len(metrics.gap)
        for level, rate in enumerate(rates):
            own = level - extra
            swap = f"{metrics.swaps[level]:.0%}" if level < len(metrics.swaps) else ""
            table.add_row(
                str(level),
                f"{rate:g}",
                f"{metrics.gap[own]:+.2f}" if own >= 0 else "",
                f"{metrics.gradient[own]:.2f}" if own >= 0 else "",
                f"{metrics.acceptance[level]:.0%}",
                f"{metrics.moved[level]:.0%}",
                swap,
            )
        return table
