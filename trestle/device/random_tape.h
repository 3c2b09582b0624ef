#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace trestle {

// The random numbers that a piece of work draws, so that it can draw the same ones again.
//
//   RandomTape tape;
//   {
//     const RandomTape::Record record(tape);
//     y = dropout(x);   // draws as always: the default generator moves as it would without a tape
//   }
//   {
//     const RandomTape::Replay replay(tape);
//     z = dropout(x);   // the same mask; no generator but the tape's own is read or moved
//   }
//
// Taken down are the draws of the thread's random operators that are given no generator, on the CPU and
// on virtual devices, whether they come from default generators or from a KeyedRandom. Each draw is one
// piece with what it takes down, so the tape is right where other threads draw from the same default
// generator meanwhile. Work that draws nothing costs next to nothing; a generator that was drawn from
// takes 3 KB, once. For GPUs the state of the default generators of `gpus` is taken at the beginning,
// set again in the replay, and put back after it.
//
// Scopes nest, and belong to the thread that made them. While a tape is replayed, the scopes around it
// see none of its draws. A replay may end early; a draw that was not taken down throws StateError.
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
