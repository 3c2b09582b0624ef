#pragma once

#include <string>
#include <vector>

// Finds stream mistakes without a GPU.
//
//   trestle::StreamCheck check;
//   pipeline.step(x, y, loss);
//   for (const std::string& finding : check.findings()) std::puts(finding.c_str());
//
// A GPU carries out what it is asked for later, one stream beside the other; an event that nobody
// waits for is a wrong number now and then. While a check lives, virtual devices have streams and
// events as GPUs have, c10's own, and the order that these give is written down: every operator that
// reads or writes memory which another stream used before, without an event between the two, is a
// finding, and so is memory that is let go while another stream may still use it (no
// record_stream). Numbers stay right meanwhile: operators still run at once. The idea is that of
// PyTorch's CUDA sanitizer (torch.cuda._sanitizer); here it needs no GPU and sees the allocator too.
//
// Some microseconds an operator, and a lock that all threads share. Host memory is not watched.
namespace trestle {

class StreamCheck {
 public:
  // From here on. Throws StateError without virtual devices, and where another one lives: there is
  // one for the process.
  StreamCheck();
  ~StreamCheck();
  StreamCheck(const StreamCheck&) = delete;
  StreamCheck& operator=(const StreamCheck&) = delete;

  // What was found so far: which operator, on which stream, and against which; 20 at most.
  std::vector<std::string> findings() const;
};

}  // namespace trestle
