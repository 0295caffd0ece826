/* SPDX-License-Identifier: Apache-2.0 */
/* coefficients.h - of the polynomials that the backends share, for C11 and CUDA C. Each backend evaluates them with its own
 * instructions, so bits agree within a backend only. */
#ifndef KERNELS_COEFFICIENTS_H
#define KERNELS_COEFFICIENTS_H

/* exp(r) - 1 - r = r^2 (((((EXP_0 r + EXP_1) r + EXP_2) r + EXP_3) r + EXP_4) r + EXP_5) for |r| <= ln(2) / 2: Cephes' expf
 * (Moshier). Below EXP_LOWEST the result would be denormal. ln(2) is LN2_HIGH + LN2_LOW (Cody and Waite). */
#define EXP_0      1.9875691500e-4F
#define EXP_1      1.3981999507e-3F
#define EXP_2      8.3334519073e-3F
#define EXP_3      4.1665795894e-2F
#define EXP_4      1.6666665459e-1F
#define EXP_5      5.0000001201e-1F
#define EXP_LOWEST (-87.0F)
#define LN2_HIGH   0.693359375F
#define LN2_LOW    (-2.12194440e-4F)

/* 1.5 * 2^23: adding it to a small number rounds that to an integer. */
#define TO_INTEGER 12582912.0F

/* tanh(y) - y = y z ((((TANH_0 z + TANH_1) z + TANH_2) z + TANH_3) z + TANH_4), z = y^2, for |y| < TANH_NEAR: Cephes' tanhf. */
#define TANH_0    (-5.70498872745e-3F)
#define TANH_1    2.06390887954e-2F
#define TANH_2    (-5.37397155531e-2F)
#define TANH_3    1.33314422036e-1F
#define TANH_4    (-3.33332819422e-1F)
#define TANH_NEAR 0.625F

#endif
