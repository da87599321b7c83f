/* One pass over two recordings, for native/reduce.py only: exported beside the ABI of dlab.h. */
#include <cmath>

#include "dlab.h"
#include "kernels.hpp"

extern "C" {
DLAB_API int32_t dlab_difference(int32_t kind_a, const void* a, int32_t kind_b, const void* b, int64_t rows, int64_t width, int32_t p,
                                 int32_t emin, uint8_t* differs, int64_t* elements, double* max_abs, double* ulps);
DLAB_API uint64_t dlab_read_words(const uint64_t* words, int64_t n);
}

/* kind: 0 f64, 1 f32, 2 f16, 3 bf16, 4 i64, 5 i32, 6 u8. a, b: dense [rows, width]. Values differ that are neither equal nor both NaN.
 * differs [rows]; elements: how many differ; max_abs, ulps: the largest finite distance, and in spacings of a format of p significant bits
 * and smallest normal exponent emin. */
int32_t dlab_difference(int32_t kind_a, const void* a, int32_t kind_b, const void* b, int64_t rows, int64_t width, int32_t p, int32_t emin,
                        uint8_t* differs, int64_t* elements, double* max_abs, double* ulps) {
  if (kind_a < 0 || kind_a > 6 || kind_b < 0 || kind_b > 6) return DLAB_E_DTYPE;
  const dlab::DifferenceItem item = {kind_a, kind_b, a, b, rows, width, std::ldexp(1.0, emin), std::ldexp(1.0, p - 2), differs};
  dlab::Difference found;
  dlab::choose_kernels().differences(item, found);
  *elements = found.elements;
  *max_abs = found.max_abs;
  *ulps = found.ulps;
  return DLAB_OK;
}

/* The sum of n words: what reading them costs at least. */
uint64_t dlab_read_words(const uint64_t* words, int64_t n) { return dlab::choose_kernels().read_words(words, n); }
