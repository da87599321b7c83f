// Finding an operation by name and taking its call apart.
#include "apply.hpp"

#include <cmath>
#include <cstring>

#include "formats.hpp"

namespace dlab {

namespace {

const Operation* find_operation(const char* name) {
  for (const Operation* table : operation_tables())
    for (; table->name; ++table)
      if (!strcmp(table->name, name)) return table;
  return nullptr;
}

const std::string& operation_names() {
  static const std::string names = [] {
    std::string text;
    for (const Operation* table : operation_tables())
      for (; table->name; ++table) text += std::string(text.empty() ? "" : ",") + table->name;
    return text;
  }();
  return names;
}

std::vector<std::string> split(const char* text) {
  std::vector<std::string> parts;
  for (const char* p = text; *p;) {
    const size_t length = strcspn(p, ",");
    parts.emplace_back(p, length);
    p += length + (p[length] == ',');
  }
  return parts;
}

bool ends_with(const std::string& text, const char* end) {
  const size_t length = strlen(end);
  return text.size() >= length && !text.compare(text.size() - length, length, end);
}

}  // namespace

Call::Call(dlab_ctx& context, const Operation& operation, const dlab_tensor* in, int32_t n_in, const double* params, int32_t n_params,
           dlab_tensor* y)
    : ctx(context), y_(y) {
  const std::vector<std::string> names = split(operation.operands), numbers = split(operation.params);
  int64_t least = 0, most = 0;
  for (const std::string& name : names) {
    least += name[0] != '[';
    most += ends_with(name, "...") ? INT32_MAX : 1;
  }
  if (n_in < least || n_in > most) fail(DLAB_E_ARG, "n_in is %d, expected the operands %s", n_in, operation.operands);
  if (n_params != static_cast<int32_t>(numbers.size()))
    fail(DLAB_E_ARG, "n_params is %d, expected %zu (%s)", n_params, numbers.size(), operation.params);
  require_pointer(in, "in");
  if (n_params) require_pointer(params, "params");
  const dlab_tensor* next = in;
  for (const std::string& spec : names) {
    const bool repeated = ends_with(spec, "..."), optional = spec[0] == '[';
    const std::string name = optional ? spec.substr(1, spec.size() - 2) : repeated ? spec.substr(0, spec.size() - 3) : spec;
    const int64_t count = repeated ? n_in - least + 1 : optional ? n_in - least : 1;
    operands_.push_back({name, {next, count}});
    next += count;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    require_finite(params[i], numbers[i].c_str());
    params_.emplace_back(numbers[i], params[i]);
  }
  require_any(y, "y");
  for (const auto& [name, place] : operands_)
    for (int64_t i = 0; i < place.count; ++i) {
      require_any(place.first + i, label(name.c_str(), i).c_str());
      require_distinct(y, place.first + i, "y", label(name.c_str(), i).c_str());
    }
}

Call::Place Call::find(const char* name) const {
  for (const auto& [known, place] : operands_)
    if (known == name) return place;
  fail(DLAB_E_INTERNAL, "no operand %s", name);
}

std::string Call::label(const char* name, int64_t index) const {
  return find(name).count > 1 ? std::string(name) + "[" + std::to_string(index) + "]" : name;
}

Rows Call::floats(const char* name, std::initializer_list<int64_t> shape, int64_t index) const {
  const std::string text = label(name, index);
  const Rows rows = f32_rows(tensor(name, index), text.c_str(), 0);
  if (shape.size()) require_shape(tensor(name, index), text.c_str(), shape);
  return rows;
}

Weight Call::weight(const char* name, std::initializer_list<int64_t> shape, int64_t index) const {
  const std::string text = label(name, index);
  const Weight weight = stored_weight(tensor(name, index), text.c_str(), static_cast<int>(shape.size()));
  require_shape(tensor(name, index), text.c_str(), shape);
  return weight;
}

std::vector<float> Call::values(const char* name, std::initializer_list<int64_t> shape) const {
  const Weight w = weight(name, shape);
  std::vector<float> values(static_cast<size_t>(w.rows * w.width));
  for (int64_t r = 0; w.width && r < w.rows; ++r) ctx.kernels.decode(w.dtype, w.row(r), values.data() + r * w.width, w.width);
  return values;
}

std::vector<int64_t> Call::ids(const char* name, std::initializer_list<int64_t> shape) const {
  const dlab_tensor* t = tensor(name);
  require_tensor(t, name, 0, {DLAB_I32, DLAB_I64});
  require_shape(t, name, shape);
  const int64_t bytes = t->dtype == DLAB_I32 ? 4 : 8, rows = t->ndim == 1 ? 1 : t->shape[0];
  int64_t width = t->ndim == 1 ? t->shape[0] : 1;
  for (int i = 1; i < t->ndim; ++i) width *= t->shape[i];
  std::vector<int64_t> list;
  list.reserve(static_cast<size_t>(rows * width));
  std::vector<float> words(static_cast<size_t>(width * bytes / 4));
  for (int64_t r = 0; r < rows && width; ++r) {
    // A decoder reads memory wherever it lies.
    const auto* row = static_cast<const uint8_t*>(t->data) + (rows > 1 ? r * t->stride_bytes[0] : 0);
    ctx.kernels.decode(DLAB_F32, row, words.data(), width * bytes / 4);
    for (int64_t i = 0; i < width; ++i) {
      int64_t value = 0;
      int32_t narrow = 0;
      memcpy(bytes == 4 ? static_cast<void*>(&narrow) : static_cast<void*>(&value), words.data() + i * bytes / 4, static_cast<size_t>(bytes));
      list.push_back(bytes == 4 ? narrow : value);
    }
  }
  return list;
}

std::vector<int64_t> Call::wide(const char* name, int64_t length) const {
  require_tensor(tensor(name), name, 1, {DLAB_I64});
  return ids(name, {length});
}

double Call::number(const char* name) const {
  for (const auto& [known, value] : params_)
    if (known == name) return value;
  fail(DLAB_E_INTERNAL, "no number %s", name);
}

int64_t Call::whole(const char* name, int64_t low, int64_t high) const {
  const double value = number(name);
  if (!(value >= static_cast<double>(low) && value <= static_cast<double>(high)) || value != std::floor(value))
    fail(DLAB_E_ARG, "%s is %g, expected a whole number in %lld..%lld", name, value, ll(low), ll(high));
  return static_cast<int64_t>(value);
}

Rows Call::result(std::initializer_list<int64_t> shape) const {
  const Rows rows = f32_rows(y_, "y", 0);
  require_shape(y_, "y", shape);
  return rows;
}

Rows Call::result_like(const char* name) const {
  const Rows rows = f32_rows(y_, "y", 0);
  const dlab_tensor* t = tensor(name);
  bool same = t->ndim == y_->ndim;
  for (int i = 0; same && i < t->ndim; ++i) same = t->shape[i] == y_->shape[i];
  if (!same) fail(DLAB_E_SHAPE, "y is %s, expected the shape of %s, %s", describe(*y_).c_str(), name, describe(*t).c_str());
  return rows;
}

ops::Ids Call::result_ids(std::initializer_list<int64_t> shape) const {
  require_tensor(y_, "y", 0, {DLAB_I32});
  require_shape(y_, "y", shape);
  const int64_t width = y_->ndim == 1 ? 1 : y_->shape[1];
  const bool strided = y_->ndim > 1 && y_->shape[0] > 1;
  return {static_cast<int32_t*>(y_->data), y_->shape[0], width, strided ? y_->stride_bytes[0] / 4 : width};
}

}  // namespace dlab

using namespace dlab;

extern "C" {

const char* dlab_operations(void) {
  try {
    return operation_names().c_str();
  } catch (...) {
    return "";
  }
}

int32_t dlab_apply(dlab_ctx* ctx, const char* op, const dlab_tensor* in, int32_t n_in, const double* params, int32_t n_params,
                   dlab_tensor* y) {
  const Operation* operation = op ? find_operation(op) : nullptr;
  return guarded(ctx, operation ? operation->name : "apply", [&] {
    require_pointer(op, "op");
    if (!operation) fail(DLAB_E_UNSUPPORTED, "operation '%.40s' is unknown; known: %s", op, dlab_operations());
    operation->run(Call(*ctx, *operation, in, n_in, params, n_params, y));
  });
}

}  // extern "C"
