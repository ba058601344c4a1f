"""The rules of C1 to C4, which need no molecules."""

from nmln.reproduction.verdicts import FAILS, HOLDS, OPEN, Judgement, Results, Verdict, missing

ROUNDING, NOTICED = 1e-12, 1e-4  # a change by rounding only, and one that a broken twin must exceed
_ERRORS = 4.5  # standard errors, for the largest of some twenty counts


def exactness(results: Results) -> Judgement:
    """C1: one step from the exact distribution leaves it unchanged; a broken twin does not."""
    found = results.get("exactness")
    if found is None:
        return missing("nmln reproduce exactness")
    checks = found["checks"]
    exact = all(one["change"] < ROUNDING for one in checks)
    noticed = all(one["change_of_broken_twin"] > NOTICED for one in checks)
    verdict: Verdict = FAILS if not exact else HOLDS if noticed else OPEN
    lines = [
        f"{one['what']}: the largest change of a probability is {one['change']:.1e}, with a broken "
        f"twin at least {one['change_of_broken_twin']:.1e}"
        for one in checks
    ]
    if (peaks := results.get("two-peaks")) is not None:
        one, other = (peaks["total_variation"][name]["value"] for name in ("tempering", "single"))
        lines.append(
            f"a density with two peaks, 4,000 sweeps: total variation {one:.2f} with replica exchange, "
            f"{other:.2f} with a single chain"
        )
    why = (
        "Enumeration of a space with random scores; the tests do the same for every kernel, with "
        "evidence, and for whole sweeps (make test)."
    )
    return Judgement(verdict, tuple(lines), why, ("two-peaks",) if peaks else ())


def acceptance(results: Results) -> Judgement:
    """C2: the mean swap probability is the overlap of the two orders of the levels."""
    found = results.get("exactness")
    if found is None:
        return missing("nmln reproduce exactness")
    swaps = found["swaps"]
    exact = swaps["largest_difference_from_overlap"] < ROUNDING
    fitting = swaps["counted_in_standard_errors"] < _ERRORS
    lines = (
        f"largest difference between the mean swap probability and the overlap: "
        f"{swaps['largest_difference_from_overlap']:.1e}, at overlaps from "
        f"{swaps['least_overlap']:.2f} to {swaps['largest_overlap']:.2f}",
        f"share of {swaps['draws']:,} swaps that the sampler made: at most "
        f"{swaps['counted_in_standard_errors']:.1f} standard errors from it",
    )
    why = "Both sides are computed by enumeration, and the sampler's own swaps are counted."
    return Judgement(HOLDS if exact and fitting else FAILS, lines, why)


def tracking(results: Results) -> Judgement:
    """C3: the tracking error of noising is below that of tempering."""
    found = results.get("toy-tracking")
    if found is None:
        return missing("nmln reproduce toy-tracking")
    ratio, error = found["ratio_last_third"], found["error_last_third"]
    verdict: Verdict = HOLDS if ratio["high"] < 1 else FAILS if ratio["low"] > 1 else OPEN
    lines = (
        f"error in the last third: noising {_interval(error['PN'])}, tempering "
        f"{_interval(error['PT'])}",
        f"their ratio: {_interval(ratio)}",
    )
    why = (
        "With a high barrier the hottest of the fixed temperatures is too cold, while the noisiest "
        "level stays nearly uniform. Noising has exact levels here, not trained ones."
    )
    return Judgement(verdict, lines, why, ("toy-tracking",))


def queens(results: Results) -> Judgement:
    """C4: noising has fewer attacking pairs than tempering."""
    found = results.get("n-queens")
    if found is None:
        return missing("nmln reproduce n-queens")
    lines, signs = list[str](), list[int]()
    for kernel, one in found["kernels"].items():
        gap = one["difference"]["attacks"]
        signs.append((gap["low"] > 0) - (gap["high"] < 0))
        lines.append(
            f"{kernel} moves: {_interval(one['PN']['attacks'])} attacking pairs with noising, "
            f"{_interval(one['PT']['attacks'])} with tempering, difference {_interval(gap)}"
        )
    verdict: Verdict = FAILS if 1 in signs else HOLDS if -1 in signs else OPEN
    if (pairs := results.get("matching")) is not None:
        one, other = (pairs["changed"][name][0] for name in ("noising", "single"))
        lines.append(
            f"perfect matchings, a rule without exceptions: {one:.0%} of the chains of noising, "
            f"{other:.0%} of plain Gibbs chains reached another matching"
        )
    why = "The paper does not name its moves, so two kernels were tried"
    if 0 in signs and -1 in signs:
        why += "; with one of them the runs do not tell noising and tempering apart"
    return Judgement(verdict, tuple(lines), f"{why}.", ("n-queens",))


def _interval(found: dict[str, float]) -> str:
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
