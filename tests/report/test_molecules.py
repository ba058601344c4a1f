"""Parts of a page about molecules: what they show, and that nothing in them does harm."""

import re
from dataclasses import replace
from html import unescape
from math import nan
from pathlib import Path

import pytest

from nmln.evaluation import Estimate, LevelEvaluation, Scores, evaluate
from nmln.report import molecules as parts
from nmln.report import page
from nmln.report.chains import chains_html
from nmln.report.page import Section, write_page
from tests.report.test_page import Reader

TRAIN, TEST = {"CCO", "CCN"}, {"CCC", "CCF"}
COUNTS = {"CCO": 9, "CCC": 5, "COC": 5, "CC#N": 2}
JUDGED = {
    "chains": 12,
    "levels": 2,
    "sweeps": 50,
    "round_trips": 7.0,
    "mixing": {"score": [{"ess": 4.0, "rhat": 1.2}, {"ess": 320.4, "rhat": None}]},
    "swap_probability": [0.05],
    "acceptance": {"<b>": [0.9, None]},
    "moved": [0.8, 0.2],
}


def level(number: int, valid: Estimate, recall: Estimate, name: str = "") -> LevelEvaluation:
    found = evaluate([*(s for s, n in COUNTS.items() for _ in range(n)), None], TRAIN, TEST)
    known = Estimate(0.3, 0.2, 0.4)
    return LevelEvaluation(
        number, name or f"0.{9 - number}", found, valid, known, known, 1000, recall
    )


def rising(name: str = "") -> list[LevelEvaluation]:
    return [
        level(0, Estimate(0.2, 0.1, 0.3), Estimate(1, 0, 2), name),
        level(1, Estimate(0.9, 0.8, 0.95), Estimate(2, 1, 3), name),
    ]


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).replace("\xa0", " ").split())


def test_the_most_frequent_come_first_and_say_where_they_are_known() -> None:
    found = parts.most_frequent(COUNTS, TRAIN, TEST, 3)
    assert [(one.smiles, one.count, one.where) for one in found] == [
        ("CCO", 9, "trained on"),
        ("CCC", 5, "in test set"),
        ("COC", 5, "novel"),
    ]
    new = parts.most_frequent(COUNTS, TRAIN, TEST, 10, new=True)
    assert [one.smiles for one in new] == ["CCC", "COC", "CC#N"]


def test_a_gallery_draws_every_molecule_with_its_count() -> None:
    html = parts.gallery(parts.most_frequent(COUNTS, TRAIN, TEST, 4))
    assert html.count("<svg") == 4
    assert re.findall(r"(\d+)&times;<span class='badge (\w+)'", html) == [
        ("9", "train"), ("5", "test"), ("5", "novel"), ("2", "novel"),
    ]  # fmt: skip
    assert re.findall("<code>(.*?)</code>", html) == ["CCO", "CCC", "COC", "CC#N"]
    assert "There are none" in parts.gallery([])


def test_a_page_of_all_parts_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    chains = Section("Chains", chains_html(["x"], JUDGED, ["a", "b"]))
    sections = [*parts.sections(rising(), TRAIN, TEST), chains]
    text = write_page(tmp_path / "p.html", "T", sections, style=parts.STYLE).read_text()
    reader = Reader(text)
    assert "script" not in reader.names
    assert len(reader.ids) == len(set(reader.ids))
    assert not re.search(r"(src|href)=.(http|//)|url\((?!#)|@import", text)
    assert ".gallery" in text[: text.index("</style>")]


def test_the_main_numbers_have_their_denominators() -> None:
    told = text_of(parts.tiles(rising()[-1]))
    assert "90.0 % valid of 22 attempts [80.0 to 95.0]" in told
    assert "4 different of 21 valid ones" in told
    assert "75.0 % novel" in told
    assert "1 of 2 test molecules" in told


def test_what_the_levels_say_is_reported_for_better_or_worse() -> None:
    well, wrong = parts.level_findings(rising())
    assert len(well) == 2
    assert not wrong
    falling = rising()[::-1]
    well, wrong = parts.level_findings(falling)
    assert wrong == ["Validity falls from 90.0 % at 0.8 to 20.0 % at 0.9, beyond the intervals."]
    assert len(well) == 1
    above, below = Estimate(9, 8, 10), Estimate(3, 2, 4)
    behind = [level(0, above, above), level(1, below, below)]
    assert "fewer than 0.9, beyond the intervals" in parts.level_findings(behind)[1][1]
    assert parts.level_findings(rising()[:1]) == ([], [])


def test_the_table_shows_intervals_where_there_are_any() -> None:
    told = text_of(parts.levels_html(rising()))
    assert "20.0 % 10.0 to 30.0" in told
    assert "2.0 1.0 to 3.0" in told
    unknown = [level(0, Estimate(0.5, nan, nan), Estimate(1, nan, nan))]
    assert "nan" not in text_of(parts.levels_html(unknown))
    none = [level(0, Estimate(0.0, nan, nan), Estimate(nan, nan, nan))]
    assert parts.levels_html(none)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$a_b$ & <img src=x onerror=y>"])
def test_names_of_levels_are_escaped(name: str) -> None:
    html = page.joined(
        *(one.html for one in parts.sections(rising(name), TRAIN, TEST)),
        chains_html([name], {**JUDGED, "acceptance": {name: [0.1, 0.2]}}, [name, name]),
    )
    assert not {"script", "img"} & Reader(html).names
    assert name in text_of(html).replace(r"\$", "$")


def test_chains_are_reported_in_words_and_pictures() -> None:
    html = chains_html(["levels 0 and 1 hardly exchange"], JUDGED, ["0.1", "0.01"])
    assert "<li>Levels 0 and 1 hardly exchange.</li>" in html
    assert html.count("<svg") == 2
    assert "effective size of the score at the target 320" in text_of(html)
    assert "R-hat" not in text_of(html), "it is not known at the target"
    assert "No problem" in chains_html([], JUDGED, ["0.1", "0.01"])
    assert "too few sweeps" in chains_html([], {}, [])


def test_a_single_level_has_no_swaps_to_show() -> None:
    alone = {
        **JUDGED,
        "levels": 1,
        "swap_probability": [],
        "moved": [0.5],
        "acceptance": {"k": [1]},
    }
    assert chains_html([], alone, ["0.01"]).count("<svg") == 1


@pytest.mark.parametrize("exact", [True, False])
def test_the_target_may_be_ranked_by_probability_too(exact: bool) -> None:
    above = Estimate(0.9, 0.8, 0.95)
    logs = Scores({"CCO": -1.0, "CCC": -4.0, "COC": -2.0, "CC#N": -3.0}, exact)
    found = evaluate(COUNTS, TRAIN, TEST, at=(2, 4, 9), log_probabilities=logs)
    levels = [level(0, above, above), level(1, above, above)]
    assert "by probability" not in text_of(parts.recall_html(levels, 4))
    levels[-1] = replace(levels[-1], found=found)
    told = text_of(parts.recall_html(levels, 4))
    assert "0.8 (target), by probability" in told
    assert "ranked by the model's own log-probability" in told
    assert ("a lower bound of it" in told) is not exact
    assert "test molecules among the first 2 4 by count 0 1 by probability 0 1" in told
