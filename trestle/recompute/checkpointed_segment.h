#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/nn/run_key.h"
#include "trestle/nn/segment.h"
#include "trestle/nn/value.h"
#include "trestle/recompute/checkpoint_options.h"

namespace trestle::nn {

// Layers [first, last) of a model that run as a Segment does. Some spans of them are recomputed in
// the backward, each as one: only its inputs are kept until then. Outputs, gradients and buffers
// are those of the Segment. Copies share everything.
class CheckpointedSegment {
 public:
  // Layers [first, last), recomputed together.
  struct Span {
    int first = 0;
    int last = 0;
  };

  // `spans` are in order and do not overlap; the layers between them are kept. `inputs` and
  // `outputs` are those of the Segment.
  CheckpointedSegment(std::shared_ptr<const Graph> graph, Span layers,
                      const std::vector<Span>& spans, std::vector<ValueId> inputs,
                      std::vector<ValueId> outputs, CheckpointOptions options = {});

  // All layers of a model, with its inputs and outputs.
  CheckpointedSegment(const std::shared_ptr<const Graph>& model, const std::vector<Span>& spans,
                      CheckpointOptions options = {});

  // As Segment::run(). Without gradients nothing is recomputed.
  Segment::Result run(Values inputs, const std::vector<std::optional<SharedWith>>& inputs_shared,
                      const RunKey* key) const;

  // The same for all layers of a model. Throws UsageError for another number of inputs.
  Values run_model(const Values& inputs, const RunKey* key) const;

  const std::vector<ValueId>& inputs() const;
  const std::vector<ValueId>& outputs() const;
  std::string describe(ValueId value) const;
  const Graph& graph() const;
  // The recomputed spans.
  std::vector<Span> recomputed() const;

 private:
  struct Plan;
  std::shared_ptr<Plan> plan_;
};

// Cuts the layers into `segments` spans of equal size, or nearly so. Fewer layers than `segments`
// are cut into spans of one layer.
std::vector<CheckpointedSegment::Span> cut_evenly(CheckpointedSegment::Span layers, int segments);

// "layer 'up'", "the layers 'down' to 'up'".
std::string words_for(const Graph& graph, CheckpointedSegment::Span layers);

}  // namespace trestle::nn
