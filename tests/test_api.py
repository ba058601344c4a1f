import nmln


def test_every_public_name_is_there() -> None:
    public = [name for name in dir(nmln) if not name.startswith("_") and name != "TYPE_CHECKING"]
    assert {"Space", "Language", "Ladder", "corrupt", "read_db"} <= set(public)
    for name in nmln._HOMES:
        assert getattr(nmln, name).__module__.startswith("nmln.")
