#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/traffic.h"
#include "trestle/base/units.h"

// The measured cost of each layer of a model, the input of a balance. Times are in seconds and
// memory is in bytes, both for one micro-batch. pipeline/profile_layers.h measures it.
namespace trestle::plan {

struct LayerCost {
  std::string name;
  double forward = 0;
  double backward = 0;
  Bytes parameters = 0;
  Bytes frozen = 0;  // the part of the parameters without gradients and optimizer state
  Bytes buffers = 0;
  // Bytes that its graph keeps from forward to backward, without its arguments and its outputs.
  Bytes inner = 0;
  Bytes transient = 0;          // peak beyond what it keeps, forward or backward
  Bytes transient_forward = 0;  // the same, forward only

  // The messages of tensor ranks in it, in their order. Not part of its times.
  std::vector<LayerMessage> forward_messages = {}, backward_messages = {};

  // Its backward as I and W; nothing where it was not measured so.
  struct Split {
    double input_grad = 0, weight_grad = 0;
    Bytes kept_for_weights = 0;       // by its graph from I to W
    Bytes transient_weight_grad = 0;  // W's peak beyond that, with gradients that exist already

    friend bool operator==(const Split&, const Split&) = default;
  };
  std::optional<Split> split = std::nullopt;

  Bytes trained() const { return parameters - frozen; }
};

// A tensor that goes from a layer, or from the model's input, to other layers.
struct ValueCost {
  int from = -1;              // the layer that produces it; -1 = a model input
  std::vector<int> to;        // the consuming layers; the number of layers = the model's output
  std::vector<int> saved_by;  // layers whose graph keeps it until the backward
  Bytes bytes = 0;
  // Its layer returns memory of this earlier value, as an identity or a layer in place does; -1 =
  // memory of its own.
  int view_of = -1;
};

// A parameter that several layers use (nn::Layers::tie()). LayerCost::parameters of its owner has
// its bytes, that of the other layers does not. A stage without the owner has a copy, with a
// gradient and without an optimizer's state.
struct TiedCost {
  int owner = 0;
  std::vector<int> users;  // the other layers that use it
  Bytes bytes = 0;
  bool frozen = false;  // it has no gradient

  Bytes gradient() const { return frozen ? 0 : bytes; }
};

struct LayerProfile {
  std::vector<LayerCost> layers;
  std::vector<ValueCost> values;
  // First and last layer that must stay in one stage.
  std::vector<std::pair<int, int>> together = {};
  std::vector<TiedCost> ties = {};
  // The number of examples of the measured micro-batch, and the memory format of its images
  // ("contiguous" or "channels_last"). 0 and "" = unknown.
  int examples = 0;
  std::string memory_format = {};
  // The layers that were measured with the recomputation of their forward in their backward, as a
  // recipe names them. Their `inner` is what they keep from forward to backward, `backward` and
  // `transient` have the recomputed forward.
  std::vector<std::string> checkpoint = {};
  // For layers that tensor ranks split, as a recipe has them.
  bool split_recomputed = false, sequence_parallel = false;
  // The peak of a whole-batch loss and its backward, in bytes for each byte of the model's outputs,
  // without their gradients. 1 = the outputs in one tensor.
  double loss_memory = 1;
  // The sizes of the model's only output for the measured micro-batch; empty = unknown. Not in
  // JSON.
  std::vector<std::int64_t> output_sizes = {};
  int output_number_bytes = 4;  // the size of a number in that output

  double seconds() const;  // forward and backward of all layers
};

// The tied parameters that a stage with the layers [first, last) has copies of.
std::vector<const TiedCost*> copies_in(const LayerProfile& profile, int first, int last);

// [value] the number of the value whose memory it has: its own, or that of what it is a view of.
std::vector<int> memory_of_values(const LayerProfile& profile);

// Throws UsageError for an invalid cost, and for a value, pair or tie that names a layer that does
// not exist. Every function that takes a profile calls it.
void check(const LayerProfile& profile);

// The profile as JSON. layer_profile_from_json() reads back the same numbers; it throws FormatError
// for invalid text.
std::string to_json(const LayerProfile& profile);
LayerProfile layer_profile_from_json(const std::string& text);

}  // namespace trestle::plan
