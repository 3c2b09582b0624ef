#include "trestle/checkpoint/dtypes.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little endian");

constexpr std::array<std::pair<const char*, at::ScalarType>, 10> types = {{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

}  // namespace

std::string dtype_name(const std::string& tensor, at::ScalarType type) {
  for (const auto& [name, scalar] : types)
    if (scalar == type) return name;
  throw UsageError(text("tensor '", tensor, "' has type ", c10::toString(type),
                        ", which a weights file cannot hold"),
                   {.hint = "Convert it first, for example to float."});
}

at::ScalarType scalar_type(const std::string& dtype) {
  for (const auto& [name, scalar] : types)
    if (dtype == name) return scalar;
  throw FormatError(text("unknown type ", dtype));
}

void check_writable(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined())
    throw UsageError(text("tensor '", name, "' is undefined and cannot be saved"));
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw UsageError(text("tensor '", name, "' is sparse or quantised and cannot be saved"));
}

}  // namespace trestle::checkpoint
