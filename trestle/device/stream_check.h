#pragma once

#include <string>
#include <vector>

// Finds stream mistakes without a GPU.
//
//   trestle::StreamCheck check;
//   pipeline.step(x, y, loss);
//   for (const std::string& finding : check.findings()) std::puts(finding.c_str());
//
// A GPU runs queued work later, and its streams run concurrently. A missing wait for an event gives
// a wrong number now and then. While a StreamCheck lives, virtual devices have c10 streams and
// events like GPUs, and the check records the order that these define. It reports every operator
// that reads or writes memory used by another stream without an event between the two, and memory
// that is freed while another stream may still use it (no record_stream). Numbers stay right:
// operators still run at once. The idea is that of PyTorch's CUDA sanitizer
// (torch.cuda._sanitizer); this one needs no GPU and sees the allocator too.
//
// It costs some microseconds an operator, and a lock that all threads share. Host memory is not
// checked.
namespace trestle {

class StreamCheck {
 public:
  // Starts the check. Throws StateError without virtual devices, and while another StreamCheck
  // lives: a process has one at a time.
  StreamCheck();
  ~StreamCheck();
  StreamCheck(const StreamCheck&) = delete;
  StreamCheck& operator=(const StreamCheck&) = delete;

  // The findings so far, 20 at most: the operator, its stream, and the conflicting operator.
  std::vector<std::string> findings() const;
};

}  // namespace trestle
