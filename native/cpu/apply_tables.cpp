// Rows of tables by the hashes of n-grams.
#include "apply.hpp"

namespace dlab {

namespace {

// Row of the joined table for every token and head: [row * heads + head].
std::vector<int64_t> hashed(const Call& call, const std::vector<int64_t>& ids, const std::vector<int64_t>& history, int64_t rows) {
  const int64_t size = static_cast<int64_t>(history.size()) + 1, end = call.whole("end", 0, INT64_C(1) << 53);
  const std::vector<int64_t> multipliers = call.wide("multipliers", size), sizes = call.wide("sizes");
  const int64_t heads = static_cast<int64_t>(sizes.size());
  const std::vector<int64_t> offsets = call.wide("offsets", heads);
  if (size < 2 || heads % (size - 1)) fail(DLAB_E_SHAPE, "sizes has %lld heads, expected a multiple of %lld lengths", ll(heads), ll(size - 1));
  for (int64_t h = 0; h < heads; ++h)
    if (sizes[static_cast<size_t>(h)] < 1) fail(DLAB_E_ARG, "sizes[%lld] is %lld", ll(h), ll(sizes[static_cast<size_t>(h)]));
  std::vector<int64_t> tokens = history;
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  std::vector<int64_t> found;
  for (int64_t r = 0; r < static_cast<int64_t>(ids.size()); ++r) {
    const auto times = [&](int64_t token, int64_t shift) {
      return static_cast<uint64_t>(token) * static_cast<uint64_t>(multipliers[static_cast<size_t>(shift)]);
    };
    uint64_t mixed = times(ids[static_cast<size_t>(r)], 0);
    bool inside = true;
    for (int64_t shift = 1; shift < size; ++shift) {
      const int64_t before = tokens[static_cast<size_t>(size - 1 + r - shift)];
      inside = inside && before != end;
      mixed ^= times(inside ? before : end, shift);
      for (int64_t i = 0; i < heads / (size - 1); ++i) {
        const auto head = static_cast<size_t>((shift - 1) * (heads / (size - 1)) + i);
        int64_t rest = static_cast<int64_t>(mixed) % sizes[head];
        if (rest < 0) rest += sizes[head];
        int64_t row = 0;
        if (__builtin_add_overflow(rest, offsets[head], &row) || row < 0 || row >= rows)
          fail(DLAB_E_ARG, "head %zu of token %lld hashes to row %lld + %lld, beyond the %lld rows of the table", head, ll(r), ll(rest),
               ll(offsets[head]), ll(rows));
        found.push_back(row);
      }
    }
  }
  return found;
}

void ngram(const Call& call) {
  const int64_t shards = call.count("table");
  call.weight("table", {-1, -1});
  const int64_t width = call.axis("table", 1);
  std::vector<Weight> table;
  int64_t rows = 0;
  for (int64_t i = 0; i < shards; ++i) {
    table.push_back(call.weight("table", {-1, width}, i));
    rows += table.back().rows;
  }
  const std::vector<int64_t> ids = call.wide("ids"), history = call.wide("history");
  const std::vector<int64_t> chosen = hashed(call, ids, history, rows);
  const int64_t tokens = static_cast<int64_t>(ids.size()), heads = call.axis("sizes", 0);
  const Rows y = call.result({tokens, heads * width});
  if (width && heads) ops::ngram(call.ctx, table, chosen, heads, y);
}

}  // namespace

const Operation kTables[] = {
    {"ngram", "table...,ids,history,multipliers,sizes,offsets", "end", ngram},
    {nullptr, nullptr, nullptr, nullptr},
};

}  // namespace dlab
