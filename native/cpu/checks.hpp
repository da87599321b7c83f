// Validation of operands. Every function throws `Error` naming the operand, what was expected and what was found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "context.hpp"

namespace dlab {

constexpr int64_t kMaxPosition = int64_t{1} << 31;  // beyond any context; keeps angle and position arithmetic exact

// "f32 [3,64]"
std::string describe(const dlab_tensor& t);

void require_pointer(const void* pointer, const char* name);

// A dense-row tensor of one of the dtypes and of `ndim` dimensions, in host memory; leading dimension possibly strided.
void require_tensor(const dlab_tensor* t, const char* name, int ndim, std::initializer_list<int32_t> dtypes);

// A tensor of any dtype and number of dimensions.
void require_any(const dlab_tensor* t, const char* name);

// Copies the values of a tensor into another of the same shape and dtype; their row strides may differ. Memory may be the same.
void copy_rows(const dlab_tensor& from, const dlab_tensor& to);

// DLAB_E_SHAPE unless the tensor has these sizes (-1: any).
void require_shape(const dlab_tensor* t, const char* name, std::initializer_list<int64_t> shape);

// f32 rows; all dimensions but the first are flattened.
Rows f32_rows(const dlab_tensor* t, const char* name, int ndim);

// A stored weight of 1 (one row) or 2 dimensions.
Weight stored_weight(const dlab_tensor* t, const char* name, int ndim);

// A weight vector of this length, decoded; empty for NULL.
std::vector<float> weight_vector(dlab_ctx& ctx, const dlab_tensor* t, const char* name, int64_t length);

// DLAB_E_ARG when the memory of y overlaps that of x.
void require_distinct(const dlab_tensor* y, const dlab_tensor* x, const char* y_name, const char* x_name);

void require_finite(double value, const char* name);

// ids[i] in 0..limit-1
void require_ids(const int32_t* ids, int64_t n, int64_t limit, const char* name);

}  // namespace dlab
