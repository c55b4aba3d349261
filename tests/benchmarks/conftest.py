"""The stand-in checkout of the overlay's tests serves the comparison with upstream too."""

from tests.overlay.conftest import inside, known_repo, repo, shapes

__all__ = ["inside", "known_repo", "repo", "shapes"]
