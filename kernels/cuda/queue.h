/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h - what a step does on the GPU: written down first, then issued together.
 *
 * A step's operations come in three lists: a preparation (tables, copies, comparisons and the like), its
 * steady passes, and the others. Control data that they need (table entries, appends, plans) is put into a
 * pinned buffer, which is uploaded at once before anything runs. Everything is in order on one stream;
 * outputs are copied on a second one, while the next pass, or step, is computed. Blocks are swapped on a
 * third one, beside the step's computation. The other passes run beside the steady ones, on a fourth
 * stream: they are small, and wait for host memory. There are two buffers, so that a step is written down,
 * and its control data uploaded on a fifth, while the one before is computed. A step that needs more than
 * the buffer holds is issued in parts, with a wait between them.
 *
 * A streamed step is issued to a stream of the caller's instead of the first one, without graphs, and may be
 * continued: more is written behind what its buffer has. What was issued before, to whichever stream, comes
 * first.
 *
 * A list of passes is issued as one graph if they are many, or, if they are few, when they come again,
 * since a launch costs the host up to 10 us where it runs in a virtual machine. Control data of steady
 * passes comes first in the buffer and so lies at the same addresses whatever else is in the step: a
 * decode step mostly repeats an earlier one, and its graph with it. The latest graphs are kept, so that
 * layers which are computed in several steps, or a client that goes from layer to layer, find theirs when
 * they come again. Else the oldest one is recorded anew, and updated in place if its form is the same.
 *
 * Engine thread only. */
#ifndef KERNELS_CUDA_QUEUE_H
#define KERNELS_CUDA_QUEUE_H

#include "kernels/attention.h"
#include "kernels/cuda/device/step.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launches.h"

enum {
    CUDA_SIDES = 6, /* sets of outputs that are copied to the host: half of them a step's, used in turn */
    CUDA_ARGUMENT_BYTES = 320,
    CUDA_GRAPHS_MANY =
        8, /* a round of a workload in up to so many parts, with two steps in flight; and as many */
    CUDA_GRAPHS = CUDA_GRAPHS_MANY + 64 /* as layers of a client that computes one after the other */
};

struct cuda_operation;
struct cuda_operations {
    struct cuda_operation *list;
    uint32_t count;
};

/* A graph, and what it was recorded from, or will be if that comes again. */
struct cuda_graph {
    CUgraphExec exec; /* NULL: not made yet */
    struct cuda_operations recorded;
    uint64_t used; /* cuda_queue.uses then */
};

/* What belongs to one of the steps in flight: a buffer and its copy on the device, and graphs. */
struct cuda_slot {
    uint8_t *host;
    CUdeviceptr device;
    size_t used, top;              /* taken: from the front for passes, from `top` on for the preparation */
    size_t uploaded, uploaded_top; /* likewise, of it */
    struct cuda_graph graphs[CUDA_GRAPHS]; /* the latest: of many operations, then of few */
};

/* When a step began and ended, in nanoseconds of the device's own clock. (Events would not do: one that
 * is recorded ahead of a graph was found stamped a quarter of a millisecond late.) */
struct cuda_stamps {
    uint64_t begin, end;
};

enum {
    CUDA_TICKETS = 2 * ATTENTION_STEPS_IN_FLIGHT /* so that the step before is still known */
};

/* Of a pass, with pass_stamps: its begin, and the end of each of its parts. 0: it has no such part. */
enum cuda_mark { CUDA_BEGUN, CUDA_APPENDED, CUDA_ATTENDED, CUDA_MERGED, CUDA_STORED, CUDA_MARKS };
struct cuda_pass_stamps {
    uint64_t at[CUDA_MARKS];
};

/* One block, or a part of one, on the device `rows` pieces of `bytes`, `pitch` apart: to or from host memory, where they
 * lie together; or filled with a byte. */
struct cuda_block {
    CUdeviceptr device;
    void *host;
    size_t bytes, pitch;
    uint32_t rows;
    uint8_t fill;
};

struct cuda_queue {
    struct cuda_device *d;
    CUstream main, on;                /* the step's stream; where passes are issued */
    bool streamed, timed;             /* main is the caller's; the step is stamped */
    CUfunction kernels[KERNEL_COUNT]; /* NULL: not in this program */
    size_t control_bytes;
    struct cuda_slot slots[ATTENTION_STEPS_IN_FLIGHT], *slot; /* and the one in use */
    uint64_t emptied; /* times that control data became void: remembered addresses with it */
    struct cuda_operations preparation, steady, passes, *now; /* written down, not issued; and where to */
    struct cuda_operations last_copies;                       /* likewise, of the step's last outputs */
    uint64_t ticket, known_done;                              /* of the step; the latest that is done */
    bool swapping;                                            /* blocks, in this step */
    CUevent done[CUDA_TICKETS], copied[CUDA_SIDES], timer[2];
    CUevent ordered;            /* of order_streams(): a wait goes on after the event was recorded anew */
    struct cuda_stamps *stamps; /* [CUDA_TICKETS], pinned */
    uint64_t *begins;           /* to be stamped with the first thing that is issued; NULL: it is */
    struct cuda_pass_stamps *
        passes_at; /* [ATTENTION_STEPS_IN_FLIGHT][ATTENTION_PASSES_STAMPED], pinned; NULL: passes have none */
    uint32_t pass_layers[ATTENTION_STEPS_IN_FLIGHT][ATTENTION_PASSES_STAMPED],
        passes_begun[ATTENTION_STEPS_IN_FLIGHT];
    struct cuda_pass_stamps *pass; /* that is being written down; NULL: it is not stamped */
    bool side_used[CUDA_SIDES];    /* by the list that is being written down */
    uint64_t uses;                 /* of graphs */
    struct attention_graphs graphs;
};

/* cuda_queue_init(q, d, control_bytes): events, two buffers of that size. False after a failure.
 * cuda_queue_deinit() also after one. */
MUST_USE bool cuda_queue_init(struct cuda_queue *q, struct cuda_device *d, size_t control_bytes);
void cuda_queue_deinit(struct cuda_queue *q);

/* A step: begin, its preparation, then its steady passes, the others, issue, end. `ticket` counts steps from
 * 1 on; the step two before must be done, else begin waits for it. `streamed`: on that stream, and then, instead of begin,
 * continue may follow end, if there is room for more. */
void cuda_queue_begin(struct cuda_queue *q, uint64_t ticket, bool streamed, CUstream stream);
void cuda_queue_continue(struct cuda_queue *q, bool streamed, CUstream stream);
bool cuda_queue_has_room(const struct cuda_queue *q);
void cuda_queue_begin_steady(struct cuda_queue *q);
void cuda_queue_begin_passes(struct cuda_queue *q);
void cuda_queue_issue(struct cuda_queue *q);
void cuda_queue_end(struct cuda_queue *q);
bool cuda_queue_is_done(struct cuda_queue *q, uint64_t ticket);
struct attention_times cuda_queue_times(const struct cuda_queue *q, uint64_t ticket);

/* cuda_queue_stamp_passes: from now on passes are stamped; false after a failure. cuda_queue_begin_pass(q, layer), then cuda_queue_mark():
 * the device notes the time there. The kernel behind a mark begins after the one ahead of it has ended. cuda_queue_pass_times: of a step
 * that is done; how many. */
MUST_USE bool cuda_queue_stamp_passes(struct cuda_queue *q);
void cuda_queue_begin_pass(struct cuda_queue *q, uint32_t layer);
void cuda_queue_mark(struct cuda_queue *q, enum cuda_mark mark);
uint32_t cuda_queue_pass_times(const struct cuda_queue *q, uint64_t ticket,
                               struct attention_pass_times passes[ATTENTION_PASSES_STAMPED]);

/* cuda_queue_reserve(q, bytes, n): see that `bytes` of control data in up to `n` arrays, and as many
 * operations, can follow without a wait. May issue what is written down. bytes and n at most half of
 * what there is. */
void cuda_queue_reserve(struct cuda_queue *q, size_t bytes, uint32_t n);

/* cuda_queue_finish_part: issue what is written down and wait until it is done; control data is void then. */
void cuda_queue_finish_part(struct cuda_queue *q);

/* cuda_queue_take: room for an array in the control buffer, which was reserved, to be filled by the
 * caller. cuda_queue_put: a copy of one; its device address. */
void *cuda_queue_take(struct cuda_queue *q, size_t n, size_t size);
uint64_t cuda_queue_put(struct cuda_queue *q, const void *array, size_t n, size_t size);
uint64_t cuda_queue_address(const struct cuda_queue *q, const void *taken);

/* How a kernel is launched. Its only parameter is a structure without padding, since launches are
 * compared byte by byte. */
void cuda_queue_launch(struct cuda_queue *q, enum cuda_kernel kernel, struct cuda_grid grid,
                       const void *arguments, size_t bytes);
void cuda_queue_copy_in(struct cuda_queue *q, CUdeviceptr to, const void *from, size_t bytes);

/* cuda_queue_begin_swaps, right after cuda_queue_begin(); then cuda_queue_swap: copy a block out to host
 * memory, or in, at once and beside the rest of the step, in the order of these calls. cuda_queue_clear: in
 * its turn. */
void cuda_queue_begin_swaps(struct cuda_queue *q);
void cuda_queue_swap(struct cuda_queue *q, const struct cuda_block *block, bool out);
void cuda_queue_clear(struct cuda_queue *q, const struct cuda_block *block);

/* Outputs of one side: before it is written to; and what is copied from it. */
struct cuda_output {
    void *to;
    CUdeviceptr from;
    size_t bytes;
};

void cuda_queue_await_side(struct cuda_queue *q, unsigned side);
void cuda_queue_copy_out(struct cuda_queue *q, unsigned side, const struct cuda_output *outputs, uint32_t n);

/* cuda_queue_time(q, replays, apart, us): drop what is written down but for the kernels that are timed,
 * and run those `replays` times as a graph; microseconds in us[]. `apart`: with an empty kernel ahead
 * of each pass; the time of empty ones alone is subtracted. No step is in flight. */
bool cuda_queue_time(struct cuda_queue *q, uint32_t replays, bool apart, double *us);

/* cuda_queue_time_read(q, grid, pass): microseconds of a pass of read_all, behind another one that reads an
 * eighth, so that neither the launch nor a sleeping GPU is timed. Leaves what is written down alone. No step
 * is in flight. 0 after a failure. */
double cuda_queue_time_read(struct cuda_queue *q, struct cuda_grid grid, const struct cuda_read_pass *pass);

#endif
