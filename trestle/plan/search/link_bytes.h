#pragma once

// The bytes that a rank sends, by link and by purpose.
namespace trestle::plan {

// By the group of ranks that needs the messages.
struct GroupBytes {
  double tensor = 0;
  double pipeline = 0;  // activations and gradients between stages
  double data = 0;      // gradients and parameters of replicas and shards

  double total() const { return tensor + pipeline + data; }
};

// In one step, by a rank of a stage. Collectives count as rings: in a group of n ranks each sends
// 2 (n - 1) / n of the bytes of an all-reduce, and half of that for a gather or a scatter. A group
// over several nodes first works within each node, and its ranks of a node share the bytes that
// leave it.
struct LinkBytes {
  int stage = 0;
  GroupBytes inside;   // to ranks of the same node
  GroupBytes between;  // to ranks of other nodes

  double total() const { return inside.total() + between.total(); }
};

}  // namespace trestle::plan
