"""Names for the shapes that travel through the package."""

from jaxtyping import Bool, Float, Integer
from torch import Tensor

Values = Integer[Tensor, "levels chains groups"]
"""The category of each group: no illegal world can be written down."""

OneHot = Float[Tensor, "levels chains entries"]
"""The concatenated one-hot encoding of every group."""

Scores = Float[Tensor, "levels chains"]
"""Unnormalised log-probabilities, the paper's rho."""

Slopes = Float[Tensor, "levels chains entries"]
"""The derivative of the score by every entry of the one-hot encoding."""

Worlds = Integer[Tensor, "*batch groups"]
"""Values with any leading axes: one world, a data set, or levels of chains."""

Entries = Float[Tensor, "*batch entries"]
"""One-hot encodings with any leading axes."""

Allowed = Bool[Tensor, " entries"]
"""One bit per entry: the categories that evidence leaves open."""
