"""Names that users rely on; `python -m tests.golden.surface` records those of today."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

SURFACE = Path(__file__).parent / "surface.json"


def surface() -> dict[str, list[str]]:
    """Public names, verbs with their flags, settings, and names of kernels and potentials."""
    import nmln
    from nmln.config import PRESETS, Config, ModelConfig
    from nmln.kernels.registry import KERNELS

    settings = [
        f"{section.name}.{key.name}"
        for section in fields(Config)
        for key in fields(getattr(Config(), section.name))
    ]
    return {
        "public names": sorted(nmln._HOMES),
        "settings": settings,
        "presets": sorted(PRESETS),
        "potentials": sorted(get_args(get_type_hints(ModelConfig)["potential"])),
        "kernels": sorted(KERNELS),
        "flags": sorted(_flags()),
    }


def _flags() -> list[str]:
    import typer.main

    from nmln.cli import app

    return list(_flags_of(typer.main.get_command(app), "nmln"))


def _flags_of(command: Any, name: str) -> list[str]:
    found = [
        f"{name} {flag}" for one in command.params for flag in (*one.opts, *one.secondary_opts)
    ]
    for verb, inner in getattr(command, "commands", {}).items():
        found += [f"{name} {verb}", *_flags_of(inner, f"{name} {verb}")]
    return found


if __name__ == "__main__":
    SURFACE.write_text(json.dumps(surface(), indent=1) + "\n")
