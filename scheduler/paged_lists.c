/* SPDX-License-Identifier: Apache-2.0 */
/* paged_lists.c - see paged_lists.h. */
#include "scheduler/paged_lists.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is being made. */
struct build {
    struct paged_refusal *refusal;
    struct request *request;
    const struct config *config;
    const struct paged_lists *lists;
    struct request_paged *paged;
};

static int __attribute__((format(printf, 3, 4)))
refuse(const struct build *b, const char *name, const char *format, ...)
{
    va_list args;
    b->refusal->name = name;
    va_start(args, format);
    vsnprintf(b->refusal->wants, sizeof b->refusal->wants, format, args);
    va_end(args);
    return ATTND_INVALID;
}

static int too_long(const struct build *b, const char *name)
{
    return refuse(b, name, "is too long for one call");
}

/* Which form the tables have, and how many sequences; 0 sequences without q. */
static int count_sequences(const struct build *b, bool has_q)
{
    const struct paged_lists *l = b->lists;
    bool dense = l->block_tables.values || l->context_lens.values,
         sparse = l->kv_indptr.values || l->kv_indices.values || l->kv_last_page_len.values;
    if (!has_q)
        return dense    ? refuse(b, l->block_tables.values ? "block_tables" : "context_lens",
                                 "belongs to q, which is missing")
               : sparse ? refuse(b, "kv_indptr", "belongs to q, which is missing")
                        : 0;
    if (dense == sparse)
        return refuse(b, "block_tables",
                      "wants block_tables and context_lens, or kv_indptr, kv_indices and "
                      "kv_last_page_len");
    if (dense && (!l->block_tables.values || !l->context_lens.values))
        return refuse(b, l->block_tables.values ? "context_lens" : "block_tables", "is missing");
    if (sparse && (!l->kv_indptr.values || !l->kv_indices.values || !l->kv_last_page_len.values))
        return refuse(b,
                      !l->kv_indptr.values    ? "kv_indptr"
                      : !l->kv_indices.values ? "kv_indices"
                                              : "kv_last_page_len",
                      "is missing");
    uint64_t n = dense ? l->context_lens.n : l->kv_last_page_len.n;
    if (n < 1 || n > STEP_LOOSE_TABLES)
        return refuse(b, dense ? "context_lens" : "kv_last_page_len", "wants 1..%d sequences",
                      STEP_LOOSE_TABLES);
    if (dense && l->block_tables.n != n * l->block_tables.columns)
        return refuse(b, "block_tables", "wants a row of the same length for each of %u sequences",
                      (uint32_t)n);
    if (sparse && l->kv_indptr.n != n + 1)
        return refuse(b, "kv_indptr", "wants %u numbers, one more than kv_last_page_len", (uint32_t)n + 1);
    b->paged->sequences = (uint32_t)n;
    return 0;
}

/* How many tokens sequence `s` has by block_tables, and where its ids begin and how many they are. */
static int dense_sequence(const struct build *b, uint32_t s, uint64_t *tokens, uint64_t *at, uint64_t *blocks)
{
    const struct paged_lists *l = b->lists;
    uint32_t size = b->config->geometry.block_size;
    int64_t context = l->context_lens.values[s];
    if (context < 0 || context > b->config->limits.sequence_tokens)
        return refuse(b, "context_lens", "entry %u: wants 0..%u (limits.sequence_tokens)", s,
                      b->config->limits.sequence_tokens);
    *tokens = (uint64_t)context;
    *blocks = (*tokens + size - 1) / size;
    *at = s * l->block_tables.columns;
    if (*blocks > l->block_tables.columns)
        return refuse(b, "context_lens", "entry %u: %u tokens are %u blocks, and its table has %u", s,
                      (uint32_t)context, (uint32_t)*blocks, (uint32_t)l->block_tables.columns);
    return 0;
}

/* The same in CSR. */
static int sparse_sequence(const struct build *b, uint32_t s, uint64_t *tokens, uint64_t *at,
                           uint64_t *blocks)
{
    const struct paged_lists *l = b->lists;
    uint32_t size = b->config->geometry.block_size, most = b->config->limits.sequence_tokens;
    int64_t from = l->kv_indptr.values[s], to = l->kv_indptr.values[s + 1],
            last = l->kv_last_page_len.values[s];
    if (from < 0 || to < from || (uint64_t)to > l->kv_indices.n || (s == 0 && from != 0))
        return refuse(b, "kv_indptr", "wants numbers that rise from 0 to %llu, the number of kv_indices",
                      (unsigned long long)l->kv_indices.n);
    *at = (uint64_t)from;
    *blocks = (uint64_t)(to - from);
    if (*blocks && (last < 1 || last > size))
        return refuse(b, "kv_last_page_len", "entry %u: wants 1..%u (block_size)", s, size);
    *tokens = *blocks ? (*blocks - 1) * size + (uint64_t)last : 0;
    if (*blocks > most || *tokens > most)
        return refuse(b, "kv_indptr", "sequence %u has more than %u tokens (limits.sequence_tokens)", s,
                      most);
    return 0;
}

/* Contexts and block ids. */
static int build_tables(const struct build *b)
{
    const struct paged_lists *l = b->lists;
    struct request_paged *p = b->paged;
    bool dense = l->block_tables.values;
    const struct paged_list *from = dense ? &l->block_tables : &l->kv_indices;
    const char *name = dense ? "block_tables" : "kv_indices";
    uint64_t tokens = 0, at = 0, blocks = 0;
    if (!dense && p->sequences && (uint64_t)l->kv_indptr.values[p->sequences] != l->kv_indices.n)
        return refuse(b, "kv_indptr", "wants numbers that rise from 0 to %llu, the number of kv_indices",
                      (unsigned long long)l->kv_indices.n);
    p->context = request_alloc(b->request, p->sequences, sizeof *p->context);
    p->first = request_alloc(b->request, (size_t)p->sequences + 1, sizeof *p->first);
    p->ids = request_alloc(b->request, from->n + l->slot_mapping.n, sizeof *p->ids);
    if (!p->context || !p->first || !p->ids)
        return too_long(b, name);
    p->first[0] = 0;
    for (uint32_t s = 0; s < p->sequences; s++) {
        int rc = dense ? dense_sequence(b, s, &tokens, &at, &blocks)
                       : sparse_sequence(b, s, &tokens, &at, &blocks);
        if (rc != 0)
            return rc;
        p->context[s] = (uint32_t)tokens;
        p->first[s + 1] = p->first[s] + (uint32_t)blocks; /* at most from->n, which is in memory */
        for (uint64_t i = 0; i < blocks; i++) {
            int64_t id = from->values[at + i];
            if (id < 0 || (uint64_t)id >= b->config->pool_blocks)
                return refuse(b, name, "sequence %u, entry %llu: wants a block in 0..%llu", s,
                              (unsigned long long)i, (unsigned long long)b->config->pool_blocks - 1);
            p->ids[p->first[s] + i] = (uint32_t)id;
        }
    }
    return 0;
}

/* Rows of q of each sequence. */
static int build_rows(const struct build *b)
{
    const struct paged_list *given = &b->lists->indptr;
    struct request_paged *p = b->paged;
    if (p->sequences == 0)
        return given->values ? refuse(b, "indptr", "belongs to q, which is missing") : 0;
    if (given->values && (given->n != (uint64_t)p->sequences + 1 || given->values[0] != 0))
        return refuse(b, "indptr", "wants %u numbers, one more than sequences, rising from 0",
                      p->sequences + 1);
    p->indptr = request_alloc(b->request, (size_t)p->sequences + 1, sizeof *p->indptr);
    if (!p->indptr)
        return too_long(b, "indptr");
    p->indptr[0] = 0;
    for (uint32_t s = 0; s < p->sequences; s++) {
        int64_t end = given->values ? given->values[s + 1] : s + 1, rows;
        if (end < p->indptr[s] || end > INT32_MAX)
            return refuse(b, "indptr", "wants %u numbers, one more than sequences, rising from 0",
                          p->sequences + 1);
        rows = end - (int64_t)p->indptr[s];
        if (p->context[s] && rows > p->context[s])
            return refuse(b, given->values ? "indptr" : "q",
                          "sequence %u has %u tokens, and %lld rows ask for the last of them", s,
                          p->context[s], (long long)rows);
        p->indptr[s + 1] = (uint32_t)end;
    }
    b->request->rows.count = p->indptr[p->sequences];
    return b->request->rows.count ? 0 : refuse(b, "indptr", "has no rows");
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Where k and v go. */
static int build_slots(const struct build *b, bool has_kv)
{
    const struct paged_list *given = &b->lists->slot_mapping;
    struct request_paged *p = b->paged;
    int64_t slots = (int64_t)b->config->pool_blocks * b->config->geometry.block_size;
    if (has_kv != (given->values != NULL))
        return refuse(b, "slot_mapping",
                      has_kv ? "is missing: it says where k and v go"
                             : "belongs to k and v, which are missing");
    if (!has_kv)
        return 0;
    if (given->n < 1 || given->n > b->config->step_rows_max)
        return refuse(b, "slot_mapping", "wants 1..%u slots, one for each row of k and v",
                      b->config->step_rows_max);
    p->tokens = (uint32_t)given->n;
    p->slots = request_alloc(b->request, given->n, sizeof *p->slots);
    int64_t *sorted = request_alloc(b->request, given->n, sizeof *sorted);
    if (!p->slots || !sorted)
        return too_long(b, "slot_mapping");
    memcpy(p->slots, given->values, given->n * sizeof *p->slots);
    memcpy(sorted, given->values, given->n * sizeof *sorted);
    for (uint32_t i = 0; i < p->tokens; i++) {
        if (p->slots[i] < -1 || p->slots[i] >= slots)
            return refuse(b, "slot_mapping", "entry %u: wants block * %u + slot in 0..%lld, or -1", i,
                          b->config->geometry.block_size, (long long)slots - 1);
    }
    qsort(sorted, p->tokens, sizeof *sorted, by_value);
    for (uint32_t i = 1; i < p->tokens; i++) {
        if (sorted[i] >= 0 && sorted[i] == sorted[i - 1])
            return refuse(b, "slot_mapping", "names slot %lld twice", (long long)sorted[i]);
    }
    return 0;
}

int paged_build(struct request *request, const struct config *config, const struct paged_lists *lists,
                bool has_q, bool has_kv, struct paged_refusal *refusal)
{
    struct build b = {refusal, request, config, lists, &request->paged};
    if (!has_q && !has_kv)
        return refuse(&b, "q", "is missing, and so are k and v");
    int rc = count_sequences(&b, has_q);
    if (rc == 0)
        rc = build_tables(&b);
    if (rc == 0)
        rc = build_rows(&b);
    return rc == 0 ? build_slots(&b, has_kv) : rc;
}
