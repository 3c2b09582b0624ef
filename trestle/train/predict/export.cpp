#include "trestle/train/predict/export.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/run_folder/run_folder.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

fs::path find_file(const ExportOptions& options) {
  if (fs::is_regular_file(options.from) || checkpoint::is_checkpoint(options.from))
    return options.from;
  return saved_weights(open_run_folder(options.from), options.which);
}

void refuse_exported_file(const fs::path& out, const fs::path& from) {
  std::error_code not_there;
  if (fs::equivalent(from, out, not_there))
    throw UsageError(text(out.string(), ": exists and is the file to be exported"),
                     {.hint = "Choose another name with --out."});
}

}  // namespace

ExportResult export_weights(const ExportOptions& options) {
  if (!options.largest_file) checkpoint::check_weights_ending(options.out);
  ExportResult result{.from = find_file(options)};
  refuse_exported_file(options.out, result.from);
  refuse_replacing({options.out}, options.overwrite, "--out");
  checkpoint::TensorFile file = checkpoint::read_weights(result.from);
  if (!options.names.empty())
    file.tensors = checkpoint::rename_weights(std::move(file.tensors), options.names);
  if (options.largest_file)
    checkpoint::write_weights_folder(options.out, file.tensors, *options.largest_file,
                                     file.metadata);
  else
    checkpoint::write_weights(options.out, file.tensors, file.metadata);
  result.tensors = file.tensors.size();
  for (const auto& [name, tensor] : file.tensors) result.numbers += tensor.numel();
  return result;
}

}  // namespace trestle::train
