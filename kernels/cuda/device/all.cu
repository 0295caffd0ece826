/* all.cu - the program that is compiled for one geometry and one GPU.
 *
 * The host defines HEAD_DIM, BLOCK_SIZE, KV_HEADS, GROUP, Q_DTYPE, KV_DTYPE, LAYOUT, SOFTCAP (whether
 * there is one), SM_BYTES (shared memory of a multiprocessor), TENSOR_CORES (whether the formats and the
 * GPU have them), TMA (whether K and V come by it), COLUMNS_MAX (of attend_mma.cu), WGMMA
 * (whether attend_wide.cu takes wider items), PAGED (whether the layout is vllm's) and with it the SPARSE_
 * parameters of geometry.h. */
#include "kernels/cuda/device/pool.cu"
#include "kernels/cuda/device/measure.cu"
#if PAGED
#include "kernels/cuda/device/paged.cu"
#else
#include "kernels/cuda/device/merge.cu"
#if TENSOR_CORES
#include "kernels/cuda/device/attend_mma.cu"
#if WGMMA
#include "kernels/cuda/device/attend_wide.cu"
#endif
#else
#include "kernels/cuda/device/attend_simple.cu"
#endif
#endif
