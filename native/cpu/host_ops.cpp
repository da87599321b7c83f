// What every backend does on the host.
#include <cmath>

#include "ops.hpp"

namespace dlab::ops {

std::vector<float> rope_table(const int64_t* pos, int64_t rows, const double* inv_freq, int64_t pairs, double mscale) {
  std::vector<float> table(static_cast<size_t>(rows * pairs * 2));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(pos[r]) * inv_freq[i];
      float* entry = table.data() + (r * pairs + i) * 2;
      entry[0] = static_cast<float>(std::cos(angle) * mscale);
      entry[1] = static_cast<float>(std::sin(angle) * mscale);
    }
  return table;
}

void to_target(const std::vector<int64_t>& ids, const std::vector<int64_t>& target_ids, int32_t* out) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool inside = ids[i] >= 0 && ids[i] < static_cast<int64_t>(target_ids.size());
    out[i] = inside ? static_cast<int32_t>(target_ids[static_cast<size_t>(ids[i])]) : -1;
  }
}

}  // namespace dlab::ops
