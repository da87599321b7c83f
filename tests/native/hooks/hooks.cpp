// crop: before every block the context loses its last row, and has it again for the next append. The shipped entry points are compiled
// under other names.
#include "fused.hpp"

#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" int32_t dlab_shipped_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0);
extern "C" int32_t dlab_shipped_propose(dlab_drafter* d, const int32_t* block_ids, int32_t rows, int64_t pos, int32_t* ids, float* top2,
                                        dlab_tensor* logits);

namespace {

// The taps of the row appended last.
std::vector<float> last_taps;

bool crops(const dlab_drafter* d) {
  const char* fault = std::getenv("DLAB_TEST_FAULT");
  return fault && std::strcmp(fault, "crop") == 0 && d->held.count() && !last_taps.empty();
}

int32_t append_unrecorded(dlab_drafter* d, int64_t pos) {
  const auto width = static_cast<int64_t>(last_taps.size());
  const dlab_tensor row{last_taps.data(), {1, width, 0, 0}, {width * 4, 4, 0, 0}, DLAB_F32, 2, DLAB_HOST, 0};
  const dlab_dump_fn dump = d->ctx.dump;
  d->ctx.dump = nullptr;
  const int32_t status = dlab_shipped_append(d, &row, pos);
  d->ctx.dump = dump;
  return status;
}

}  // namespace

extern "C" DLAB_API int32_t dlab_drafter_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0) {
  const int32_t status = dlab_shipped_append(d, taps, pos0);
  if (status == DLAB_OK && taps->shape[0] > 0) {
    const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(taps->data) + (taps->shape[0] - 1) * taps->stride_bytes[0]);
    last_taps.assign(row, row + taps->shape[1]);
  }
  return status;
}

extern "C" DLAB_API int32_t dlab_drafter_propose(dlab_drafter* d, const int32_t* block_ids, int32_t rows, int64_t pos, int32_t* ids,
                                                 float* top2, dlab_tensor* logits) {
  if (!crops(d)) return dlab_shipped_propose(d, block_ids, rows, pos, ids, top2, logits);
  const int64_t last = d->held.positions().back();
  d->truncate(last);
  const int32_t status = dlab_shipped_propose(d, block_ids, rows, pos, ids, top2, logits);
  return status == DLAB_OK ? append_unrecorded(d, last) : status;
}
