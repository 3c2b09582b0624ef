#include "trestle/base/error.h"

#include <utility>
#include <vector>

#include "trestle/base/text.h"

namespace trestle {
namespace {

// Everything but the file, which precedes the message, as compilers do.
std::string place(const Where& where) {
  std::vector<std::string> parts;
  if (!where.layer.empty()) parts.push_back("layer '" + where.layer + "'");
  if (where.rank) parts.push_back(text("rank ", *where.rank));
  if (where.stage) parts.push_back(text("stage ", *where.stage));
  if (where.micro_batch) parts.push_back(text("micro-batch ", *where.micro_batch));
  return join(parts, ", ");
}

}  // namespace

Error::Error(std::string_view what, Where where)
    : std::runtime_error(std::string(what)), where_(std::move(where)) {
  if (!where_.file.empty()) message_ = where_.file + ": ";
  message_ += what;
  if (const auto at = place(where_); !at.empty()) message_ += "\n  at: " + at;
  if (!where_.hint.empty()) message_ += "\n  " + where_.hint;
}

void Error::add_context(std::string_view context) {
  message_ += "\n  ";
  message_ += context;
}

}  // namespace trestle
