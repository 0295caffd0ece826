/* SPDX-License-Identifier: Apache-2.0 */
/* process_figures.h - what the kernel says of this process, as Prometheus names it. */
#ifndef SERVER_PROCESS_FIGURES_H
#define SERVER_PROCESS_FIGURES_H

struct process_figures {
    double cpu_s; /* processor time of all threads */
    double resident_bytes, virtual_bytes;
    double open_fds, max_fds, threads;
};

/* process_figures_read: figures that cannot be had are NaN; so is open_fds of more than 4 096 files on kernels before 6.2, which
 * would have to list them. Any thread; about 30 us. */
struct process_figures process_figures_read(void);

#endif
