#pragma once

#include <array>
#include <string_view>

// Python's names of storage types and those of safetensors. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

struct StorageType {
  std::string_view python;
  std::string_view dtype;
};

inline constexpr std::array<StorageType, 10> storage_types = {{
    {"torch.DoubleStorage", "F64"},
    {"torch.FloatStorage", "F32"},
    {"torch.HalfStorage", "F16"},
    {"torch.BFloat16Storage", "BF16"},
    {"torch.LongStorage", "I64"},
    {"torch.IntStorage", "I32"},
    {"torch.ShortStorage", "I16"},
    {"torch.CharStorage", "I8"},
    {"torch.ByteStorage", "U8"},
    {"torch.BoolStorage", "BOOL"},
}};

}  // namespace trestle::checkpoint
