/*
 * The page table of one model: for each batch slot K page ids, then V page ids, -1
 * where unused. Host state decides; upload() copies the rows that changed to a
 * device copy whose address never changes, so kernels and CUDA graphs may keep it.
 *
 * Make one per model, before the coordinator, and keep it until the coordinator is
 * gone. While a coordinator has live requests, it alone changes the rows.
 */
#ifndef PREFIXCACHE_KV_PAGE_TABLE_HPP
#define PREFIXCACHE_KV_PAGE_TABLE_HPP

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda_types.hpp"
#include "library.hpp"

namespace prefixcache {

/// The page table of one model: K and V page ids of each batch slot, and its copy on the device.
class KVPageTable {
  public:
    /// A new content of one row.
    struct RowUpdate {
        int32_t slot = 0;
        std::vector<int32_t> pages;  ///< K page ids; empty clears the row
    };

    /// @param maxBatchSize    rows
    /// @param maxPagesPerSeq  pages of a row
    /// @param numPages        K pages of the pool; V page ids are K id + numPages
    /// @param hostMemory      device copy in plain host memory, also where there is a GPU
    /// @param libraryPath     see Library
    /// @throws std::runtime_error for arguments out of range
    KVPageTable(int32_t maxBatchSize, int32_t maxPagesPerSeq, int32_t numPages, bool hostMemory = false,
                std::string const& libraryPath = {})
        : mApi(Library::get(libraryPath)) {
        auto options = detail::sized<pc_table_options>();
        options.flags = hostMemory ? static_cast<uint32_t>(PC_HOST_MEMORY) : 0u;
        options.max_batch = maxBatchSize;
        options.row_width = maxPagesPerSeq;
        options.num_pages = numPages;
        detail::check(mApi, mApi.table_create(&options, &mHandle));
    }

    /// Waits for a pending upload. Outlive the coordinator: a table in use is leaked
    /// rather than pulled from under it.
    ~KVPageTable() noexcept { static_cast<void>(mApi.table_destroy(&mHandle)); }

    KVPageTable(KVPageTable const&) = delete;
    KVPageTable& operator=(KVPageTable const&) = delete;

    int32_t maxBatchSize() const { return info().max_batch; }
    int32_t maxPagesPerSeq() const { return info().row_width; }
    int32_t numPages() const { return info().num_pages; }
    bool isIdentity() const { return info().is_identity != 0; }
    int32_t dirtyRows() const { return static_cast<int32_t>(info().dirty_rows); }

    /// Device copy, int32 [maxBatchSize][2][maxPagesPerSeq]; one address for life.
    int32_t* devicePointer() const { return reinterpret_cast<int32_t*>(static_cast<uintptr_t>(info().device_address)); }

    /// Slot b gets pages b * maxPagesPerSeq and following.
    void setIdentity() { detail::check(mApi, mApi.table_set_identity(mHandle)); }

    void setRow(int32_t slot, std::vector<int32_t> const& pages) { setRows({RowUpdate{slot, pages}}); }

    /// All or nothing.
    void setRows(std::vector<RowUpdate> const& updates) {
        std::vector<int32_t> slots;
        std::vector<int32_t> pages;
        std::vector<int64_t> offsets{0};
        for (auto const& update : updates) {
            slots.push_back(update.slot);
            pages.insert(pages.end(), update.pages.begin(), update.pages.end());
            offsets.push_back(static_cast<int64_t>(pages.size()));
        }
        detail::check(mApi, mApi.table_set_rows(mHandle, slots.data(), slots.size(), pages.data(), offsets.data()));
    }

    /// Moves whole rows; rows that are no destination become empty.
    void compactRows(std::vector<int32_t> const& oldToNew, int32_t newBatchSize) {
        detail::check(mApi, mApi.table_compact_rows(mHandle, oldToNew.data(), oldToNew.size(), newBatchSize));
    }

    /// @throws std::runtime_error if an id is out of range or a row has a hole
    void checkInvariants() const { detail::check(mApi, mApi.table_check(mHandle)); }

    /// Copies changed rows, in order on the stream. Returns whether there were any.
    bool upload(cudaStream_t stream) {
        uint32_t uploaded = 0;
        detail::check(mApi, mApi.table_upload(mHandle, reinterpret_cast<uint64_t>(stream), &uploaded));
        return uploaded != 0;
    }

    /// Host state of one row: K ids, then V ids.
    std::vector<int32_t> row(int32_t slot) const {
        std::vector<int32_t> ids(2 * static_cast<size_t>(maxPagesPerSeq()));
        detail::check(mApi, mApi.table_get_row(mHandle, slot, ids.data()));
        return ids;
    }

    pc_handle handle() const noexcept { return mHandle; }

  private:
    pc_table_info info() const {
        auto value = detail::sized<pc_table_info>();
        detail::check(mApi, mApi.table_get_info(mHandle, &value));
        return value;
    }

    pc_api const& mApi;
    pc_handle mHandle = 0;
};

}  // namespace prefixcache

#endif  // PREFIXCACHE_KV_PAGE_TABLE_HPP
