// Pinned host memory: an asynchronous copy reads or writes it some time between its call and a synchronisation. Whatever host code does to
// the bytes in between is a hazard, whether or not this run's schedule shows it.
#include <algorithm>
#include <cstring>
#include <list>

#include "memory.hpp"
#include "shadow.hpp"
#include "work.hpp"

namespace emu {

namespace {

struct Touch {
  size_t first, last;  // bytes of the copy
  uint32_t code;
};

// A copy that the host has not waited for.
struct Pending {
  size_t stream;
  uint64_t number;
  const char* host;
  size_t bytes;
  bool host_is_source;
  Place place;
  std::vector<char> before;  // the source at the call
  std::vector<Touch> writes;
};
EMU_LASTING std::list<Pending> pending;

bool overlap(const Pending& p, const char* at, size_t bytes) { return at < p.host + p.bytes && p.host < at + bytes; }

bool is_of(const Pending& p, size_t stream, uint64_t number) { return p.stream == stream && p.number == number; }

// Which bytes of the source differ from what they were at the call; an identical rewrite is harmless.
void judge_source(Pending& p) {
  if (p.before.empty()) return;
  const auto differs = [&](size_t i) { return p.host[i] != p.before[i]; };
  size_t first = 0, last = p.bytes;
  while (first < p.bytes && !differs(first)) ++first;
  if (first == p.bytes) return;
  while (!differs(last - 1)) --last;
  std::vector<Place> places{p.place};
  for (auto t = p.writes.rbegin(); t != p.writes.rend() && places.size() == 1; ++t)
    if (t->first <= first && first <= t->last) places.push_back(Place::instruction(t->code));
  report(kind::kHazard, places,
         "the pinned source of the asynchronous copy of " + std::to_string(p.bytes) + " bytes at {0} was rewritten" +
             (places.size() > 1 ? " at {1}" : "") + " before anything waited for the copy: bytes " + std::to_string(first) + ".." +
             std::to_string(last - 1) + " changed");
  memcpy(p.before.data(), p.host, p.bytes);
}

}  // namespace

void note_pinned_copy(const Work& work, const void* host, size_t bytes, bool host_is_source) {
  const auto* bytes_at = static_cast<const char*>(host);
  Pending p{work.stream, work.number, bytes_at, bytes, host_is_source, work.place, {}, {}};
  // What another pending copy is still to write there is not the host's doing.
  const auto written = [&](const Pending& o) { return !o.host_is_source && overlap(o, bytes_at, bytes); };
  if (host_is_source && std::none_of(pending.begin(), pending.end(), written)) p.before.assign(bytes_at, bytes_at + bytes);
  pending.push_back(std::move(p));
}

void check_pinned_source(size_t stream, uint64_t number) {
  for (Pending& p : pending)
    if (p.host_is_source && is_of(p, stream, number)) judge_source(p);
}

bool pending_source(const void* at, size_t bytes) {
  return std::any_of(pending.begin(), pending.end(),
                     [&](const Pending& p) { return p.host_is_source && overlap(p, static_cast<const char*>(at), bytes); });
}

void device_wrote_pinned(const void* at, size_t bytes) {
  for (Pending& p : pending)
    if (p.host_is_source && overlap(p, static_cast<const char*>(at), bytes)) p.before.clear();
}

void settle_pinned_copies() {
  const Knowledge& host = scheduler().host();
  for (auto p = pending.begin(); p != pending.end();) {
    if (host.of(p->stream) < p->number) {
      ++p;
      continue;
    }
    if (p->host_is_source) judge_source(*p);
    p = pending.erase(p);
  }
}

void host_touches_pinned(const void* at, size_t bytes, bool write, uint32_t code) {
  const auto* touched = static_cast<const char*>(at);
  for (Pending& p : pending) {
    if (!overlap(p, touched, bytes)) continue;
    if (p.host_is_source) {
      if (!write) continue;
      const size_t first = touched < p.host ? 0 : static_cast<size_t>(touched - p.host);
      const size_t last = std::min(static_cast<size_t>(touched + bytes - p.host), p.bytes) - 1;
      if (!p.writes.empty() && p.writes.back().code == code && p.writes.back().last + 1 == first) p.writes.back().last = last;
      else p.writes.push_back({first, last, code});
      continue;
    }
    report(kind::kHazard, {Place::instruction(code), p.place},
           std::string("host code ") + (write ? "writes" : "reads") + " at {0} the pinned destination of the asynchronous copy of " +
               std::to_string(p.bytes) + " bytes at {1} before anything waited for the copy");
  }
}

}  // namespace emu
