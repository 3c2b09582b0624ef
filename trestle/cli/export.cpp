#include "trestle/train/predict/export.h"

#include <iostream>
#include <memory>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/cli/lost_pages.h"
#include "trestle/cli/verbs.h"
#include "trestle/train/language/export_model.h"

namespace trestle::cli {

namespace {

int export_language_model(const train::ExportOptions& options, at::ScalarType type) {
  report_lost_pages();
  const train::TextModel model = train::open_text_model(
      options.from, {.checkpoint = options.which, .type = type, .adapters = options.adapter});
  const train::ExportedModel made =
      options.names == "peft"
          ? train::export_adapters(model, options.out, options.overwrite)
          : train::export_text_model(model, options.out, options.overwrite, options.largest_file);
  std::cout << "wrote " << counted(made.tensors, "tensor") << ", "
            << counted(made.numbers, "number") << ", of " << model.weights.string() << " to "
            << options.out.string() << std::endl;
  return 0;
}

}  // namespace

void add_export(Verb app) {
  Verb verb = app.add_verb("export", "Write a run's weights to a file that Python can load");
  auto arguments = std::make_shared<train::ExportOptions>();
  auto precision = std::make_shared<std::string>("fp32");
  verb.add("from", arguments->from, "A run folder, the folder last/ of one, or a file of weights")
      .required()
      .type("RUN_OR_CHECKPOINT");
  verb.add("--out", arguments->out,
           "The file: .pt or .pth for torch.load, .safetensors for safetensors")
      .required()
      .type("FILE_OR_FOLDER");
  add_overwrite_flag(verb, arguments->overwrite);
  add_checkpoint_flag(verb, arguments->which);
  verb.add("--names", arguments->names,
           "The naming scheme of the tensors: " + join(checkpoint::name_table_names(), ", ") +
               ", hugging_face or peft for a language model (default: trestle's own)")
      .type("WHOSE");
  add_adapter_option(verb, arguments->adapter);
  verb.add("--precision", *precision,
           "With --names hugging_face: the type of the weights, fp32 (default) or bf16. `trestle "
           "generate --precision` of the same type needs no copy of them")
      .one_of({"fp32", "bf16"})
      .type("TYPE");
  verb.add(
          "--max-file-size",
          [arguments](const std::string& words) {
            arguments->largest_file = parse_bytes(words);
            if (*arguments->largest_file == 0)
              throw UsageError(text("--max-file-size ", words, ": a file must hold a byte"));
          },
          "Make --out a new folder for Hugging Face: safetensors files of at most this size (5GB), "
          "and their index")
      .type("SIZE");
  verb.footer(
      examples({"trestle export runs/unet_quick --out unet.pt",
                "trestle export runs/resnet18_mnist --out resnet18.pt --names torchvision",
                "trestle export runs/unet_quick/last --out unet.safetensors",
                "trestle export runs/unet_quick --out unet_folder --max-file-size 2GB",
                "trestle export runs/gpt_characters --out gpt --names hugging_face",
                "trestle export smollm.gguf --out smollm --names hugging_face --precision bf16",
                "trestle export smollm --adapter my_adapters --out merged --names "
                "hugging_face",
                "python3 -c 'import torch; print(torch.load(\"unet.pt\").keys())'"}) +
      "All weights are in the memory of one process meanwhile. Only --names hugging_face maps a "
      "safetensors file\nthat already has the weights' type, and reads one tensor after the "
      "other.\n" +
      exit_codes());
  verb.action([verb, arguments, precision] {
    refuse_checkpoint_of_file(verb, arguments->from);
    if (arguments->names == "hugging_face" || arguments->names == "peft") {
      if (arguments->names == "peft")
        refuse_without_effect(verb, {"--max-file-size", "--precision"}, "with --names peft");
      return export_language_model(*arguments, *precision == "bf16" ? at::kBFloat16 : at::kFloat);
    }
    refuse_without_effect(verb, {"--precision"}, "without --names hugging_face");
    need_folder_for(arguments->out, "--out");
    if (!arguments->adapter.empty())
      throw UsageError("--adapter needs --names hugging_face",
                       {.hint = "The adapters are then added to the weights."});
    const train::ExportResult result = train::export_weights(*arguments);
    std::cout << "wrote " << counted(result.tensors, "tensor") << ", "
              << counted(result.numbers, "number") << ", of " << result.from.string() << " to "
              << arguments->out.string() << std::endl;
    return 0;
  });
}

}  // namespace trestle::cli
