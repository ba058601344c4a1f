"""Named settings that a configuration builds on: ours, the paper's, and those of its ablation."""

from typing import Any

PAPER_RATES = (0.1, 0.01, 0.005, 0.0025, 0.001)


def _ablation(rates: tuple[float, ...], replicas: int, **model: Any) -> dict[str, dict[str, Any]]:
    """A preset of the ablation: the same kernel, moves, base term and optimiser in all of them."""
    return {
        "ladder": {"method": "single" if len(rates) == 1 else "noising", "rates": rates},
        "model": model,
        "chains": {"kernel": "gibbs", "replicas": replicas},
        "optimiser": {"common": 0.0},  # every level by itself, so that one level learns like five
        "sampling": {"kernel": "gibbs"},
    }


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "small": {},
    "molecules": {
        "ladder": {"noise": "marginals"},
        "model": {"pieces": True, "rings": True, "local": True},
        "chains": {"kernel": "screened", "replicas": 200, "sweeps": 1},
        "sampling": {"kernel": "screened"},
        "optimiser": {"weight_decay": 0.5, "smooth": 30.0},
        "training": {"batch": 200, "passes": 100.0},
    },
    # The numbers of the paper, changed to be stabler than `verbatim`: small initial weights of
    # messages, a base term, a bound on the scores, Adam with a warm-up, and Gibbs moves.
    "paper": _ablation(PAPER_RATES, 100, layers=10, hidden=128, initial_scale=0.45),
    # As the paper states it: moves by gradients, plain gradient ascent, no base term. Training on
    # molecules diverged: with 20 chains, chains and data were up to 39 nats apart after 49 steps.
    "verbatim": {
        "ladder": {"rates": PAPER_RATES},
        "model": {"layers": 10, "hidden": 128, "base": False, "bound": 0.0},
        "chains": {"kernel": "gradients", "replicas": 100, "sweeps": 1, "moves": 10},
        "optimiser": {
            "method": "sgd",
            "common": 0.0,
            "trust": 0.0,
            "spread": 0.0,
            "schedule": "constant",
            "average": 0.0,
        },
        "training": {"batch": 100},
    },
    # The older models and ablations of the paper, s.1 to s.5 and NMLN*, with our settings where it
    # states none. They differ only in potential, chains, levels and swaps.
    "s1": _ablation(PAPER_RATES[-1:], 8, potential="deepset", width=3, sizes=(150, 75)),
    "s2": _ablation(PAPER_RATES[-1:], 40, potential="deepset", width=3, sizes=(150, 75)),
    "s3": _ablation(PAPER_RATES[-1:], 8),
    "s4": _ablation(PAPER_RATES[-1:], 100),
    "s5": _ablation(PAPER_RATES[-1:], 500),
    "star": _ablation(PAPER_RATES, 100),
}
"""Named starting points; values in a file or by flags replace theirs."""
