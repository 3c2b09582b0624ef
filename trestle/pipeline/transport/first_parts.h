#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace trestle::pipeline {

// The first parts of a pipeline's messages between ranks (message_header.h), by the other rank and
// the tag. Both ends know the size of the next one, because each message announces it. Any thread
// may call it.
class FirstParts {
 public:
  // A buffer for the next message to rank `to`. It is in use until all_sent().
  at::Tensor to_send(int to, int tag);
  void sent(int to, int tag, std::size_t next_bytes);
  void all_sent();

  // A new buffer for the next message from rank `from`.
  at::Tensor to_receive(int from, int tag) const;
  // `whole`: nothing followed the first part.
  void received(int from, int tag, std::size_t next_bytes, bool whole);
  // Whether the last message was whole, so that the next one probably is.
  bool comes_whole(int from, int tag) const;

 private:
  struct Sending {
    std::size_t bytes;
    at::Tensor buffer = {};  // kept, since new memory costs page faults
    bool in_use = false;
  };
  struct Receiving {
    std::size_t bytes;
    bool whole = false;
  };
  using Place = std::pair<int, int>;  // rank, tag

  mutable std::mutex mutex_;
  std::map<Place, Sending> sending_;
  std::map<Place, Receiving> receiving_;
};

}  // namespace trestle::pipeline
