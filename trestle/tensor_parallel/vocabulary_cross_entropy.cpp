#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/torch_versions.h"
#include "trestle/nn/token_loss.h"
#include "trestle/tensor_parallel/node_layout.h"
#include "trestle/tensor_parallel/vocabulary_rows.h"

namespace trestle::tensor_parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The largest scores and the sums of all ranks enter the gradient as numbers.
struct NoSecondDerivativeOfLoss : torch::autograd::Node {
  variable_list apply(variable_list&&) override {
    throw UsageError("vocabulary_cross_entropy of several ranks cannot be differentiated twice",
                     {.hint = "One rank alone computes nn::token_cross_entropy(), which can be."});
  }
};

// The loss has the type that nn::token_cross_entropy() gives it.
at::ScalarType type_of_loss(const at::Tensor& scores) {
  return at::autocast::is_autocast_enabled(scores.device().type()) ? wide_type(scores)
                                                                   : scores.scalar_type();
}

struct VocabularyCrossEntropy : torch::autograd::Function<VocabularyCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& target, const VocabularyShard& shard,
                            const nn::CrossEntropyOptions& options) {
    const double smoothing = options.label_smoothing;
    const at::Tensor ids = target.flatten();
    const at::Tensor ignored = ids.eq(options.ignore_index);
    const VocabularyRows rows = vocabulary_rows(shard, scores.flatten(0, 1), ids,
                                                smoothing > 0 ? Total::OfScores : Total::None);
    const at::Tensor log_sum = rows.sum.log();
    at::Tensor losses = log_sum - rows.target;
    if (smoothing > 0)
      losses = (1 - smoothing) * losses +
               smoothing * (log_sum - rows.total / static_cast<double>(shard.vocabulary));
    const at::Tensor count = ignored.logical_not().sum().clamp_min_(1).to(wide_type(scores));
    context->save_for_backward({scores, ids, rows.largest, rows.sum, count});
    context->saved_data["begin"] = shard.own().begin;
    context->saved_data["vocabulary"] = shard.vocabulary;
    context->saved_data["ignored"] = options.ignore_index;
    context->saved_data["smoothing"] = smoothing;
    return (losses.masked_fill_(ignored, 0).sum() / count).to(type_of_loss(scores));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor scores = context->get_saved_variables()[0];
    at::Tensor result;
    {
      const at::NoGradGuard no_grad;
      result = gradient_of_scores(context, gradients[0]);
    }
    if (at::GradMode::is_enabled()) {
      const auto node = make_node<NoSecondDerivativeOfLoss>();
      node->set_next_edges(torch::autograd::collect_next_edges(gradients[0], scores));
      torch::autograd::set_history(result, node);
    }
    return {result, {}, {}, {}};
  }

 private:
  // The softmax minus the distribution of the targets, times the gradient of each row.
  static at::Tensor gradient_of_scores(AutogradContext* context, const at::Tensor& gradient) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor scores = saved[0].flatten(0, 1);
    const at::Tensor &ids = saved[1], &largest = saved[2], &sum = saved[3], &count = saved[4];
    const std::int64_t own = scores.size(1), ignored = context->saved_data["ignored"].toInt();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const at::Tensor result = at::empty(scores.sizes(), scores.options());
    if (own == 0) return result.view(saved[0].sizes());
    const at::Tensor of_row =
        (gradient.to(count.scalar_type()) / count).expand_as(sum).masked_fill(ids.eq(ignored), 0);
    const at::Tensor factor = of_row / sum;
    const at::Tensor of_all =
        of_row * (smoothing / static_cast<double>(context->saved_data["vocabulary"].toInt()));
    const OwnTargets targets(ids, {context->saved_data["begin"].toInt(), own});
    const at::Tensor of_target = (of_row * (1 - smoothing)).masked_fill_(targets.theirs, 0);
    for_rows(scores, [&](std::int64_t first, std::int64_t number) {
      const auto rows = [&](const at::Tensor& x) { return x.narrow(0, first, number); };
      at::Tensor values = rows(result);
      if (values.scalar_type() != sum.scalar_type())
        values = at::empty({number, own}, sum.options());
      at::sub_out(values, rows(scores), rows(largest).unsqueeze(1));
      values.exp_().mul_(rows(factor).unsqueeze(1));
      if (smoothing > 0) values.sub_(rows(of_all).unsqueeze(1));
      const at::Tensor columns = rows(targets.columns);
      values.scatter_(1, columns, values.gather(1, columns).sub_(rows(of_target).unsqueeze(1)));
      if (!values.is_alias_of(result)) rows(result).copy_(values);
    });
    return result.view(saved[0].sizes());
  }
};

}  // namespace

NodeLayout layout_of_loss(const torch::autograd::Node& node) {
  const auto* const loss =
      dynamic_cast<const torch::autograd::CppNode<VocabularyCrossEntropy>*>(&node);
  return loss ? NodeLayout::Replicated : NodeLayout::None;
}

nn::Loss vocabulary_cross_entropy(const VocabularyShard& shard,
                                  const nn::CrossEntropyOptions& options) {
  check_vocabulary(shard);
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw UsageError(
        text("a label smoothing of ", options.label_smoothing, " is outside of 0 to 1"));
  nn::Loss loss = nn::token_cross_entropy(options);
  loss.value = [shard, options, whole = std::move(loss.value)](const at::Tensor& scores,
                                                               const at::Tensor& target) {
    check_scores("token_cross_entropy", shard, scores, target, options.ignore_index);
    return shard.ranks.alone() ? whole(scores, target)
                               : VocabularyCrossEntropy::apply(scores, target, shard, options);
  };
  return loss;
}

}  // namespace trestle::tensor_parallel
