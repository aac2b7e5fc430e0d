/*
 * The public C functions of the context cache: identity, manager, page table,
 * coordinator. Each checks the fork flag, calls the Go export of the same name and
 * clears the error text after success; const is dropped because Go exports cannot carry it.
 */
#include "shim.h"

#include "_cgo_export.h"

/* ---------------------------------------------------------------- identity */

PCSHIM_FORWARD(digest_sequence,
               (const pc_sequence *sequence, int32_t tokens_per_page, pc_hash128 *digests, uint64_t num_digests,
                pc_hash128 *prefix),
               ((pc_sequence *)sequence, tokens_per_page, digests, num_digests, prefix))
PCSHIM_FORWARD(digest_bytes, (const void *data, uint64_t size, pc_hash128 *digest), ((void *)data, size, digest))

/* ----------------------------------------------------------------- manager */

PCSHIM_CREATE(manager_create, (const pc_manager_options *options, pc_handle *manager),
              ((pc_manager_options *)options, manager))
PCSHIM_FORWARD(manager_destroy, (pc_handle * manager), (manager))
PCSHIM_FORWARD(manager_acquire,
               (pc_handle manager, uint32_t mode, uint32_t lookup, const pc_sequence *sequence, pc_plan *plan,
                int32_t *base_pages, uint64_t num_base, int32_t *draft_pages, uint64_t num_draft, pc_handle *lease),
               (manager, mode, lookup, (pc_sequence *)sequence, plan, base_pages, num_base, draft_pages, num_draft,
                lease))
PCSHIM_FORWARD(manager_append, (pc_handle manager, pc_handle lease, const int32_t *tokens, uint64_t num_tokens),
               (manager, lease, (int32_t *)tokens, num_tokens))
PCSHIM_FORWARD(manager_grow,
               (pc_handle manager, pc_handle lease, int32_t base, int32_t draft, int32_t *base_pages,
                int32_t *draft_pages),
               (manager, lease, base, draft, base_pages, draft_pages))
PCSHIM_FORWARD(manager_publish, (pc_handle manager, pc_handle lease, int64_t resident, pc_publication *publication),
               (manager, lease, resident, publication))
PCSHIM_FORWARD(manager_advance,
               (pc_handle manager, pc_handle lease, const int32_t *tokens, uint64_t num_tokens, int64_t resident,
                int32_t base, int32_t draft, int32_t *base_pages, int32_t *draft_pages, pc_publication *publication),
               (manager, lease, (int32_t *)tokens, num_tokens, resident, base, draft, base_pages, draft_pages,
                publication))
PCSHIM_FORWARD(manager_publish_keys,
               (pc_handle manager, pc_handle lease, uint64_t first, const pc_hash128 *keys, uint64_t num_keys,
                int64_t resident, pc_publication *publication),
               (manager, lease, first, (pc_hash128 *)keys, num_keys, resident, publication))
PCSHIM_FORWARD(manager_reserve,
               (pc_handle manager, pc_handle lease, uint32_t need_partial, int32_t *recurrent_slot,
                int32_t *partial_slot),
               (manager, lease, need_partial, recurrent_slot, partial_slot))
PCSHIM_FORWARD(manager_publish_hybrid,
               (pc_handle manager, pc_handle lease, int64_t length, int32_t recurrent_slot, int32_t partial_slot,
                pc_publication *publication),
               (manager, lease, length, recurrent_slot, partial_slot, publication))
PCSHIM_FORWARD(manager_publish_hybrid_keys,
               (pc_handle manager, pc_handle lease, uint64_t first, const pc_hash128 *keys, uint64_t num_keys,
                const pc_checkpoint *checkpoint, int32_t recurrent_slot, int32_t partial_slot,
                pc_publication *publication),
               (manager, lease, first, (pc_hash128 *)keys, num_keys, (pc_checkpoint *)checkpoint, recurrent_slot,
                partial_slot, publication))
PCSHIM_FORWARD(manager_retire, (pc_handle manager, pc_handle lease, int32_t recurrent_slot, int32_t partial_slot),
               (manager, lease, recurrent_slot, partial_slot))
PCSHIM_FORWARD(manager_release_restored, (pc_handle manager, pc_handle lease), (manager, lease))
PCSHIM_FORWARD(manager_lease_pages,
               (pc_handle manager, pc_handle lease, uint32_t model, uint64_t first, int32_t *pages, uint64_t space,
                uint64_t *num_pages),
               (manager, lease, model, first, pages, space, num_pages))
PCSHIM_FORWARD(manager_release, (pc_handle manager, pc_handle *lease), (manager, lease))
PCSHIM_FORWARD(manager_lookup, (pc_handle manager, uint32_t mode, const pc_sequence *sequence, pc_plan *plan),
               (manager, mode, (pc_sequence *)sequence, plan))
PCSHIM_FORWARD(manager_invalidate,
               (pc_handle manager, const pc_hash128 *adapter, const uint64_t *generation, uint64_t *removed),
               (manager, (pc_hash128 *)adapter, (uint64_t *)generation, removed))
PCSHIM_FORWARD(manager_flush, (pc_handle manager, uint64_t *removed), (manager, removed))
PCSHIM_FORWARD(manager_evict, (pc_handle manager, uint64_t record), (manager, record))
PCSHIM_FORWARD(manager_records, (pc_handle manager, pc_record *records, uint64_t space, uint64_t *num_records),
               (manager, records, space, num_records))
PCSHIM_FORWARD(manager_record_pages,
               (pc_handle manager, uint64_t record, uint32_t model, uint64_t first, int32_t *pages, uint64_t space,
                uint64_t *num_pages),
               (manager, record, model, first, pages, space, num_pages))
PCSHIM_FORWARD(manager_references,
               (pc_handle manager, uint32_t resource, uint64_t first, int32_t *active, int32_t *cached, uint64_t count),
               (manager, resource, first, active, cached, count))
PCSHIM_FORWARD(manager_get_stats, (pc_handle manager, pc_manager_stats *stats), (manager, stats))
PCSHIM_FORWARD(manager_check, (pc_handle manager), (manager))
PCSHIM_FORWARD(manager_dump, (pc_handle manager, char *text, uint64_t space, uint64_t *size),
               (manager, text, space, size))
PCSHIM_FORWARD(manager_tenants, (pc_handle manager, pc_tenant *tenants, uint64_t space, uint64_t *num_tenants),
               (manager, tenants, space, num_tenants))
PCSHIM_FORWARD(manager_set_quota, (pc_handle manager, const pc_hash128 *isolation, uint32_t quota),
               (manager, (pc_hash128 *)isolation, quota))

/* -------------------------------------------------------------- page table */

PCSHIM_CREATE(table_create, (const pc_table_options *options, pc_handle *table), ((pc_table_options *)options, table))
PCSHIM_FORWARD(table_destroy, (pc_handle * table), (table))
PCSHIM_FORWARD(table_set_identity, (pc_handle table), (table))
PCSHIM_FORWARD(table_set_rows,
               (pc_handle table, const int32_t *slots, uint64_t num_rows, const int32_t *pages, const int64_t *offsets),
               (table, (int32_t *)slots, num_rows, (int32_t *)pages, (int64_t *)offsets))
PCSHIM_FORWARD(table_compact_rows, (pc_handle table, const int32_t *old_to_new, uint64_t count, int32_t new_batch),
               (table, (int32_t *)old_to_new, count, new_batch))
PCSHIM_FORWARD(table_upload, (pc_handle table, uint64_t stream, uint32_t *uploaded), (table, stream, uploaded))
PCSHIM_FORWARD(table_get_row, (pc_handle table, int32_t slot, int32_t *row), (table, slot, row))
PCSHIM_FORWARD(table_get_info, (pc_handle table, pc_table_info *info), (table, info))
PCSHIM_FORWARD(table_check, (pc_handle table), (table))

/* ------------------------------------------------------------- coordinator */

PCSHIM_FORWARD(context_validate_deployment, (const pc_deployment *deployment, uint32_t *kind),
               ((pc_deployment *)deployment, kind))
PCSHIM_CREATE(context_create, (const pc_context_options *options, pc_handle *context),
              ((pc_context_options *)options, context))
PCSHIM_FORWARD(context_destroy, (pc_handle * context), (context))
PCSHIM_FORWARD(context_manager, (pc_handle context, pc_handle *manager), (context, manager))
PCSHIM_FORWARD(context_begin,
               (pc_handle context, const pc_admission *admission, pc_sequence_start *starts, pc_handle *request),
               (context, (pc_admission *)admission, starts, request))
PCSHIM_FORWARD(context_report, (pc_handle context, pc_handle request, uint32_t outcome, pc_work *work),
               (context, request, outcome, work))
PCSHIM_FORWARD(context_prepare_prefill, (pc_handle context, pc_handle request, pc_work *work), (context, request, work))
PCSHIM_FORWARD(context_capture_prefill, (pc_handle context, pc_handle request, pc_work *work), (context, request, work))
PCSHIM_FORWARD(context_finalize_prefill,
               (pc_handle context, pc_handle request, const pc_advance *advance, pc_work *work),
               (context, request, (pc_advance *)advance, work))
PCSHIM_FORWARD(context_prepare_decode,
               (pc_handle context, pc_handle request, int32_t base_headroom, int32_t draft_headroom, pc_work *work),
               (context, request, base_headroom, draft_headroom, work))
PCSHIM_FORWARD(context_complete_decode,
               (pc_handle context, pc_handle request, const pc_advance *advance, pc_work *work),
               (context, request, (pc_advance *)advance, work))
PCSHIM_FORWARD(context_begin_compaction,
               (pc_handle context, pc_handle request, const int32_t *old_to_new, uint64_t count, int32_t new_batch,
                uint64_t device_mapping, pc_work *work),
               (context, request, (int32_t *)old_to_new, count, new_batch, device_mapping, work))
PCSHIM_FORWARD(context_compact, (pc_handle context, pc_handle request, pc_work *work), (context, request, work))
PCSHIM_FORWARD(context_move_slots,
               (pc_handle context, uint32_t model, const int32_t *old_to_new, uint64_t count, uint64_t lengths),
               (context, model, (int32_t *)old_to_new, count, lengths))
PCSHIM_FORWARD(context_finish, (pc_handle context, pc_handle request, pc_work *work), (context, request, work))
PCSHIM_FORWARD(context_abandon, (pc_handle context, pc_handle request, uint32_t drained), (context, request, drained))
PCSHIM_FORWARD(context_shutdown, (pc_handle context, uint32_t drained), (context, drained))
PCSHIM_FORWARD(context_synchronize, (pc_handle context), (context))
PCSHIM_FORWARD(context_get_request, (pc_handle context, pc_handle request, pc_request_info *info),
               (context, request, info))
PCSHIM_FORWARD(context_get_sequence, (pc_handle context, pc_handle request, uint32_t index, pc_sequence_info *info),
               (context, request, index, info))
PCSHIM_FORWARD(context_sequence_pages,
               (pc_handle context, pc_handle request, uint32_t index, uint32_t model, uint64_t first, int32_t *pages,
                uint64_t space, uint64_t *num_pages),
               (context, request, index, model, first, pages, space, num_pages))
PCSHIM_FORWARD(context_sequence_tokens,
               (pc_handle context, pc_handle request, uint32_t index, uint64_t first, int32_t *tokens, uint64_t space,
                uint64_t *num_tokens),
               (context, request, index, first, tokens, space, num_tokens))
PCSHIM_FORWARD(context_get_metrics, (pc_handle context, pc_context_metrics *metrics), (context, metrics))
