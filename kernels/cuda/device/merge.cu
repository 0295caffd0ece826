/* SPDX-License-Identifier: Apache-2.0 */
/* merge.cu - queries whose work tiles left partial states: fold them, in order of position, and write its
 * output.
 *
 * Thread: four elements of one query head of one merge. Grid: merges x thread blocks that a merge needs.
 * Where merges are few, a thread block is one warp wide, and the warps with threadIdx.y > 0 only copy
 * partials and find weights. Partials are taken pass.merge_batch_size at a time (a power of two, up to a
 * warp). While their o is on its way, a warp finds the weights of all of them for a head, a lane each; then
 * what goes on one after the other is a multiplication and an addition an element. What does not depend on
 * the states is found before the work tiles are awaited.
 *
 * The operations on an element are those of the work tiles' kernels, so it does not matter where a fold is
 * cut. A maximum is the same in any order. Ahead of a partial of a level lie whole nodes of it, so the levels
 * below it are empty.
 *
 * merge_spans folds queries of several spans: one level more, whose maximum each thread has. */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/states.cuh"

static constexpr uint32_t MERGE_VECTORS = HEAD_DIM / 4, MERGE_COPIES = 8 /* of partials, at once */;

/* A batch of `count` partials, one a lane, of the `left` that the query still has. `behind`: the chunk at which
 * the batch before it ended, 0 for the first. Masks have a bit a partial. A partial may end its run, if that is
 * open, its segment, and its span, if there are several. */
struct merge_batch {
    partial_ref ref; /* the lane's, or one that changes nothing */
    uint32_t count;
    bool there;
    uint32_t chunks, runs;                           /* masks: of partials of these levels, */
    uint32_t run_ends, segment_ends, span_ends;      /* and of what ends with them */
    uint32_t run_first, segment_first, span_first;   /* the first lane of the lane's run, segment and span */
    bool run_goes_on, segment_goes_on, span_goes_on; /* at lane 0, from behind */

    merge_batch(const partial_ref *partials, uint32_t count_, uint32_t left, uint32_t behind, bool has_spans)
        : count(count_), there(lane() < count_), span_ends(0), span_first(0), span_goes_on(true)
    {
        ref = {0, 1, PLAN_SEGMENT};
        if (count > 0)
            ref = partials[there ? lane() : 0];
        bool last = count == left && lane() + 1 == count;
        uint32_t run = (ref.end_chunk - 1) / RUN_CHUNKS, segment = (ref.end_chunk - 1) / SEGMENT_CHUNKS,
                 span = (ref.end_chunk - 1) / SPAN_CHUNKS;
        chunks = __ballot_sync(ALL_LANES, there && ref.level == PLAN_CHUNK);
        runs = __ballot_sync(ALL_LANES, there && ref.level == PLAN_RUN);
        run_ends = __ballot_sync(ALL_LANES, ref.end_chunk % RUN_CHUNKS == 0 || last) & chunks;
        segment_ends =
            __ballot_sync(ALL_LANES, ref.end_chunk % SEGMENT_CHUNKS == 0 || last) & (chunks | runs);
        run_first = first_of(run);
        segment_first = first_of(segment);
        run_goes_on = __shfl_sync(ALL_LANES, run, 0) == (behind - 1) / RUN_CHUNKS;
        segment_goes_on = __shfl_sync(ALL_LANES, segment, 0) == (behind - 1) / SEGMENT_CHUNKS;
        if (has_spans) {
            span_ends = __ballot_sync(ALL_LANES, there && (ref.end_chunk % SPAN_CHUNKS == 0 || last));
            span_first = first_of(span);
            span_goes_on = __shfl_sync(ALL_LANES, span, 0) == (behind - 1) / SPAN_CHUNKS;
        }
    }
    /* the first lane of those up to this one that have the same node */
    static uint32_t first_of(uint32_t node)
    {
        uint32_t before = __shfl_up_sync(ALL_LANES, node, 1);
        uint32_t firsts = __ballot_sync(ALL_LANES, lane() == 0 || before != node);
        return 31 - __clz(firsts & (2u << lane()) - 1);
    }
    bool is_in(uint32_t mask) const
    {
        return mask >> lane() & 1;
    }
};

/* The largest of a level from the beginning of its node on, before the lane's partial and after it. `first`:
 * the node's first lane, of which up to `most` have it in common; `carried`: from behind, if the node at
 * lane 0 goes on. */
struct level_maxima {
    float before, after;

    level_maxima(float x, uint32_t first, uint32_t most, float carried, bool goes_on) : after(x)
    {
        const float ahead = goes_on && first == 0 ? carried : -INFINITE;
        for (uint32_t apart = 1; apart < most; apart *= 2) {
            float other = __shfl_up_sync(ALL_LANES, after, apart);
            after = lane() >= first + apart ? fmaxf(after, other) : after;
        }
        after = fmaxf(after, ahead);
        before = __shfl_up_sync(ALL_LANES, after, 1);
        before = lane() > first ? before : ahead;
    }
};

/* Shared memory of partials: o [batch_size][thread]; by partial and head the weights with which the partial
 * goes into its level, l, and the maximum of the span up to it; the weights of the run that goes into its
 * segment, and of the segment into the span. And by head the maxima of the levels so far. */
struct merge_memory {
    uint32_t heads; /* of the thread block */
    float4 *o, *partials, *nodes;
    float *maxima;

    merge_memory(uint8_t *at, uint32_t batch_size)
        : heads(merge_heads(HEAD_DIM, blockDim.x)), o((float4 *)at), partials(o + batch_size * blockDim.x),
          nodes(partials + batch_size * heads), maxima((float *)(nodes + batch_size * heads))
    {
    }

    /* By a warp, for one head: m and l of the lane's partial are `ml`. */
    void find_weights(uint32_t head, const float2 &ml, const merge_batch &p, uint32_t count) const
    {
        float *m = maxima + head * FOLD_LEVELS;
        const float x = p.there ? ml.x : -INFINITE;
        const level_maxima in_run(p.is_in(p.chunks) ? x : -INFINITE, p.run_first,
                                  p.chunks ? min(count, RUN_CHUNKS) : 0, m[0], p.run_goes_on);
        const level_maxima in_segment(p.is_in(p.runs)       ? x
                                      : p.is_in(p.run_ends) ? in_run.after
                                                            : -INFINITE,
                                      p.segment_first, p.chunks | p.runs ? min(count, SEGMENT_CHUNKS) : 0,
                                      m[1], p.segment_goes_on);
        const level_maxima in_span(p.is_in(p.segment_ends)      ? in_segment.after
                                   : p.is_in(p.chunks | p.runs) ? -INFINITE
                                                                : x,
                                   p.span_first, count, m[2], p.span_goes_on);
        const float before = p.is_in(p.chunks) ? in_run.before
                             : p.is_in(p.runs) ? in_segment.before
                                               : in_span.before;
        const merge_weights of_partial(before, x), of_run(in_segment.before, in_run.after),
            of_segment(in_span.before, in_segment.after);
        __syncwarp(); /* the maxima are read */
        if (p.there) {
            partials[lane() * heads + head] = {of_partial.into, of_partial.from, ml.y, in_span.after};
            nodes[lane() * heads + head] = {of_run.into, of_run.from, of_segment.into, of_segment.from};
        }
        if (lane() + 1 == count) {
            m[0] = in_run.after;
            m[1] = in_segment.after;
            m[2] = in_span.after;
        }
    }
};

/* A thread's elements of the fold, l too; of the level above spans, if there is one, m. */
template <int LEVELS> struct merge_fold {
    float4 o[LEVELS];
    float l[LEVELS], m = -INFINITE;

    void clear(int level)
    {
        l[level] = 0;
        o[level] = {0, 0, 0, 0};
    }
    void add(int level, const float4 &from_o, float from_l, float into, float from)
    {
        l[level] = merge_weights::weighted_sum(l[level], into, from_l, from);
        o[level] = merge_weights::weighted_sum(o[level], into, from_o, from);
    }
    void close(int level, float into, float from)
    {
        add(level + 1, o[level], l[level], into, from);
        clear(level);
    }
    void close_span(float m_span)
    {
        const merge_weights w(m, m_span);
        close(FOLD_LEVELS - 1, w.into, w.from);
        m = w.m;
    }
    /* The partials [first, end), all of this level. */
    void add_partials(int level, const merge_memory &memory, uint32_t first, uint32_t end, uint32_t head)
    {
        const float4 *from_o = memory.o + first * blockDim.x + threadIdx.x,
                     *partial = memory.partials + first * memory.heads + head;
        float4 next_o = *from_o, next = *partial;
        for (; first < end; first++) { /* one ahead */
            const float4 this_o = next_o, this_partial = next;
            if (first + 1 < end) {
                next_o = *(from_o += blockDim.x);
                next = *(partial += memory.heads);
            }
            add(level, this_o, this_partial.z, this_partial.x, this_partial.y);
        }
    }
    /* The partials that lie in shared memory, `count` of them. */
    void add_all(const merge_memory &memory, const merge_batch &p, uint32_t count, uint32_t head)
    {
        uint32_t ends = p.run_ends | p.segment_ends | p.span_ends | (p.chunks ^ p.chunks >> 1) |
                        (p.runs ^ p.runs >> 1) | 1u << (count - 1);
        for (uint32_t first = 0, end; first < count; first = end) {
            end = first + __ffs(ends >> first);
            const float4 node = memory.nodes[(end - 1) * memory.heads + head];
            if (p.chunks >> first & 1)
                add_partials(0, memory, first, end, head);
            else if (p.runs >> first & 1)
                add_partials(1, memory, first, end, head);
            else
                add_partials(2, memory, first, end, head);
            if (p.run_ends >> (end - 1) & 1)
                close(0, node.x, node.y);
            if (p.segment_ends >> (end - 1) & 1)
                close(1, node.z, node.w);
            if constexpr (LEVELS > FOLD_LEVELS) {
                if (p.span_ends >> (end - 1) & 1)
                    close_span(memory.partials[(end - 1) * memory.heads + head].w);
            }
        }
    }
};

/* HAS_SPANS: queries may have several. Those that have not are spared what that takes in registers. */
template <bool HAS_SPANS> void merge_queries(const cuda_attend_pass &pass)
{
    constexpr uint32_t heads = KV_HEADS * GROUP;
    DYNAMIC_SHARED(uint8_t, merge_shared);
    const merge_memory memory(merge_shared, pass.merge_batch_size);
    const uint32_t blocks = gridDim.x / pass.merge_count, block_at = blockIdx.x % blocks * blockDim.x,
                   at = block_at + threadIdx.x, vector = at % MERGE_VECTORS,
                   first_head = block_at / MERGE_VECTORS;
    const bool is_used = at / MERGE_VECTORS < heads;
    const uint32_t head = min(at / MERGE_VECTORS, heads - 1);
    const plan_merge m = pass.merges[blockIdx.x / blocks];
    const float v_scale = pass.v_scale[head / GROUP]; /* long before it is needed */
    constexpr int LEVELS = FOLD_LEVELS + HAS_SPANS, TOP = LEVELS - 1;
    merge_fold<LEVELS> fold;
    const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    uint32_t behind = 0, done = 0;

    /* clear the fold */
    for (int level = 0; level < LEVELS; level++)
        fold.clear(level);
    for (uint32_t i = thread; i < memory.heads * FOLD_LEVELS; i += threads)
        memory.maxima[i] = -INFINITE;
    __syncthreads(); /* they are there */

    /* batch by batch: */
    do {
        const merge_batch p(pass.merge_partials + m.first + done, min(m.count - done, pass.merge_batch_size),
                            m.count - done, behind, HAS_SPANS);
        const uint32_t n = p.count;
        if (done == 0) {
            await_previous();
            let_next_begin();
        }
        /* send for o of the partials */
        for (uint32_t first = threadIdx.y * MERGE_COPIES; first < n; first += blockDim.y * MERGE_COPIES) {
            const float4 *from[MERGE_COPIES];
            for (uint32_t i = 0; i < MERGE_COPIES; i++)
                from[i] = (const float4 *)pass.partial_o +
                          ((size_t)__shfl_sync(ALL_LANES, p.ref.partial, first + i) * heads + head) *
                              MERGE_VECTORS +
                          vector;
            for (uint32_t i = 0; i < MERGE_COPIES; i++) {
                if (first + i < n)
                    copy_async<16>(shared_address(&memory.o[(first + i) * blockDim.x + threadIdx.x]), from[i],
                                   true);
            }
        }
        copy_async_commit();
        /* find their weights meanwhile, a head a warp; the last warps have the fewest copies to make */
        for (uint32_t of = threads / 32 - 1 - thread / 32; of < memory.heads && n > 0; of += threads / 32) {
            size_t of_ml = (size_t)p.ref.partial * heads + min(first_head + of, heads - 1);
            memory.find_weights(of, ((const float2 *)pass.partial_ml)[of_ml], p, n);
        }
        copy_async_wait();
        __syncthreads(); /* the weights are there */
        /* fold them; n is 0 only for a query without keys */
        if (n > 0 && threadIdx.y == 0)
            fold.add_all(memory, p, n, head - first_head);
        behind = __shfl_sync(ALL_LANES, p.ref.end_chunk, n - 1);
        done += n;
        __syncthreads(); /* all is read */
    } while (done < m.count);

    /* epilogue */
    if (!is_used || threadIdx.y > 0)
        return;
    const float of_query = HAS_SPANS ? fold.m : memory.maxima[(head - first_head) * FOLD_LEVELS + TOP];
    const output_scale f(of_query, fold.l[TOP], pass.sinks ? &pass.sinks[head] : nullptr, v_scale);
    size_t query = (size_t)m.query * heads + head;
    store_results<Q_DTYPE>(pass.o, query * HEAD_DIM + vector * 4, f(fold.o[TOP].x), f(fold.o[TOP].y));
    store_results<Q_DTYPE>(pass.o, query * HEAD_DIM + vector * 4 + 2, f(fold.o[TOP].z), f(fold.o[TOP].w));
    if (vector == 0)
        pass.lse[query] = f.lse;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, __CUDA_ARCH__ == 900 ? 8 : 3)
    merge(const __grid_constant__ cuda_attend_pass pass)
{
    merge_queries<false>(pass);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3)
    merge_spans(const __grid_constant__ cuda_attend_pass pass)
{
    merge_queries<true>(pass);
}
