from tests.corpus.conftest import call, shelf

__all__ = ["call", "shelf"]
