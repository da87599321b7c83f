// Operations that move values and change none.
#include <cstring>

#include "apply.hpp"
#include "ops.hpp"

namespace dlab {

namespace {

void copy(const float* from, int64_t n, float* to) {
  if (n) memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

void replicate(const Call& call) {
  const Rows x = call.floats("x", {-1, -1});
  const int64_t copies = call.whole("copies", 1, 4096);
  const Rows y = call.result({x.rows, copies * x.width});
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < copies; ++c) copy(x.row(r), x.width, y.row(r) + c * x.width);
}

void join(const Call& call) {
  const int64_t parts = call.count("x"), rows = (call.floats("x", {-1, -1}), call.axis("x", 0));
  std::vector<Rows> x;
  int64_t width = 0;
  for (int64_t i = 0; i < parts; ++i) {
    x.push_back(call.floats("x", {rows, -1}, i));
    width += x.back().width;
  }
  const Rows y = call.result({rows, width});
  for (int64_t r = 0; r < rows; ++r) {
    float* to = y.row(r);
    for (const Rows& part : x) {
      copy(part.row(r), part.width, to);
      to += part.width;
    }
  }
}

void cells(const Call& call) {
  const int64_t parts = call.count("x");
  call.floats("x", {-1, -1, -1});
  const int64_t heads = call.axis("x", 1), dim = call.axis("x", 2);
  std::vector<Rows> x;
  int64_t count = 0;
  for (int64_t i = 0; i < parts; ++i) {
    x.push_back(call.floats("x", {-1, heads, dim}, i));
    count += x.back().rows;
  }
  const Rows y = call.result({count, heads, dim});
  int64_t at = 0;
  for (const Rows& part : x)
    for (int64_t r = 0; r < part.rows; ++r) copy(part.row(r), part.width, y.row(at++));
}

void part(const Call& call) {
  const Rows x = call.floats("x", {-1, -1, -1});
  const int64_t heads = call.axis("x", 1), dim = call.axis("x", 2);
  const int64_t start = call.whole("start", 0, dim), stop = call.whole("stop", start, dim), width = stop - start;
  const Rows y = call.result({x.rows, heads, width});
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t h = 0; h < heads; ++h) copy(x.row(r) + h * dim + start, width, y.row(r) + h * width);
}

void to_target(const Call& call) {
  const std::vector<int64_t> ids = call.ids("ids", {-1}), target_ids = call.wide("target_ids");
  ops::to_target(ids, target_ids, call.result_ids({static_cast<int64_t>(ids.size())}).data);
}

}  // namespace

const Operation kMoves[] = {
    {"replicate", "x", "copies", replicate},
    {"join", "x...", "", join},
    {"cells", "x...", "", cells},
    {"part", "x", "start,stop", part},
    {"to_target", "ids,target_ids", "", to_target},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
