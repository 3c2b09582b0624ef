#pragma once

#include <string_view>

#include "trestle/checkpoint/files/gguf/gguf_type.h"

// Numbers of GGUF files as floats. Torch-free.
namespace trestle::checkpoint {

// Converts whole blocks of `type` to floats: block_of(type).elements for each block_of(type).bytes
// of `bytes`. Equal bit for bit to gguf.dequantize() of Python. Throws UsageError for a length that
// is not whole blocks. Threads may convert other blocks at once.
void dequantise(GgufType type, std::string_view bytes, float* out);

}  // namespace trestle::checkpoint
