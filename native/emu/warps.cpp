#include "warps.hpp"

#include <algorithm>
#include <cstring>

namespace emu {

namespace {

const char* name_of(WarpOp op) { return language().ops[static_cast<size_t>(op)]; }

bool same_place(const Place& a, const Place& b) { return a.line == b.line && !strcmp(a.file, b.file); }

std::string lanes_text(unsigned mask) {
  std::string text;
  for (unsigned l = 0; l < kWarp; ++l) {
    if (!(mask >> l & 1)) continue;
    unsigned last = l;
    while (last + 1 < kWarp && mask >> (last + 1) & 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(l) + (last > l ? "-" + std::to_string(last) : "");
    l = last;
  }
  return text;
}

// The lane whose value a shuffle gives to lane l.
int source_lane(const Meeting& m, int l) {
  const int width = m.width[l], first = l & ~(width - 1), a = m.argument[l] & (kWarp - 1);
  switch (m.op) {
    case WarpOp::Shuffle: return first + (a & (width - 1));
    case WarpOp::ShuffleUp: return l - a < first ? l : l - a;
    case WarpOp::ShuffleDown: return l + a >= first + width ? l : l + a;
    default: return (l ^ a) >= first + width ? l : l ^ a;
  }
}

uint64_t shuffled_value(const Meeting& m, const Warp& warp, int l) {
  const int source = source_lane(m, l);
  if (m.arrived >> source & 1) return m.value[source];
  const char* why = !(m.mask >> source & 1) ? "is not in the mask" : warp.alive >> source & 1 ? "has not arrived" : "has returned";
  report(kind::kDivergence, {m.place},
         "kernel " + kernel_text() + ": lane " + std::to_string(l) + " (" + thread_text(warp.lanes[l]->linear, clock.segment) + ") takes " +
             name_of(m.op) + " {0} from lane " + std::to_string(source) + ", which " + why);
  return ~uint64_t{0};
}

uint64_t reduced(const Meeting& m) {
  uint64_t total = 0;
  bool first = true;
  for (unsigned l = 0; l < kWarp; ++l) {
    if (!(m.arrived >> l & 1)) continue;
    const uint64_t v = m.value[l];
    const auto a = static_cast<int32_t>(total), b = static_cast<int32_t>(v);
    const bool is_signed = m.argument[l] != 0;
    switch (m.op) {
      case WarpOp::Ballot: total |= static_cast<uint64_t>(v != 0) << l; break;
      case WarpOp::Any: total |= v != 0; break;
      case WarpOp::All: total = first ? v != 0 : total && v; break;
      case WarpOp::Add: total = static_cast<uint32_t>(total + v); break;
      case WarpOp::And: total = first ? v : total & v; break;
      case WarpOp::Or: total |= v; break;
      case WarpOp::Xor: total ^= v; break;
      case WarpOp::Min: total = first ? v : is_signed ? static_cast<uint32_t>(std::min(a, b)) : std::min(total, v); break;
      case WarpOp::Max: total = first ? v : is_signed ? static_cast<uint32_t>(std::max(a, b)) : std::max(total, v); break;
      default: break;
    }
    first = false;
  }
  return total;
}

// Every lane gets the values of all; those that have not come are all ones.
void exchange(const Meeting& m) {
  const auto of = [&](unsigned lane) { return reinterpret_cast<Exchange*>(static_cast<uintptr_t>(m.value[lane])); };
  for (unsigned l = 0; l < kWarp; ++l)
    for (unsigned o = 0; m.arrived >> l & 1 && o < kWarp; ++o)
      for (int i = 0; i < 2; ++i) of(l)->all[o][i] = m.arrived >> o & 1 ? of(o)->mine[i] : ~uint64_t{0};
}

uint64_t matching(const Meeting& m, int l) {
  uint64_t mask = 0;
  for (unsigned o = 0; o < kWarp; ++o)
    if (m.arrived >> o & 1 && m.value[o] == m.value[l]) mask |= uint64_t{1} << o;
  return mask;
}

void complete(const Meeting& m, Warp& warp) {
  if (m.op == WarpOp::Sync) ++warp.sync;
  if (m.op == WarpOp::Exchange) exchange(m);
  const bool shuffle = m.op == WarpOp::Shuffle || m.op == WarpOp::ShuffleUp || m.op == WarpOp::ShuffleDown || m.op == WarpOp::ShuffleXor;
  const uint64_t whole = shuffle || m.op == WarpOp::Match ? 0 : reduced(m);
  for (int l = 0; l < static_cast<int>(kWarp); ++l) {
    if (!(m.arrived >> l & 1)) continue;
    wake(*warp.lanes[l], shuffle ? shuffled_value(m, warp, l) : m.op == WarpOp::Match ? matching(m, l) : whole);
  }
}

}  // namespace

void arrive(Thread& t, const Meeting& opened, uint64_t value, int argument, int width) {
  Warp& warp = *t.warp;
  const unsigned bit = 1u << t.lane();
  if (!(opened.mask & bit))
    report(kind::kDivergence, {opened.place},
           "kernel " + kernel_text() + ": " + thread_text(t.linear, clock.segment) + " calls " + name_of(opened.op) +
               " {0} with a mask that does not name its own lane " + std::to_string(t.lane()));
  const auto fits = [&](const Meeting& m) { return m.mask == opened.mask && m.op == opened.op && !(m.arrived & bit); };
  auto found = std::find_if(warp.meetings.begin(), warp.meetings.end(), fits);
  if (found == warp.meetings.end()) found = warp.meetings.insert(warp.meetings.end(), opened);
  Meeting& m = *found;
  if (!same_place(m.place, opened.place))
    report(kind::kDivergence, {opened.place, m.place},
           "kernel " + kernel_text() + ": lanes " + lanes_text(m.arrived) + " and " + std::to_string(t.lane()) + " of a warp (" +
               thread_text(t.linear, clock.segment) + ") meet in " + name_of(m.op) + " at two different places, {0} and {1}");
  m.arrived |= bit;
  m.value[t.lane()] = value;
  m.argument[t.lane()] = argument;
  m.width[t.lane()] = width;
  complete_meetings(warp);
}

void complete_meetings(Warp& warp) {
  for (size_t i = 0; i < warp.meetings.size();) {
    const Meeting& m = warp.meetings[i];
    if (m.mask & warp.alive & ~m.arrived) {
      ++i;
      continue;
    }
    const Meeting done = m;
    warp.meetings.erase(warp.meetings.begin() + static_cast<std::ptrdiff_t>(i));
    complete(done, warp);
  }
}

std::vector<WaitingGroup> waiting_groups(const std::vector<std::unique_ptr<Thread>>& threads) {
  struct Group {
    const Thread* first;
    const Thread* last;
    unsigned count, warps;
  };
  std::vector<Group> groups;
  for (const auto& t : threads) {
    if (t->state != State::AtBarrier && t->state != State::AtWarp) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return g.first->state == t->state && same_place(g.first->place, t->place);
    });
    if (same == groups.end()) groups.push_back({t.get(), t.get(), 1, 1});
    else *same = {same->first, t.get(), same->count + 1, same->warps};
  }
  std::vector<WaitingGroup> out;
  for (const Group& g : groups) {
    const std::string what = g.first->state == State::AtBarrier ? language().barrier : name_of(g.first->op);
    const std::string who = thread_text(g.first->linear, clock.segment);
    const std::string more = g.count > 1 ? std::to_string(g.count) + " threads from " + who + " on" : who;
    out.push_back({more, what, g.first->place, g.count == 1});
  }
  return out;
}

}  // namespace emu
