// The dump callback of a context.
#pragma once

#include <string>
#include <vector>

#include "context.hpp"

namespace dlab {

// Has somebody asked for the stage?
bool wants_dump(const dlab_ctx& ctx, const std::string& stage);

// Hands a recorded stage over, if it was asked for: host values of a shape, row_stride bytes apart (0: dense). DLAB_E_STATE when the
// callback says stop.
void dump_stage(const dlab_ctx& ctx, const std::string& stage, const void* host, int64_t row0, const std::vector<int64_t>& shape,
                int32_t dtype = DLAB_F32, int64_t row_stride = 0);

}  // namespace dlab
