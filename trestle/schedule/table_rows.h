#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/schedule.h"

// The rows of a table while a generator makes them. Not installed.
namespace trestle::schedule {

// Empty tables. In a loop rank r of p has the stages r, r + p, r + 2p, ...; in a V it has the
// stages r and 2p - 1 - r.
Schedule table_in_loop(const GenerateOptions& options);
Schedule table_in_v(const GenerateOptions& options);

// The stages of a rank, in the order of the model.
std::vector<int> stages_of(const Schedule& table, int rank);

// One rank's row. A chunk is one of the rank's stages, counted from 0 in the order of the model.
// The micro-batches of each kind of action on each chunk follow each other from 0.
class RowMaker {
 public:
  explicit RowMaker(const std::vector<int>& stage_of_chunk);

  void forward(int chunk);
  void backward(int chunk);
  void input_grad(int chunk);
  void weight_grad(int chunk);                          // W of the chunk's oldest I without one
  void oldest_weight_grad();                            // the same of all chunks
  void overlap(int forward_chunk, int backward_chunk);  // F of one chunk and B of the other

  int forwards(int chunk) const { return at(chunk).forwards; }
  int backwards(int chunk) const { return at(chunk).backwards; }  // B and I
  bool has_waiting() const { return !waiting_.empty(); }          // an I without its W

  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Chunk {
    int stage = 0;
    int forwards = 0, backwards = 0;
  };
  Chunk& at(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }
  const Chunk& at(int chunk) const { return chunks_[static_cast<std::size_t>(chunk)]; }

  std::vector<Chunk> chunks_;
  std::deque<std::pair<int, int>> waiting_;  // (chunk, micro-batch) of I without W, oldest first
  std::vector<Action> actions_;
};

}  // namespace trestle::schedule
