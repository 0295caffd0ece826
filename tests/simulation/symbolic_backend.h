/* SPDX-License-Identifier: Apache-2.0 */
/* symbolic_backend.h - a backend that computes with tags instead of numbers.
 *
 * A row of k carries a tag, a row of v its hash, and a row of q a tag of its own. The pool keeps a tag
 * for every slot of every layer. "Attention" of a row is the sum of a hash of every tag that it sees and
 * of where it sees it, so a wrong block, a missed copy or a key too many gives another output, and
 * whoever knows the tokens can predict it. */
#ifndef TESTS_SIMULATION_SYMBOLIC_BACKEND_H
#define TESTS_SIMULATION_SYMBOLIC_BACKEND_H

#include "config/config.h"
#include "kernels/attention.h"

enum {
    SYMBOLIC_HEAD_DIM = 8, /* of f32: a row of a head is four words of 64 bits */
    SYMBOLIC_WORDS = 4,
    SYMBOLIC_HEADS_MOST = 8
};

/* A row of q, k, v or o of one head; those of the other heads of a token are the same. */
struct symbolic_row {
    uint64_t word[SYMBOLIC_WORDS];
};

/* symbolic_put: row `row` of a tensor, at every head. symbolic_get: its first head, or NULL if another one
 * differs. */
void symbolic_put(struct symbolic_row *tensor, size_t row, uint32_t heads, struct symbolic_row value);
const struct symbolic_row *symbolic_get(const void *tensor, size_t row, uint32_t heads);

/* How the backend of the next open behaves. */
struct symbolic_conduct {
    uint64_t seed;
    bool at_once;       /* a step is done when submit returns */
    double latency_s;   /* else about so long after it was submitted, or after the one before */
    uint64_t fail_at;   /* the step that loses the device; 0: none */
    bool fail_given_up; /* the first one while a request that is given up is in flight */
    uint64_t hang_at;   /* the step that takes hang_s */
    double hang_s;
    bool differs;  /* self-tests fail */
    double key_us; /* if not 0: a query sees a key in it, a work tile reads one in twice as long; else
                   latency_s */
};

/* Time that queries of each meter have taken: of a client's those whose word[SYMBOLIC_METER] is the
 * meter's number plus 1, of a workload those with its seed. */
enum { SYMBOLIC_METER = 3, SYMBOLIC_METERS = 24 };
struct symbolic_meter {
    uint64_t seed; /* 0: of clients */
    double us;
    uint64_t ticket, longest; /* the step in which it had some last; steps between two such */
};
extern struct symbolic_meter symbolic_meters[SYMBOLIC_METERS];

/* symbolic_backend_open: for engine_options.open_backend; behaves as symbolic_backend_conduct says. */
extern struct symbolic_conduct symbolic_backend_conduct;
int symbolic_backend_open(const struct attention_options *options, struct attention **attention,
                          char error[ATTENTION_ERROR_BYTES]);

/* When the oldest step in flight is done; negative: none is. */
double symbolic_backend_done_s(void);

/* symbolic_constants: a hash of a model's constants. symbolic_backend_constants: of those that the backend
 * sees. symbolic_backend_appended: the turn in which something was appended first; UINT64_MAX: nothing
 * was. */
uint64_t symbolic_constants(const struct model_constants *constants, const struct geometry *geometry);
uint64_t symbolic_backend_constants(void);
uint64_t symbolic_backend_appended(void);

/* symbolic_backend_given_up: a request that has something in flight was given up. */
void symbolic_backend_given_up(void);

/* Self-tests, and measurements of the roof, that are done. */
uint64_t symbolic_backend_tests(void);
uint64_t symbolic_backend_roofs(void);

/* Whether slots from `first` on of a block were made unwritten, and nothing was put there since. */
bool symbolic_backend_is_unwritten(uint32_t block, uint32_t first);

/* The tag that stands in a slot of the pool now. */
uint64_t symbolic_backend_tag(uint32_t layer, uint32_t block, uint32_t slot);

/* What a row of tag `tag` at `position` adds to an output. */
uint64_t symbolic_term(uint64_t tag, uint32_t position);

/* k and v of a token: `base` is carried along for whoever wants to know. */
struct symbolic_row symbolic_k(uint64_t tag, uint64_t base);
struct symbolic_row symbolic_v(uint64_t tag);

/* symbolic_wrong: a v that is not finite. symbolic_is_refused: whether a row of o is what follows one. */
struct symbolic_row symbolic_wrong(uint64_t tag);
bool symbolic_is_refused(const struct symbolic_row *row);

/* The tag of a generated row. */
uint64_t symbolic_generated(struct value_source source, uint32_t position, uint32_t layer,
                            enum values_tensor tensor);

/* symbolic_sharing: what a workload with this seed says. Of its queries, and of those of clients, the ones
 * that read alone must be in work tiles by themselves. */
enum sharing symbolic_sharing(uint64_t seed);

/* The output of a row: `sum` of the terms of the `keys` tokens that it sees. */
struct symbolic_row symbolic_output(uint64_t q, uint64_t sum, uint32_t keys);

#endif
