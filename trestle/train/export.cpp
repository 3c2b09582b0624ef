#include "trestle/train/export.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/run_folder.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

fs::path find_file(const ExportOptions& options) {
  const char* const saved = "weights.safetensors";  // in last/
  if (fs::is_regular_file(options.from)) return options.from;
  if (fs::exists(options.from / saved)) return options.from / saved;
  return saved_weights(open_run_folder(options.from), options.which);
}

}  // namespace

ExportResult export_weights(const ExportOptions& options) {
  checkpoint::check_weights_ending(options.out);
  ExportResult result{.from = find_file(options)};
  checkpoint::TensorFile file = checkpoint::read_weights(result.from);
  if (!options.names.empty())
    file.tensors = checkpoint::rename_weights(std::move(file.tensors), options.names);
  checkpoint::write_weights(options.out, file.tensors, file.metadata);
  result.tensors = file.tensors.size();
  for (const auto& [name, tensor] : file.tensors) result.numbers += tensor.numel();
  return result;
}

}  // namespace trestle::train
