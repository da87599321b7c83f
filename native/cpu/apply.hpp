// A call of an operation by name (dlab_apply): its operands and numbers, by the names the operation declares, each checked as it is
// taken. Everything throws `Error`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checks.hpp"
#include "ops.hpp"

namespace dlab {

// `operands` and `params` are comma separated names in the order of the call; "x..." comes one or more times, "[bias]" may be left out.
class Call;
struct Operation {
  const char* name;
  const char* operands;
  const char* params;
  void (*run)(const Call& call);
};

class Call {
 public:
  Call(dlab_ctx& context, const Operation& operation, const dlab_tensor* in, int32_t n_in, const double* params, int32_t n_params,
       dlab_tensor* y);

  dlab_ctx& ctx;

  bool has(const char* name) const { return find(name).count > 0; }
  // How many tensors a repeated operand has, and each of them.
  int64_t count(const char* name) const { return find(name).count; }
  const dlab_tensor* tensor(const char* name, int64_t index = 0) const { return find(name).first + index; }
  std::string label(const char* name, int64_t index) const;

  // Size of an axis of an operand that was taken before.
  int64_t axis(const char* name, int i, int64_t index = 0) const { return tensor(name, index)->shape[i]; }

  // f32 rows of an operand of this shape (-1: any size; no shape: any), all dimensions but the first flattened.
  Rows floats(const char* name, std::initializer_list<int64_t> shape = {}, int64_t index = 0) const;
  Weight weight(const char* name, std::initializer_list<int64_t> shape, int64_t index = 0) const;
  // A weight decoded to dense values.
  std::vector<float> values(const char* name, std::initializer_list<int64_t> shape) const;
  // I32 or I64, dense. `ids` of this shape; `wide` is a vector that must be I64.
  std::vector<int64_t> ids(const char* name, std::initializer_list<int64_t> shape) const;
  std::vector<int64_t> wide(const char* name, int64_t length = -1) const;

  double number(const char* name) const;
  int64_t whole(const char* name, int64_t low, int64_t high) const;

  // The result, which must have this shape and dtype.
  Rows result(std::initializer_list<int64_t> shape) const;
  Rows result_like(const char* name) const;
  ops::Ids result_ids(std::initializer_list<int64_t> shape) const;

 private:
  struct Place {
    const dlab_tensor* first;
    int64_t count;
  };
  Place find(const char* name) const;

  std::vector<std::pair<std::string, Place>> operands_;
  std::vector<std::pair<std::string, double>> params_;
  dlab_tensor* y_;
};

// The operations of each file, ended by one without a name.
extern const Operation kMoves[], kTables[], kStreams[], kSequences[], kChoices[], kExperts[];
// Those that this library has.
std::vector<const Operation*> operation_tables();

}  // namespace dlab
