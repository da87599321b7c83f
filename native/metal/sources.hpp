// The .metal sources as text, one per file with its headers in place (embed.py).
#pragma once

namespace dlab::gpu {

struct Source {
  const char* name;
  const char* text;
};
extern const Source kSources[];
extern const int kSourceCount;

}  // namespace dlab::gpu
