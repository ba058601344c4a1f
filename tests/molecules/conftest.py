"""The server that downloads are tested against."""

from tests.molecules.download_server import server, source

__all__ = ["server", "source"]
