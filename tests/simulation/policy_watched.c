/* SPDX-License-Identifier: Apache-2.0 */
/* policy_watched.c - scheduler/policy.c, with its return statements watched. It takes that file's place in
 * the simulation, since the linker sees it first. */
#include "scheduler/policy.h"

#include <math.h>

#define RETURNS_WATCHED
#include "tests/simulation/returns.h"

#include "scheduler/policy.c"
