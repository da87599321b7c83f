// Which committed rows a fused drafter's context holds, and which of its cells a row may see. Bookkeeping only: the cells lie elsewhere,
// one per held row, in the order of the positions.
#pragma once

#include <cstdint>
#include <vector>

#include "config.hpp"

namespace dlab {

class HeldRows {
 public:
  explicit HeldRows(const Config& config) : config_(&config) {}

  // Of the rows held, ascending.
  const std::vector<int64_t>& positions() const { return positions_; }
  int64_t count() const { return static_cast<int64_t>(positions_.size()); }
  // Held rows before position pos0: their cells stay when rows are appended there.
  int64_t before(int64_t pos0) const;

  // DLAB_E_STATE unless rows can be appended at, or the context truncated to, this row.
  void require(int64_t row) const;
  // Rows pos0 .. pos0+rows-1 were appended; they take the place of all from pos0 on.
  void append(int64_t pos0, int64_t rows);
  void truncate(int64_t kept);
  // SINK_RING: cells first .. last-1 leave, of more than sink + window committed rows all but the first sink and the last window.
  struct Leaving {
    int64_t first = 0, last = 0;
  };
  Leaving leaving() const;
  void evict(const Leaving& cells);

  // What rows pos .. pos+rows-1 of a block see of the held cells and then of each other: [rows][count() + rows].
  void visible(int64_t layer, int64_t pos, int64_t rows, uint8_t* mask) const;

 private:
  std::vector<int64_t> rotated(int64_t pos0, int64_t rows) const;

  const Config* config_;
  std::vector<int64_t> positions_;
  std::vector<int64_t> exposed_;  // positions that a rotating cache still holds, ascending
  int64_t length_ = 0;            // rows committed
  int64_t dropped_ = 0;           // rows sink .. dropped-1 were evicted
};

}  // namespace dlab
