#include "work.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "shadow.hpp"

namespace emu {

void Knowledge::raise(size_t stream, uint64_t ended) {
  if (ended_.size() <= stream) ended_.resize(stream + 1);
  ended_[stream] = std::max(ended_[stream], ended);
}

void Knowledge::join(const Knowledge& other) {
  for (size_t s = 0; s < other.ended_.size(); ++s) raise(s, other.ended_[s]);
}

uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

namespace {

struct Record {
  uint32_t first_segment;
  size_t stream;
  uint64_t number;
  std::string text;
  Place place;
};
EMU_LASTING std::vector<Record> history;  // of work that has run, by segment

const Record* record_of(uint32_t segment) {
  const auto after = std::upper_bound(history.begin(), history.end(), segment, [](uint32_t s, const Record& r) { return s < r.first_segment; });
  return after == history.begin() ? nullptr : &*(after - 1);
}

}  // namespace

Scheduler& scheduler() {
  static auto* s = new Scheduler;
  return *s;
}

Scheduler::Scheduler() { create(true); }

void Scheduler::set(Mode mode, uint64_t seed) {
  mode_ = mode;
  random_ = seed * 0x9E3779B97F4A7C15u | 1;
}

Stream* Scheduler::create(bool blocking) {
  auto s = std::make_unique<Stream>();
  s->index = streams_.size();
  s->blocking = blocking;
  s->next = host_;
  streams_.push_back(std::move(s));
  return streams_.back().get();
}

// The legacy default stream waits for the blocking streams, and they for it.
void Scheduler::issue(Stream& s, Work work, const std::function<void(const Work&)>& issued) {
  s.next.join(host_);
  if (s.index == 0) {
    for (const auto& other : streams_)
      if (other->blocking) s.next.raise(other->index, other->issued);
  } else if (s.blocking) {
    s.next.raise(0, streams_[0]->issued);
  }
  work.stream = s.index;
  work.number = ++s.issued;
  work.after = s.next;
  s.next.raise(s.index, work.number);
  s.queue.push_back(std::move(work));
  if (issued) issued(s.queue.back());
  tick();
}

Knowledge Scheduler::all_of(const Stream& s) const {
  Knowledge k = s.next;
  k.raise(s.index, s.issued);
  if (s.index == 0)
    for (const auto& other : streams_)
      if (other->blocking) k.raise(other->index, other->issued);
  return k;
}

Knowledge Scheduler::everything() const {
  Knowledge k;
  for (const auto& s : streams_) k.raise(s->index, s->issued);
  return k;
}

bool Scheduler::ended(const Knowledge& target) const {
  return std::all_of(streams_.begin(), streams_.end(), [&](const auto& s) { return s->ended >= target.of(s->index); });
}

bool Scheduler::may_run(const Stream& s) const { return !s.queue.empty() && ended(s.queue.front().after); }

// A stream whose next piece of work may run, and is needed for the target if there is one.
Stream* Scheduler::choose(const Knowledge* target) {
  std::vector<Stream*> candidates;
  for (const auto& s : streams_)
    if (may_run(*s) && (!target || mode_ == Mode::Random || s->ended < target->of(s->index))) candidates.push_back(s.get());
  if (candidates.empty()) return nullptr;
  if (mode_ == Mode::Random) return candidates[next_random(random_) % candidates.size()];
  return mode_ == Mode::Late ? candidates.back() : candidates.front();
}

void Scheduler::run_front(Stream& s) {
  const Work work = std::move(s.queue.front());
  s.queue.pop_front();
  clock.work_first = clock.block_first = ++clock.segment;
  history.push_back({clock.segment, work.stream, work.number, work.text, work.place});
  running_ = &work;
  if (failure == Status::Success) {  // after a failure nothing runs any more, as on a device
    check_pinned_source(work.stream, work.number);
    failure = work.run();
  }
  running_ = nullptr;
  s.ended = work.number;
  clock.work_first = clock.block_first = ++clock.segment;
}

void Scheduler::step(const Knowledge& target) {
  Stream* s = choose(&target);
  if (!s) s = choose(nullptr);  // what the target needs may itself wait for something else
  if (!s) {
    fprintf(stderr, "emu: streams wait for each other\n");
    abort();
  }
  run_front(*s);
}

void Scheduler::run_until(const Knowledge& target) {
  while (!ended(target)) step(target);
  host_.join(target);
  settle_pinned_copies();
}

void Scheduler::tick() {
  if (mode_ == Mode::Late) return;
  while (mode_ == Mode::Eager || next_random(random_) % 4 == 0) {
    Stream* s = choose(nullptr);
    if (!s) return;
    run_front(*s);
  }
}

bool Scheduler::before_running(size_t stream, uint64_t number) const {
  return !running_ || running_->after.of(stream) >= number || (running_->stream == stream && running_->number >= number);
}

bool ordered_before_running_work(uint32_t segment) {
  const Record* r = record_of(segment);
  return !r || scheduler().before_running(r->stream, r->number);
}

std::string work_text(uint32_t segment) {
  const Record* r = record_of(segment);
  return r ? r->text + " issued at " + r->place.text() : "earlier work";
}

Place work_place(uint32_t segment) {
  const Record* r = record_of(segment);
  return r ? r->place : Place::at("?", 0);
}

}  // namespace emu
