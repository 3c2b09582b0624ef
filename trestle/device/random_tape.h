#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace trestle {

// Records the random numbers that an operation draws, so that its recomputation draws them again.
//
//   RandomTape tape;
//   {
//     const RandomTape::Record record(tape);
//     y = dropout(x);   // the default generator advances as it would without a tape
//   }
//   {
//     const RandomTape::Replay replay(tape);
//     z = dropout(x);   // the same mask; only the tape's own generator is read and advanced
//   }
//
// The tape records the draws of the thread's random operators that are given no generator, on the
// CPU and on virtual devices, from default generators and from a KeyedRandom. A draw and its
// recording are one atomic step, so the tape is right while other threads draw from the same
// default generator. Work without draws costs next to nothing; each generator that is used costs 3
// KB, once. For GPUs, the state of the default generators of `gpus` is saved at the beginning, set
// again in the replay, and restored after it.
//
// Scopes nest, and belong to the thread that created them. While a tape is replayed, the scopes
// around it see none of its draws. A replay may end early. A draw that was not recorded throws
// StateError.
class RandomTape {
 public:
  RandomTape();
  ~RandomTape();
  RandomTape(const RandomTape&) = delete;
  RandomTape& operator=(const RandomTape&) = delete;

  class Record;
  class Replay;
  struct Contents;

 private:
  std::unique_ptr<Contents> contents_;
};

class RandomTape::Record {
 public:
  explicit Record(RandomTape& tape, const std::vector<at::Device>& gpus = {});
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

class RandomTape::Replay {
 public:
  explicit Replay(const RandomTape& tape);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

}  // namespace trestle
