#include "trestle/train/plan_picture.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/text.h"
#include "trestle/nn/graph.h"
#include "trestle/tensor_parallel/split_plan.h"
#include "trestle/train/setup.h"

namespace trestle::train {

namespace {

using Picture = view::SplitPicture;
using Kind = Picture::Message::Kind;
using Layout = Picture::Layout;
using tensor_parallel::Split;
using tensor_parallel::SplitLayer;

class PlanPicture {
 public:
  PlanPicture(const recipe::Recipe& recipe, const models::OwnModels& own)
      : recipe_(recipe), own_(own), ranks_(static_cast<int>(recipe.mesh.tensor)) {
    for (int rank = 0; rank < ranks_; ++rank) read(rank);
    for (std::size_t i = 0; i < sections_.size(); ++i)
      for (Picture::Step& step : sections_[i].steps) finish(sections_[i].name, i == 0, &step);
  }

  Picture take() && {
    Picture picture{.title = text(recipe_.model.name, ranks_ == 1 ? " on " : " over ",
                                  counted(ranks_, "tensor rank")),
                    .subtitle = text("layers with parameters; ", counted(splits_, "split layer")),
                    .ranks = ranks_};
    for (Picture::Section& section : sections_) {
      if (!picture.sections.empty() && is_alike(picture.sections.back(), section))
        ++picture.sections.back().copies;
      else
        picture.sections.push_back(std::move(section));
    }
    return picture;
  }

 private:
  void read(int rank) {
    const auto ranks = tensor_parallel::TensorRanks::on_paper(rank, ranks_);
    const nn::Layers net = make_model(recipe_, own_, {.ranks = ranks}, &plan_);
    const nn::Graph graph = net.graph();
    std::size_t number = 0;
    for (const nn::Layer& layer : graph.layers) {
      const std::shared_ptr<void> for_now = layer.module.make_temporarily();
      const NamedTensors parameters = layer.named_parameters();
      if (parameters.empty()) continue;
      if (rank == 0) sections_.push_back({.name = layer.name});
      const nn::ParameterSlices slices = layer.parameter_slices();
      for (const auto& [name, tensor] : parameters) {
        const auto slice = slices.find(name);
        add(&sections_[number], name, tensor, slice == slices.end() ? nullptr : &slice->second);
      }
      ++number;
    }
  }

  static void add(Picture::Section* section, const std::string& name, const at::Tensor& tensor,
                  const nn::ParameterSlice* slice) {
    const std::size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    const std::string own = dot == std::string::npos ? name : name.substr(dot + 1);
    auto step = std::ranges::find(section->steps, module, &Picture::Step::name);
    if (step == section->steps.end())
      step = section->steps.insert(section->steps.end(), {.name = module});
    auto found = std::ranges::find(step->tensors, own, &Picture::Tensor::name);
    if (found == step->tensors.end()) {
      found = step->tensors.insert(step->tensors.end(),
                                   {.name = own,
                                    .shape = slice != nullptr ? slice->whole : tensor.sizes().vec(),
                                    .element_bytes = static_cast<Bytes>(tensor.element_size())});
      if (slice != nullptr) {
        found->dimension = static_cast<std::size_t>(slice->dimension);
        found->parts.resize(slice->ranges.size());
      }
    }
    if (slice == nullptr) return;
    auto& ranges = found->held.emplace_back();
    for (std::size_t part = 0; part < slice->ranges.size(); ++part) {
      ranges.push_back({slice->ranges[part].begin, slice->ranges[part].size});
      found->parts[part].size += slice->ranges[part].size;
    }
  }

  // Names, layouts and messages come from the rule that split the module.
  void finish(const std::string& layer, bool is_first, Picture::Step* step) {
    const std::string name = step->name.empty() ? layer : layer + "." + step->name;
    if (step->name.empty()) step->name = layer;
    const auto found = std::ranges::find(plan_.layers, name, &SplitLayer::name);
    if (found == plan_.layers.end() || ranks_ == 1) return;
    ++splits_;
    step->note = text(found->type, ", ", to_string(found->split));
    const bool sums = found->split == Split::Rows || found->split == Split::Vocabulary;
    const bool slices_in = found->split == Split::Rows || found->split == Split::Channels;
    step->input = slices_in ? Layout::Features : Layout::Whole;
    step->output = sums ? Layout::Terms : Layout::Features;
    if (found->backward != "nothing")
      step->before.backward = {{Kind::AllReduce, text(found->backward, ", the input's gradient",
                                                      is_first ? ", which data have not" : "")}};
    if (found->forward != "nothing")
      step->after.forward = {{sums ? Kind::AllReduce : Kind::AllGather,
                              found->forward + (sums ? ": the sum" : ": all features")}};
    for (Picture::Tensor& tensor : step->tensors) {
      const bool convolves = tensor.shape.size() > 2;
      const bool transposed = found->type.find("Transpose") != std::string::npos;
      if (!convolves) continue;
      tensor.row_name = transposed ? "inputs" : "outputs";
      tensor.column_name = transposed ? "outputs" : "inputs";
    }
  }

  static bool is_alike(const Picture::Section& a, const Picture::Section& b) {
    return std::ranges::equal(a.steps, b.steps, [](const auto& one, const auto& other) {
      return one.name == other.name && one.note == other.note &&
             std::ranges::equal(one.tensors, other.tensors, [](const auto& x, const auto& y) {
               return x.name == y.name && x.shape == y.shape && x.held == y.held;
             });
    });
  }

  const recipe::Recipe& recipe_;
  const models::OwnModels& own_;
  int ranks_;
  std::int64_t splits_ = 0;
  tensor_parallel::SplitPlan plan_;  // of the rank that was read last
  std::vector<Picture::Section> sections_;
};

}  // namespace

view::SplitPicture plan_picture(const recipe::Recipe& recipe, const models::OwnModels& own) {
  return PlanPicture(recipe, own).take();
}

}  // namespace trestle::train
