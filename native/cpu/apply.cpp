// Operations that go by name: which there are, what each takes, and the entry point that finds them.
#include <cstring>

#include "checks.hpp"

using namespace dlab;

extern "C" {

const char* dlab_operations(void) { return ""; }

int32_t dlab_apply(dlab_ctx* ctx, const char* op, const dlab_tensor*, int32_t, const double*, int32_t, dlab_tensor*) {
  return guarded(ctx, "apply", [&] {
    require_pointer(op, "op");
    fail(DLAB_E_UNSUPPORTED, "operation '%s' is unknown; known: %s", op, dlab_operations());
  });
}

}  // extern "C"
