"""The rules of C5 to C12, on molecules."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from nmln.reproduction.comparing import Compared, Measured, compare, difference, rows_of
from nmln.reproduction.datasets import DATA_SETS
from nmln.reproduction.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Judgement,
    Results,
    Verdict,
    all_of,
    counted,
    every_above,
    in_words,
    missing,
    mostly_above,
)

EQUAL_MINUTES, EQUAL_UPDATES = "ablations", "ablations-updates"
SMALL, LARGE = (9, 10), (15, 20)
FEW, ALMOST_ALL = 0.05, 0.95  # shares of valid samples that count as near 0 and as almost all


def above_older(results: Results) -> Judgement:
    """C5: NMLN* above s.1 and s.2 at equal minutes."""
    return _versus(results, EQUAL_MINUTES, (("star", "s1"), ("star", "s2")))


def above_deepset(results: Results) -> Judgement:
    """C6: s.3 above s.1 and s.2 at equal minutes."""
    return _versus(results, EQUAL_MINUTES, (("s3", "s1"), ("s3", "s2")))


def _versus(results: Results, figure: str, pairs: Iterable[tuple[str, str]]) -> Judgement:
    found = [_compared(results, figure, *pair) for pair in pairs]
    there = [one for one in found if one is not None]
    if len(there) < len(found):
        return missing("nmln reproduce ablations")
    return Judgement(every_above(there), tuple(map(in_words, there)), _sentence(there), (figure,))


def above_more_chains(results: Results) -> Judgement:
    """C7: NMLN* above s.4 and s.5, and at equal updates more chains are not above fewer."""
    parts = [
        _compared(results, figure, "star", other)
        for figure in (EQUAL_MINUTES, EQUAL_UPDATES)
        for other in ("s4", "s5")
    ]
    more = [
        _compared(results, EQUAL_UPDATES, one, other) for one, other in (("s4", "s3"), ("s5", "s4"))
    ]
    stars = [one for one in parts if one is not None]
    chains = [one for one in more if one is not None]
    if len(stars) < len(parts) or len(chains) < len(more):
        return missing("nmln reproduce ablations")
    helped = any(one.order == "above" for one in chains)
    verdict = all_of([every_above(stars), FAILS if helped else HOLDS])
    texts = [
        f"{in_words(one)}, at equal {what}"
        for one, what in zip(stars, ("minutes",) * 2 + ("updates",) * 2, strict=True)
    ]
    texts += [f"{in_words(one)}, at equal updates" for one in chains]
    helping = "More chains alone do help" if helped else "More chains alone are not seen to help"
    why = f"NMLN* is {counted(stars)}. {helping} at equal updates. {_seeds(stars[0])}"
    return Judgement(verdict, tuple(texts), why, (EQUAL_MINUTES, EQUAL_UPDATES))


def above_digress(results: Results) -> Judgement:
    """C8: NMLN* above both forms of DiGress on most data sets."""
    figures = _figures(results, "graphs")
    found = [one for figure in figures for one in _rivals(results[figure])]
    if not found:
        return missing("nmln reproduce recall")
    why = f"{_sentence(found)} {len(figures)} of {len(DATA_SETS)} data sets were run."
    return Judgement(mostly_above(found), tuple(map(in_words, found)), why, tuple(figures))


def level_with_strings(results: Results) -> Judgement:
    """C9: at 9 and 10 atoms no string model is above NMLN*."""
    behind, figures, texts = list[bool](), list[str](), list[str]()
    for figure in _figures(results, "strings", SMALL):
        found = _rivals(results[figure])
        if found:
            figures.append(figure)
            behind.append(any(one.order == "below" for one in found))
            texts += map(in_words, found)
    if not behind:
        return missing("nmln reproduce recall")
    verdict: Verdict = OPEN
    if not any(behind):
        verdict = HOLDS
    elif 2 * sum(behind) >= len(behind):
        verdict = FAILS
    why = f"A string model is above NMLN* on {sum(behind)} of {len(behind)} data sets."
    return Judgement(verdict, tuple(texts), why, tuple(figures))


def validity_by_level(results: Results) -> Judgement:
    """C10: few valid samples at the noisiest level, almost all at the target, and rising between."""
    found = results.get("levels")
    if not found or not found["rows"]:
        return missing("nmln reproduce levels")
    valid = [row["valid"] for row in found["rows"]]
    falls = [one for one, other in pairwise(valid) if other["high"] < one["low"]]
    first, last = valid[0], valid[-1]
    verdict: Verdict = OPEN
    if first["low"] > FEW or last["high"] < ALMOST_ALL or falls:
        verdict = FAILS
    elif first["high"] <= FEW and last["low"] >= ALMOST_ALL:
        verdict = HOLDS
    texts = tuple(
        f"rate {row['rate']:.3g}: {row['valid']['value']:.1%} valid "
        f"({row['valid']['low']:.1%} to {row['valid']['high']:.1%})"
        for row in found["rows"]
    )
    rising = "falls from one level to the next" if falls else "does not fall from level to level"
    why = (
        f"{first['value']:.1%} at the noisiest level, {last['value']:.1%} at the target; it {rising}. "
        f"Near 0 means at most {FEW:.0%}, almost all at least {ALMOST_ALL:.0%}. Samples of one "
        "chain are alike, so the intervals are somewhat too narrow."
    )
    return Judgement(verdict, texts, why, ("levels", "levels-ours"))


def recall_by_level(results: Results) -> Judgement:
    """C11: no level is above the target, and the target is above most of them."""
    found = results.get("levels")
    if not found or not found["rows"]:
        return missing("nmln reproduce levels")
    named = [
        {**row, "method": str(row["level"]), "title": f"rate {row['rate']:.3g}"}
        for row in found["rows"]
    ]
    numbers, (*others, target) = {**found, "rows": named}, [row["method"] for row in named]
    compared = [one for other in others if (one := compare(numbers, target, other)) is not None]
    above_target = any(one.order == "below" for one in compared)
    verdict = FAILS if above_target else mostly_above(compared)
    texts = tuple(map(in_words, compared))
    return Judgement(verdict, texts, f"The target is {counted(compared)}.", ("levels",))


def larger_molecules(results: Results) -> Judgement:
    """C12: at 15 and 20 atoms above DiGress in recall and validity, and below string models."""
    recall, valid, figures = list[Compared](), list[int](), list[str]()
    texts = list[str]()
    for figure in _figures(results, "graphs", LARGE):
        recall += _rivals(results[figure])
        for sign, text in _validity(results[figure]):
            valid.append(sign)
            texts.append(text)
        figures.append(figure)
    strings, sets = list[Compared](), list[Verdict]()
    for figure in _figures(results, "strings", LARGE):
        found = _rivals(results[figure])
        if found:
            strings += found
            figures.append(figure)
            below = any(one.order == "below" for one in found)
            beaten = all(one.order == "above" for one in found)
            sets.append(HOLDS if below else FAILS if beaten else OPEN)
    if not recall or not strings:
        return missing("nmln reproduce recall")
    parts: dict[str, Verdict] = {
        "above DiGress in recall": mostly_above(recall),
        "above DiGress in validity": _mostly(valid),
        "string models ahead": _most(sets),
    }
    why = "; ".join(f"{part}: {verdict}" for part, verdict in parts.items())
    lines = [*map(in_words, recall), *texts, *map(in_words, strings)]
    return Judgement(all_of(list(parts.values())), tuple(lines), f"{why}.", tuple(figures))


def _mostly(signs: list[int]) -> Verdict:
    if 2 * signs.count(1) > len(signs):
        return HOLDS
    return FAILS if 2 * signs.count(-1) >= len(signs) else OPEN


def _most(verdicts: list[Verdict]) -> Verdict:
    if 2 * verdicts.count(HOLDS) > len(verdicts):
        return HOLDS
    return FAILS if 2 * verdicts.count(FAILS) >= len(verdicts) else OPEN


def _compared(results: Results, figure: str, one: str, other: str) -> Compared | None:
    return compare(results[figure], one, other) if figure in results else None


def _figures(results: Results, kind: str, sizes: tuple[int, ...] = SMALL + LARGE) -> list[str]:
    """The recall figures with finished cells of NMLN* and of rivals, in order of their names."""
    wanted = [name for name in results if name.startswith("recall-") and name.endswith(f"-{kind}")]
    return sorted(
        name for name in wanted if results[name].get("size") in sizes and _rivals(results[name])
    )


def _rivals(numbers: Mapping[str, Any]) -> list[Compared]:
    """NMLN* beside every rival of a figure."""
    rivals = dict.fromkeys(row["method"] for row in numbers["rows"] if row["kind"] != "nmln")
    return [one for name in rivals if (one := compare(numbers, "ours", name)) is not None]


def _validity(numbers: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Whether NMLN* has more valid samples than every rival of a figure."""
    found = []
    for ours in rows_of(numbers, "ours"):
        for row in numbers["rows"]:
            if row["kind"] != "nmln":
                pair = [
                    Measured(one["valid"]["count"], one["valid"]["total"]) for one in (ours, row)
                ]
                low, high = difference(*pair)
                text = (
                    f"{numbers['data']}: {pair[0].share:.1%} of the samples of {ours['title']} are "
                    f"valid, {pair[1].share:.1%} of those of {row['title']}"
                )
                found.append(((low > 0) - (high < 0), text))
    return found


def _sentence(found: list[Compared]) -> str:
    """What several comparisons of one method show together."""
    return f"{found[0].one} is {counted(found)}. {_seeds(found[0])}".strip()


def _seeds(one: Compared) -> str:
    seeds = min(map(len, one.covered))
    if seeds == 1 and len(one.covered[0]) > 1:
        return "The first seeds are compared, because the older model has one."
    return f"Each method has {seeds} seeds." if seeds > 1 else ""
