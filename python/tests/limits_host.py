"""A process that meets the limits of its system, for test_limits.py.

Run as a program: `limits_host.py SCENARIO`. A scenario prints what happened, or lines
that test_limits.py waits for. It says nothing of what it saved in a form that a scan
of its memory could take for a row.
"""

import ctypes
import resource
import sys
import time
from ctypes import byref, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof

from abi import EAGER, OK, OUT_OF_MEMORY, ZERO_ON_RELEASE, OmniOptions, Rows, SaveArgs, error, load

GIB = 1 << 30
ROW, TOKENS = 4096, 64  # a row, and how many there are in a step
FILL = 0xA7  # every byte of a row

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_EQUAL, JUMP_GREATER, RETURN = 0x20, 0x15, 0x25, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
MMAP, MADVISE = 9, 28  # x86-64
EINVAL, ENOMEM = 22, 12
HUGEPAGE, DONTDUMP, DONTFORK = 14, 16, 10


def address_limit(more: int) -> None:
    """RLIMIT_AS: what the process has, and `more` bytes."""
    with open("/proc/self/statm") as f:
        pages = int(f.read().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def refuse_system_calls(largest_mapping: int) -> None:
    """A seccomp filter: no advice about huge pages, dumps and forks, and no mapping of
    `largest_mapping` bytes (a multiple of 4 GiB) or more. Threads made later inherit it."""
    program = [
        (LOAD, 0, 0, 0),  # the number of the call
        (JUMP_EQUAL, 0, 3, MMAP),
        (LOAD, 0, 0, 16 + 8 + 4),  # upper half of the length
        (JUMP_GREATER, 0, 6, (largest_mapping >> 32) - 1),
        (RETURN, 0, 0, ERRNO | ENOMEM),
        (JUMP_EQUAL, 0, 4, MADVISE),
        (LOAD, 0, 0, 16 + 8 * 2),  # the advice
        (JUMP_EQUAL, 3, 0, HUGEPAGE),
        (JUMP_EQUAL, 2, 0, DONTDUMP),
        (JUMP_EQUAL, 1, 0, DONTFORK),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ERRNO | EINVAL),
    ]

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint16), ("filter", c_void_p)]

    code = (Instruction * len(program))(*(Instruction(*i) for i in program))
    filter_ = Program(len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, byref(filter_)):
        raise OSError(ctypes.get_errno(), "prctl")


class Omni:
    """One cache, with calls by hand."""

    def __init__(self, lib, **fields):
        self.lib = lib
        settings = {"flags": EAGER, "num_blocks": 64, "block_size": 16, **fields}
        self.handle = c_uint64()
        o = OmniOptions(struct_size=sizeof(OmniOptions), **settings)
        self.check(lib.pc_omni_create(byref(o), byref(self.handle)))

    def check(self, status, want=OK):
        assert status == want, f"status {status}, expected {want}: {error(self.lib)}"

    def open(self, name, row=ROW, schedule=0, want=OK):
        key = c_uint32()
        self.check(
            self.lib.pc_omni_open_key(self.handle, name, c_size_t(len(name)), c_uint64(row), 1, schedule, byref(key)),
            want,
        )
        return key.value

    def save(self, request, slots, keys, fill=FILL, row=ROW):
        """One step of one request, consumed; the rows are gone from the caller's memory."""
        n = len(slots)
        requests, counts = (c_uint64 * 1)(request), (c_int64 * 1)(n)
        at = (c_int64 * n)(*slots)
        data = ctypes.create_string_buffer(n * row)
        ctypes.memset(data, fill, n * row)
        rows = (Rows * len(keys))(*(Rows(key=k, rows=ctypes.addressof(data), row_stride=row) for k in keys))
        args = SaveArgs(
            struct_size=sizeof(SaveArgs),
            requests=ctypes.addressof(requests),
            counts=ctypes.addressof(counts),
            num_requests=1,
            slots=ctypes.addressof(at),
            num_slots=n,
            rows=ctypes.addressof(rows),
            num_rows=len(keys),
        )
        self.check(self.lib.pc_omni_save(self.handle, byref(args)))
        ctypes.memset(data, 0, n * row)
        self.check(self.lib.pc_omni_discard(self.handle, c_uint64(args.step)))

    def finish(self, request):
        done = (c_uint64 * 1)(request)
        self.check(self.lib.pc_omni_step_begin(self.handle, done, c_size_t(1), None, c_size_t(0), None))

    def destroy(self):
        self.check(self.lib.pc_omni_destroy(byref(self.handle)))


def address_space():
    """Sizes that do not fit are refused by name; what fits works as ever."""
    lib = load()
    small = Omni(lib)  # the runtime is up and has its threads
    address_limit(4 * GIB)
    cache = Omni(lib, num_blocks=1 << 20)
    cache.open(b"h", 8192, want=OUT_OF_MEMORY)
    print(error(lib))
    cache.check(lib.pc_omni_check(cache.handle))
    key = cache.open(b"h", 64)
    cache.save(1, range(16), [key], row=64)
    data, buffer = c_void_p(), c_uint64()
    cache.check(lib.pc_buffer_acquire(c_uint64(1 << 40), byref(data), byref(buffer)), OUT_OF_MEMORY)
    print(error(lib))
    cache.check(lib.pc_buffer_acquire(c_uint64(1 << 20), byref(data), byref(buffer)))
    cache.check(lib.pc_buffer_release(buffer))
    small.destroy()
    cache.destroy()


def refused_calls():
    """Large mappings and all advice are refused: one error, one warning of each kind."""
    refuse_system_calls(4 * GIB)
    lib = load()
    lines = []
    log = ctypes.CFUNCTYPE(None, c_void_p, c_int32, ctypes.c_char_p)(
        lambda _, level, text: lines.append((level, text.decode()))
    )
    early = Omni(lib, num_blocks=1 << 16)
    early.open(b"h", ROW, want=OUT_OF_MEMORY)  # 4 GiB
    print(error(lib))
    # Two mirrors of 64 MiB, which fit anywhere: what may not fit is a warning of its own.
    key = early.open(b"h", 64)
    early.save(1, range(64), [key], row=64)
    early.check(lib.pc_set_log(log, None, 3))  # late: it hears of it all the same
    early.open(b"i", 64)
    early.check(lib.pc_set_log(ctypes.cast(None, type(log)), None, 1))
    early.destroy()
    for level, text in lines:
        print(f"{level} {text}")


def residue(flag: str):
    """Rows of two keys whose slots another request takes, and a result that was given back."""
    lib = load()
    cache = Omni(lib, flags=EAGER | (ZERO_ON_RELEASE if flag == "zero" else 0))
    keys = [cache.open(b"h"), cache.open(b"d", schedule=1)]
    other = cache.open(b"o", 8)
    cache.save(1, range(TOKENS), keys)
    wait("live")
    cache.finish(1)  # the deferred rows move to the cache
    wait("live")
    cache.save(2, range(TOKENS), [other], fill=0, row=8)
    data, buffer = c_void_p(), c_uint64()
    cache.check(lib.pc_buffer_acquire(c_uint64(2 << 20), byref(data), byref(buffer)))
    ctypes.memset(data, FILL, 2 << 20)
    cache.check(lib.pc_buffer_release(buffer))
    wait("released")
    cache.destroy()
    wait("destroyed")


def tokens(flag: str):
    """Prompts that were evicted, released, or not finished when the manager went."""
    from prefixcache.context import ContextCacheManager, _abi

    manager = ContextCacheManager(base_pages=64, tokens_per_page=64, max_records=8, zero_on_release=flag == "zero")
    lib, n = _abi.load(), 64 * 20 + 30
    prompt = ctypes.create_string_buffer(4 * n)
    leases = []
    for _ in range(2):
        ctypes.memset(prompt, FILL, 4 * n)
        sequence, plan = _abi.sized(_abi.Sequence), _abi.sized(_abi.Plan)
        sequence.tokens, sequence.num_tokens = ctypes.addressof(prompt), n
        lease = c_uint64()
        assert (
            lib.manager_acquire(manager.handle, 0, 0, byref(sequence), byref(plan), None, 0, None, 0, byref(lease))
            == OK
        )
        for _ in range(40):  # tokens that have no page yet
            assert lib.manager_append(manager.handle, lease, ctypes.addressof(prompt), 64) == OK
        ctypes.memset(prompt, 0, 4 * n)
        assert lib.manager_publish(manager.handle, lease, n, None) == OK
        leases.append(lease)
    wait("live")
    for lease in leases:
        assert lib.manager_release(manager.handle, byref(lease)) == OK
    wait("live")  # cached
    manager.flush()
    wait("released")
    ctypes.memset(prompt, FILL, 4 * n)
    assert lib.manager_acquire(manager.handle, 0, 0, byref(sequence), byref(plan), None, 0, None, 0, byref(lease)) == OK
    ctypes.memset(prompt, 0, 4 * n)
    manager.close()
    wait("destroyed")


def tables():
    """Tables on the Go heap that do not fit: errors, and the process goes on."""
    from prefixcache import PrefixCacheError
    from prefixcache.context import ContextCacheManager, KVPageTable

    with ContextCacheManager(base_pages=4):
        address_limit(2 * GIB)
    for make in (lambda: ContextCacheManager(base_pages=2**29), lambda: KVPageTable(1 << 14, 1 << 15, 1 << 29)):
        try:
            make()
            status = OK
        except PrefixCacheError as e:
            status = e.status
            print(e)
        assert status == OUT_OF_MEMORY
    with ContextCacheManager(base_pages=1000) as manager:
        manager.acquire(list(range(1000))).lease.release()


def wait(line: str) -> None:
    """Let test_limits.py look at the memory."""
    print(line, flush=True)
    sys.stdin.readline()


def warm():
    """The beginning of a mirror becomes present, and no more than was asked for."""
    lib = load()
    cache = Omni(lib, num_blocks=1 << 14, warm_bytes=64 << 20)
    before = resident()
    cache.open(b"h")  # 1 GiB
    deadline = time.monotonic() + 60
    while resident() - before < 64 << 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    print((resident() - before) >> 20)
    cache.destroy()
    for _ in range(20):  # given up in the middle of it
        cache = Omni(lib, num_blocks=1 << 14, warm_bytes=1 << 40)
        cache.open(b"h")
        time.sleep(0.005)
        cache.destroy()


def warm_beyond():
    """Where the mirrors may come to more than there is, none of them is made present."""
    with open("/proc/meminfo") as f:
        memory = int(f.read().partition("MemTotal:")[2].split()[0]) << 10
    lib = load()
    rows = {b"some": ROW, b"all": memory >> 18, b"after": ROW}  # 1 GiB, which may fit; all that there is
    # Where it fits at first, warming begins, and how far it comes until the next key is up to the machine.
    for names in ((b"all", b"some", b"after"), (b"some", b"all", b"after")):
        cache = Omni(lib, num_blocks=1 << 14, warm_bytes=1 << 30)
        before = resident()
        for name in names:
            cache.open(name, row=rows[name])
        opened = resident()
        time.sleep(0.7)
        print((opened - before) >> 20, (resident() - opened) >> 20)
        cache.destroy()


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


SCENARIOS = (address_space, refused_calls, residue, tokens, warm, warm_beyond, tables)

if __name__ == "__main__":
    {f.__name__: f for f in SCENARIOS}[sys.argv[1]](*sys.argv[2:])
