#include "held_rows.hpp"

#include <algorithm>

#include "context.hpp"

namespace dlab {

int64_t HeldRows::before(int64_t pos0) const {
  return std::lower_bound(positions_.begin(), positions_.end(), pos0) - positions_.begin();
}

void HeldRows::require(int64_t row) const {
  if (row > length_) fail(DLAB_E_STATE, "row %lld is beyond the %lld committed rows", ll(row), ll(length_));
  if (row > config_->sink && row < dropped_)
    fail(DLAB_E_STATE, "cannot go back to %lld rows: rows %lld..%lld were evicted", ll(row), ll(config_->sink), ll(dropped_ - 1));
}

void HeldRows::append(int64_t pos0, int64_t rows) {
  // What may fail comes first, so that the rows change as a whole or not at all.
  std::vector<int64_t> turned = rotated(pos0, rows);
  positions_.reserve(positions_.size() + static_cast<size_t>(rows));
  truncate(pos0);
  for (int64_t r = 0; r < rows; ++r) positions_.push_back(pos0 + r);
  length_ = pos0 + rows;
  exposed_ = std::move(turned);
}

void HeldRows::truncate(int64_t kept) {
  require(kept);
  positions_.resize(static_cast<size_t>(before(kept)));
  exposed_.erase(std::lower_bound(exposed_.begin(), exposed_.end(), kept), exposed_.end());
  length_ = kept;
  if (kept <= config_->sink) dropped_ = 0;
}

HeldRows::Leaving HeldRows::leaving() const {
  if (!config_->evicts() || length_ <= config_->sink + config_->window) return {};
  const int64_t first = before(config_->sink);
  return {first, std::max(first, before(length_ - config_->window))};
}

void HeldRows::evict(const Leaving& cells) {
  if (cells.first == cells.last) return;
  positions_.erase(positions_.begin() + cells.first, positions_.begin() + cells.last);
  dropped_ = length_ - config_->window;
}

void HeldRows::visible(int64_t layer, int64_t pos, int64_t rows, uint8_t* mask) const {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < count() + rows; ++c) {
      const bool own = c >= count();
      const int64_t at = own ? pos + c - count() : positions_[static_cast<size_t>(c)];
      const bool exposes = !own && config_->rotates() && std::binary_search(exposed_.begin(), exposed_.end(), at);
      *mask++ = config_->sees(layer, pos + r, at, pos, !own, exposes);
    }
}

// What a rotating cache of W - 1 rows holds after rows pos0 .. were appended: W - 2 of what it held, and the last W - 1 of the new ones.
std::vector<int64_t> HeldRows::rotated(int64_t pos0, int64_t rows) const {
  if (!config_->rotates()) return {};
  std::vector<int64_t> kept(exposed_.begin(), std::lower_bound(exposed_.begin(), exposed_.end(), pos0));
  const int64_t room = std::max<int64_t>(config_->window - 2, 0), size = static_cast<int64_t>(kept.size());
  if (size > room) kept.erase(kept.begin(), kept.begin() + (size - room));
  for (int64_t r = std::max<int64_t>(rows - (config_->window - 1), 0); r < rows; ++r) kept.push_back(pos0 + r);
  return kept;
}

}  // namespace dlab
