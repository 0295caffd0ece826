/* launch.cuh - the kernels of one pass's attention, which overlap (programmatic dependent launch, sm_90 and later): each lets the
 * next one begin at once. Other items' kernels run beside it, and await it at their end, to be complete after it; the merge
 * awaits it before it reads partial states, and what it does before that is hidden.
 *
 * Tried and given up: the first kernel of a pass ahead of the end of the one before it. W1, W5 and W7 lost 1 to 2 %. */
#pragma once

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
