/* SPDX-License-Identifier: Apache-2.0 */
/* reservation_faults.h - faults in the ledger of promises, for its audit to find. */
#ifndef TESTS_SIMULATION_RESERVATION_FAULTS_H
#define TESTS_SIMULATION_RESERVATION_FAULTS_H

struct engine_state;

/* reservation_plant_faults: put each fault there that the audit can name, see that it does, and take it away. */
void reservation_plant_faults(const struct engine_state *state);

#endif
