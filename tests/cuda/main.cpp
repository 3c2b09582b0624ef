// cuda_test [--cuda] [gtest options]: on virtual devices with streams, or on GPUs.
#include <cstdio>
#include <cstring>

#include "tests/cuda/async_devices.h"

namespace trestle::support {

namespace {
bool cuda = false;
}

bool on_cuda() { return cuda; }

}  // namespace trestle::support

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--cuda") == 0) trestle::support::cuda = true;
  if (trestle::support::on_cuda() && !torch::cuda::is_available()) {
    std::fprintf(stderr, "--cuda: this process sees no GPU\n");
    return 1;
  }
  return RUN_ALL_TESTS();
}
