/* SPDX-License-Identifier: Apache-2.0 */
/* copies.h - what arrives in the background, modelled: barriers in shared memory (mbarrier), copies by TMA
 * and by cp.async, and the proxy fence between plain stores and TMA. For fibers.h.
 *
 *   mbarrier   phases are counted, so a wait says which one it means: the one behind the last that this
 *              thread saw end, or that one again, whichever has the parity. The hardware knows only the
 *              parity.
 *   copies     are in flight from when they are issued until the scheduler lets them arrive, in any order;
 *              their destination is NaN meanwhile, and whoever reads it or writes it fails.
 *   a box      comes as its tensor map says, beyond the pool's rows zeros, in TMA's 128-byte swizzle of
 *              shared-memory addresses.
 *
 * Wrong uses end the test: a barrier that is not there, or made twice; more arrivals than it expects, more
 * bytes; a wait for a phase that is over by more than one, which looks as if it were not; TMA at a barrier,
 * or over stores, that it may not see yet (no fence). What is not modelled is the order of plain stores: a
 * store is seen at once by all, so a missing __syncwarp() between two points where the warp meets anyway (an
 * elect.sync, a shuffle) is not found. */
#ifndef TESTS_EMULATION_COPIES_H
#define TESTS_EMULATION_COPIES_H

enum { EMULATED_PIECE = 16, EMULATED_DIMS = 5, EMULATED_SWIZZLE = 128 };

/* A tensor map: sizes and the box in elements, strides in bytes; the innermost dimension first. */
struct emulated_map {
    const uint8_t *base;
    uint32_t element, size[EMULATED_DIMS], box[EMULATED_DIMS];
    uint64_t stride[EMULATED_DIMS]; /* of dimension 0: the element */
};

struct emulated_mbarrier {
    uint32_t count, pending, tx, phase;
    bool is_fenced; /* TMA sees it */
    uint32_t made_by;
    std::vector<int> seen; /* of each fiber: the last phase that it saw end, -1: none */
    emulated_gate gate;
};

struct emulated_cp_async {
    uint32_t to;
    const uint8_t *from; /* NULL: zeros */
    uint32_t bytes;
    emulated_fiber *fiber;
    uint32_t epoch;
};

struct emulated_box {
    uint32_t to;
    const emulated_map *map;
    uint32_t at[EMULATED_DIMS], barrier, bytes;
};

struct emulated_background {
    std::map<uint32_t, emulated_mbarrier> barriers;
    std::vector<emulated_cp_async> copies;
    std::vector<emulated_box> boxes;
    std::vector<uint8_t> in_flight; /* of every 4 bytes of shared memory */
    std::vector<uint32_t>
        stored_by; /* of every piece: 1 + the fiber that stored there and made no fence yet */
    std::vector<uint64_t> arrived_at; /* of every piece: when cp.async wrote it */
    uint64_t boxes_arrived, copies_arrived;
    void (*begins)(uint32_t to, uint32_t bytes); /* a copy to shared memory is issued */
    bool (*may_read)(const void *from, uint32_t bytes);
};

static emulated_background background;

/* Before each block. */
static void emulated_background_reset(size_t bytes)
{
    background.barriers.clear();
    background.copies.clear();
    background.in_flight.assign(bytes / 4, 0);
    background.stored_by.assign(bytes / EMULATED_PIECE, 0);
    background.arrived_at.assign(bytes / EMULATED_PIECE, 0);
}

static uint8_t *emulated_at(uint32_t address)
{
    return (uint8_t *)emulated->dynamic + address;
}

/* ---- shared memory */

static void emulated_must_be_there(uint32_t address, uint32_t bytes, const char *verb)
{
    if (address + bytes > emulated->bytes)
        emulated_fail("address 0x%x is %s, shared memory has %zu bytes", address, verb, emulated->bytes);
    for (uint32_t at = address / 4; at < (address + bytes + 3) / 4; at++) {
        if (background.in_flight[at])
            emulated_fail("address 0x%x is %s while a copy to it is in flight", at * 4, verb);
    }
}

/* A plain store, which TMA sees after a fence only. */
static void emulated_stored(uint32_t address, uint32_t bytes)
{
    emulated_must_be_there(address, bytes, "written");
    for (uint32_t piece = address / EMULATED_PIECE; piece < (address + bytes + 15) / EMULATED_PIECE;
         piece++) {
        background.stored_by[piece] = 1 + scheduler.self->index;
        scheduler.self->stored.push_back(piece);
    }
}

inline uint4 &uint4::operator=(const uint4 &from)
{
    const size_t at = (size_t)((uint8_t *)this - (uint8_t *)emulated->dynamic);
    x = from.x, y = from.y, z = from.z, w = from.w;
    if (at < emulated->bytes) {
        emulated_stored((uint32_t)at, sizeof from);
        emulated_yield();
    }
    return *this;
}

static inline uint32_t load_shared(uint32_t address)
{
    uint32_t x;
    emulated_yield();
    emulated_must_be_there(address, sizeof x, "read");
    memcpy(&x, emulated_at(address), sizeof x);
    return x;
}

template <class T> static inline void store_shared(uint32_t address, const T &x)
{
    emulated_stored(address, sizeof x);
    memcpy(emulated_at(address), &x, sizeof x);
    emulated_yield();
}

static inline void fence_async_proxy()
{
    for (uint32_t piece : scheduler.self->stored) {
        if (background.stored_by[piece] == 1 + scheduler.self->index)
            background.stored_by[piece] = 0;
    }
    scheduler.self->stored.clear();
    scheduler.self->fenced_at = scheduler.clock;
}

/* wgmma reads: what cp.async wrote is seen after a fence only. */
static inline void emulated_read_by_wgmma(uint32_t address)
{
    const uint64_t arrived = background.arrived_at[address / EMULATED_PIECE];
    if (arrived && scheduler.self->fenced_at < arrived)
        emulated_fail("address 0x%x is read by wgmma without a fence behind cp.async", address);
}

static void emulated_take_off(uint32_t to, uint32_t bytes, bool by_tma)
{
    if (to + bytes > emulated->bytes)
        emulated_fail("a copy to address 0x%x, shared memory has %zu bytes", to, emulated->bytes);
    if (background.begins)
        background.begins(to, bytes);
    for (uint32_t at = to / 4; at < (to + bytes) / 4; at++) {
        if (background.in_flight[at]++)
            emulated_fail("two copies to address 0x%x are in flight", at * 4);
    }
    for (uint32_t piece = to / EMULATED_PIECE; by_tma && piece < (to + bytes) / EMULATED_PIECE; piece++) {
        if (background.stored_by[piece])
            emulated_fail("TMA writes address 0x%x, which was stored to without a fence",
                          piece * EMULATED_PIECE);
    }
    memset(emulated_at(to), 0xff, bytes);
}

/* ---- barriers */

static emulated_mbarrier &emulated_mbarrier_at(uint32_t address)
{
    auto found = background.barriers.find(address);
    if (found == background.barriers.end())
        emulated_fail("mbarrier 0x%x is used and not initialised", address);
    return found->second;
}

static inline void mbarrier_init(uint32_t address, uint32_t count)
{
    if (background.barriers.count(address))
        emulated_fail("mbarrier 0x%x is initialised twice", address);
    if (address % 8 != 0 || count == 0)
        emulated_fail("mbarrier 0x%x of %u arrivals", address, count);
    emulated_must_be_there(address, 8, "initialised");
    emulated_mbarrier &b = background.barriers[address];
    b.count = b.pending = count;
    b.made_by = scheduler.self->index;
    b.seen.assign(scheduler.fibers.size(), -1);
    emulated_yield();
}

static inline void mbarrier_fence()
{
    for (auto &b : background.barriers)
        b.second.is_fenced |= b.second.made_by == scheduler.self->index;
}

static void emulated_end_phase(emulated_mbarrier &b)
{
    if (b.pending > 0 || b.tx > 0)
        return;
    b.phase++;
    b.pending = b.count;
    emulated_open(b.gate);
}

static void emulated_arrive_at(uint32_t address)
{
    emulated_mbarrier &b = emulated_mbarrier_at(address);
    if (b.pending == 0)
        emulated_fail("mbarrier 0x%x: an arrival beyond its %u in phase %u", address, b.count, b.phase);
    b.pending--;
    emulated_end_phase(b);
}

static inline void mbarrier_arrive(uint32_t address)
{
    emulated_yield();
    emulated_arrive_at(address);
    emulated_yield();
}

static inline void mbarrier_expect(uint32_t address, uint32_t bytes)
{
    emulated_mbarrier_at(address).tx += bytes;
    mbarrier_arrive(address);
}

static void emulated_complete(uint32_t address, uint32_t bytes)
{
    emulated_mbarrier &b = emulated_mbarrier_at(address);
    if (b.tx < bytes)
        emulated_fail("mbarrier 0x%x: %u bytes arrive in phase %u, which expects %u more", address, bytes,
                      b.phase, b.tx);
    b.tx -= bytes;
    emulated_end_phase(b);
}

static inline bool mbarrier_test(uint32_t address, uint32_t parity)
{
    emulated_yield();
    emulated_mbarrier &b = emulated_mbarrier_at(address);
    int &seen = b.seen[scheduler.self->index], meant = seen + ((uint32_t)(seen + 1) % 2 == parity % 2);
    if (meant < 0 || parity > 1)
        emulated_fail("mbarrier 0x%x: a first wait of parity %u", address, parity);
    if (b.phase > (uint32_t)meant + 1)
        emulated_fail(
            "mbarrier 0x%x: a wait for phase %d, and phase %u has ended: parity %u is that of the next "
            "one",
            address, meant, b.phase - 1, parity);
    if (b.phase <= (uint32_t)meant)
        return false;
    seen = meant;
    return true;
}

static inline void mbarrier_wait(uint32_t address, uint32_t parity)
{
    while (!mbarrier_test(address, parity)) {
        emulated_mbarrier &b = emulated_mbarrier_at(address);
        emulated_wait(b.gate,
                      "mbarrier 0x%x of parity %u: in phase %u, %u of %u arrivals and %u bytes missing",
                      address, parity, b.phase, b.pending, b.count, b.tx);
    }
}

/* elect.sync, which has all lanes wait for each other, where there is TMA; otherwise lane 0. */
static inline bool elect_one()
{
    static const char why[] = "elect_one()";
    if (!TMA)
        return threadIdx.x % EMULATED_LANES == 0;
    emulated_converge(why);
    return threadIdx.x % EMULATED_LANES == emulated->leader;
}

/* ---- cp.async */

static inline void emulated_copy(uint32_t to, const void *from, size_t bytes)
{
    emulated_fiber *fiber = scheduler.self;
    if (to % bytes != 0 || (uintptr_t)from % bytes != 0)
        emulated_fail("cp.async of %zu bytes from %p to 0x%x: not aligned", bytes, from, to);
    if (from && background.may_read && !background.may_read(from, (uint32_t)bytes))
        emulated_fail("cp.async from %p: nothing is there", from);
    emulated_take_off(to, (uint32_t)bytes, false);
    fiber->left.back()++;
    background.copies.push_back(
        {to, (const uint8_t *)from, (uint32_t)bytes, fiber, (uint32_t)fiber->left.size() - 1});
    emulated_yield();
}

static void emulated_count_epochs(emulated_fiber *fiber)
{
    while (fiber->whole + 1 < fiber->left.size() && fiber->left[fiber->whole] == 0)
        fiber->whole++;
    while (!fiber->arrivals.empty() && fiber->arrivals[0].epoch < fiber->whole) {
        const uint32_t barrier = fiber->arrivals[0].barrier;
        fiber->arrivals.erase(fiber->arrivals.begin());
        emulated_arrive_at(barrier);
    }
    emulated_open(fiber->copied);
}

static void emulated_end_epoch()
{
    scheduler.self->left.push_back(0);
    emulated_count_epochs(scheduler.self);
}

static inline void copy_async_commit()
{
    scheduler.self->commits.push_back((uint32_t)scheduler.self->left.size() - 1);
    emulated_end_epoch();
}

static inline void copy_async_wait()
{
    emulated_fiber *fiber = scheduler.self;
    while (!fiber->commits.empty() && fiber->whole <= fiber->commits.back())
        emulated_wait(fiber->copied, "its copies");
    emulated_yield();
}

static inline void mbarrier_arrive_behind_copies(uint32_t address)
{
    emulated_mbarrier_at(address);
    scheduler.self->arrivals.push_back({address, (uint32_t)scheduler.self->left.size() - 1});
    emulated_end_epoch();
    emulated_yield();
}

static void emulated_copy_arrives(const emulated_cp_async &c)
{
    if (c.from)
        memcpy(emulated_at(c.to), c.from, c.bytes);
    else
        memset(emulated_at(c.to), 0, c.bytes);
    for (uint32_t at = c.to / 4; at < (c.to + c.bytes) / 4; at++)
        background.in_flight[at] = 0;
    background.arrived_at[c.to / EMULATED_PIECE] = scheduler.clock;
    background.copies_arrived++;
    c.fiber->left[c.epoch]--;
    emulated_count_epochs(c.fiber);
}

/* ---- TMA */

static inline void tma_prefetch_map(const void *)
{
}

static inline uint64_t evict_first_policy()
{
    return 0;
}

/* The box that a map has at these coordinates: those in use lie in the tensor. */
static emulated_box emulated_box_at(const void *map, uint32_t dim, uint32_t slot, uint32_t atom,
                                    uint32_t head, uint32_t plane)
{
    emulated_box box = {0, (const emulated_map *)map, {dim, slot, atom, head, plane}, 0, 0};
    box.bytes = box.map->element;
    for (int d = 0; d < EMULATED_DIMS; d++) {
        box.bytes *= box.map->box[d];
        if (box.at[d] >= box.map->size[d] || (d > 0 && box.at[d] + box.map->box[d] > box.map->size[d]))
            emulated_fail(
                "a box at dim %u, slot %u, atom %u, head %u, plane %u: the map ends at %u in one of them",
                dim, slot, atom, head, plane, box.map->size[d]);
    }
    return box;
}

static inline void tma_prefetch(const void *map, uint32_t dim, uint32_t atom, uint32_t slot, uint32_t head,
                                uint32_t plane)
{
    emulated_box_at(map, dim, slot, atom, head, plane);
}

static inline void tma_load(uint32_t to, const void *map, uint32_t barrier, uint32_t dim, uint32_t atom,
                            uint32_t slot, uint32_t head, uint32_t plane, uint64_t)
{
    emulated_box box = emulated_box_at(map, dim, slot, atom, head, plane);
    if (!emulated_mbarrier_at(barrier).is_fenced)
        emulated_fail("TMA does not see mbarrier 0x%x yet: no fence since it was initialised", barrier);
    if (to % EMULATED_SWIZZLE != 0)
        emulated_fail("a box to address 0x%x, which is not aligned", to);
    box.to = to;
    box.barrier = barrier;
    emulated_take_off(to, box.bytes, true);
    background.boxes.push_back(box);
    emulated_yield();
}

static void emulated_box_arrives(const emulated_box &box)
{
    const emulated_map &m = *box.map;
    const uint32_t row_bytes = m.box[0] * m.element,
                   there = min(m.box[0], m.size[0] - box.at[0]) * m.element; /* beyond: zeros */
    for (uint32_t i = 0; i < box.bytes / row_bytes; i++) {
        const uint8_t *from = m.base + box.at[0] * m.stride[0] + (box.at[1] + i % m.box[1]) * m.stride[1] +
                              (box.at[2] + i / m.box[1]) * m.stride[2] + box.at[3] * m.stride[3] +
                              box.at[4] * m.stride[4];
        for (uint32_t byte = 0; byte < row_bytes; byte += EMULATED_PIECE) {
            const uint32_t at = box.to + i * row_bytes + byte;
            uint8_t *piece = emulated_at(at ^ (at / EMULATED_SWIZZLE % 8) * EMULATED_PIECE);
            if (byte < there)
                memcpy(piece, from + byte, EMULATED_PIECE);
            else
                memset(piece, 0, EMULATED_PIECE);
        }
    }
    for (uint32_t at = box.to / 4; at < (box.to + box.bytes) / 4; at++)
        background.in_flight[at] = 0;
    background.boxes_arrived++;
    emulated_complete(box.barrier, box.bytes);
}

/* ---- the scheduler's */

static size_t emulated_copies_in_flight()
{
    return background.copies.size() + background.boxes.size();
}

template <class T> static T emulated_draw(std::vector<T> &from)
{
    const size_t at = emulated_random((uint32_t)from.size());
    const T drawn = from[at];
    from[at] = from.back();
    from.pop_back();
    return drawn;
}

/* A box, or some copies. */
static void emulated_copies_arrive()
{
    if (emulated_random((uint32_t)emulated_copies_in_flight()) < background.boxes.size()) {
        emulated_box_arrives(emulated_draw(background.boxes));
        return;
    }
    for (uint32_t n = 1 + emulated_random(64); n > 0 && !background.copies.empty(); n--)
        emulated_copy_arrives(emulated_draw(background.copies));
}

#endif
