/* launch.cuh - kernels that overlap (programmatic dependent launch, sm_90 and later). A kernel says when the next one may begin,
 * and that one awaits it before it uses what it made; what it does before is hidden.
 *
 * Everything ahead of the kernel right before is complete when a kernel begins early, since that one lets it only after it has
 * awaited its own. So attention of other items of a pass, which needs nothing of the kernel beside it, awaits that one at its
 * end, to be complete after it. */
#pragma once

#include "kernels/cuda/device/step.h"

static inline void await_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static inline void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Of attention: when K, V and q are needed. */
static inline void begin_pass(const cuda_attend_pass &pass)
{
    if (!pass.beside)
        await_previous();
    let_next_begin();
}
