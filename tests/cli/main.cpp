// cli_test [gtest options], or cli_test VERB...: the command line, for ranks that it starts itself.
#include <gmock/gmock.h>

#include "trestle/run.h"

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') return trestle::run(argc, argv);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
