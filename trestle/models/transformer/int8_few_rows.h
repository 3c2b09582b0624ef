#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/models/transformer/int8_rows.h"

// The product of generation: a few vectors times a frozen matrix. Not installed.
namespace trestle::models {

// Whether few_rows_product() takes these: 1 to 16 vectors of fp32 or bf16 in the host's memory.
// With more vectors, the product with the matrix in fp32 is faster.
bool has_few_rows(const at::Tensor& x, const Int8Rows& weight);

// x [..., inputs] times the transposed matrix [outputs, inputs], without a bias and without a
// gradient: [..., outputs] in x's dtype. Each vector is rounded to whole numbers of 16 bits, with
// one scale for each 64 inputs, and multiplied by the int8 numbers: a token costs the reading of
// the int8 rows. A vector with a number that is not finite gives NaN.
//
// libtorch's _weight_int8pack_mm converts each number to fp32: on processors without AVX-512 that
// takes four times as long as this product.
at::Tensor few_rows_product(const at::Tensor& x, const Int8Rows& weight);

}  // namespace trestle::models
