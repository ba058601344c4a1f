"""Names that look like markup of the terminal library are shown as they are."""

import sys
from pathlib import Path

import pytest

from nmln.cli import main
from nmln.cli.common import bar, progress
from nmln.cli.data import _bar
from tests.runs.runs import write_config, write_worlds

NAME = "a[/b] :smile: [red"


def test_a_folder_named_like_markup_is_trained_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    write_worlds(tmp_path)
    write_config(tmp_path, training={"steps": 1})
    words = ["nmln", "train", "people.db", "--config", "run.toml", "--output", NAME]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    assert f"kept in {NAME}\n" in capsys.readouterr().err


def test_a_bar_shows_a_name_like_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress(NAME, 1) as tick:
        tick()
    with bar(NAME) as tell:
        tell(1, 1)
    with _bar(NAME) as watch:
        watch(1, 1)
