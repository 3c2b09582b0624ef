#include "trestle/precision/cpu_support.h"

namespace trestle::precision {

bool cpu_supports(Precision precision) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (precision == Precision::BFloat16) return __builtin_cpu_supports("avx512bf16") != 0;
  // GCC 12 has no name for avx512fp16 here: leaf 7, register EDX, bit 23.
  if (precision == Precision::Float16) {
    unsigned a = 7, b = 0, c = 0, d = 0;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return __builtin_cpu_supports("avx512f") != 0 && ((d >> 23U) & 1U) != 0;
  }
  return true;
#else
  return precision == Precision::Float32;
#endif
}

}  // namespace trestle::precision
