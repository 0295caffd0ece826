/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h - defects that can be compiled in, to prove that the verification of workloads finds them.
 *
 * `make check-faults` builds the daemon once with each and expects it to be caught. FAULTY(f) is 0 in
 * every other build. */
#ifndef CONFIG_FAULT_H
#define CONFIG_FAULT_H

#define FAULT_COPY_SKIPPED    1 /* copy-on-write gives a block without its bytes */
#define FAULT_STALE_BLOCK     2 /* attention reads a block before the step's tokens are stored in it */
#define FAULT_WINDOW          3 /* a window is one token too wide */
#define FAULT_SCALE           4 /* scores are one percent too large */
#define FAULT_SWAPPED_ENTRIES 5 /* two neighbouring entries of a table change places */
#define FAULT_POSITION        6 /* generated keys and values are those of the next position */

#define FAULT_NOT_A_NUMBER 7 /* one row of every pass is NaN */

/* Not defects of ours, but what the daemon has to live through: after some steps the device */
#define LOST_DEVICE    8  /* fails for good; */
#define HANGING_DEVICE 9  /* never finishes a step again; */
#define STUCK_DEVICE   10 /* does not return from a submit */

#ifndef ATTND_FAULT
#define ATTND_FAULT 0
#endif

#define FAULTY(fault) (ATTND_FAULT == (fault))

#endif
