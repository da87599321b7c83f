// crop: after every append the context has lost its last row. The shipped entry point is compiled under another name.
#include "drafter.hpp"

#include <cstdlib>
#include <cstring>

extern "C" int32_t dlab_shipped_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0);

extern "C" DLAB_API int32_t dlab_drafter_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0) {
  const int32_t status = dlab_shipped_append(d, taps, pos0);
  const char* fault = std::getenv("DLAB_TEST_FAULT");
  if (status == 0 && fault && std::strcmp(fault, "crop") == 0 && !d->positions.empty()) {
    d->positions.pop_back();
    for (dlab::Cache& cache : d->caches) {
      cache.k.resize(d->positions.size() * static_cast<size_t>(d->config.cell_width()));
      cache.v.resize(cache.k.size());
    }
  }
  return status;
}
