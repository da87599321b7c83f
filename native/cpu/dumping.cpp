#include "dumping.hpp"

#include <fnmatch.h>

#include <algorithm>

namespace dlab {

bool wants_dump(const dlab_ctx& ctx, const std::string& stage) {
  const auto matches = [&](const std::string& pattern) { return fnmatch(pattern.c_str(), stage.c_str(), 0) == 0; };
  return ctx.dump && std::any_of(ctx.dump_patterns.begin(), ctx.dump_patterns.end(), matches);
}

void dump_stage(const dlab_ctx& ctx, const std::string& stage, const void* host, int64_t row0, const std::vector<int64_t>& shape,
                int32_t dtype, int64_t row_stride) {
  if (!wants_dump(ctx, stage)) return;
  dlab_dump dump{};
  dump.struct_size = sizeof dump;
  dump.stage = stage.c_str();
  dump.row0 = row0;
  dlab_tensor& t = dump.tensor;
  t.data = const_cast<void*>(host);
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = dtype == DLAB_F16 ? 2 : 4;  // else F32 or I32
  for (size_t i = shape.size(); i-- > 0;) {
    t.shape[i] = shape[i];
    t.stride_bytes[i] = i == 0 && row_stride ? row_stride : stride;
    stride *= shape[i];
  }
  if (ctx.dump(ctx.dump_user, &dump)) fail(DLAB_E_STATE, "the dump callback stopped at %s", stage.c_str());
}

}  // namespace dlab
