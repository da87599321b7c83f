#include "context.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace dlab {

namespace {

// On the heap: a process may load several of these libraries, and what is thread-local in them shares a small block.
constexpr size_t kErrorBytes = 1024;
thread_local std::unique_ptr<char[]> error_text;

}  // namespace

void fail(int32_t status, const char* format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error{status, text};
}

int32_t set_error(int32_t status, const char* text) noexcept {
  if (!error_text) error_text.reset(new (std::nothrow) char[kErrorBytes]);
  if (error_text) snprintf(error_text.get(), kErrorBytes, "%s", text);
  return status;
}

const char* last_error() noexcept { return error_text ? error_text.get() : ""; }

std::vector<std::pair<std::string, std::string>> parse_lines(const char* text, const char* what) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const char* line = text; line && *line;) {
    const size_t length = strcspn(line, "\n");
    const std::string entry(line, length);
    line += length + (line[length] == '\n');
    if (entry.empty()) continue;
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) fail(DLAB_E_ARG, "%s line '%s': expected key=value", what, entry.c_str());
    const std::string key = entry.substr(0, equals);
    for (const auto& pair : pairs)
      if (pair.first == key) fail(DLAB_E_ARG, "%s key '%s' appears twice", what, key.c_str());
    pairs.emplace_back(key, entry.substr(equals + 1));
  }
  return pairs;
}

int64_t parse_integer(const std::string& key, const std::string& text, int64_t low, int64_t high) {
  char* end = nullptr;
  errno = 0;
  const long long value = strtoll(text.c_str(), &end, 10);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || errno != 0 || value < low || value > high)
    fail(DLAB_E_ARG, "%s=%s: expected an integer in %lld..%lld", key.c_str(), text.c_str(), ll(low),
         ll(high));
  return value;
}

namespace {

#ifdef DLAB_HAVE_V3
bool supports_v3() {
  __builtin_cpu_init();
  // x86-64-v3; LZCNT, BMI and MOVBE come with every processor that has AVX2 and BMI2.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

}  // namespace

const Kernels& choose_kernels() {
#ifdef DLAB_HAVE_V3
  if (supports_v3()) return kV3Kernels;
#endif
  return kBaselineKernels;
}

const Kernels* find_kernels(const char* isa) {
#ifdef DLAB_HAVE_V3
  if (!strcmp(isa, kV3Kernels.isa)) return supports_v3() ? &kV3Kernels : nullptr;
#endif
  return strcmp(isa, kBaselineKernels.isa) ? nullptr : &kBaselineKernels;
}

}  // namespace dlab
