/* AVX-512: sixteen lanes are one register. */
#include <immintrin.h>

typedef __m512 v16;

enum { ROWS = 12 }; /* of thirty-two registers, enough to hide the latency of the sums */

static inline v16 v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 x) {
    _mm512_storeu_ps(p, x);
}
static inline v16 v_set1(float f) {
    return _mm512_set1_ps(f);
}
static inline v16 v_add(v16 x, v16 y) {
    return _mm512_add_ps(x, y);
}
static inline v16 v_sub(v16 x, v16 y) {
    return _mm512_sub_ps(x, y);
}
static inline v16 v_mul(v16 x, v16 y) {
    return _mm512_mul_ps(x, y);
}
static inline v16 v_div(v16 x, v16 y) {
    return _mm512_div_ps(x, y);
}
static inline v16 v_max(v16 x, v16 y) {
    return _mm512_max_ps(x, y);
}
static inline v16 v_min(v16 x, v16 y) {
    return _mm512_min_ps(x, y);
}
static inline v16 v_fma(v16 x, v16 y, v16 z) {
    return _mm512_fmadd_ps(x, y, z);
}
/* One rounding, as the two exact-then-rounded factors of the others. */
static inline v16 v_pow2(v16 p, v16 t) {
    return _mm512_scalef_ps(p, _mm512_sub_ps(t, _mm512_set1_ps(0x1.8p+23f)));
}

#include "models/encoder_kernels_text.h"

const struct encoder_kernels encoder_kernels_avx512 = ENCODER_KERNELS("avx512");
