"""python/bench without waiting for it: every turn is run, with a manager that costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import bench_omni  # noqa: E402


class CheapManager:
    """Asks the view for the slots of each step, as a manager does, and caches nothing."""

    def __init__(self, config, view, *, eager):
        self.view, self.blocks, self.step = view, config.num_blocks * config.block_size, 0
        self._cache = SimpleNamespace(library=None)

    def register_policy(self, policy):
        pass

    def new_step_starts(self, output):
        self.scheduled = output.num_scheduled_tokens

    def save_outputs(self, hidden, outputs, *, num_tokens_unpadded, num_tokens_padded):
        slots = self.view.step_slots_cpu(self.view.batch_req_ids(), self.scheduled)
        assert len(slots) == num_tokens_unpadded == len(hidden) and int(slots.max()) < self.blocks
        self.step += 1
        return self.step

    def materialize(self, step, ids):
        return SimpleNamespace(hidden_states=dict.fromkeys(ids))

    def discard_step(self, step):
        pass


@pytest.fixture
def cheap(monkeypatch):
    module = SimpleNamespace(
        OmniPrefixCacheManager=CheapManager,
        PrefixCacheConfig=lambda **options: SimpleNamespace(**options),
        ModelCachePolicy=lambda: None,
    )
    monkeypatch.setattr(bench_omni, "product", module)
    monkeypatch.setattr(bench_omni, "WIDTH", 1)  # the rows are nobody's here
    return module


@pytest.mark.parametrize("original", [True, False], ids=["with the original", "without the original"])
@pytest.mark.parametrize("few", [1, 10], ids=["full", "quick"])
def test_every_turn_of_the_benchmark_has_room(cheap, monkeypatch, capsys, original, few):
    """A clone of its own has no original to compare with, and the turns of --quick are too few to run out."""
    monkeypatch.setattr(bench_omni, "load_reference", lambda: cheap if original else None)
    bench_omni.measure(few)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("decode step", "hit of", "prefill")) for line in lines) == 8
    assert ("is not here" in lines[0]) is not original
    assert all((", original " in line) is original for line in lines if line.startswith("decode step"))


def test_what_nothing_is_compared_with_runs_alone():
    calls = []
    figure = bench_omni.in_turns(3, lambda: calls.append(1) or 2.0, None, steps=4, warm=2)
    assert len(calls) == 3 * (4 + 2)
    assert (figure.ours, figure.theirs, figure.ratio) == (2.0, None, None)


@pytest.mark.parametrize("script", ["bench_omni.py", "bench_view.py"])
def test_the_options_are_told_without_numpy(script):
    path = str(BENCH / script)
    code = (
        f"import runpy, sys; sys.modules['numpy'] = None; sys.argv[0] = 'b'; runpy.run_path({path!r}, None, '__main__')"
    )
    for arguments, status, told in ((["--help"], 0, "usage: "), ([], 2, "needs torch and numpy")):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd="/")
        assert done.returncode == status, done.stderr
        assert told in done.stdout + done.stderr
