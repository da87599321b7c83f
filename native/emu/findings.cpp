#include "findings.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <map>

namespace emu {

namespace {

EMU_LASTING std::vector<Finding> found;
EMU_LASTING std::map<std::vector<uint64_t>, size_t> known;  // kind and places as numbers -> index in found

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

constexpr const char* kOwnHeaders[] = {"/cuda_emu.hpp:",   "/cuda_math.hpp:",   "/cuda_types.hpp:",  "/floats.hpp:",
                                       "/language.hpp:", "/metal_emu.hpp:", "/metal_kernel.hpp:", "/metal_types.hpp:", "/metal_matrix.hpp:"};

// The first line that a command prints and that is not of a header of the emulator.
std::string first_line(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string found;
  char line[512];
  while (pipe && fgets(line, sizeof line, pipe)) {
    line[strcspn(line, "\n")] = 0;
    const auto in_header = [&](const char* header) { return strstr(line, header) != nullptr; };
    if (found.empty() && std::none_of(std::begin(kOwnHeaders), std::end(kOwnHeaders), in_header)) found = line;
  }
  if (pipe) pclose(pipe);
  return found;
}

// As the translation named the source: without the folder it was compiled in, and without the suffix of the translated file, which
// debug information may show in its place.
std::string source_name(std::string line) {
#ifdef EMU_BUILD_ROOT
  for (const char* root : {EMU_BUILD_ROOT, "/emulated/"})  // the second is what emulate.cmake calls the first in debug information
    if (line.rfind(root, 0) == 0) line.erase(0, strlen(root));
#endif
  if (const size_t folder = line.find("_emulated/"); folder != std::string::npos) line.erase(0, folder + strlen("_emulated/"));
  for (const char* suffix : {".cu.cpp:", ".metal.cpp:"})
    if (const size_t at = line.find(suffix); at != std::string::npos) line.erase(at + strlen(suffix) - strlen(".cpp:"), strlen(".cpp"));
  return line;
}

EMU_LASTING std::map<uint32_t, std::string> lines;  // by instruction

// "file:line" of an instruction of this shared object, or its offset where the debug information or addr2line is missing.
std::string resolved(uint32_t code) {
  auto [entry, fresh] = lines.try_emplace(code);
  if (!fresh) return entry->second;
  Dl_info self{};
  char text[32];
  snprintf(text, sizeof text, "code +0x%x", code);
  entry->second = text;
  if (!dladdr(reinterpret_cast<void*>(&clear_findings), &self) || !self.dli_fname) return entry->second;
  char command[1200];
  // The address is a return address: one byte less lies in the call.
  snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%x 2>/dev/null", self.dli_fname, code - 1);
  std::string line = first_line(command);
  if (const size_t extra = line.find(" ("); extra != std::string::npos) line.resize(extra);  // "(discriminator 3)"
  if (line.empty() || line.find("??") != std::string::npos) return entry->second;
  return entry->second = source_name(line);
}

}  // namespace

std::string Place::text() const { return file ? std::string(file) + ":" + std::to_string(line) : resolved(code); }

void report(const char* kind, const std::vector<Place>& places, const std::string& text) {
  std::vector<uint64_t> key{reinterpret_cast<uintptr_t>(kind)};
  for (const Place& p : places) {
    key.push_back(reinterpret_cast<uintptr_t>(p.file));
    key.push_back(static_cast<uint64_t>(p.line) << 32 | p.code);
  }
  if (const auto same = known.find(key); same != known.end()) {
    ++found[same->second].count;
    return;
  }
  if (found.size() >= kMaxFindings) return;
  Finding finding{kind, text, {}, 1};
  for (const Place& p : places) finding.places.push_back(p.text());
  for (size_t i = 0; i < finding.places.size(); ++i) {
    const std::string mark = "{" + std::to_string(i) + "}";
    for (size_t at; (at = finding.text.find(mark)) != std::string::npos;) finding.text.replace(at, mark.size(), finding.places[i]);
  }
  known[key] = found.size();
  found.push_back(std::move(finding));
}

const std::vector<Finding>& findings() { return found; }

void clear_findings() {
  found.clear();
  known.clear();
}

std::string findings_text() {
  std::string text;
  for (const Finding& f : found) {
    text += "{\"kind\": " + quoted(f.kind) + ", \"text\": " + quoted(f.text) + ", \"places\": [";
    for (size_t i = 0; i < f.places.size(); ++i) text += (i ? ", " : "") + quoted(f.places[i]);
    text += "], \"count\": " + std::to_string(f.count) + "}\n";
  }
  return text;
}

}  // namespace emu
