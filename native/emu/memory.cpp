#include "memory.hpp"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

namespace emu {

namespace {

void* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    fprintf(stderr, "emu: cannot reserve %zu bytes of address space\n", bytes);
    abort();
  }
  madvise(p, bytes, MADV_DONTDUMP);
  return p;
}

struct Module {
  uintptr_t base = 0, end = 0;

  Module() {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&in_module), &info);
    base = reinterpret_cast<uintptr_t>(info.dli_fbase);
    dl_iterate_phdr(
        [](dl_phdr_info* object, size_t, void* self) {
          auto& m = *static_cast<Module*>(self);
          uintptr_t low = ~uintptr_t{0}, high = 0;
          for (int i = 0; i < object->dlpi_phnum; ++i) {
            const auto& h = object->dlpi_phdr[i];
            if (h.p_type != PT_LOAD) continue;
            const uintptr_t at = object->dlpi_addr + h.p_vaddr;
            if (at < low) low = at;
            if (at + h.p_memsz > high) high = at + h.p_memsz;
          }
          if (m.base < low || m.base >= high) return 0;
          m.end = high;
          return 1;
        },
        this);
  }
};

const Module& module() {
  static const Module m;
  return m;
}

}  // namespace

Arena::Arena(size_t bytes, bool tracked) : base_(reinterpret_cast<uintptr_t>(reserve(bytes))), reserved_(bytes), allocations_(1) {
  owner_ = static_cast<uint32_t*>(reserve(bytes / kPage * sizeof(uint32_t)));
  if (!tracked) return;
  written_ = static_cast<uint8_t*>(reserve(bytes / 8));
  cells_ = static_cast<Cell*>(reserve(bytes / 4 * sizeof(Cell)));
}

void* Arena::allocate(size_t bytes, Place place) {
  const size_t pages = (bytes + kPage - 1) / kPage + 1;  // the last one is a guard
  if (bytes > reserved_ || next_ + (pages + 1) * kPage > reserved_) return nullptr;
  if (next_ == 0) next_ = kPage;
  Allocation a{base_ + next_, bytes, place, true};
  const auto id = static_cast<uint32_t>(allocations_.size());
  for (size_t i = 0; i < pages; ++i) owner_[next_ / kPage + i] = id;
  next_ += pages * kPage;
  allocations_.push_back(a);
  live_bytes_ += bytes;
  memset(reinterpret_cast<void*>(a.begin), 0xff, bytes);
  return reinterpret_cast<void*>(a.begin);
}

bool Arena::release(void* p) {
  if (!holds(p)) return false;
  Allocation& a = allocations_[owner_[offset(p) / kPage]];
  if (!a.live || a.begin != reinterpret_cast<uintptr_t>(p)) return false;
  a.live = false;
  live_bytes_ -= a.bytes;
  const size_t bytes = (a.bytes + kPage - 1) / kPage * kPage, at = offset(p);
  if (!bytes) return true;
  madvise(p, bytes, MADV_REMOVE);
  if (!cells_) return true;
  static_assert(kPage / 4 * sizeof(Cell) % kPage == 0, "the cells of a page are whole pages");
  madvise(cells_ + at / 4, bytes / 4 * sizeof(Cell), MADV_REMOVE);
  return true;
}

void Arena::reset() {
  memset(owner_, 0, (next_ / kPage + 1) * sizeof(uint32_t));
  if (written_) memset(written_, 0, next_ / 8);
  allocations_.resize(1);
  next_ = live_bytes_ = 0;
}

const Allocation* Arena::find(const void* p) const {
  const uint32_t id = holds(p) ? owner_[offset(p) / kPage] : 0;
  return id ? &allocations_[id] : nullptr;
}

void Arena::set_initialised(const void* p, size_t bytes, bool value) {
  if (!written_) return;
  size_t at = offset(p);
  const size_t end = at + bytes;
  for (; at < end && at % 8; ++at) value ? written_[at / 8] |= 1 << at % 8 : written_[at / 8] &= ~(1 << at % 8);
  if (at + 8 <= end) memset(written_ + at / 8, value ? 0xff : 0, (end - at) / 8);
  if (at < end) at += (end - at) / 8 * 8;
  for (; at < end; ++at) value ? written_[at / 8] |= 1 << at % 8 : written_[at / 8] &= ~(1 << at % 8);
}

bool Arena::initialised(const void* p, size_t bytes) const {
  const size_t at = offset(p), shift = at % 8;
  if (shift + bytes <= 8) {
    const unsigned mask = ((1u << bytes) - 1) << shift;
    return (written_[at / 8] & mask) == mask;
  }
  return first_uninitialised(p, bytes) == bytes;
}

size_t Arena::first_uninitialised(const void* p, size_t bytes) const {
  if (!written_) return bytes;
  const size_t at = offset(p);
  for (size_t i = 0; i < bytes; ++i) {
    if ((at + i) % 8 == 0 && written_[(at + i) / 8] == 0xff) i += 7;
    else if (!(written_[(at + i) / 8] >> (at + i) % 8 & 1)) return i;
  }
  return bytes;
}

void Arena::copy_initialised(const void* to, const Arena& from_arena, const void* from, size_t bytes) {
  const size_t a = offset(to), b = from_arena.offset(from);
  if (a % 8 == 0 && b % 8 == 0) {
    memmove(written_ + a / 8, from_arena.written_ + b / 8, bytes / 8);
    for (size_t i = bytes / 8 * 8; i < bytes; ++i)
      set_initialised(static_cast<const char*>(to) + i, 1, from_arena.written_[(b + i) / 8] >> (b + i) % 8 & 1);
    return;
  }
  std::vector<bool> bits(bytes);
  for (size_t i = 0; i < bytes; ++i) bits[i] = from_arena.written_[(b + i) / 8] >> (b + i) % 8 & 1;
  for (size_t i = 0; i < bytes; ++i) set_initialised(static_cast<const char*>(to) + i, 1, bits[i]);
}

Arena *device_arena, *pinned_arena, *shared_arena;
uintptr_t module_base;

// Before the statics of anyone's sources, which are looked at as soon as they are made, in whatever order the objects are linked. Address
// space only: pages count when they are touched.
__attribute__((constructor(101))) void reserve_address_space() {
  device_arena = new Arena(size_t{256} << 30, true);
  pinned_arena = new Arena(size_t{64} << 30, false);
  shared_arena = new Arena(size_t{4} << 20, true);
  module_base = module().base;
}

std::string whereabouts(const Arena& arena, const char* name, const void* p) {
  const Allocation* a = arena.find(p);
  if (!a) return std::string(name) + " memory that no allocation holds";
  const auto at = reinterpret_cast<uintptr_t>(p) - a->begin;
  return "byte " + std::to_string(at) + " of the " + std::to_string(a->bytes) + (a->live ? "" : " freed") + " bytes of " + name +
         " memory allocated at " + a->place.text();
}

bool in_module(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  return at >= module().base && at < module().end;
}

}  // namespace emu
