/* SPDX-License-Identifier: Apache-2.0 */
/* sources.h - the device code as text, inside the binary. */
#ifndef KERNELS_CUDA_SOURCES_H
#define KERNELS_CUDA_SOURCES_H

/* Names as they are included, and their texts. NULL-terminated. */
extern const char *const cuda_source_names[], *const cuda_source_texts[];

#endif
