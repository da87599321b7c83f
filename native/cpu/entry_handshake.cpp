// Entry points that are the same for every library built from these sources: struct layouts, errors, the dump callback.
#include <cstddef>
#include <cstring>

#include "context.hpp"

namespace dlab {
namespace {

struct Field {
  const char* type;
  const char* field;
  size_t size, offset;
};

#define DLAB_FIELD(type, field) {#type, #field, sizeof(type), offsetof(type, field)}
constexpr Field kLayout[] = {
    DLAB_FIELD(dlab_tensor, data),          DLAB_FIELD(dlab_tensor, shape),       DLAB_FIELD(dlab_tensor, stride_bytes),
    DLAB_FIELD(dlab_tensor, dtype),         DLAB_FIELD(dlab_tensor, ndim),        DLAB_FIELD(dlab_tensor, place),
    DLAB_FIELD(dlab_tensor, reserved),      DLAB_FIELD(dlab_named_tensor, name),  DLAB_FIELD(dlab_named_tensor, tensor),
    DLAB_FIELD(dlab_dump, struct_size),     DLAB_FIELD(dlab_dump, reserved),      DLAB_FIELD(dlab_dump, stage),
    DLAB_FIELD(dlab_dump, row0),            DLAB_FIELD(dlab_dump, tensor),        DLAB_FIELD(dlab_info, struct_size),
    DLAB_FIELD(dlab_info, abi_major),       DLAB_FIELD(dlab_info, abi_minor),     DLAB_FIELD(dlab_info, flags),
    DLAB_FIELD(dlab_info, name),            DLAB_FIELD(dlab_info, version),       DLAB_FIELD(dlab_info, arithmetic),
    DLAB_FIELD(dlab_info, source_hash),
};
#undef DLAB_FIELD

std::vector<std::string> split_patterns(const char* text) {
  std::vector<std::string> patterns;
  for (const char* p = text; p && *p;) {
    const size_t length = strcspn(p, ",");
    if (length) patterns.emplace_back(p, length);
    p += length + (p[length] == ',');
  }
  return patterns;
}

}  // namespace
}  // namespace dlab

using namespace dlab;

extern "C" {

int32_t dlab_layout(const char* type_name, const char* field, int64_t* size, int64_t* offset) {
  if (!type_name || !field || !size || !offset) return set_error(DLAB_E_ARG, "layout: an argument is NULL");
  for (const Field& known : kLayout)
    if (!strcmp(known.type, type_name) && !strcmp(known.field, field)) {
      *size = static_cast<int64_t>(known.size);
      *offset = static_cast<int64_t>(known.offset);
      return DLAB_OK;
    }
  return set_error(DLAB_E_ARG, "layout: no such type or field");
}

const char* dlab_last_error(dlab_ctx*) { return last_error(); }

int32_t dlab_set_dump(dlab_ctx* ctx, dlab_dump_fn fn, void* user, const char* patterns) {
  return guarded(ctx, "set_dump", [&] {
    std::vector<std::string> list = split_patterns(patterns);
    if (fn && list.empty()) fail(DLAB_E_ARG, "no stage pattern; \"*\" means all stages");
    ctx->dump_patterns = std::move(list);
    ctx->dump = fn;
    ctx->dump_user = user;
  });
}

}  // extern "C"
