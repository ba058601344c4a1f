"""Models that come with the package: found by name, unpacked into an ordinary run, sampled at once."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_ind

import nmln
from nmln.cli import main as command
from nmln.errors import InputError
from nmln.model import load_run, pretrained
from nmln.molecules import datasets
from nmln.runs import references, stream
from tests.runs.sampling_runs import make_run

pytestmark = pytest.mark.usefixtures("unchecked")


def main(words: list[str]) -> int:
    """The command line in this process; gives the code that it leaves with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nmln", *words])
        with pytest.raises(SystemExit) as left:
            command()
    return int(left.value.code or 0)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one model in it, and an empty working directory."""
    run = make_run(tmp_path / "made")
    whole = len(datasets.load("pubchem-10").smiles)
    split = {"train": list(range(whole - 2)), "test": [whole - 2, whole - 1]}
    (run / "split.json").write_text(json.dumps(split))
    (run / "metrics.jsonl").write_text("not to be shipped")
    place = tmp_path / "package"
    pretrained.pack(run, place / "tiny")
    monkeypatch.setattr(pretrained, "_shipped", lambda: place)
    monkeypatch.setattr(stream, "write_summary", lambda *_: [])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return place


def test_only_what_sampling_needs_is_packed(shipped: Path) -> None:
    assert {one.name for one in (shipped / "tiny").iterdir()} == {
        "config.json", "split.json", "model"
    }  # fmt: skip


def test_a_run_without_a_model_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not finished"):
        pretrained.pack(tmp_path, tmp_path / "out")


def test_the_command_samples_at_once_and_again(shipped: Path) -> None:
    words = ["sample", "--pretrained", "tiny", "--num-samples", "20", "--chains", "10"]
    options = ["--burn-in", "2", "--processes", "1"]
    assert main([*words, *options]) == 0
    folder = Path("runs/pretrained-tiny")
    counts = (folder / "samples" / "counts.csv").read_text()
    assert main([*words, *options, "--overwrite"]) == 0
    assert (folder / "samples" / "counts.csv").read_text() == counts


def test_what_was_unpacked_is_a_run_like_any_other(shipped: Path) -> None:
    folder = pretrained.unpack("tiny")
    found = references.of_run(folder)
    assert (len(found["train"].smiles), len(found["test"].smiles)) == (3516, 2)
    own, other = load_run(folder), nmln.Model.pretrained("tiny")
    for name, tensor in own.potential.state_dict().items():
        assert torch.equal(tensor, other.potential.state_dict()[name])


def test_another_model_in_the_folder_is_not_overwritten(shipped: Path) -> None:
    folder = pretrained.unpack("tiny")
    manifest = folder / "model" / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(InputError, match="another model"):
        pretrained.unpack("tiny")


def test_a_copy_of_an_earlier_version_gets_the_chains(shipped: Path) -> None:
    folder = pretrained.unpack("tiny")
    assert load_run(folder).replicas is None
    model = nmln.Model.load(shipped / "tiny" / "model").mixed(3, 2)
    model.save(shipped / "tiny" / "model")
    assert pretrained.unpack("tiny") == folder
    assert load_run(folder).replicas is not None
    other = make_run(shipped.parent / "other", seed=1)
    nmln.Model.load(other / "model").mixed(3, 2).save(shipped / "tiny" / "model")
    with pytest.raises(InputError, match="another model"):
        pretrained.unpack("tiny")


def test_a_model_is_unpacked_whole_or_not_at_all(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(InputError, match="cannot be written"):
            pretrained.unpack("tiny")
    assert not list(Path("runs").iterdir())
    assert json.loads((pretrained.unpack("tiny") / "model" / "content.json").read_text())


def test_an_unknown_name_is_reported_with_those_there_are(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", "--pretrained", "zinc"]) == 2
    assert "tiny" in capsys.readouterr().err


def test_a_folder_and_a_name_are_one_too_many(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", "runs/x", "--pretrained", "tiny"]) == 2
    assert main(["sample"]) == 2
    assert "--pretrained" in capsys.readouterr().err


class TestShipped:
    """The model itself."""

    def test_it_is_small(self) -> None:
        folder = pretrained.folder_of("pubchem-10")
        assert sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) <= 5_000_000

    def test_it_says_how_it_was_trained_and_how_good_it_is(self) -> None:
        card = (pretrained.folder_of("pubchem-10") / pretrained.CARD).read_text()
        for word in ("nmln ", "valid", "nats", "licence"):
            assert word in card.lower()

    @pytest.mark.slow
    def test_its_molecules_are_valid(self) -> None:
        model = nmln.Model.pretrained("pubchem-10")
        data = datasets.load("pubchem-10")
        rng = torch.Generator().manual_seed(0)
        (*_, last) = model.sample(80, rng, chains=40, burn_in=79)
        decoded = data.decode(last.state.values[-1])
        assert sum(one is not None for one in decoded) >= 30

    def drawn(self, seed: int, **options: Any) -> torch.Tensor:
        """Ten draws of 50 chains, two sweeps apart."""
        model, rng = nmln.Model.pretrained("pubchem-10"), torch.Generator().manual_seed(seed)
        sweeps = model.sample(options["burn_in"] + 20, rng, chains=50, thin=2, **options)
        return torch.stack([sweep.state.values[-1] for sweep in sweeps])

    def means(self, worlds: torch.Tensor) -> list[np.ndarray]:
        """Of every chain: scores, bonds, double bonds, carbon atoms and elements."""
        model = nmln.Model.pretrained("pubchem-10")
        with torch.no_grad():
            scores = torch.stack([model.level(-1).score(one[None])[0] for one in worlds])
        atoms, bonds = worlds[..., :10], worlds[..., 10:]
        found = [scores, *(one.sum(-1) for one in (bonds > 0, bonds == 2, atoms == 0, atoms))]
        return [one.double().mean(0).numpy() for one in found]

    @pytest.mark.slow
    def test_its_chains_give_the_distribution_of_a_burnt_in_run(self) -> None:
        burnt_in = self.means(self.drawn(0, burn_in=300, start="noise"))
        quick, other = (self.drawn(seed, burn_in=14, start="model") for seed in (1, 2))
        early = self.drawn(3, burn_in=14, start="noise")

        def least(worlds: torch.Tensor) -> float:
            pairs = zip(burnt_in, self.means(worlds), strict=True)
            return min(float(ttest_ind(*pair, equal_var=False)[1]) for pair in pairs)

        assert least(quick) > 1e-3
        assert least(early) < 1e-4  # without a burn-in it is seen
        data = datasets.load("pubchem-10")
        one, two = (
            {smiles for smiles in data.decode(some.flatten(0, 1)) if smiles is not None}
            for some in (quick, other)
        )
        # Pairs of burnt-in runs share 10.0 different molecules (standard deviation 3.2).
        assert len(one & two) <= 10 + 4 * 3.2


def test_files_of_the_user_are_never_replaced(shipped: Path) -> None:
    theirs = Path("runs/pretrained-tiny/model/notes.txt")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    with pytest.raises(InputError, match=r"pretrained-tiny: .*other files"):
        pretrained.unpack("tiny")
    assert theirs.read_text() == "mine"
    assert [path.name for path in Path("runs").iterdir()] == ["pretrained-tiny"]
