"""The quality of the chains of a training: valid molecules and nats, overall and by size."""

from collections.abc import Sequence
from math import log
from typing import Any

from jaxtyping import Integer
from torch import Tensor

from nmln.buckets import Bucket, labels_of
from nmln.formats.registry import Kind
from nmln.molecules.decoding import Decoder
from nmln.runs.data import Source
from nmln.space import Space
from nmln.training import Trainer

_HELD_OUT = 500  # held-out worlds whose likelihood is measured


class Quality:
    """A measure of the quality of worlds: the share of valid molecules; empty for other kinds."""

    def __init__(self, decoder: Decoder | None, known: frozenset[str] = frozenset()) -> None:
        self.decoder, self.known = decoder, known

    @staticmethod
    def of(kind: Kind, space: Space, known: frozenset[str] = frozenset()) -> "Quality":
        return Quality(Decoder(space) if kind == "molecules" else None, known)

    def measure(self, worlds: Integer[Tensor, "worlds groups"]) -> dict[str, float]:
        if self.decoder is None or not len(worlds):
            return {}
        decoded: Sequence = list(self.decoder.decode(worlds))
        valid = [one.smiles for one in decoded if one.status == "valid"]
        found = {"valid": len(valid) / len(decoded)}
        if self.known:
            found["known"] = sum(smiles in self.known for smiles in valid) / len(decoded)
        return found


class ChainQuality:
    """What is measured of a training from time to time, on the chains of its first block."""

    def __init__(self, source: Source, trainer: Trainer) -> None:
        self.trainer = trainer
        known = frozenset(source.names)
        self.parts = [Quality.of(source.kind, space, known) for space in source.spaces]
        self.names = labels_of(source.spaces)
        total = len(source.test)
        self.held_out = [_first(bucket, total) for bucket in source.held_out]

    def measure(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Numbers of the target level, and the same by size if there are several, with swaps and log Z.

        Of several sizes the overall numbers are means by the shares of the sizes in the data, however
        many chains each size has.
        """
        parts = self.trainer.blocks[0].parts
        found = [
            quality.measure(part.chains.values[-1])
            for quality, part in zip(self.parts, parts, strict=True)
        ]
        if self.trainer.config.chains.weighted:  # else log Z lags with the chains
            for number, worlds in enumerate(self.held_out):
                if len(worlds):
                    nats = float(self.trainer.log_likelihood(worlds, number)[-1])
                    found[number]["held_out"] = nats
        if len(found) == 1:
            return found[0], {}
        shares = [domain.share for domain in self.trainer.domains]
        sized: list[dict[str, Any]] = [
            {**one, "swaps": list(swaps), "log_z": float(part.chains.log_z[-1])}
            for one, swaps, part in zip(found, self.trainer.swaps, parts, strict=True)
        ]
        overall = {
            name: sum(share * one[name] for share, one in zip(shares, found, strict=True))
            for name in found[0]
            if all(name in one for one in found)
        }
        if "held_out" in overall:  # the size is a part of the world
            overall["held_out"] += sum(share * log(share) for share in shares)
        return overall, {"by_size": dict(zip(self.names, sized, strict=True))}


def _first(bucket: Bucket, total: int) -> Integer[Tensor, "worlds groups"]:
    """The first held-out worlds of a bucket: its share of those that are measured."""
    count = len(bucket.worlds)
    return bucket.worlds[: max(1, round(_HELD_OUT * count / max(1, total)))]
