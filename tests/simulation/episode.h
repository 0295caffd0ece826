/* SPDX-License-Identifier: Apache-2.0 */
/* episode.h - one simulation from beginning to end, in this process. */
#ifndef TESTS_SIMULATION_EPISODE_H
#define TESTS_SIMULATION_EPISODE_H

#include <stdbool.h>
#include <stdint.h>

/* episode_run(seed, actions): an engine, its clients and their faults as the seed says, up to that many
 * actions of clients; then they stop, and everything must end. False: sim.fault says why not. A failed
 * simulation leaves its engine as it is. */
bool episode_run(uint64_t seed, uint64_t actions);

/* episode_pass_time(worked, next_s): let time pass after a turn: a little if it has `worked`, else until
 * whatever comes first: a step is done, the engine has something to do, or next_s. False: nothing ever
 * comes. */
bool episode_pass_time(bool worked, double next_s);

/* fairness_run: instead of an episode: owners who always have work, for a second; see fairness.c. The
 * caller has made sim anew. fairness_wants: whether the seed is one for that. */
bool fairness_wants(uint64_t seed);
void fairness_run(uint64_t seed);

#endif
