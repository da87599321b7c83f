// Reads an exported case (parity case export --weights) on the host: its geometry, its steps and its .npy files. What does not fit ends the program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

[[noreturn]] inline void die(const std::string& what) {
  fprintf(stderr, "block: %s\n", what.c_str());
  exit(2);
}

inline std::string text_of(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  if (!file || fseek(file, 0, SEEK_END)) die(path + ": cannot be read");
  std::string text(ftell(file), 0);
  rewind(file);
  if (fread(&text[0], 1, text.size(), file) != text.size()) die(path + ": cannot be read");
  fclose(file);
  return text;
}

// An .npy file of version 1.0 in C order, as NumPy writes it: exactly `count` elements of T, whose NumPy name is `descr`.
template <class T>
std::vector<T> npy(const std::string& path, const char* descr, size_t count) {
  const std::string text = text_of(path);
  if (text.size() < 10 || memcmp(text.data(), "\x93NUMPY\x01", 7)) die(path + ": not an .npy file of version 1");
  const size_t start = 10 + static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  const std::string header = text.substr(0, start);
  if (header.find(descr) == std::string::npos || header.find("'fortran_order': False") == std::string::npos) die(path + ": another layout");
  if (text.size() != start + count * sizeof(T)) die(path + ": another shape than the geometry gives");
  std::vector<T> values(count);
  memcpy(values.data(), text.data() + start, count * sizeof(T));
  return values;
}

struct Geometry {
  int hidden, inner, layers, heads, kv_heads, dim, vocab, rotary, window, taps;  // taps: the width of a feature
  float eps, scale;
  double theta;
  std::string sliding, causal;  // "1,0,1": by layer
};

inline Geometry read_geometry(const std::string& path) {
  std::map<std::string, std::string> table;
  const std::string text = text_of(path);
  for (size_t line = 0, tab, end; (tab = text.find('\t', line)) != std::string::npos; line = end + 1) {
    end = std::min(text.find('\n', tab), text.size());
    table[text.substr(line, tab - line)] = text.substr(tab + 1, end - tab - 1);
  }
  const auto value = [&](const std::string& key) {
    if (!table.count(key)) die(key + ": is not in " + path);
    return table[key];
  };
  const auto whole = [&](const char* key) { return atoi(value(key).c_str()); };
  const auto real = [&](const char* key) { return atof(value(key).c_str()); };
  const std::map<std::string, std::string> wanted = {
      {"dialect.rope.style", "neox"}, {"dialect.attn_gate", "none"}, {"dialect.conv", "0"}, {"dialect.selector", "0"},
      {"dialect.markov", "none"}, {"dialect.tap_norm", "0"}, {"dialect.ctx_layernorm", "0"}, {"dialect.embed_scale", "1.0"},
      {"dialect.output_multiplier", "1.0"}, {"dialect.softcap", "none"}, {"dialect.rope.factors", "none"}, {"draft_vocab", "none"}};
  for (const auto& [key, known] : wanted)
    if (value(key) != known) die(key + ": this engine does not do that");
  if (value("dialect.window_rule") != "none" && value("dialect.window_rule") != "W_LT") die("dialect.window_rule: this engine knows W_LT only");
  Geometry g;
  g.hidden = whole("hidden"), g.inner = whole("intermediate"), g.layers = whole("layers"), g.vocab = whole("vocab");
  g.heads = whole("heads"), g.kv_heads = whole("kv_heads"), g.dim = whole("head_dim"), g.rotary = whole("dialect.rope.dim");
  g.window = whole("window"), g.sliding = value("sliding"), g.causal = value("dialect.causal");
  g.eps = static_cast<float>(real("dialect.eps")), g.scale = static_cast<float>(real("dialect.attn_scale")), g.theta = real("dialect.rope.theta");
  const std::string taps = value("tap_ids");
  g.taps = whole("target_hidden") * static_cast<int>(1 + std::count(taps.begin(), taps.end(), ','));
  return g;
}

struct Step {
  int number, at, rows;
  std::string kind, file;
};

inline std::vector<Step> read_steps(const std::string& path) {
  std::vector<Step> steps;
  const std::string text = text_of(path);
  for (size_t line = text.find('\n'); line != std::string::npos && line + 1 < text.size(); line = text.find('\n', line + 1)) {
    Step s;
    char kind[16], file[256];
    if (sscanf(text.c_str() + line + 1, "%d\t%15s\t%d\t%d\t%255s", &s.number, kind, &s.at, &s.rows, file) != 5) die(path + ": cannot be read");
    s.kind = kind;
    s.file = file;
    steps.push_back(s);
  }
  return steps;
}
