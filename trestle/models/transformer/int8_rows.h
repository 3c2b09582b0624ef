#pragma once

#include <ATen/core/Tensor.h>

// Frozen weights of one byte a number: whole numbers from -127 to 127 and one scale for each row.
namespace trestle::models {

// Row i stands for scales[i] * rows[i].
struct Int8Rows {
  at::Tensor rows;    // int8 [outputs, inputs]
  at::Tensor scales;  // fp32 [outputs]
};

// Rounds a matrix [outputs, inputs] of any floating type: a row's scale is its largest absolute
// value / 127, so no number is off by more than half a scale. The scale of a row of zeros is 0.
Int8Rows to_int8_rows(const at::Tensor& matrix);

// The matrix that the rows stand for, in `type`.
at::Tensor from_int8_rows(const Int8Rows& weight, at::ScalarType type);

// As product() in product.h: x [..., inputs] times the transposed matrix, plus a bias where there
// is one. The matrix is made in the dtype of the product, which is x's, or autocast's where that
// is on. The backward makes it again: between forward and backward only the int8 rows exist. Rows
// and scales get no gradient.
at::Tensor product(const at::Tensor& x, const Int8Rows& weight, const at::Tensor& bias = {});

}  // namespace trestle::models
