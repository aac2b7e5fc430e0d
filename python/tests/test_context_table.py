"""The page table."""

from __future__ import annotations

import ctypes
import gc

import pytest
from context_host import Rig, prompt

from prefixcache import PrefixCacheError
from prefixcache.context import KVPageTable


def rows(t):
    return [t.row(slot) for slot in range(t.max_batch_size)]


def row(pages, width=4, pool=16):
    pages = list(pages)
    empty = [-1] * (width - len(pages))
    return pages + empty, [p + pool for p in pages] + empty


def plant(t, slot, value=99):
    """Writes into the device copy behind the table's back."""
    width = t.max_pages_per_seq
    ctypes.c_int32.from_address(t.device_pointer + slot * 8 * width).value = value


def test_it_begins_empty_and_dirty():
    with KVPageTable(3, 4, 16) as t:
        assert rows(t) == [row([])] * 3
        assert (t.max_batch_size, t.max_pages_per_seq, t.num_pages) == (3, 4, 16)
        assert (t.dirty_rows, t.is_identity) == (3, False)
        assert t.upload()
        assert t.dirty_rows == 0
        assert [t.device_row(i) for i in range(3)] == rows(t), "C-79: the first upload is the whole table"
        assert not t.upload(), "C-76: nothing is dirty"
    assert t.handle == 0
    t.close()


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 4, 16),
        (3, 0, 16),
        (3, 4, 0),
        (-1, 4, 16),
        (3, 4, 2**30),
        (2**31, 4, 16),
        (3, 2**40, 16),
        (3, 4, "16"),
        (3, 4, 1.5),
    ],
)
def test_arguments_out_of_range(arguments):
    with pytest.raises(PrefixCacheError):
        KVPageTable(*arguments)


def test_c72_rows_are_set_all_or_none():
    t = KVPageTable(4, 4, 16)
    t.set_rows([(0, [1, 2]), (2, [3])])
    t.upload()
    before = rows(t)
    for bad in (
        [(1, [5]), (4, [6])],
        [(1, [5]), (-1, [6])],
        [(1, [5]), (1, [6])],
        [(1, [5]), (3, [0, 1, 2, 3, 4])],
        [(1, [5]), (3, [16])],
        [(1, [5]), (3, [-1])],
        [(1, [5]), (3, [1, -1, 2])],
        [(1, [5]), (3, [2**31])],
        [(1, [5]), (3, ["6"])],
    ):
        with pytest.raises(PrefixCacheError):
            t.set_rows(bad)
        assert (rows(t), t.dirty_rows) == (before, 0), bad
    t.set_rows([])
    assert t.dirty_rows == 0
    t.check_invariants()


def test_c73_only_rows_that_change_become_dirty():
    t = KVPageTable(4, 4, 16)
    t.set_rows([(0, [1, 2]), (1, [3, 4, 5])])
    t.upload()
    t.set_rows([(0, [1, 2]), (1, [3, 4]), (2, [])])
    assert t.dirty_rows == 1
    assert t.row(1) == row([3, 4])
    plant(t, 0)
    plant(t, 3)
    assert t.upload()
    assert t.device_row(1) == row([3, 4])
    assert t.device_row(0)[0][0] == t.device_row(3)[0][0] == 99, "C-77: clean rows do not travel"
    t.set_row(1, ())
    assert t.row(1) == row([])


def test_identity():
    t = KVPageTable(3, 4, 13)
    t.set_identity()
    assert t.is_identity
    assert rows(t) == [row(range(b * 4, b * 4 + 4), pool=13) for b in range(3)]
    t.upload()
    t.set_identity()
    assert t.dirty_rows == 0
    t.set_row(0, [0, 1, 2, 3])  # the same ids, and yet not the identity any more
    assert (t.is_identity, t.dirty_rows) == (False, 0)
    with pytest.raises(PrefixCacheError, match="12"):
        KVPageTable(3, 4, 11).set_identity()


def test_c74_c75_compaction_moves_whole_rows():
    t = KVPageTable(4, 4, 16)
    t.set_rows([(i, range(i, i + 3)) for i in range(4)])
    before = rows(t)
    for mapping, batch in (
        ([0, 0, 1], 2),
        ([0, 2], 2),
        ([0, -2], 1),
        ([0, 1], 1),
        ([-1, -1], 1),
        ([0, 1, 2, 3, -1], 4),
        ([0], -1),
        ([0], 5),
    ):
        with pytest.raises(PrefixCacheError):
            t.compact_rows(mapping, batch)
        assert rows(t) == before, (mapping, batch)
    t.compact_rows([2, -1, 0, 1], 3)  # a permutation is legal at this level
    assert rows(t) == [before[2], before[3], before[0], row([])]
    t.compact_rows([-1, 0], 1)  # rows beyond the mapping become empty, too
    assert rows(t) == [before[3], row([]), row([]), row([])]
    t.compact_rows([], 0)
    assert rows(t) == [row([])] * 4
    t.check_invariants()


def test_c78_back_to_back_uploads():
    t = KVPageTable(4, 64, 1000)
    for step in range(200):
        t.set_rows([(step % 4, [(step * 7 + i) % 1000 for i in range(step % 64)])])
        assert t.upload()
        assert [t.device_row(i) for i in range(4)] == rows(t)


def test_a_device_copy_of_the_caller():
    memory = (ctypes.c_int32 * (2 * 2 * 3))(*[7] * 12)
    t = KVPageTable(2, 3, 8, device_address=ctypes.addressof(memory))
    assert t.device_pointer == ctypes.addressof(memory)
    t.set_row(1, [4, 5])
    t.upload()
    assert list(memory) == [-1] * 6 + [4, 5, -1, 12, 13, -1]


def test_a_table_outlives_its_coordinator():
    rig = Rig()
    rig.publish(prompt(300))
    table = rig.table
    with pytest.raises(PrefixCacheError) as e:
        table.close()
    assert e.value.status == -36
    table.set_row(0, [1])  # no request is live
    rig.coordinator.close()
    assert table.upload()
    table.close()


def test_a_table_that_nobody_closed():
    t = KVPageTable(2, 3, 8)
    handle = t.handle
    library = t._library
    del t
    gc.collect()
    info = ctypes.create_string_buffer(64)
    ctypes.c_uint32.from_buffer(info).value = 32
    assert library.table_get_info(handle, info) == -2


def test_the_device_copy_can_only_be_read_in_host_memory():
    t = KVPageTable(2, 3, 8, host_memory=False)
    t.upload()
    with pytest.raises(PrefixCacheError, match="host_memory"):
        t.device_row(0)
    with pytest.raises(PrefixCacheError, match="slot: 2, expected 0 to 1"):
        KVPageTable(2, 3, 8).device_row(2)
