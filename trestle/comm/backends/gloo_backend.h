#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace trestle::comm {

// Gloo's device of this process: one thread and one port, shared by the connections of all groups.
class GlooDevice {
 public:
  // `address` is the address of this machine that the other ranks connect to.
  explicit GlooDevice(const std::string& address);
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

  // Connects all ranks of a group with each other, through keys of the store. Waits for all of
  // them.
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds deadline) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trestle::comm
