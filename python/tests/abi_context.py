"""The context part of the C ABI, read from include/prefixcache.h.

Prototypes come from the header itself, so that a function or an argument that the Python
side forgot is found; arguments are given by name.
"""

from __future__ import annotations

import ctypes
import re

from abi import ROOT
from context_host import STREAM, Kind, Rig, prompt

from prefixcache.context import ContextCacheManager, KVPageTable, ReusePlanMode, _abi

HEADER = (ROOT / "include" / "prefixcache.h").read_text()
OK, REQUEST_FAILED, POISONED, NOT_FOUND = 0, 1, 2, 4
INVALID, BAD_HANDLE, WRONG_STATE, TOO_SMALL, UNSUPPORTED, BUSY = -1, -2, -3, -4, -5, -36

SCALARS = {
    "pc_handle": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
}


def prototypes() -> dict[str, list[tuple[str, str]]]:
    """Function name without pc_ -> (C type, argument name) of each argument."""
    found = {}
    pattern = r"PC_API pc_status pc_((?:digest|manager|table|context)_\w+)\(([^;]*)\);"
    for name, arguments in re.findall(pattern, HEADER):
        parts = [a.strip().removeprefix("const ") for a in arguments.split(",")]
        found[name] = [re.fullmatch(r"(\w+ ?\**) ?(\w+)", " ".join(a.split())).groups() for a in parts]
        found[name] = [(c_type.replace(" ", ""), argument) for c_type, argument in found[name]]
    return found


PROTOTYPES = prototypes()


def out(value: int = 0x5A5A5A5A5A5A5A5A) -> ctypes.c_uint64:
    """An output with a value that no call writes."""
    return ctypes.c_uint64(value)


def array(kind, values):
    return (kind * len(values))(*values)


def i32(*values):
    return array(ctypes.c_int32, values)


def i64(*values):
    return array(ctypes.c_int64, values)


def hashes(*values):
    return array(_abi.Hash, [_abi.Hash(1, v) for v in values])


def address(thing) -> int:
    return ctypes.addressof(thing)


STAGES = {
    "context_prepare_prefill": "admitted",
    "context_report": "admitted",
    "context_capture_prefill": "prefill",
    "context_finalize_prefill": "captured",
    "context_prepare_decode": "settled",
    "context_complete_decode": "decode",
    "context_begin_compaction": "settled",
    "context_compact": "compaction",
}


class World:
    """One of everything, with good arguments for every function.

    ``good(name)`` are arguments for which the call succeeds; ``call`` replaces some of them
    by name. Pages hold 4 tokens.
    """

    def __init__(self) -> None:
        self.lib = _abi.load()
        self.keep: list[object] = []
        self.objects: list[object] = []

    # ------------------------------------------------------------------ objects

    def manager(self) -> ContextCacheManager:
        m = ContextCacheManager(
            base_pages=16, draft_pages=16, recurrent_slots=4, partial_slots=4, tokens_per_page=4, tenant_quota=1000
        )
        with m.acquire(prompt(10)).lease as lease:
            m.publish(lease, 10)
        return m

    def keyed(self) -> ContextCacheManager:
        return ContextCacheManager(
            base_pages=16, recurrent_slots=4, partial_slots=4, tokens_per_page=4, block_keys=True
        )

    def table(self) -> KVPageTable:
        return KVPageTable(4, 4, 16)

    def sequence(self, tokens=None, **fields):
        """A pc_sequence whose arrays live as long as the world."""
        s = _abi.sized(_abi.Sequence)
        if "keys" not in fields:
            values = i32(*(prompt(10) if tokens is None else tokens))
            s.tokens, s.num_tokens = address(values), len(values)
            self.keep.append(values)
        for name, value in fields.items():
            if isinstance(value, ctypes.Array):
                self.keep.append(value)
                value = address(value)
            setattr(s, name, value)
        return s

    def admission(self, *prompts, **fields):
        a = _abi.sized(_abi.Admission)
        prompts = prompts or (prompt(10),)
        tokens = i32(*(t for p in prompts for t in p))
        cuts = i64(0, *(sum(len(p) for p in prompts[: i + 1]) for i in range(len(prompts))))
        a.num_sequences, a.stream = len(prompts), STREAM
        a.tokens, a.token_offsets = address(tokens), address(cuts)
        self.keep += [tokens, cuts]
        for name, value in fields.items():
            if isinstance(value, ctypes.Array):
                self.keep.append(value)
                value = address(value)
            setattr(a, name, value)
        return a

    def advance(self, committed=(10,), tokens=(7,), **fields):
        a = _abi.sized(_abi.Advance)
        arrays = [i32(*tokens), i64(*range(len(committed) + 1)), i32(*committed)]
        self.keep += arrays
        a.num_sequences = len(committed)
        a.tokens, a.token_offsets, a.committed = map(address, arrays)
        for name, value in fields.items():
            if isinstance(value, ctypes.Array):
                self.keep.append(value)
                value = address(value)
            setattr(a, name, value)
        return a

    def rig(self, stage: str, kind: Kind = Kind.VANILLA, **settings) -> Rig:
        """A coordinator with one request of two sequences, brought to a stage."""
        rig = Rig(kind, tokens_per_page=4, width=8, pages=48, **settings)
        rig.live = rig.begin(prompt(10), prompt(9, 1))
        rig.live.keep = rig.live.request
        order = ["admitted", "prefill", "captured", "settled", "decode", "compaction"]
        at = order.index(stage)
        rig.live.prepare() if at >= 1 else None
        rig.live.compute() if at >= 1 else None
        rig.live.capture() if at >= 2 else None
        rig.live.finalize() if at >= 3 else None
        rig.live.prepare_decode() if at == 4 else None
        rig.coordinator.begin_batch_compaction(rig.live.request, [0, -1], 1) if at == 5 else None
        return rig

    # ---------------------------------------------------------------- arguments

    def good(self, name: str) -> dict[str, object]:
        group = name.split("_")[0]
        values: dict[str, object] = {}
        if group == "manager":
            values = self._good_manager(name)
        elif group == "table":
            values = self._good_table(name)
        elif group == "context":
            values = self._good_context(name)
        elif name == "digest_bytes":
            values = {"data": b"abc", "size": 3, "digest": _abi.Hash()}
        elif name == "digest_sequence":
            digests = (_abi.Hash * 2)()
            values = {"sequence": self.sequence(), "tokens_per_page": 4, "digests": digests}
            values |= {"num_digests": 2, "prefix": _abi.Hash()}
        missing = {a for _, a in PROTOTYPES[name]} - values.keys()
        assert not missing, f"{name}: no good value for {missing}"
        return values

    def _good_manager(self, name: str) -> dict[str, object]:
        keyed = name.endswith("_keys")
        m = self.keyed() if keyed else self.manager()
        self.objects.append(m)
        mode = ReusePlanMode.HYBRID if re.search("reserve|hybrid|retire|restored", name) else ReusePlanMode.VANILLA
        from prefixcache.context import BlockKeySequence

        lease = m.acquire(BlockKeySequence(10) if keyed else prompt(10, 3), mode).lease
        self.objects.append(lease)
        held = m.reserve(lease, True) if mode else None
        record = m.records()[0].id if not keyed else 0
        values = {
            "manager": m.handle,
            "lease": lease.handle,
            "mode": 0,
            "lookup": 0,
            "sequence": self.sequence(),
            "plan": _abi.sized(_abi.Plan),
            "base_pages": i32(*[0] * 4),
            "num_base": 4,
            "draft_pages": i32(*[0] * 4),
            "num_draft": 4,
            "tokens": i32(1, 2),
            "num_tokens": 2,
            "base": 1,
            "draft": 0,
            "resident": 10,
            "publication": _abi.sized(_abi.Publication),
            "first": 0,
            "keys": hashes(1, 2),
            "num_keys": 2,
            "length": 10,
            "need_partial": 1,
            "checkpoint": _abi.Checkpoint(_abi.Hash(5, 5), 10),
            "recurrent_slot": held.recurrent_slot if held else -1,
            "partial_slot": held.partial_kv_slot if held else -1,
            "model": 0,
            "pages": i32(*[0] * 8),
            "space": 8,
            "num_pages": out(),
            "adapter": _abi.Hash(1, 1),
            "generation": ctypes.c_uint64(1),
            "removed": out(),
            "record": record,
            "records": (_abi.Record * 8)(),
            "num_records": out(),
            "resource": 0,
            "active": i32(*[0] * 16),
            "cached": i32(*[0] * 16),
            "count": 16,
            "stats": _abi.sized(_abi.ManagerStats),
            "text": ctypes.create_string_buffer(64),
            "size": out(),
            "tenants": (_abi.Tenant * 8)(),
            "num_tenants": out(),
            "isolation": _abi.Hash(1, 1),
            "quota": 500,
        }
        if name == "manager_create":
            values["options"] = _abi.sized(_abi.ManagerOptions)
            values["options"].base_pages = 4
            values["manager"] = out()
        elif name == "manager_destroy":
            values["manager"] = m._handle
        elif name == "manager_acquire":
            values["lease"] = out()
        elif name == "manager_release":
            values["lease"] = lease._handle
        elif name == "manager_reserve":
            values |= {"recurrent_slot": ctypes.c_int32(77), "partial_slot": ctypes.c_int32(77)}
        elif name == "manager_dump":
            values["space"] = 64
        return values

    def _good_table(self, name: str) -> dict[str, object]:
        t = self.table()
        self.objects.append(t)
        values = {
            "table": t.handle,
            "slots": i32(0, 2),
            "num_rows": 2,
            "pages": i32(3, 4, 5),
            "offsets": i64(0, 1, 3),
            "old_to_new": i32(1, 0, -1),
            "count": 3,
            "new_batch": 2,
            "stream": STREAM,
            "uploaded": ctypes.c_uint32(77),
            "slot": 1,
            "row": i32(*[0] * 8),
            "info": _abi.sized(_abi.TableInfo),
        }
        if name == "table_create":
            values["options"] = _abi.sized(_abi.TableOptions)
            values["options"].flags = _abi.HOST_MEMORY
            values["options"].max_batch = values["options"].row_width = values["options"].num_pages = 4
            values["table"] = out()
        elif name == "table_destroy":
            values["table"] = t._handle
        return values

    def _good_context(self, name: str) -> dict[str, object]:
        rig = self.rig(STAGES.get(name, "settled"), requests=2)
        self.objects.append(rig)
        c = rig.coordinator
        values: dict[str, object] = {
            "context": c.handle,
            "request": rig.live.request.handle,
            "work": _abi.sized(_abi.Work),
            "admission": self.admission(prompt(5, 8), slots=i32(2)),
            "starts": (_abi.SequenceStart * 4)(),
            "advance": self.advance((10, 9), (7, 7)),
            "outcome": 0,
            "base_headroom": 0,
            "draft_headroom": 0,
            "old_to_new": i32(0, -1),
            "count": 2,
            "new_batch": 1,
            "device_mapping": 0,
            "lengths": 0,
            "drained": 1,
            "info": _abi.sized(_abi.SequenceInfo if name == "context_get_sequence" else _abi.RequestInfo),
            "index": 0,
            "model": 0,
            "first": 0,
            "pages": i32(*[0] * 8),
            "space": 8,
            "num_pages": out(),
            "tokens": i32(*[0] * 8),
            "num_tokens": out(),
            "metrics": _abi.sized(_abi.ContextMetrics),
            "manager": out(),
        }
        if name == "context_begin":
            values["request"] = out()
        elif name == "context_complete_decode":
            values["advance"] = self.advance((11, 10), (8, 8))
        elif name == "context_report":
            assert (
                self.lib.context_prepare_prefill(c.handle, rig.live.request.handle, ctypes.byref(values["work"])) == OK
            )
        elif name == "context_create":
            table = self.table()
            self.objects.append(table)
            o = values["options"] = _abi.sized(_abi.ContextOptions)
            o.flags, o.tokens_per_page, o.max_batch = _abi.HOST_MEMORY, 4, 4
            o.base = _abi.CacheResources(table=table.handle, num_pages=16, max_batch=4, capacity_tokens=16)
            values["context"] = out()
        elif name == "context_validate_deployment":
            values["deployment"], values["kind"] = self.deployment(), ctypes.c_uint32(77)
        elif name in ("context_destroy", "context_shutdown"):
            rig.live.finish()
            values["context"] = c._handle if name == "context_destroy" else c.handle
        return values

    def model(self):
        layers, attention = array(ctypes.c_uint32, [1]), (_abi.AttentionLayer * 1)(_abi.AttentionLayer(0, 0, 1, 2))
        self.keep += [layers, attention]
        return _abi.Model(
            max_batch=2,
            capacity_tokens=16,
            num_pages=8,
            layers=address(layers),
            num_layers=1,
            attention=address(attention),
            num_attention=1,
        )

    def deployment(self):
        d, m = _abi.sized(_abi.Deployment), self.model()
        self.keep.append(m)
        d.tokens_per_page, d.base = 4, ctypes.pointer(m)
        return d

    # --------------------------------------------------------------------- calls

    def call(self, name: str, values: dict[str, object], **replaced: object) -> int:
        assert replaced.keys() <= values.keys(), f"{name} has no argument {replaced.keys() - values.keys()}"
        arguments = []
        for c_type, argument in PROTOTYPES[name]:
            value = {**values, **replaced}[argument]
            if c_type in SCALARS:
                value = SCALARS[c_type](value)
            elif isinstance(value, (ctypes.Structure, ctypes._SimpleCData)):
                value = ctypes.byref(value)
            arguments.append(value)
        return getattr(self.lib, name)(*arguments)

    def refused(self, name: str, values: dict[str, object], expected: int, says: str, **replaced: object) -> None:
        """The call fails as expected, says why, and changes nothing."""
        before = self.snapshot()
        assert self.call(name, values, **replaced) == expected, self.error()
        assert re.search(says, self.error()), f"{name} says {self.error()!r}, expected {says!r}"
        assert self.snapshot() == before

    def error(self) -> str:
        return self.lib.error_text()

    def snapshot(self) -> list[object]:
        """All that a refused call must leave as it is."""
        seen: list[object] = []
        for thing in self.objects:
            if isinstance(thing, ContextCacheManager) and thing.handle:
                seen += [thing.dump(), thing.metrics(), thing.records()]
            elif isinstance(thing, KVPageTable) and thing.handle:
                seen.append([thing.row(i) for i in range(4)] + [thing.dirty_rows, thing.is_identity])
            elif isinstance(thing, Rig) and thing.coordinator.handle:
                metrics = thing.coordinator.metrics()
                metrics.pop("planning_nanoseconds")
                seen += [metrics, thing.manager.dump(), [thing.table.row(i) for i in range(4)], thing.table.dirty_rows]
                if thing.live.request.valid():
                    seen.append(thing.live.request.inspect())
        return seen
