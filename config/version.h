/* SPDX-License-Identifier: Apache-2.0 */
/* version.h - what this build is. ATTND_COMMIT comes from the Makefile. */
#ifndef CONFIG_VERSION_H
#define CONFIG_VERSION_H

#define ATTND_VERSION "0.1.0"

#ifndef ATTND_COMMIT
#define ATTND_COMMIT "unknown"
#endif

#endif
