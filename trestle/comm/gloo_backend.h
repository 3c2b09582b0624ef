#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace trestle::comm {

// Gloo's place in this process: a thread and a port that the connections of all groups share.
class GlooDevice {
 public:
  // `address` is this machine's, for the other ranks to connect to.
  explicit GlooDevice(const std::string& address);
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  // Connects all ranks of a group with each other, by the store's keys. Waits for them.
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds deadline) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trestle::comm
