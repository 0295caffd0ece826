/* SPDX-License-Identifier: Apache-2.0 */
/* watched.h - begins a function that the engine calls instead of its own of that name, which is
 * __real_NAME() then. The Makefile has the list of names for the linker. */
#ifndef TESTS_SIMULATION_WATCHED_H
#define TESTS_SIMULATION_WATCHED_H

#define WATCHED(type, name, ...)                                                                             \
    type __real_##name(__VA_ARGS__);                                                                         \
    type __wrap_##name(__VA_ARGS__);                                                                         \
    type __wrap_##name(__VA_ARGS__)

#endif
