"""`nmln sample`: worlds from a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from nmln.cli.common import Seed, one_thread, progress


def sample(
    run: Annotated[Path, typer.Argument(help="The folder of a run of training.")],
    num_samples: Annotated[int, typer.Option(min=1, help="How many worlds.")] = 1000,
    output: Annotated[Path | None, typer.Option(help="Where they go, without an ending.")] = None,
    evidence: Annotated[
        Path | None, typer.Option(help="A .db file with what is known; the rest is sampled.")
    ] = None,
    chains: Annotated[int, typer.Option(min=1, help="Independent replicas.")] = 100,
    burn_in: Annotated[int, typer.Option(min=0, help="Sweeps before the first sample.")] = 300,
    thin: Annotated[int, typer.Option(min=1, help="Sweeps from one sample to the next.")] = 1,
    seed: Seed = 0,
) -> None:
    """Sample worlds from the target level of a trained model.

    Writes them in the format that the model was trained on, and a page that says how well the chains
    mix.
    """
    one_thread()
    from nmln.workflow import sampling

    total = sampling.sweeps_for(num_samples, chains, burn_in, thin)
    with progress("sampling", total) as tick:
        outcome = sampling.run(
            run,
            num_samples,
            output,
            evidence=evidence,
            chains=chains,
            burn_in=burn_in,
            thin=thin,
            seed=seed,
            progress=lambda done, whole: tick(),
        )
    for text in outcome.findings:
        typer.secho("note: ", fg="yellow", nl=False, err=True)
        typer.echo(text, err=True)
    quality = "".join(f", {name} {share:.1%}" for name, share in outcome.quality.items())
    typer.echo(
        f"{outcome.count:,} worlds{quality}. Written: " + ", ".join(map(str, outcome.written))
    )
