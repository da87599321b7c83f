// The context behind the ABI's opaque pointer, errors, and the guard around every entry point.
#pragma once

#include <atomic>
#include <new>
#include <string>
#include <vector>

#include "dlab.h"
#include "kernels.hpp"
#include "pool.hpp"

namespace dlab {

// Thrown inside the library only; `guarded` turns it into a status and a text.
struct Error {
  int32_t status;
  std::string text;
};

// int64_t as the type that %lld takes.
inline long long ll(int64_t value) { return value; }

[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(int32_t status, const char* format, ...);

// Keeps the text for dlab_last_error on this thread, cut to fit; never throws. Returns the status.
int32_t set_error(int32_t status, const char* text) noexcept;
const char* last_error() noexcept;

// Lines of key=value; blank lines are skipped. DLAB_E_ARG for a line without '=' or a repeated key.
std::vector<std::pair<std::string, std::string>> parse_lines(const char* text, const char* what);

// Digits only, within [low, high]; DLAB_E_ARG naming the key otherwise.
int64_t parse_integer(const std::string& key, const std::string& text, int64_t low, int64_t high);

}  // namespace dlab

struct dlab_ctx {
  dlab_ctx(const dlab::Kernels& table, int threads) : kernels(table), pool(threads) {}

  const dlab::Kernels& kernels;
  dlab::Pool pool;
  std::atomic<bool> busy{false};
  dlab_dump_fn dump = nullptr;
  void* dump_user = nullptr;
  std::vector<std::string> dump_patterns;
};

namespace dlab {

// Runs body as one call on the context: nothing it throws gets out, and a second call at the same time is refused.
template <class Body>
int32_t guarded(dlab_ctx* ctx, const char* op, Body&& body) noexcept {
  if (!ctx) return set_error(DLAB_E_ARG, "the context is NULL");
  if (ctx->busy.exchange(true)) {
    try {
      return set_error(DLAB_E_STATE, (std::string(op) + ": the context is in use by another call; use one context per thread").c_str());
    } catch (...) {
      return set_error(DLAB_E_STATE, "the context is in use by another call");
    }
  }
  int32_t status = DLAB_OK;
  try {
    body();
  } catch (const Error& error) {
    try {
      status = set_error(error.status, (std::string(op) + ": " + error.text).c_str());
    } catch (...) {
      status = set_error(error.status, error.text.c_str());
    }
  } catch (const std::bad_alloc&) {
    status = set_error(DLAB_E_NOMEM, "out of memory");
  } catch (const std::exception& error) {
    status = set_error(DLAB_E_INTERNAL, error.what());
  } catch (...) {
    status = set_error(DLAB_E_INTERNAL, "unknown failure");
  }
  ctx->busy = false;
  return status;
}

}  // namespace dlab
