"""The replay: its parts against simple rules, and its verdict on right and wrong caches."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pty
import random
import re
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import replay_model
import torch

from prefixcache.replay.batch import InputBatch
from prefixcache.replay.cli import main
from prefixcache.replay.content import RowContent, prompt_tokens, request_fingerprints
from prefixcache.replay.document import load
from prefixcache.replay.generator import generate_trace
from prefixcache.replay.progress import ProgressBar
from prefixcache.replay.scheduler import Scheduler
from prefixcache.replay.traces import TOKENS_PER_ID, TraceError, TraceRequest, read_trace, write_trace

SHARED = Path(__file__).resolve().parents[3] / "shared"
# Few blocks for the requests: they are recycled all the time, and requests are preempted.
TIGHT = ["--blocks", "220", "--block-size", "16", "--batch", "8", "--batch-tokens", "1024", "--quiet"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A trace of short requests: bursts, conversations, many ends."""
    path = tmp_path_factory.mktemp("traces") / "short.jsonl"
    write_trace(path, generate_trace(400, 11, mean_prompt=500, mean_output=12))
    return str(path)


def model_with(**methods):
    """The model backend with some methods of its manager replaced."""
    manager = type("OmniPrefixCacheManager", (replay_model.OmniPrefixCacheManager,), methods)
    return SimpleNamespace(**{**vars(replay_model), "OmniPrefixCacheManager": manager})


def replay(capsys, trace, *arguments, backend=replay_model):
    code = main([trace, "--part", "omni", *arguments], backend)
    return code, capsys.readouterr().out


def number(text, line, word):
    """The number before ``word`` in the line of the summary that starts with ``line``."""
    found = next(x for x in text.splitlines() if x.startswith(line))
    parts = found.replace(",", "").replace("(", "").split()
    return float(parts[parts.index(word) - 1])


# ------------------------------------------------------------------ a right cache


def test_right_manager_passes_and_the_traffic_has_everything(capsys, trace):
    code, text = replay(capsys, trace, "--requests", "120", "--seed", "3", "--preempt-rate", "0.01", *TIGHT)
    assert code == 0, text
    assert text.rstrip().endswith("every row was right")
    assert number(text, "wrong rows", "and") == 0
    # A replay that meets none of these shows nothing about them.
    for line, word in [
        ("requests", "started"),
        ("requests", "aborted"),
        ("requests", "preemptions"),
        ("requests", "under"),
        ("hit rate", "requests"),
        ("rows checked", "and"),
        ("rows checked", "other"),
    ]:
        assert number(text, line, word) > 0, f"{line}: no {word}\n{text}"


@pytest.mark.parametrize("mode", ["--eager", "--threaded"])
def test_drop_in_passes(capsys, trace, mode):
    import prefixcache.omni

    arguments = ["--requests", "250", "--abort-rate", "0.2", "--preempt-rate", "0.02", "--staging-bytes", "30000"]
    code, text = replay(capsys, trace, mode, *arguments, *TIGHT, backend=prefixcache.omni)
    assert code == 0, text
    # The rarer paths of the cache were taken, so their rows were among those checked.
    events = next(x for x in text.splitlines() if x.startswith("cache events"))
    for what in ("hits", "preserved bytes", "absent rows", "displaced rows", "deferred writes", "flushes"):
        assert re.search(rf"[ ]{what} [1-9]", events), f"no {what}\n{text}"  # 1 is "hits 1", not "1 hits"
    assert "decode" in text and "undisturbed steps" in text


@pytest.mark.parametrize("seed", range(3))
def test_drop_in_passes_with_short_blocks_and_wide_rows(capsys, trace, seed):
    import prefixcache.omni

    code, text = replay(
        capsys, trace, "--requests", "40", "--seed", str(seed), "--width", "2048", "--blocks", "1000",
        "--block-size", "4", "--batch", "8", "--batch-tokens", "333", "--quiet",
        "--preempt-rate", "0.02", "--abort-rate", "0.2",
        backend=prefixcache.omni,
    )  # fmt: skip
    assert code == 0, text


@pytest.mark.parametrize("steps", [1, 30, 200])
def test_time_limit_ends_cleanly_and_says_how_far_it_came(capsys, trace, monkeypatch, steps):
    # The clock is asked once at the start and after every step, so where the time is over is the same on any machine.
    clock = itertools.count()
    monkeypatch.setattr("prefixcache.replay.omni.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    scheduled = []
    schedule = Scheduler.schedule
    monkeypatch.setattr(Scheduler, "schedule", lambda self: scheduled.append(schedule(self)) or scheduled[-1])
    code, text = replay(capsys, trace, "--time-limit", f"{steps - 0.5}", *TIGHT)
    assert code == 0, text
    started, cut = number(text, "requests", "of"), number(text, "requests", "cut")
    assert started == number(text, "requests", "finished") + number(text, "requests", "aborted") + cut
    assert 0 < cut <= started < 391
    # The one after the last tells the cache which requests have ended.
    assert [len(plan.scheduled) > 0 for plan in scheduled] == [True] * steps + [False]


def test_time_limit_of_the_context_cache(capsys, trace, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(
        "prefixcache.replay.context.time",
        SimpleNamespace(monotonic=lambda: float(next(clock)), perf_counter_ns=time.perf_counter_ns),
    )
    assert main([trace, "--part", "context", "--time-limit", "49.5", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert number(text, "requests", "of") == 50, text
    assert text.rstrip().endswith("every page was right")


def test_bad_arguments_and_traces_are_named(capsys, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)))
    saved = str(tmp_path / "saved.json")
    assert main(["--part", "context", "--requests", "5", "--quiet", "--json", saved]) == 0
    capsys.readouterr()
    for arguments, fragment in [
        (["--width", "12"], "not a multiple of 8"),
        (["--abort-rate", "2"], "not in 0 .. 1"),
        ([str(tmp_path / "none.jsonl")], "none.jsonl: No such file"),
        ([str(tmp_path)], "Is a directory"),
        ([str(tmp_path / "bad.jsonl")], "line 1: not a request"),
        ([str(tmp_path / "binary.jsonl")], "binary.jsonl: "),
        (["--manager", "no.such.module", "--requests", "1"], "--manager no.such.module"),
        (["--manager", "json", "--requests", "1"], "--manager json: has no OmniPrefixCacheManager"),
        (["--requests", "x"], "argument --requests: 'x' is not a whole number"),
        (["--pages", "0"], "argument --pages: 0 is not in 1 .. 2^31 - 1"),
        (["--time-limit", "nan"], "argument --time-limit: nan is not a time"),
        (["--sweep", "pages"], "argument --sweep: 'pages': expected pages=LIST or tokens=LIST"),
        (["--sweep", "pages=10", "--part", "omni"], "leave --part out"),
        (["--report", str(tmp_path / "no" / "x.html")], "--report"),
        (["--json", str(tmp_path)], "is a folder"),
        (["--compare", str(tmp_path / "bad.jsonl")], "no run that --json saved"),
        (["--compare", str(tmp_path / "none.json")], "none.json: No such file"),
        (["--compare", saved, "--part", "omni"], "saved.json: has context, expected a run with omni"),
        (["--compare", saved, "--sweep", "pages=9"], "saved.json: has context, expected a run with sweep"),
        (["--part", "context", "--pages", "1", "--requests", "3"], "every request is longer than the cache"),
        (["--write-trace", str(tmp_path / "no" / "x"), "--requests", "1"], "No such file"),
        (["--write-trace", "/dev/full", "--requests", "3"], "/dev/full: No space left"),
        (["--part", "context", "--requests", "3", "--json", "/dev/full"], "/dev/full: No space left"),
        (["--part", "context", "--requests", "3", "--report", "/dev/full"], "/dev/full: No space left"),
    ]:
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        told = capsys.readouterr()
        assert fragment in told.err
        assert told.out == "" or "--compare" not in arguments, "told after the run only"


@pytest.mark.parametrize(
    "command",
    [
        ["replay", "--part", "context", "--requests", "5", "--quiet"],
        ["replay", "--sweep", "pages=5000", "--requests", "5", "--quiet"],
        ["doctor"],
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_one_line(command):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "prefixcache", *command], stdout=full, stderr=subprocess.PIPE, text=True, env=env
        )
    assert done.returncode == 1
    name = f"prefixcache {command[0]}" if command[0] in ("replay", "doctor") else "prefixcache"
    assert done.stderr == f"{name}: error: standard output: No space left on device\n"


def test_module_runs_from_the_command_line(tmp_path):
    trace = tmp_path / "small.jsonl"
    write_trace(trace, generate_trace(12, 1, mean_prompt=300, mean_output=10))
    command = [sys.executable, "-m", "prefixcache.replay", str(trace), "--blocks", "2000", "--progress"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every row was right" in done.stdout
    assert "every page was right" in done.stdout
    assert "12/12 requests" in done.stderr


# ------------------------------------------------------------------ wrong caches


def flip_one_bit(self, step, ids):
    out = replay_model.OmniPrefixCacheManager.materialize(self, step, ids)
    if step == 20 and ids:
        rows = out.hidden_states[ids[-1]].clone()
        rows.view(torch.uint8)[-1, 0] ^= 1
        out.hidden_states[ids[-1]] = rows
    return out


def swap_two_requests(self, step, ids):
    out = replay_model.OmniPrefixCacheManager.materialize(self, step, ids)
    if len(ids) > 1:
        rows = out.mm_outputs["embed.decode"]
        rows[ids[0]], rows[ids[1]] = rows[ids[1]], rows[ids[0]]
    return out


def keep_a_view_of_the_buffers(self, hidden, mm, **counts):
    step = replay_model.OmniPrefixCacheManager.save_outputs(self, hidden, mm, **counts)
    self.steps[step][1][replay_model.HIDDEN_KEY] = hidden[: counts["num_tokens_unpadded"]]
    return step


def read_the_prefix_a_step_too_late(self, step, ids):
    prefixes = self.steps[step][2]
    for (req, key), prefix in prefixes.items():
        blocks = self.blocks_of[step, req]
        pool = self.pool[key].view(-1, self.config.block_size, prefix.shape[1])
        prefixes[req, key] = pool[blocks].flatten(0, 1)
    return replay_model.OmniPrefixCacheManager.materialize(self, step, ids)


def remember_blocks(self, hidden, mm, **counts):
    step = replay_model.OmniPrefixCacheManager.save_outputs(self, hidden, mm, **counts)
    self.blocks_of = getattr(self, "blocks_of", {})
    for req, (hit, blocks) in self.hits.items():
        self.blocks_of[step, req] = blocks[: hit // self.config.block_size]
    return step


def keep_rows_of_former_tenants(self, hidden, mm, **counts):
    """S-7: a step without the key leaves the slot's older row in place."""
    before = {k: v.clone() for k, v in self.pool.items()}
    step = replay_model.OmniPrefixCacheManager.save_outputs(self, hidden, mm, **counts)
    for key in set(before) - set(mm) - {replay_model.HIDDEN_KEY}:
        self.pool[key].copy_(before[key])
    return step


def open_a_hit_for_live_requests(self, output):
    self.live.clear()
    replay_model.OmniPrefixCacheManager.new_step_starts(self, output)


def drop_the_rows_of_aborted_requests(self, output):
    if output.finished_req_ids:
        self.pool[replay_model.HIDDEN_KEY][-1600:] = 0
    replay_model.OmniPrefixCacheManager.new_step_starts(self, output)


def hand_out_its_own_memory(self, step, ids):
    """Keeps the last result of a prefix and serves the next hit on it from there."""
    kept = self.__dict__.setdefault("kept", {})
    prefixes = self.steps[step][2]
    names = {}
    for (req, key), prefix in prefixes.items():
        if key == replay_model.HIDDEN_KEY:
            names[req] = (len(prefix), prefix[-1].view(torch.uint8).numpy().tobytes())
            prefixes[req, key] = kept.get(names[req], prefix)
    out = replay_model.OmniPrefixCacheManager.materialize(self, step, ids)
    kept.update({names[req]: out.hidden_states[req][: names[req][0]] for req in ids if req in names})
    return out


def cut_a_leftover_wrongly(self, step, ids):
    out = replay_model.OmniPrefixCacheManager.materialize(self, step, ids)
    for req in ids:
        if "meta.weight" in out.mm_outputs:
            out.mm_outputs["meta.weight"][req] = out.mm_outputs["meta.weight"][req][1:]
    return out


@pytest.mark.parametrize(
    ("methods", "kind"),
    [
        ({"materialize": flip_one_bit}, "no row at all in new rows of __hidden_states__"),
        ({"materialize": swap_two_requests}, "embed.decode"),
        ({"save_outputs": keep_a_view_of_the_buffers}, "no row at all in new rows of __hidden_states__"),
        (
            {"save_outputs": remember_blocks, "materialize": read_the_prefix_a_step_too_late},
            "row of another token in prefix",
        ),
        ({"save_outputs": keep_rows_of_former_tenants}, "row of another token in prefix of embed.speech_feat"),
        ({"new_step_starts": open_a_hit_for_live_requests}, "wrong shape"),
        ({"new_step_starts": drop_the_rows_of_aborted_requests}, "zeros in prefix of __hidden_states__"),
        ({"materialize": hand_out_its_own_memory}, "zeros in prefix of __hidden_states__"),
        ({"materialize": cut_a_leftover_wrongly}, "value of meta.weight"),
    ],
    ids=lambda v: "+".join(m.__name__ for m in v.values()) if isinstance(v, dict) else "",
)
def test_mistakes_are_found_and_named(capsys, trace, methods, kind):
    code, text = replay(
        capsys,
        trace,
        "--requests",
        "150",
        "--seed",
        "3",
        "--preempt-rate",
        "0.01",
        *TIGHT,
        backend=model_with(**methods),
    )
    assert code == 1, text
    assert text.rstrip().endswith("FAILED")
    assert kind in text, text


def test_one_flipped_bit_is_one_wrong_row(capsys, trace):
    backend = model_with(materialize=flip_one_bit)
    _, text = replay(capsys, trace, "--requests", "20", "--seed", "3", *TIGHT, backend=backend)
    assert number(text, "wrong rows", "and") == 1, text


def test_an_exception_of_the_cache_fails_the_replay(capsys, trace, tmp_path):
    def materialize(self, step, ids):
        raise RuntimeError("hit span is not readable")

    files = ["--report", str(tmp_path / "x.html"), "--json", str(tmp_path / "x.json")]
    code, text = replay(capsys, trace, "--requests", "5", *TIGHT, *files, backend=model_with(materialize=materialize))
    assert code == 1
    assert "hit span is not readable" in text
    assert "<p class=wrong>Omni cache: FAILED</p>" in (tmp_path / "x.html").read_text()
    assert not load(tmp_path / "x.json")["parts"]["omni"]["right"]


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m prefixcache.replay --part context --requests 20 | head -n 1"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, env=env)
    assert done.stdout.startswith("trace ")
    assert done.stderr == ""


def test_progress_bar_keeps_to_one_line_of_the_terminal():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 60))
    with open(theirs, "w") as terminal:
        bar = ProgressBar(100, None, terminal)
        bar.update(0, "very much to say " * 9)
        bar.update(100, "less")
        bar.close()
        shown = ""
        while not shown.endswith("\n"):  # a busy machine hands it over piece by piece
            shown += os.read(ours, 4096).decode()
    os.close(ours)
    shown = shown.replace("\r\n", "\n")
    first, second = shown.strip("\r\n").split("\r")
    assert len(first) == len(second) == 59  # the second one draws over all of the first
    assert "0/100 requests" in first and "100/100 requests" in second and second.rstrip().endswith("less")


def test_main_runs_in_any_thread(capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["--part", "context", "--requests", "5", "--quiet"])))
    thread.start()
    thread.join()
    assert codes == [0], capsys.readouterr().out


def test_what_is_left_after_the_last_request_fails_the_replay(capsys, trace):
    backend = model_with(stats=lambda self: {"live_requests": 3, "staged_bytes_peak": 1, "reserved_bytes": 1})
    code, text = replay(capsys, trace, "--requests", "5", *TIGHT, backend=backend)
    assert code == 1
    assert "'live_requests': 3" in text


@pytest.mark.skipif(
    not (SHARED / "reference/omni/load_reference.py").exists(), reason="the original manager is not here (../shared)"
)
def test_known_defects_of_the_seed_manager_show(capsys, trace):
    """S-2 and S-7 make the original return wrong rows; the replay has to see them."""
    path = SHARED / "reference/omni/load_reference.py"
    spec = importlib.util.spec_from_file_location("load_reference", path)
    before, path_before = set(sys.modules), list(sys.path)
    try:
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        interface = importlib.import_module("vllm_omni.core.prefix_cache.interface")
        backend = SimpleNamespace(
            OmniPrefixCacheManager=loaded.manager.OmniPrefixCacheManager,
            PrefixCacheConfig=interface.PrefixCacheConfig,
            ModelCachePolicy=interface.ModelCachePolicy,
            HIDDEN_KEY=interface.HIDDEN_KEY,
        )
        # No leftovers: a 0-dimensional one ends the original at once (S-11).
        arguments = ["--requests", "20", "--eager", "--leftover-rate", "0", *TIGHT]
        code, text = replay(capsys, trace, *arguments, backend=backend)
    finally:
        sys.path[:] = path_before
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("vllm_omni", "load_reference"):
                del sys.modules[name]
    assert code == 1, text
    assert "in prefix of" in text or "reassigned" in text, text


# ------------------------------------------------------------------ parts


def test_content_depends_on_every_token_before():
    ids = [7, 9, 11]
    one = request_fingerprints(ids, 1200, 5, serial=1)
    assert np.array_equal(one[:1024], request_fingerprints([7, 9, 4], 1100, 1, serial=2)[:1024])
    assert not np.any(one[1024:1100] == request_fingerprints([7, 9, 4], 1100, 1, serial=2)[1024:1100])
    assert not np.any(one[512:1200] == request_fingerprints([8, 9, 11], 1200, 5, serial=1)[512:1200])
    assert not np.any(one[1200:] == request_fingerprints(ids, 1200, 5, serial=2)[1200:])  # generated tokens
    assert len(set(one.tolist())) == len(one)
    assert np.all(one % 2 == 1)


def test_tokens_are_those_of_the_benchmark():
    """Token i of hash id h is splitmix64(h * 512 + i) % 150000, here with Python's integers."""

    def splitmix64(x):
        mask = (1 << 64) - 1
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    tokens = prompt_tokens([0, 123_456], 700)
    assert tokens.tolist() == [splitmix64(i if i < 512 else 123_456 * 512 + i - 512) % 150_000 for i in range(700)]


def test_rows_differ_in_every_word_and_explain_themselves():
    content, other = RowContent("a", 4), RowContent("b", 4)
    prints = request_fingerprints([1], 100, 1, serial=1)
    rows = content.fill(prints, np.zeros((101, 4), np.uint64)).copy()
    long = np.tile(prints, 9)  # many short rows are made in another way
    assert np.array_equal(content.fill(long, np.zeros((909, 4), np.uint64)), np.tile(rows, (9, 1)))
    assert all(len(set(column.tolist())) == 101 for column in rows.T)
    assert not np.any(rows == other.fill(prints, np.zeros((101, 4), np.uint64)))
    assert content.explain(rows[3]) == "row of another token"
    assert content.explain(rows[3] ^ np.array([1, 0, 0, 0], np.uint64)) == "no row at all"
    assert content.explain(np.zeros(4, np.uint64)) == "zeros"


def test_trace_files_round_trip_and_bad_lines_are_named(tmp_path):
    path = tmp_path / "t.jsonl"
    requests = generate_trace(50, 4)
    write_trace(path, requests)
    assert read_trace(path) == requests
    assert read_trace(path, 7) == requests[:7]
    for line in [
        "not json",
        '{"input_length": 5, "output_length": 1}',
        '{"input_length": 513, "output_length": 1, "hash_ids": [1]}',
        '{"input_length": 0, "output_length": 1, "hash_ids": [1]}',
        "[]",
        '{"input_length": Infinity, "output_length": 1, "hash_ids": [1]}',
        '{"input_length": 5, "output_length": 1, "hash_ids": [1e400]}',
        '{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 9007199254740993, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
        '{"input_length": 5, "output_length": 2147483648, "hash_ids": [1]}',
        "[" * 200_000,
    ]:
        path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n' + line + "\n")
        with pytest.raises(TraceError, match="line 2"):
            read_trace(path)
    path.write_text("\n")
    with pytest.raises(TraceError, match="no request"):  # a replay of nothing would pass
        read_trace(path)


@pytest.mark.parametrize("arguments", [(), ("--part", "omni"), ("--part", "context"), ("--sweep", "pages=100")])
def test_prompts_shorter_than_a_page(capsys, tmp_path, arguments):
    write_trace(tmp_path / "short.jsonl", [TraceRequest(i, 1 + 70 * i, 1 + 40 * i, (i,)) for i in range(4)] * 2)
    assert main([str(tmp_path / "short.jsonl"), *arguments]) == 0, capsys.readouterr().out


def test_a_file_name_that_is_no_text(capsys, tmp_path):
    """Nothing is lost for its sake at the end of a long run."""
    name = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.jsonl")
    write_trace(name, generate_trace(3, 4, mean_prompt=300, mean_output=10))
    saved = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.json")
    code, text = replay(capsys, name, "--part", "context", "--json", saved)
    assert code == 0, text
    page = tmp_path / "page.html"
    code, text = replay(capsys, name, "--part", "context", "--compare", saved, "--report", str(page))
    assert code == 0 and "odd\ufffd.json" in text, text
    assert "odd\ufffd.jsonl" in page.read_text()


def test_generated_trace_follows_its_seed_and_shares_prefixes():
    requests = generate_trace(400, 5)
    assert requests == generate_trace(400, 5)
    assert requests != generate_trace(400, 6)
    assert len(requests) == 400
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(requests))
    seen, shared, total = set(), 0, 0
    for request in requests:
        assert len(request.hash_ids) == -(-request.input_length // TOKENS_PER_ID)
        total += len(request.hash_ids)
        shared += sum(i in seen for i in request.hash_ids)
        seen.update(request.hash_ids)
    assert 0.2 < shared / total < 0.9
    repeats = Counter(request.hash_ids for request in requests)
    assert repeats.most_common(1)[0][1] > 1  # bursts of one prompt


def test_the_shared_trace_is_read_when_it_is_there():
    path = SHARED / "traces/mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("the conversation trace is not here (../shared)")
    assert len(read_trace(path)) == 12_031


def check_pool(scheduler):
    """Reference counts, free list and hashes agree, in every state."""
    pool, owners = scheduler.pool, Counter()
    for request in scheduler.running:
        owners.update(request.blocks)
        full = request.published
        for block, value in zip(request.blocks[:full], request.hashes[:full], strict=True):
            # Computed twice at once: only one of the two copies is public.
            assert pool.block_of.get(value) == block or pool.hash_of[block] == 0
    assert all(pool.references[b] == owners[b] for b in range(1, len(pool.references)))
    assert set(pool.free) == {b for b in range(1, len(pool.references)) if not owners[b]}
    assert 0 not in owners
    assert all(pool.hash_of[b] == value for value, b in pool.block_of.items())
    assert pool.cached == sum(pool.hash_of[b] != 0 for b in pool.free)


def check_batch(batch, plan):
    """The worker's rows are exactly what the step computes, with the scheduler's blocks."""
    assert set(batch.req_ids) == set(plan.output.num_scheduled_tokens)
    assert len(batch.req_ids) == len(batch.requests) == len(plan.scheduled)
    for request, _ in plan.scheduled:
        row = batch.req_id_to_index[request.id]
        assert batch.requests[row] is request
        assert request.row == row
        assert batch.table[row, : len(request.blocks)].tolist() == request.blocks
        assert batch.num_computed_tokens_cpu[row] == request.computed


@pytest.mark.parametrize("seed", range(4))
def test_scheduler_keeps_its_books(seed):
    rng = random.Random(seed)
    scheduler = Scheduler(
        num_blocks=160, block_size=16, batch_tokens=1200, max_running=6, rng=rng,
        abort_rate=0.2, preempt_rate=0.05, reuse_rate=0.5,
    )  # fmt: skip
    pending = [
        TraceRequest(
            0, _n := rng.randint(1, 1500), rng.randint(1, 40), tuple(range(f := 10 * rng.randint(1, 20), f + 3))
        )
        for _ in range(60)
    ]
    pending.sort(key=lambda r: r.hash_ids)  # equal prefixes side by side: same-step hits
    live, last_slot, batch = set(), {}, InputBatch(6, 120, 16)
    while pending or not scheduler.idle:
        if pending and len(scheduler.waiting) < 3:
            scheduler.add(pending.pop())
        plan = scheduler.schedule()
        output = plan.output
        assert output.total_num_scheduled_tokens <= 1200
        assert len(plan.scheduled) <= 6
        live -= output.finished_req_ids
        for request in output.scheduled_new_reqs:
            known = request.req_id in live
            assert known or (request.num_computed_tokens == plan.hits.get(request.req_id, 0))
            assert request.num_computed_tokens % 16 == 0
            live.add(request.req_id)
        assert set(output.num_scheduled_tokens) <= live
        for request, count in plan.scheduled:
            assert count >= 1
            assert len(request.blocks) * 16 >= request.computed + count
            # What lies in a hit block was computed for exactly this prefix.
            for place, block in enumerate(request.blocks[: (request.computed + count) // 16]):
                if (place + 1) * 16 > request.computed:
                    last_slot[block] = request.hashes[place]
                else:
                    assert last_slot[block] == request.hashes[place]
        batch.update(plan)
        check_batch(batch, plan)
        scheduler.update(plan)
        check_pool(scheduler)
    stats = scheduler.stats
    assert stats.admitted == stats.finished + stats.aborted == 60
    assert stats.preempted
    assert stats.aborted
    assert stats.same_step_hits
    assert stats.reused_ids
    assert stats.hit_tokens
    assert not live
    assert len(scheduler.pool.free) == 159
